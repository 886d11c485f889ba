"""Decisions: what Python code has read out of tensors in a pass, which may decide its path.

Two passes of a model with the same signature and the same decisions take the same path.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..common.trees import leaves

_LEAVES_TORCH = frozenset({Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__})
_READS_LISTS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor})
_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_DECIDE: dict[Any, bool] = {}


def decides(func: Any, args: Any) -> bool:
    """Is the result of an operator a number, or has it a shape, that depends on data?"""
    known = _DECIDE.get(func)
    if known is None:
        known = _DECIDE[func] = any(tag in func.tags for tag in _TAGS)
    if func is torch.ops.aten.index.Tensor:  # of integers as many come out as go in
        return any(index is not None and index.dtype is torch.bool for index in args[1])
    return known


def outcome(func: Any, output: Any) -> tuple[Hashable, ...]:
    """What Python can tell of the result: a number itself, of a tensor its shape."""
    told = (
        tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf
        for leaf in pytree.tree_leaves(output)
    )
    return str(func), *told


def given_away(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors whose content a function reads without any operator that tells."""
    if func in _LEAVES_TORCH:
        return [args[0]]
    if func in _READS_LISTS:  # of tensors inside of lists; one by itself is seen copied
        lists = [a for a in (*args, *kwargs.values()) if not isinstance(a, Tensor)]
        return leaves(lists, Tensor)
    return []


def content(func: Any, tensor: Tensor) -> tuple[Hashable, ...]:
    """The values of a tensor that becomes a list or an array."""
    values = tensor.detach().cpu().contiguous()
    plain = values.view(torch.uint8) if values.dim() else values.reshape(1).view(torch.uint8)
    return func.__name__, tuple(tensor.shape), bytes(plain.numpy().tobytes())


class _Operators(TorchDispatchMode):
    def __init__(self, seen: list[Hashable]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if decides(func, args):
            self.seen.append(outcome(func, output))
        return output


class _Functions(TorchFunctionMode):
    def __init__(self, seen: list[Hashable]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in given_away(func, args, kwargs or {}):
            self.seen.append(content(func, tensor))
        return func(*args, **(kwargs or {}))


@contextmanager
def decisions() -> Iterator[list[Hashable]]:
    """The decisions of what runs inside, in order.

    Example:
        >>> with decisions() as seen:
        ...     bool(torch.ones(3).any())
        True
        >>> seen
        [('aten._local_scalar_dense.default', True)]
    """
    seen: list[Hashable] = []
    with _Operators(seen), _Functions(seen):
        yield seen
