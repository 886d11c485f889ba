"""Spot checks: find writes to frozen elements that left no trace.

A write through ``.data`` moves no version counter, and comparing every frozen value before every
eval pass would cost too much. But code that writes this way (an average of weights that is swapped
in, an optimizer with an eval mode of its own) writes whole tensors, so a few elements of each
tensor tell:

    frozen elements   o . . o . . o . . o . . o . . o . . o . . o     COUNT of them, evenly spread
                      first                                  last

All sampled elements of one type and device are compared in one concatenated tensor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from ..common.bits import same

COUNT = 8  # elements of a tensor that are looked at


class SpotCheck:
    """Some elements (views), and a copy of their values at the time this was made.

    Example:
        >>> weight = torch.ones(2, 2)
        >>> check = SpotCheck([weight[0, 1]])
        >>> check.moved()
        False
        >>> weight.data.mul_(0.9)
        tensor([[0.9000, 0.9000],
                [0.9000, 0.9000]])
        >>> check.moved()
        True
    """

    def __init__(self, elements: Iterable[Tensor]) -> None:
        views: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        for element in elements:
            views[element.dtype, element.device].append(element.view(1))
        self._views = [(alike, torch.cat(alike)) for alike in views.values()]

    def moved(self) -> bool:
        """Has one of the elements another value by now?"""
        return any(not same(torch.cat(alike), before) for alike, before in self._views)


def sample_indices(shape: Iterable[int], count: int = COUNT) -> list[tuple[int, ...]]:
    """Indices of a few elements of a tensor, the first and the last among them.

    Example:
        >>> sample_indices((2, 3), 3)
        [(0, 0), (0, 2), (1, 2)]
    """
    sizes = tuple(shape)
    total = math.prod(sizes)
    count = min(count, total)
    return [_index(k * (total - 1) // max(count - 1, 1), sizes) for k in range(count)]


def _index(number: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element with this number, in the order of memory."""
    place = []
    for size in reversed(sizes):
        number, at = divmod(number, size)
        place.append(at)
    return tuple(reversed(place))
