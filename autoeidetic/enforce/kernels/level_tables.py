"""Tables of levels: which channels each level reads, and the indicator matrices for the norms.

Four channels; task 0 owns two of them, tasks 1 and 2 one each:

    include   c0 c1 c2 c3       average   c0  c1  c2  c3        select   c0 c1 c2 c3
    level 0    x  x  .  .                1/2 1/2  0   0                   1  1  0  0
    level 1    x  x  x  .                1/3 1/3 1/3  0                   0  0  1  0
    level 2    x  x  x  x                1/4 1/4 1/4 1/4                  0  0  0  1
                                          0   0   0   0   BLOCK rows      0  0  0  0
    use        0  0  1  2                 0   0   0   0   in all          0  0  0  0

    statistics of all levels    [BLOCK, N] = average [BLOCK, C] @ x.T [C, N]
    back to the channels        [N, C]     = statistics.T [N, BLOCK] @ select [BLOCK, C]

A product with 0/1 indicators adds an exact zero for each channel outside the level, so that
channel's value cannot matter. ``select`` has a single 1 in each column, so the second product
copies exactly.

Why the rows are padded: a library picks the kernel of a product, and with it the order of additions
and the last bits, by the shapes of the operands. A new level fills a row of zeros; the ninth begins
a second block, which is a product of its own. No product ever changes its shape, so no finished
task's statistics change a bit. A group norm with ``G`` groups has ``BLOCK * G`` rows, levels
outside, groups inside.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BLOCK = 8  # levels per product


@dataclass(frozen=True, eq=False)
class _Shift:
    """The means that are subtracted before squaring, for those levels that can share them.

    ``E[x^2] - E[x]^2`` loses all digits when the mean is large against the variance, so values are
    shifted by some mean first. That mean must not bring in a channel that the level may not read:
    every channel has an *origin*, the first level that reads it, and is shifted by the mean of its
    origin, provided that each level using the shift reads all of the origin's channels.

        nested levels      0: c0 c1   1: c0 c1 c2   2: c0 c1 c2 c3      one origin, level 0
        disjoint levels    0: c0 c1   1: c2         2: c3               each level its own
    """

    average: tuple[Tensor, ...]  # K matrices [G, C]: means over the k-th origin of each group
    spread: Tensor | None  # [K * G, C], one-hot: the origin of each channel; None: all have one
    pick: tuple[Tensor | None, ...]  # per block [BLOCK * G]: the origin of each level; None: unused
    mine: tuple[Tensor | None, ...]  # per block bool [BLOCK * G, 1]: the levels that use the shift

    def to(self, device: torch.device, dtype: torch.dtype) -> _Shift:
        return _Shift(
            tuple(_averages(a, device, dtype) for a in self.average),
            None if self.spread is None else self.spread.to(device, dtype),
            tuple(None if p is None else p.to(device) for p in self.pick),
            tuple(None if m is None else m.to(device) for m in self.mine),
        )


@dataclass(frozen=True, eq=False)
class LevelTable:
    """Which channels each level reads, and which level normalises each channel.

    Everything else is derived from these, once: a table is rebuilt when ownership changes.

    >>> include = torch.tensor([[True, True, False], [True, True, True]])
    >>> table = LevelTable(include, torch.tensor([0, 0, 1]), current=1)
    >>> table.average[0][:2]
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """

    include: Tensor  # bool [L, C]: the channels whose values enter the statistics of level l
    use: Tensor  # int64 [C]: the level whose statistics channel c is normalised with
    current: int | None = None  # the level in training; other outputs are constants to autograd
    groups: int = 1  # of the group norm it is for; others are derived at the first call
    average: tuple[Tensor, ...] = field(init=False, repr=False)  # blocks of [BLOCK * G, C]
    select: tuple[Tensor, ...] = field(init=False, repr=False)  # one-hot of `use`, same shape
    shifts: tuple[_Shift, ...] = field(init=False, repr=False)
    # The rest is for the backward pass, on the U channels that have a gradient.
    narrow: Tensor = field(init=False, repr=False)  # int64 [U]
    outputs: Tensor = field(init=False, repr=False)  # [U]: 1 where use == current
    inputs: Tensor = field(init=False, repr=False)  # [U]: 1 where `current` is the first to read it
    same: bool = field(init=False, repr=False)  # outputs and inputs are all ones
    group: Tensor = field(init=False, repr=False)  # int64 [U]: the group of each channel
    pool: Tensor = field(init=False, repr=False)  # [U, G]: one-hot of `group`
    count: Tensor = field(init=False, repr=False)  # [G]: channels that `current` reads
    _grouped: dict[int, LevelTable] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        levels, channels = self.include.shape
        if channels % self.groups:
            raise ValueError(f"{channels} channels do not divide into {self.groups} groups")
        if self.use.shape != (channels,) or not 0 <= int(self.use.min()) <= self.use.max() < levels:
            raise ValueError(
                f"use must hold one of {levels} levels for each of {channels} channels"
            )
        if self.current is not None and not 0 <= self.current < levels:
            raise ValueError(f"the current level is {self.current}, and there are {levels}")
        device, groups = self.include.device, self.groups
        of = torch.arange(channels, device=device) // (channels // groups)
        grouped = of == torch.arange(groups, device=device)[:, None]  # [G, C]
        chosen = torch.arange(levels, device=device)[:, None] == self.use  # [L, C]
        none = torch.zeros(channels, dtype=torch.bool, device=device)
        reads = none if self.current is None else self.include[self.current]
        written = none if self.current is None else chosen[self.current]
        # Read by no *earlier* level. A later row exists, too: that of channels that no task uses,
        # whose statistics are over all channels.
        read = reads & ~self.include[: self.current or 0].any(0)
        narrow = (written | read).nonzero()[:, 0]
        derived: dict[str, Any] = {
            "average": tuple(
                _averages(block, device, torch.float32) for block in _blocks(self.include, grouped)
            ),
            "select": tuple(block.float() for block in _blocks(chosen, grouped)),
            "shifts": _shifts(self.include, grouped),
            "narrow": narrow,
            "outputs": written[narrow].float(),
            "inputs": read[narrow].float(),
            "same": bool((written == read).all()),
            "group": of[narrow],
            "pool": grouped[:, narrow].t().float(),
            "count": (grouped & reads).sum(1).clamp_min(1).float(),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> LevelTable:
        """The table for computing in ``dtype`` on ``device``: itself where that is so already."""
        if self.average[0].dtype == dtype and self.average[0].device == device:
            return self
        moved = copy.copy(self)
        derived: dict[str, Any] = {
            name: getattr(self, name).to(device) for name in ("include", "use", "narrow", "group")
        }
        for name in ("outputs", "inputs", "pool", "count"):
            derived[name] = getattr(self, name).to(device, dtype)
        derived["average"] = tuple(_averages(block, device, dtype) for block in self.average)
        derived["select"] = tuple(block.to(device, dtype) for block in self.select)
        derived["shifts"] = tuple(shift.to(device, dtype) for shift in self.shifts)
        derived["_grouped"] = {}
        for name, value in derived.items():
            object.__setattr__(moved, name, value)
        return moved

    def grouped(self, groups: int) -> LevelTable:
        """The same levels for a group norm with ``groups`` groups."""
        if groups == self.groups:
            return self
        if groups not in self._grouped:
            if torch.compiler.is_compiling():  # the derivation reads the table's values
                raise ValueError(f"to be compiled, the table must be built with groups={groups}")
            self._grouped[groups] = LevelTable(self.include, self.use, self.current, groups)
        return self._grouped[groups]


def _blocks(flags: Tensor, grouped: Tensor) -> list[Tensor]:
    """``[L, C]`` as blocks of ``[BLOCK * G, C]``: levels outside, groups inside, padded."""
    levels, channels = flags.shape
    padded = flags.new_zeros(-(-levels // BLOCK) * BLOCK, channels)
    padded[:levels] = flags
    return list((padded[:, None] & grouped).reshape(-1, BLOCK * len(grouped), channels))


def _averages(members: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows that take the mean over their non-zero entries, or give 0 where there are none."""
    indicator = (members != 0).to(device, dtype)
    return indicator / indicator.sum(1, keepdim=True).clamp_min(1)


