"""Views: what sizes, strides and an offset show of a contiguous tensor, as slices or an index.

    y of shape (2, 4, 8)

    y.view(-1, 8)[:, :3]               sizes (8, 3), strides (8, 1)     block: y[:, :, 0:3]
    y.view(2, 4, 2, 4)[..., :3]        (2, 4, 2, 3), (32, 8, 4, 1)      index 0, 1, 2, 4, 5, 6 of
                                                                        dimension 2

If the same is shown of each input of a batch, neither depends on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

#: Sizes, strides and offset of a view.
View = tuple[Sequence[int], Sequence[int], int]


@dataclass(frozen=True)
class Block:
    """A view that slices make: a range of each dimension, and the dimensions that it shows.

    ``order`` has the dimension for each of the view; None for one of size 1 that is inserted.
    Dimensions that are not in it have one position, which is selected. ``size`` is that of the
    view, with a dimension in several where it goes over several of the tensor.
    """

    size: tuple[int, ...]
    ranges: tuple[tuple[int, int, int], ...]  # start, end, step
    order: tuple[int | None, ...]

    @property
    def selected(self) -> list[int]:
        return [dim for dim in range(len(self.ranges)) if dim not in self.order]

    @property
    def shown(self) -> list[int]:
        return [dim for dim in self.order if dim is not None]


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def block_of(shape: Sequence[int], view: View) -> Block | None:
    """The slices of a contiguous tensor that make a view of it; None where none do.

    >>> block_of([2, 8], ([2, 2], [8, 1], 2)).ranges
    ((0, 2, 1), (2, 4, 1))
    >>> block_of([2, 4, 8], ([8, 3], [8, 1], 0)).size
    (2, 4, 3)
    """
    return _block(shape, view) or _block(shape, _split(shape, view))


def _split(shape: Sequence[int], view: View) -> View:
    """A view whose dimensions do not go over the end of a dimension of the tensor."""
    size, stride, offset = view
    dims = [each for each in zip(strides_of(shape), shape, strict=True) if each[1] > 1]
    parts: list[tuple[int, int]] = []
    for count, step in zip(size, stride, strict=True):
        split: list[tuple[int, int]] = []
        for own, length in reversed(dims):  # the innermost first
            inner, left = divmod(length * own, max(step, 1))
            if own <= step < length * own and not left and count > inner and not count % inner:
                split.insert(0, (inner, step))
                count, step = count // inner, length * own
        parts += [(count, step), *split]
    return [count for count, _ in parts], [step for _, step in parts], offset


def _block(shape: Sequence[int], view: View) -> Block | None:
    """The slices that make a view, each dimension of which is a part of one of the tensor's."""
    size, stride, offset = view
    strides = strides_of(shape)
    starts = [offset // step % count for step, count in zip(strides, shape, strict=True)]
    ranges = [(start, start + 1, 1) for start in starts]
    order: list[int | None] = []
    for count, step in zip(size, stride, strict=True):
        # the dimension that has this stride, or the largest part of it
        fits = [
            dim
            for dim, own in enumerate(strides)
            if dim not in order
            and step
            and step % own == 0
            and starts[dim] + (count - 1) * (step // own) < shape[dim]
            and (shape[dim] > 1 or step == own)
        ]
        dim = max(fits, key=lambda dim: (strides[dim], shape[dim]), default=None)
        order.append(dim)
        if dim is not None:
            every = step // strides[dim] if count > 1 else 1
            ranges[dim] = (starts[dim], starts[dim] + (count - 1) * every + 1, every)
    found = Block(tuple(size), tuple(ranges), tuple(order))
    numbered = torch.arange(math.prod(shape)).view(tuple(shape))
    return found if _shows(found, numbered, elements_of(shape, view)) else None


def _shows(block: Block, numbered: Tensor, wanted: Tensor) -> bool:
    for dim, (start, end, step) in enumerate(block.ranges):
        numbered = numbered[(slice(None),) * dim + (slice(start, end, step),)]
    numbered = numbered.permute([*block.selected, *block.shown])
    # [1, ..., shown] -> [shown], and dimensions of size 1 between them
    numbered = numbered.reshape(numbered.shape[len(block.selected) :])
    for dim, shown in enumerate(block.order):
        numbered = numbered.unsqueeze(dim) if shown is None else numbered
    return numbered.shape == wanted.shape and torch.equal(numbered, wanted)


def index_of(shape: Sequence[int], shown: Tensor) -> tuple[int, int, Tensor]:
    """An index along as few dimensions of a tensor as possible that picks numbered elements.

    Returns the first of these dimensions, the one behind the last, and the index along them as
    one. Along all other dimensions everything is picked.

    >>> shown = torch.arange(64).view(2, 4, 2, 4)[..., :3]
    >>> index_of([2, 4, 8], shown)
    (2, 3, tensor([0, 1, 2, 4, 5, 6]))
    """
    shown = shown.reshape(-1)
    for count in range(1, len(shape)):
        for first in range(len(shape) - count + 1):
            behind = first + count
            # numbers of elements, at the first place: [before, 1, after]
            before, after = math.prod(shape[:first]), math.prod(shape[behind:])
            width = math.prod(shape[first:behind])
            if before * after == 0 or len(shown) % (before * after):
                continue
            start = torch.arange(before)[:, None, None] * width * after + torch.arange(after)
            places = shown.reshape(before, -1, after)
            own = (places - start) // after
            inside = bool(((own >= 0) & (own < width)).all())
            if inside and torch.equal(start + own[:1, :, :1] * after, places):
                return first, behind, own[0, :, 0]
    return 0, len(shape), shown


def elements_of(shape: Sequence[int], view: View) -> Tensor:
    """The numbers of the elements of a tensor that a view shows."""
    size, stride, offset = view
    return torch.arange(math.prod(shape)).as_strided(size, stride, offset)


def rooms_of(size: Sequence[int], stride: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """The dimensions of a tensor in the order of its memory, and the shape of the memory.

    Where there are gaps, the memory has room for more positions than the tensor has; the last
    number is the room for one element. None where elements share memory, or no shape fits.

    >>> rooms_of([2, 4, 2], [16, 4, 1])  # x[:, :, :2] of 4 channels
    ([0, 1, 2], [2, 4, 4, 1])
    """
    order = sorted(range(len(size)), key=lambda dim: (-stride[dim], -size[dim], dim))
    steps = [*(stride[dim] for dim in order), 1]
    if 0 in steps or any(outer % inner for outer, inner in pairwise(steps)):
        return None
    rooms = [*(size[dim] for dim in order[:1]), *(a // b for a, b in pairwise(steps))]
    if any(size[dim] > room for dim, room in zip(order, rooms, strict=False)):
        return None
    return order, rooms
