"""Drawings of models: one neutral description, and the formats that are made of it."""

from .drawing import describe
from .elements import Drawing
from .formats import FORMATS, render, save
from .visualize import visualize

__all__ = ["FORMATS", "Drawing", "describe", "render", "save", "visualize"]
