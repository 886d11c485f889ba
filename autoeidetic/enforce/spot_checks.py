"""Spot checks: has somebody written into frozen elements without a trace?

A write through ``.data`` moves no version counter, and to compare every frozen value would cost an
eval pass too much. But whoever writes so (an average of the weights that is swapped in, an
optimizer with an eval mode of its own) writes whole tensors: a few elements of each will tell.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from ..common.bits import same

COUNT = 8  # elements of a tensor that are looked at


class Spots:
    """Some elements, and what they held when this was made.

    Example:
        >>> weight = torch.ones(2, 2)
        >>> spots = Spots([weight[0, 1]])
        >>> spots.moved()
        False
        >>> weight.data.mul_(0.9)
        tensor([[0.9000, 0.9000],
                [0.9000, 0.9000]])
        >>> spots.moved()
        True
    """

    def __init__(self, elements: Iterable[Tensor]) -> None:
        alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        for element in elements:
            alike[element.dtype, element.device].append(element.view(1))
        self._views = [(views, torch.cat(views)) for views in alike.values()]

    def moved(self) -> bool:
        return any(not same(torch.cat(views), held) for views, held in self._views)


def spread(shape: Iterable[int], count: int = COUNT) -> list[tuple[int, ...]]:
    """Indices of a few elements of a tensor, the first and the last among them.

    Example:
        >>> spread((2, 3), 3)
        [(0, 0), (0, 2), (1, 2)]
    """
    sizes = tuple(shape)
    total = math.prod(sizes)
    count = min(count, total)
    return [_index(k * (total - 1) // max(count - 1, 1), sizes) for k in range(count)]


def _index(number: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Where the element with a number is."""
    place = []
    for size in reversed(sizes):
        number, at = divmod(number, size)
        place.append(at)
    return tuple(reversed(place))
