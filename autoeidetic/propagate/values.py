"""Values: what the interpreter knows about a tensor, and tag tensors that stay small.

A tag tensor has the shape of the value it describes, with stride 0 along every dimension in
which nothing varies (batch, space, tokens), so its real size is about the number of channels.

    activation (64, 256, 56, 56)    tags: shape (64, 256, 56, 56), stride (0, 1, 0, 0)
                                    core: shape (1, 256, 1, 1), 256 numbers in memory
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ZERO = torch.zeros((), dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class ParameterView:
    """A parameter on its way through the graph.

    ``coords[d]`` is the index along the parameter's dimension ``d`` at each position of the
    current shape; ``coords[d] = None`` means "all of them" (the value depends on the whole
    dimension). ``coords`` is None while the parameter is as it was declared. ``transformed``: its
    values were changed on the way, not only moved.
    """

    name: str
    shape: tuple[int, ...]
    coords: tuple[Tensor | None, ...] | None = None
    transformed: bool = False

    def coordinates(self) -> tuple[Tensor | None, ...]:
        """``coords``; for a parameter as declared, ``coords[d]`` counts along dimension d."""
        if self.coords is not None:
            return self.coords
        return tuple(
            torch.arange(size)
            .view([-1 if e == d else 1 for e in range(len(self.shape))])
            .expand(self.shape)
            for d, size in enumerate(self.shape)
        )


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph: its shape, its tags, and the parameter it still is, if any.

    ``tags`` is None only for a parameter that nothing has used yet. ``source`` is the largest
    parameter that the value was computed from, if all of them are of one layer and no input is
    among the operands.
    """

    shape: tuple[int, ...]
    tags: Tensor | None = None
    parameter: ParameterView | None = None
    const: Tensor | None = None
    buffer: str = ""
    source: str = ""

    @property
    def is_constant(self) -> bool:
        """Available to every task: no channel and no parameter in it."""
        return self.parameter is None and self.tags is not None and is_zero(self.tags)


def constant(shape: tuple[int, ...], const: Tensor | None = None, buffer: str = "") -> Value:
    """A value that every task may read; ``const`` are its elements where they are known."""
    return Value(shape, ZERO.expand(shape), None, const, buffer)


def core(tags: Tensor) -> Tensor:
    """The same tags with size 1 along every dimension in which they do not vary.

    A value without elements (an expert that gets no tokens) still has the tags that its elements
    would have, as long as they do not vary along the empty dimension.
    """
    # a view, without copying: stride 0 means that all positions along the dimension are one number
    stride = tags.stride()
    if holds_nothing(tags):
        return ZERO.expand([1] * tags.dim())
    size = [1 if step == 0 else n for n, step in zip(tags.shape, stride, strict=True)]
    return tags.as_strided(size, stride, tags.storage_offset())


def holds_nothing(tags: Tensor) -> bool:
    """Is there not even one element under an empty tensor that its dimensions could repeat?"""
    if 0 not in tags.shape:
        return False
    layout = list(zip(tags.shape, tags.stride(), strict=True))
    # (0, 256) with strides (0, 1) still has its 256 numbers in memory; with (256, 1) it may not
    if any(n == 0 and step != 0 for n, step in layout):
        return True
    last = tags.storage_offset() + sum((n - 1) * step for n, step in layout if n)
    return int(last) >= tags.untyped_storage().nbytes() // tags.itemsize


def compress(tags: Tensor) -> Tensor:
    """Find the dimensions in which nothing varies and give them stride 0."""
    if holds_nothing(tags):
        return tags
    shape = tags.shape
    small = core(tags)
    for dim in range(small.dim()):
        if small.shape[dim] > 1:
            first = small.narrow(dim, 0, 1)
            if torch.equal(small, first.expand_as(small)):
                small = first
    if small.numel() < tags.untyped_storage().nbytes() // tags.itemsize:
        small = small.clone()  # a view would keep the whole of it in memory
    return small.contiguous().expand(shape)


def is_zero(tags: Tensor) -> bool:
    """Is every tag 0 (an input or a constant)?"""
    if tags.numel() and tags[(0,) * tags.dim()].item():
        return False  # the usual case, without looking at the rest
    return not bool(core(tags).any())


def varies(tags: Tensor) -> list[int]:
    """The dimensions along which the tags are not known to be constant."""
    if holds_nothing(tags):
        return []
    return [
        dim
        for dim, (n, step) in enumerate(zip(tags.shape, tags.stride(), strict=True))
        if n > 1 and step != 0
    ]


def vector(channels: np.ndarray, dim: int, shape: tuple[int, ...]) -> Tensor:
    """Tags that vary along one dimension only."""
    view = [1] * len(shape)
    view[dim] = -1
    return torch.from_numpy(channels).view(view).expand(shape)


def array(tags: Tensor) -> np.ndarray:
    """The distinct part of the tags as a flat numpy array."""
    return core(tags).reshape(-1).numpy()
