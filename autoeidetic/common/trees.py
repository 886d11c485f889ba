"""Trees: nested tuples, lists and dicts, searched for leaves of a type.

``torch.utils._pytree`` knows more containers and is several times slower; capture calls these
functions for every operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Leaf = TypeVar("Leaf")


def leaves(value: Any, kind: type[Leaf]) -> list[Leaf]:
    """All leaves of a type in a structure, in order."""
    found: list[Leaf] = []
    _collect(value, kind, found)
    return found


def _collect(value: Any, kind: type[Leaf], into: list[Leaf]) -> None:
    if isinstance(value, kind):
        into.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, kind, into)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, kind, into)


def convert(value: Any, kind: type[Leaf], function: Callable[[Leaf], Any]) -> Any:
    """The same structure with ``function`` applied to all leaves of a type."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(convert(item, kind, function) for item in value)
    if isinstance(value, dict):
        return {key: convert(item, kind, function) for key, item in value.items()}
    return value
