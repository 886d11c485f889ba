"""Drawings of models: one neutral description, and the formats that are made of it."""

from ..report.drawable import Drawer, register
from .drawing import describe
from .elements import Drawing
from .formats import FORMATS, render, save, write
from .visualize import visualize

__all__ = ["FORMATS", "Drawing", "describe", "render", "save", "visualize"]

register(Drawer(lambda subject, title: visualize(subject, title=title), render, write))
