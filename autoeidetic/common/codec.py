"""Codec: nested Python values as JSON values, and back, so that files need no pickle.

JSON has neither tuples nor dictionaries with keys other than strings. They are written as
``{"tuple": [...]}`` and ``{"dict": [[key, value], ...]}``; what a leaf becomes (a tensor, a number)
is up to the caller, who may write it as a dictionary with other keys than these two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def encode(
    value: Any,
    leaf: Callable[[Any, str], Any],
    key: Callable[[Any, str], Any],
    name: str = "",
) -> Any:
    """JSON values for a structure; two functions write the leaves and the keys.

    Both also receive the dotted name of the place in the structure.

    >>> encode({"betas": (0.9, 1j)}, lambda value, name: f"{name}={value}", lambda key, name: key)
    {'dict': [['betas', {'tuple': ['.betas.0=0.9', '.betas.1=1j']}]]}
    """
    if isinstance(value, tuple):
        return {"tuple": [encode(v, leaf, key, f"{name}.{i}") for i, v in enumerate(value)]}
    if isinstance(value, list):
        return [encode(v, leaf, key, f"{name}.{i}") for i, v in enumerate(value)]
    if isinstance(value, Mapping):
        # pairs, because JSON would turn the keys 1 and "1" into the same text
        pairs = [(key(k, name), k, v) for k, v in value.items()]
        return {"dict": [[own, encode(v, leaf, key, f"{name}.{k}")] for own, k, v in pairs]}
    return leaf(value, name)


def decode(value: Any, leaf: Callable[[dict[str, Any]], Any]) -> Any:
    """The structure that :func:`encode` was given; ``leaf`` reads dictionaries that are leaves.

    >>> decode({"dict": [[7, {"tuple": [1, {"square of": 2}]}]]}, lambda d: d["square of"] ** 2)
    {7: (1, 4)}

    Raises:
        TypeError: not what :func:`encode` makes; or whatever ``leaf`` raises.
        ValueError: the same.
    """
    if isinstance(value, list):
        return [decode(item, leaf) for item in value]
    if not isinstance(value, dict):
        return value
    # a leaf that is a dictionary never has one of these keys alone (module docstring)
    if value.keys() == {"tuple"}:
        return tuple(decode(item, leaf) for item in value["tuple"])
    if value.keys() == {"dict"}:
        return {key: decode(item, leaf) for key, item in value["dict"]}
    return leaf(value)
