"""Allocate: how many classes each group gives up, when a fraction of all of them goes.

Three ways, which scores choose between:

- ``alike``: every group gives up the same fraction.
- ``ranking``: the lowest-ranked classes of the whole network go, whichever group they are in.
- ``price``: as many parameter elements go as with ``alike``, those that are worth least per
  element, and every group keeps about what it would keep then, within :data:`SPREAD`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .blueprint import Blueprint
from .owners import Owners
from .structure import Group

Array = np.ndarray
#: How much more, or less, than its fraction a group may keep by its price, as a part of it.
SPREAD = 0.75


@dataclass(frozen=True)
class Demand:
    """What is asked for: ``fraction`` of the classes in training, lowest scores first.

    With ``since_start`` it is a fraction of the classes that were in training before any was
    pruned. ``worth`` are the scores brought to the same length in every group, ``prices`` as they
    came; both, and ``elements``, with those of all the classes that must go with a class.
    """

    blueprint: Blueprint
    owners: Owners
    worth: Array
    prunable: Array
    prices: Array
    elements: Array
    fraction: float
    since_start: bool

    def size(self, group: Group) -> int:
        """The classes that the fraction is one of."""
        inside = self.owners.free if self.since_start else self.owners.in_training
        return int(inside[list(group.classes)].sum())

    def before(self, group: Group) -> int:
        """How many of them are pruned already."""
        return int(self.owners.pruned[list(group.classes)].sum()) if self.since_start else 0

    def candidates(self, group: Group) -> Array:
        classes = np.asarray(group.classes)
        return classes[self.prunable[classes]]


Quotas = dict[str, int]


def alike(demand: Demand) -> Quotas:
    """The same fraction of every group."""
    return {
        group.name: max(_rounded(demand.fraction * demand.size(group)) - demand.before(group), 0)
        for group in demand.blueprint.groups
    }


def ranking(demand: Demand) -> Quotas:
    """However many of a group are among the lowest of the network."""
    groups = demand.blueprint.groups
    number = _rounded(demand.fraction * sum(map(demand.size, groups)))
    number = max(number - sum(map(demand.before, groups)), 0)
    candidates = demand.prunable.nonzero()[0]
    lowest = np.zeros_like(demand.prunable)
    lowest[candidates[np.argsort(demand.worth[candidates], kind="stable")][:number]] = True
    return {group.name: int(lowest[list(group.classes)].sum()) for group in groups}


def price(demand: Demand) -> Quotas:
    """What is worth least per element goes first; no group keeps far more or less than alike."""
    same, quotas, wanted = alike(demand), {}, 0.0
    prices, sizes, holders = [], [], []
    for number, group in enumerate(demand.blueprint.groups):
        kept = demand.size(group) - demand.before(group) - same[group.name]
        least = max(same[group.name] - _rounded(SPREAD * kept), 0)
        most = same[group.name] + math.floor(SPREAD * kept)
        candidates = demand.candidates(group)
        size = np.maximum(demand.elements[candidates], 1)
        each = demand.prices[candidates] / size
        order = np.argsort(each, kind="stable")
        quotas[group.name] = least
        wanted += float(size[order[least : same[group.name]]].sum())
        between = order[least:most]
        prices.append(each[between])
        sizes.append(size[between])
        holders.append(np.full(len(between), number))
    taken = _cheapest(np.concatenate(prices), np.concatenate(sizes), wanted)
    more = np.bincount(np.concatenate(holders)[taken], minlength=len(quotas))
    return {name: quotas[name] + int(count) for name, count in zip(quotas, more, strict=True)}


def _cheapest(prices: Array, sizes: Array, wanted: float) -> Array:
    """The lowest-priced, until they have as many elements as wanted."""
    order = np.argsort(prices, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    return order[before < wanted]


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)


ALLOCATIONS: dict[str, Callable[[Demand], Quotas]] = {
    "alike": alike,
    "ranking": ranking,
    "price": price,
}
