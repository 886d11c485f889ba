"""All actions: importing this fills the registry."""

from __future__ import annotations

from . import copies, edits, loose_ends, tasks, training  # noqa: F401  each registers its own
from .registry import ACTIONS, Action, drawn, run

__all__ = ["ACTIONS", "Action", "drawn", "run"]
