"""Checkpoint: save a network to one file, load it, and audit the file."""

from .audit import audit, audited
from .loading import blank, load, resume
from .record import Record
from .report import Audit
from .saving import contents, save

__all__ = ["Audit", "Record", "audit", "audited", "blank", "contents", "load", "resume", "save"]
