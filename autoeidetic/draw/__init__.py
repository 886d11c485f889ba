"""Drawings of models: one format-independent description, and the formats written from it."""

from .drawing import describe
from .elements import Drawing
from .formats import FORMATS, render, save
from .visualize import visualize

__all__ = ["FORMATS", "Drawing", "describe", "render", "save", "visualize"]
