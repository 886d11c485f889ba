"""Drawings of models: one format-independent description, and the formats written from it."""

from ..report.drawable import Drawer, register
from .drawing import describe
from .elements import Drawing
from .formats import FORMATS, render, save, write
from .visualize import visualize

__all__ = ["FORMATS", "Drawing", "describe", "render", "save", "visualize"]

register(Drawer(lambda subject, title: visualize(subject, title=title), render, write))