def _shifts(include: Tensor, grouped: Tensor) -> tuple[_Shift, ...]:
    """The shifts that the levels need; a single one for nested and for disjoint levels."""
    reads = [
        [set(torch.nonzero(row & group)[:, 0].tolist()) for group in grouped] for row in include
    ]
    plans, chosen = _plan_shifts(reads, len(grouped))
    return tuple(
        _shift(number, plan, chosen, include, grouped) for number, plan in enumerate(plans)
    )


@dataclass
class _ShiftPlan:
    """Origins while they are being found."""

    origins: list[list[int]]  # per group: levels
    origin_of: dict[int, int]  # channel -> index of its origin in the list of its group


#: For each level: the number of its shift, and the index of its origin in each group.
_Chosen = list[tuple[int, list[int]]]


def _plan_shifts(reads: list[list[set[int]]], groups: int) -> tuple[list[_ShiftPlan], _Chosen]:
    """Give each level in order the first shift that suits it, or else a new one.

    ``reads[level][group]`` are channels. Later levels change nothing for earlier ones: a channel
    keeps its origin.
    """
    plans: list[_ShiftPlan] = []
    chosen: _Chosen = []
    for level, row in enumerate(reads):
        for number in range(len(plans) + 1):
            if number == len(plans):  # a new shift suits every level
                plans.append(_ShiftPlan([[] for _ in range(groups)], {}))
            plan = plans[number]
            own = [
                _origin(read, plan.origin_of, [reads[k][g] for k in plan.origins[g]])
                for g, read in enumerate(row)
            ]
            if None not in own:
                break
        picks = [0 if k is None else k for k in own]
        chosen.append((number, picks))
        for g, (k, read) in enumerate(zip(picks, row, strict=True)):
            if read and k == len(plan.origins[g]):
                plan.origins[g].append(level)
            for channel in read:
                plan.origin_of.setdefault(channel, k)
    return plans, chosen


