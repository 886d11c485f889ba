"""Checkpoint: save a network to one file, load it, and audit the file."""

from .audit import audit
from .loading import load
from .report import Audit
from .saving import save

__all__ = ["Audit", "audit", "load", "save"]
