"""Checkpoints: a network in one file, and back."""

from .saving import load, save

__all__ = ["load", "save"]
