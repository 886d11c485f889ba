"""Checkpoints: a network in one file, and back; what became of the file."""

from .audit import audit
from .loading import load
from .report import Audit
from .saving import save

__all__ = ["Audit", "audit", "load", "save"]
