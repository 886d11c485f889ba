"""Widen: new columns beside a network whose tasks are finished."""

from .widen import Widened

__all__ = ["Widened"]
