"""Spelling: ATen calls as people write them; a table, and the code that applies it."""

from .spelling import Call, functions, methods, overload_of, spelled, table

__all__ = ["Call", "functions", "methods", "overload_of", "spelled", "table"]
