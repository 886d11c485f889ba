"""Signature: what of a call's arguments can decide the path of a model that looks at no data."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..common.inputs import PLAIN

_HASHABLE = (*PLAIN, bytes, torch.device)


class UnknownArgumentError(TypeError):
    """An argument of a kind whose content cannot be told: nothing can be said of the call."""


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """Structure, shapes, types and plain values of the arguments, to look a call up by.

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
        if torch.compiler.is_compiling():  # no symbols: each size is compiled for itself
            return torch.Size([operator.index(n) for n in value.shape]), value.dtype
        return value.shape, value.dtype
    if isinstance(value, _HASHABLE):
        return type(value), value
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
