"""Sweeps: which of their many cases are part of the quick suite."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow(value: Any) -> Any:
    """A parameter, or a tuple of several, that is marked as slow."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)


def only(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of which all but the quick ones are marked as slow."""
    return [value if value in quick else slow(value) for value in values]


def every_fourth(values: Iterable[Any]) -> list[Any]:
    """Parameters of which three quarters are marked as slow, for sweeps over many small cases."""
    return [value if number % 4 == 0 else slow(value) for number, value in enumerate(values)]
