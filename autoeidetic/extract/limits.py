"""Limits: how far the sizes of inputs may vary, and the checks in a program that they do not more.

A program is made of captures at a few sizes. Far from these the model may do something else: a
length is cut to a maximum, short inputs are padded, a table ends. So a program is compared with
its network at sizes far from the captured ones. Where it has other answers, halving finds the last
size at which it has the same, and the program checks its inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from ..common.inputs import CallInputs
from .sizes import Variation

#: Sizes far above the captured ones are tried up to this one: passes get expensive.
_LARGEST = 512
#: Small sizes are tried one by one: they cost little, and models often treat them in another way.
_SMALL = range(1, 9)


def has_limits(variation: Variation, inputs: CallInputs, call: CallInputs) -> bool:
    """Is a call beyond the captured ones, so that limits can exclude its sizes?"""
    size = variation.sizes_in(call)[0]
    captured = variation.captured
    return _is_one_size(variation, inputs) and not min(captured) <= size <= max(captured)


def _is_one_size(variation: Variation, inputs: CallInputs) -> bool:
    """Have all places the same size? Others have no limit in common."""
    return len(set(variation.sizes_in(inputs))) == 1


def limited(
    variation: Variation,
    inputs: CallInputs,
    right: Callable[[CallInputs], bool],
    known: Collection[int] = (),
) -> Variation | None:
    """A variation with the sizes between which the program is ``right``; None without any.

    ``right`` compares the program with the network for a call; ``known`` are sizes for which it may
    be false.
    """
    # captured with the same change of height and width: is one of them free of the other?
    calls = [each.apply(inputs, how) for each in variation.alone() for how in (1, 2)]
    free = all(map(right, calls))
    if not _is_one_size(variation, inputs):
        return variation if free else None
    variation = replace(variation, equal=not free)
    size = variation.sizes_in(inputs)[0]
    least, most = min(variation.captured), max(variation.captured)
    is_right = lambda size: right(variation.at(inputs, size))  # noqa: E731
    tried = _sizes_of_batches(most) if variation.is_batch else _sizes_far_away(size, most)
    sizes = sorted({*tried, *known})
    found = replace(
        variation,
        least=_limit(is_right, least, [each for each in reversed(sizes) if 0 < each < least]),
        most=_limit(is_right, most, [each for each in sizes if each > most]),
    )
    # there is no range if it is wrong at captured sizes as well
    unlimited = found == variation
    return found if unlimited or all(map(is_right, variation.captured)) else None


def _sizes_of_batches(most: int) -> Iterator[int]:
    # Models rarely look at the number of rows, and many rows take long.
    yield from (1, most + 1)


def _sizes_far_away(size: int, most: int) -> Iterator[int]:
    yield from (*_SMALL, size // 8, size // 4, size // 2, most + 3)
    if 4 * size + 3 <= _LARGEST:
        yield 4 * size + 3


def _limit(right: Callable[[int], bool], inside: int, outside: Iterable[int]) -> int | None:
    """The last right size on the way to the first of some sizes that is wrong; None without one."""
    wrong = next((size for size in outside if not right(size)), None)
    if wrong is None:
        return None
    while abs(wrong - inside) > 1:
        middle = (inside + wrong) // 2
        inside, wrong = (middle, wrong) if right(middle) else (inside, middle)
    return inside


def texts(varying: Sequence[Variation]) -> tuple[str, ...]:
    """The limits of sizes that vary, such as ``x: dimension 1: at most 21``."""
    found = [
        f"{name}: {words} {bound}"
        for each in varying
        for name in each.names
        for words, _, bound in _bounds(each)
    ]
    return (*found, *(text for each in varying for _, _, text in _pairs(each)))


def _bounds(variation: Variation) -> Iterator[tuple[str, Callable[..., bool], int]]:
    if variation.least is not None:
        yield "at least", operator.ge, variation.least
    if variation.most is not None:
        yield "at most", operator.le, variation.most


def _pairs(variation: Variation) -> Iterator[tuple[tuple[int, int], tuple[int, int], str]]:
    """The sizes of an input that must be equal, two by two."""
    alone = variation.alone() if variation.equal else []
    for one, other in pairwise(alone):
        (first,), (second,) = one.places, other.places
        if first[0] == second[0]:
            yield first, second, f"{other.name}: equal to dimension {first[1]}"


def write_checks(
    graph: fx.Graph,
    inputs: CallInputs,
    varying: Sequence[Variation],
    pinned: Sequence[Variation],
) -> None:
    """Let a program raise an error for sizes at which its network has other answers.

    ``pinned`` are sizes that the network takes and the program does not: they are the example's.
    """
    made = _Checks(graph)
    for variation in varying:
        for words, holds, bound in _bounds(variation):
            for place, name in zip(variation.places, variation.names, strict=True):
                made.write(place, holds, bound, _sentence(f"{name}: {words} {bound}"))
        for first, second, text in _pairs(variation):
            made.write(second, operator.eq, made.size(first), _sentence(text))
    free = {place for each in varying for place in each.places}
    for variation in pinned:
        sizes = zip(variation.places, variation.names, variation.sizes_in(inputs), strict=True)
        for place, name, size in sizes:
            if place not in free:
                free.add(place)
                text = f"{name} must be {size}: see report.fixed of the program"
                made.write(place, operator.eq, size, text)


def _sentence(limit: str) -> str:
    """What a program says when a size is beyond a limit."""
    name, _, words = limit.rpartition(": ")
    return f"{name} must be {words}: see report.limits of the program"


class _Checks:
    """Writes checks behind the inputs of a graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._inputs = graph.find_nodes(op="placeholder")
        self._behind: Any = self._inputs[-1].next
        self._sizes: dict[tuple[int, int], fx.Node] = {}

    def size(self, place: tuple[int, int]) -> fx.Node:
        if place not in self._sizes:
            number, dim = place
            with self._graph.inserting_before(self._behind):
                self._sizes[place] = self._graph.call_method("size", (self._inputs[number], dim))
        return self._sizes[place]

    def write(
        self, place: tuple[int, int], holds: Callable[..., bool], bound: Any, text: str
    ) -> None:
        size = self.size(place)
        with self._graph.inserting_before(self._behind):
            # unlike an if, export turns it into a range of the size
            fits = self._graph.call_function(holds, (size, bound))
            self._graph.call_function(torch._assert, (fits, text))
