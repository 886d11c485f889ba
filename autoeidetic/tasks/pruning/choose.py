"""Choose: which units the open task gives up, given their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...couple.groups import Group
from ...couple.layer_graph import required_first
from ...couple.locks import reach
from ...enforce.owners import FREE, Owners
from ...plan.call_plan import CallPlan

Array = np.ndarray
#: The units that go hold at least this part of the share of the parameters that was asked for.
ENOUGH = 0.75


def choose(
    call_plan: CallPlan,
    owners: Owners,
    scores: Array,
    fraction: float,
    *,
    over_network: float = 0.0,
    since_start: bool = False,
    spared: Array | None = None,
) -> Array:
    """The lowest-scored fraction of the prunable units (a boolean vector).

    The part ``over_network`` of what goes are the lowest of the whole network, after scores were
    divided by their length in the group; for the rest every group gives up the same fraction, and
    this rest is larger where units would go that hold too few parameters. The fraction is one of
    the units in training now, or ``since_start`` of those that were in training before any was
    pruned.

    What is kept is closed under requires: with a unit goes everything that requires it, and
    counts towards the fraction of its own group. Groups that others require are dealt with
    first, and a unit is worth what everything that requires it is worth on top of its own
    score. No group is emptied: its best unit stays, and what that requires. When earlier tasks
    own units of a group and tasks may build on each other, that is enough for the group. Units in
    ``spared`` stay. Of units that pass through a grouped convolution, equally many stay in each
    of its groups, as far as that is possible.
    """
    plan = call_plan.plan
    reached = reach(plan.requires, plan.units + 1).reshape(-1, 2)
    worth = _with_dependents(reached, owners, _comparable(call_plan, owners, scores))
    prunable = owners.in_training & ~_spared(call_plan, reached, owners, worth) & ~owners.locked
    if spared is not None:
        prunable &= ~spared
    this = _Round(call_plan, owners, worth, prunable, fraction, since_start)
    wanted = this.quotas(over_network)
    chosen = np.zeros_like(owners.pruned)
    used = owners.in_training | (owners.forward_transfer & (owners.task != FREE))
    for group in _required_first(call_plan):
        units = np.asarray(group.units)
        candidates = units[prunable[units] & ~chosen[units]]
        left = wanted[group.name] - int(chosen[units[owners.in_training[units]]].sum())
        order = _leaving_first(candidates, worth, plan.blocks, units[used[units] & ~chosen[units]])
        chosen[order[: max(left, 0)]] = True
        chosen = dependents(plan.requires, chosen)
    return chosen & owners.in_training


def _leaving_first(candidates: Array, worth: Array, blocks: Array, kept: Array) -> Array:
    """The candidates in the order in which they leave: the lowest first, from the largest block."""
    order = candidates[np.argsort(worth[candidates], kind="stable")]
    block = blocks[order]
    if not block.any():
        return order
    # block, by worth       a b c     d e       a leaves first, when 3 > 2; then b and d, the lower
    # size before it left   3 2 1     2 1       one first; then c and e
    grouped = np.argsort(block, kind="stable")
    starts = np.searchsorted(block[grouped], block[grouped])
    earlier = np.empty(len(order), int)
    earlier[grouped] = np.arange(len(order)) - starts
    size = np.bincount(blocks[kept], minlength=int(blocks.max()) + 1)[block]
    return order[np.lexsort((np.arange(len(order)), earlier - size))]


def _comparable(call_plan: CallPlan, owners: Owners, scores: Array) -> Array:
    """Scores that mean the same in every group: their length in a group is 1."""
    result = np.zeros_like(scores)
    for group in call_plan.plan.groups:
        units = np.asarray(group.units)
        units = units[owners.in_training[units]]
        length = float(np.linalg.norm(scores[units]))
        result[units] = scores[units] / length if length > 0 else 0.0
    return result


@dataclass(frozen=True)
class _Round:
    """One round of pruning: how many units each group gives up."""

    call_plan: CallPlan
    owners: Owners
    worth: Array
    prunable: Array
    fraction: float
    since_start: bool

    @property
    def members(self) -> list[int]:
        return [c for group in self.call_plan.plan.groups for c in group.units]

    @property
    def inside(self) -> Array:
        """The units that the fraction is one of."""
        return self.owners.free if self.since_start else self.owners.in_training

    def quotas(self, over_network: float) -> dict[str, int]:
        """The part ``over_network`` is ranked, or less.

        A ranking may find all it wants in units of few parameters, such as the units inside a
        transformer's blocks, and leave the task the residual stream that everything passes
        through. Where what goes holds too few parameters, less is left to the ranking.
        """
        if over_network in (0, 1):
            return self._shared_out(over_network)
        plan, members = self.call_plan.plan, self.members
        size = {g.name: plan.elements[list(g.units)].mean() for g in self.call_plan.plan.groups}
        elements = (plan.elements * (self.inside & ~self.owners.locked))[members]
        before = float(elements[self.owners.pruned[members]].sum())
        for part in np.linspace(over_network, 0, 9):
            quotas = self._shared_out(part)
            freed = before + sum(count * size[name] for name, count in quotas.items())
            if freed >= ENOUGH * self.fraction * float(elements.sum()):
                break
        return quotas

    def _shared_out(self, over_network: float) -> dict[str, int]:
        """The same share of each group, plus the units that the ranking adds."""
        groups, prunable, worth = self.call_plan.plan.groups, self.prunable, self.worth
        fixed = (1 - over_network) * self.fraction
        quotas = {group.name: self._left(group.units, fixed) for group in groups}
        if not over_network:
            return quotas
        more = self._left(self.members, self.fraction) - sum(quotas.values())
        open_to_ranking = prunable.copy()
        for group in groups:
            units = np.asarray(group.units)[prunable[list(group.units)]]
            order = units[np.argsort(worth[units], kind="stable")]
            open_to_ranking[order[: quotas[group.name]]] = False
        ranked = open_to_ranking.nonzero()[0]
        lowest = np.zeros_like(prunable)
        lowest[ranked[np.argsort(worth[ranked], kind="stable")][: max(more, 0)]] = True
        return {
            group.name: quotas[group.name] + int(lowest[list(group.units)].sum())
            for group in groups
        }

    def _left(self, units: Sequence[int], fraction: float) -> int:
        """How many more of these units make up the fraction."""
        which = list(units)
        before = int(self.owners.pruned[which].sum()) if self.since_start else 0
        return max(math.floor(fraction * int(self.inside[which].sum()) + 0.5) - before, 0)


def _with_dependents(reached: Array, owners: Owners, scores: Array) -> Array:
    """Scores plus those of everything that requires the unit and is in training."""
    worth = np.where(owners.in_training, scores, 0.0)
    source, needed = reached.T
    total = worth.copy()
    np.add.at(total, needed, worth[source])
    return total


def _spared(call_plan: CallPlan, reached: Array, owners: Owners, worth: Array) -> Array:
    """One unit of every group that the task cannot do without, and all that these require.

    Of a group whose units require others (values of an attention head) one is taken that
    rests on what is spared already, so that as little as possible is.
    """
    plan = call_plan.plan
    source, needed = reached.T
    spared = plan.closure(owners.outside)
    for group in _required_first(call_plan):
        units = np.asarray(group.units)
        candidates = units[owners.in_training[units]]
        served = owners.forward_transfer and bool((owners.task[units] != FREE).any())
        if not len(candidates) or served or spared[candidates].any():
            continue
        resting = np.ones_like(spared)
        resting[source[owners.in_training[needed] & ~spared[needed]]] = False
        choice = candidates[resting[candidates]] if resting[candidates].any() else candidates
        spared[choice[np.argmax(worth[choice])]] = True
        spared = plan.closure(spared)
    return spared


def _required_first(call_plan: CallPlan) -> list[Group]:
    """Groups, those that others require first."""
    by_name = {group.name: group for group in call_plan.plan.groups}
    return [by_name[name] for name in required_first(call_plan.plan.graph)]


def dependents(requires: Array, chosen: Array) -> Array:
    """The chosen units and every unit that requires one of them."""
    if not len(requires):
        return chosen
    source, needed = requires.T
    while True:
        follows = source[chosen[needed] & ~chosen[source]]
        if not len(follows):
            return chosen
        chosen[follows] = True
