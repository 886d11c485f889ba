"""Widen: new columns beside a network whose tasks are finished."""

from .cache import ColumnCache
from .widen import Widened

__all__ = ["ColumnCache", "Widened"]
