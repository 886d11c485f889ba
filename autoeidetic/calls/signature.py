"""Signature: the properties of a call's arguments that can decide the path of the model's code.

The data in tensors is left out. For a model whose code looks at data, calls are distinguished by
the values that the code read (``Call.decisions``).
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..common.inputs import PLAIN

_HASHABLE = (*PLAIN, bytes, torch.device)


class UnknownArgumentError(TypeError):
    """An argument of an unknown type: calls that differ in it cannot be told apart."""


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """Structure, shapes, types and plain values of the arguments: the key of a call.

    Raises:
        UnknownArgumentError: an argument is neither a tensor, a plain value, nor a tuple, list or
            dict of those.

    Example:
        >>> import torch
        >>> one = signature((torch.zeros(2, 3),), {"mask": None})
        >>> one == signature((torch.ones(2, 3),), {"mask": None})
        True
        >>> one == signature((torch.ones(2, 4),), {"mask": None})
        False
    """
    return tuple([_key(value) for value in args]), _items(kwargs)


def _key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        # under torch.compile sizes may be symbols, which would make one graph for several calls:
        # operator.index asks for the number, and the compiler makes a graph for each size
        if torch.compiler.is_compiling():
            return torch.Size([operator.index(n) for n in value.shape]), value.dtype
        return value.shape, value.dtype
    if isinstance(value, _HASHABLE):
        return type(value), value  # with the type: 1, 1.0 and True are equal, and not alike
    if isinstance(value, (tuple, list)):
        return type(value), tuple([_key(item) for item in value])
    if isinstance(value, Mapping):
        return type(value), _items(value)
    raise UnknownArgumentError(f"{type(value).__module__}.{type(value).__qualname__}")


def _items(values: Mapping[Any, Any]) -> Hashable:
    return tuple([(name, _key(value)) for name, value in values.items()])


def kind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """The signature without the sizes of tensors: their number of dimensions instead."""
    return _without_sizes(signature(args, kwargs))


def _without_sizes(key: Any) -> Hashable:
    if isinstance(key, torch.Size):
        return len(key)
    if isinstance(key, tuple):
        return tuple(map(_without_sizes, key))
    return key
