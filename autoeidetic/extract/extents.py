"""Extents: the part of a tensor along each of its dimensions, as boolean vectors.

    value of shape (2, 8, 6, 6), of whose channels 0, 3 and 5 stay

    extent    (None, [x . . x . x . .], None, None)       None: all positions of a dimension

An extent is always a product: the positions that it holds are those that every dimension holds.
Sets that are no product are covered by the smallest one around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..propagate.values import core

Positions: TypeAlias = np.ndarray | None
Extent: TypeAlias = tuple[Positions, ...]


def full(rank: int) -> Extent:
    """Everything."""
    return (None,) * rank


def simple(positions: Positions) -> Positions:
    """None in place of a vector that holds all positions."""
    return None if positions is None or positions.all() else positions


def both(left: Extent, right: Extent) -> Extent:
    """What both hold.

    >>> both((None, np.array([True, False])), (None, None))
    (None, array([ True, False]))
    """
    return tuple(
        b if a is None else a if b is None else a & b for a, b in zip(left, right, strict=True)
    )


def either(left: Extent, right: Extent) -> Extent:
    """The smallest extent around two."""
    if is_empty(left):
        return right
    if is_empty(right):
        return left
    return tuple(
        None if a is None or b is None else simple(a | b) for a, b in zip(left, right, strict=True)
    )


def is_empty(extent: Extent) -> bool:
    """Does it hold no position at all?"""
    return any(positions is not None and not positions.any() for positions in extent)


def nothing(shape: Sequence[int]) -> Extent:
    """The extent that holds nothing."""
    return tuple(np.zeros(size, bool) for size in shape) if shape else ()


def holds(outer: Extent, inner: Extent) -> bool:
    """Does the first hold everything that the second does?"""
    return all(
        a is None or (b is not None and not bool((b & ~a).any()))
        for a, b in zip(outer, inner, strict=True)
    )


def same(left: Extent, right: Extent) -> bool:
    """Are two extents equal?"""
    return holds(left, right) and holds(right, left)


def index(positions: Positions, size: int) -> np.ndarray:
    """The positions as numbers."""
    return np.arange(size) if positions is None else positions.nonzero()[0]


def lengths(extent: Sequence[Positions], shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of what an extent holds of a tensor."""
    return tuple(
        size if positions is None else int(positions.sum())
        for positions, size in zip(extent, shape, strict=True)
    )


def mask(extent: Extent, shape: Sequence[int]) -> Tensor:
    """A boolean tensor that is True inside; it takes memory only where positions differ."""
    result = torch.ones([1] * len(shape), dtype=torch.bool)
    for dim, positions in enumerate(extent):
        if positions is not None:
            size = [-1 if d == dim else 1 for d in range(len(shape))]
            result = result & torch.from_numpy(positions).view(size)
    return result.expand(tuple(shape))


def around(inside: Tensor) -> Extent:
    """The smallest extent around the True elements of a boolean tensor."""
    small = core(inside)  # size 1 along dimensions in which nothing varies
    if not bool(small.any()):
        return nothing(inside.shape) if inside.dim() else ()
    found: list[Positions] = []
    for dim, size in enumerate(small.shape):
        if size == 1:
            found.append(None)
            continue
        others = [d for d in range(small.dim()) if d != dim]
        found.append(simple((small.any(others) if others else small).numpy()))
    return tuple(found)


def cut(value: Tensor, extent: Extent) -> Tensor:
    """The part of a tensor that an extent holds."""
    for dim, positions in enumerate(extent):
        if positions is not None:
            chosen = torch.from_numpy(positions.nonzero()[0]).to(value.device)
            value = value.index_select(dim, chosen)
    return value


def broadcast(extent: Extent, shape: Sequence[int], result: Sequence[int]) -> Extent:
    """The extent of an operand of this shape, given that of the broadcast result."""
    skipped = len(result) - len(shape)
    return tuple(
        None if size == 1 and result[skipped + d] != 1 else extent[skipped + d]
        for d, size in enumerate(shape)
    )


def spread(extent: Extent, shape: Sequence[int], result: Sequence[int]) -> Extent:
    """The extent of a broadcast result, given that of an operand of this shape."""
    skipped = len(result) - len(shape)
    found: list[Positions] = [None] * skipped
    for d, size in enumerate(shape):
        positions = extent[d]
        stretched = size == 1 and result[skipped + d] != 1
        if stretched and positions is not None:
            count = result[skipped + d]
            positions = np.full(count, bool(positions[0])) if not positions[0] else None
        found.append(positions)
    return tuple(found)
