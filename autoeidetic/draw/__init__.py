"""Drawings of models: one neutral description, and the formats that are made of it."""

from .drawing import describe
from .formats import FORMATS, render, save
from .parts import Drawing
from .visualize import visualize

__all__ = ["FORMATS", "Drawing", "describe", "render", "save", "visualize"]
