"""Whole numbers: integers of any library as plain ones, which a file can hold."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(value: Any) -> int | None:
    """An integer of any type as a plain int; None for anything else, booleans included.

    Example:
        >>> import numpy, torch
        >>> whole_number(numpy.int64(3)), whole_number(torch.tensor(3)), whole_number(True)
        (3, 3, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None