def _shift(
    number: int, plan: _ShiftPlan, chosen: _Chosen, include: Tensor, grouped: Tensor
) -> _Shift:
    """The matrices of one shift."""
    (groups, channels), levels, device = grouped.shape, len(include), include.device
    count = max(1, *(len(origins) for origins in plan.origins))
    members = torch.zeros(count, groups, channels, dtype=torch.bool, device=device)
    for g, origins in enumerate(plan.origins):
        for k, level in enumerate(origins):
            members[k, g] = include[level] & grouped[g]
    spread = None
    if count * groups > 1:
        spread = torch.zeros(count * groups, channels, device=device)
        size = channels // groups
        index = [k * groups + c // size for c, k in plan.origin_of.items()]
        spread[index, list(plan.origin_of)] = 1
    pick: list[Tensor | None] = []
    mine: list[Tensor | None] = []
    for start in range(0, levels, BLOCK):
        rows = [(0, False)] * (BLOCK * groups)
        for level in range(start, min(levels, start + BLOCK)):
            if chosen[level][0] == number:
                for g, k in enumerate(chosen[level][1]):
                    rows[(level - start) * groups + g] = (k * groups + g, True)
        used = any(flag for _, flag in rows)
        pick.append(torch.tensor([k for k, _ in rows], device=device) if used else None)
        mine.append(torch.tensor([[f] for _, f in rows], device=device) if used else None)
    average = tuple(_averages(m, device, torch.float32) for m in members)
    return _Shift(average, spread, tuple(pick), tuple(mine))


def _origin(read: set[int], origin_of: dict[int, int], origins: list[set[int]]) -> int | None:
    """Which origin suits a level that reads these channels: its index, or None."""
    found = {origin_of[channel] for channel in read if channel in origin_of}
    if not found:  # all of its channels are new: it becomes an origin itself
        return len(origins) if read else 0
    if len(found) > 1:
        return None
    (origin,) = found
    return origin if origins[origin] <= read else None
