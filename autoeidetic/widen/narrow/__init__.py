"""Narrow: a narrower copy of any model."""

from .narrow_copy import NarrowCopy, narrow_copy

__all__ = ["NarrowCopy", "narrow_copy"]
