"""The channels that stay in a narrow copy: about the same share of every kind.

A copy keeps the first channels of every block of every cell, or all channels of the first heads:

    queries, 6 heads of 64       2 heads of 64, or 6 heads of 16
    stream of 384 channels       96, or 128 if the code takes it for the sum of all heads
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .cells import Cells
from .shapes import Array, Channels, Shapes, flat

#: Rounds in which cells that have no narrow form are kept whole.
_ROUNDS = 12
#: Whole heads come before narrower heads up to this multiple of the width that was asked for.
_NEAR = 1.5


@dataclass(frozen=True)
class Choice:
    """The channels that stay, and the share of them by which layers are narrower."""

    shapes: Shapes
    width: float


def choices(channels: Channels, width: float) -> Iterator[Choice]:
    """What a copy may keep, best first: whole heads, then some channels of every head.

    Code that computes one size from another (``reshape(batch, tokens, channels)`` after attention)
    works only if all of them shrink by one factor, which whole heads allow in steps.
    """
    cells = Cells(channels)
    seen: list[Array] = []
    for way in _ways(cells, width):
        found = _choice(cells, way)
        # not even half of the way from the full width to the one that was asked for: no copy
        if found is None or found.width > (1 + width) / 2:
            continue
        if not any(np.array_equal(found.shapes.kept, one) for one in seen):
            seen.append(found.shapes.kept)
            yield found


@dataclass(frozen=True)
class _Way:
    """A share of all cells; of heads ``whole`` ones or a part of each; ``equal`` sizes stay equal.

    The last is for code that takes one size for another: the channels of a stream for the sum of
    all heads.
    """

    share: float
    whole: bool
    equal: bool = False


def _ways(cells: Cells, width: float) -> list[_Way]:
    common = _snapped(width, cells.block_sizes)
    last = [_Way(common, whole=False)] if common < 1 else []
    if not cells.head_counts:
        return [_Way(width, whole=False), _Way(width, whole=False, equal=True), *last]
    snapped = _snapped(width, cells.head_counts)
    whole = [_Way(width, whole=True), _Way(width, whole=True, equal=True)]
    if snapped <= _NEAR * width:
        whole.append(_Way(snapped, whole=True))
    parts = [_Way(width, whole=False), _Way(width, whole=False, equal=True)]
    # half a network is no quarter: then rather all heads, and narrower ones
    last += [_Way(snapped, whole=True)] if snapped < 1 else []
    return [*whole, *parts, *last]


def _snapped(width: float, counts: set[int]) -> float:
    """The smallest share, from about ``width`` on, that is a whole number of all these counts."""
    common = math.gcd(*counts) or 1
    return max(1, math.ceil(width * common - 1e-6)) / common


def _choice(cells: Cells, way: _Way) -> Choice | None:
    """Keep a share of every cell, and those whole that have no narrow form; None: no end of it."""
    channels = cells.channels
    locked = np.zeros(channels.count, bool)
    for _ in range(_ROUNDS):
        kept = ~channels.owning
        kept |= cells.fixed
        for members in _chosen(cells, way, locked):
            kept[members] = True
        _follow_partners(cells, way, kept, locked)
        _settle_derived(channels, kept)
        shapes = Shapes(channels, kept)
        wrong = shapes.irregular()
        if not len(wrong):
            share = _width(shapes)
            return Choice(shapes, share)
        before = locked.sum()
        locked[wrong] = True
        if locked.sum() == before:
            return None
    return None


def _chosen(cells: Cells, way: _Way, locked: Array) -> Iterator[Array]:
    """What stays of each cell."""
    plain: list[Array] = []
    sizes: dict[int, int] = {}
    for members in cells.members:
        blocks, may_go = cells.blocks(members)
        if locked[members].any():
            found = members
        elif len(blocks) > 1 and _whole_ones(cells, members, len(blocks), may_go, way):
            found = np.concatenate(blocks[: _part(len(blocks), way.share)])
        elif len(blocks) > 1 or not way.equal:
            found = np.concatenate([block[: _part(len(block), way.share)] for block in blocks])
        else:
            plain.append(members)
            continue
        sizes[len(members)] = max(sizes.get(len(members), 0), len(found))
        yield found
    for members in plain:
        yield members[: sizes.get(len(members), _part(len(members), way.share))]


def _whole_ones(cells: Cells, members: Array, count: int, may_go: bool, way: _Way) -> bool:
    """Do whole blocks go? Groups of a convolution that would be left with one channel do."""
    number = cells.groups[members[0]]
    if number > 0 and not may_go:
        narrow = cells.group_width(members[0]) * way.share < 1.5
        return narrow and count * way.share >= 1.5
    return may_go and (way.whole or number < 0)


def _follow_partners(cells: Cells, way: _Way, kept: Array, locked: Array) -> None:
    """Keep what meets a channel that stays; all gates of heads stay if only parts of heads go."""
    for members in cells.members:
        partners = cells.partners[members]
        several = len(np.unique(partners))
        if partners.min() == 0 or several == 1 or several == len(members):
            continue
        are_heads = len(cells.blocks(members)[0]) == several
        if locked[members].any() or (are_heads and not way.whole):
            kept[partners] = True
        else:
            kept[members] = kept[partners]


def _part(size: int, share: float) -> int:
    return min(max(1, int(size * share + 0.5)), size)


def _settle_derived(channels: Channels, kept: Array) -> None:
    """A derived channel stays if every operation that makes it has something left to read."""
    derived = ~channels.owning & ~channels.idle
    fed = np.zeros(channels.count, bool)
    for event in channels.analysis.coupling.propagation.algebra.channels.events:
        if event.kind != "requires":
            continue
        left, right = channels.numbers[event.left], channels.numbers[event.right]
        inside = derived[left] & (left != right)
        left, right = left[inside], right[inside]
        fed[left] = False
        fed[left[kept[right]]] = True
        kept[left[~fed[left]]] = False


def _width(shapes: Shapes) -> float:
    """The share of channels that stays, weighted by the parameter elements of each channel."""
    channels = shapes.channels
    elements = np.zeros(channels.count)
    algebra = channels.analysis.coupling.propagation.algebra
    for name, parameter in channels.analysis.plan.parameters.items():
        if parameter.used and not parameter.head:
            tags = algebra.channels_of[name]
            numbers = channels.numbers[flat(tags)]
            np.add.at(elements, numbers, tags.numel() / max(len(numbers), 1))
    elements[~channels.owning] = 0
    return float(elements[shapes.kept].sum() / elements.sum()) if elements.any() else 1.0
