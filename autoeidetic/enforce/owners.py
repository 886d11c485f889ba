"""Owners: which task owns each unit, and the level at which each unit may be read.

One small integer per unit is all there is; every mask of the package follows from it:

    unit                           0     1   2   3     4     5   6
    owner (``task``)               -     0   0   1     -     -   -      tasks 0 and 1 are finished,
    pruned by the open task                            x                task 2 is open
    level                       ALWAYS   0   0   1   LATER   2   2

Something at level ``l`` may read units of levels up to ``l``. Unit 0 stands for inputs and
constants. Free units of an open task are at its level, pruned ones later than every task.

Immutable: every step in the life of a task makes new owners, so a step that fails half way leaves
the old ones in force.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..plan.plan import Plan
from ..propagate.values import core

Array = np.ndarray
FREE = -1
#: The level of what no task uses yet: later than every task.
LATER = 2**15 - 1
#: The level of inputs and constants, which every task may read.
ALWAYS = -1


@dataclass(frozen=True)
class Owners:
    """``task[c]`` is the task that owns unit ``c``, or FREE.

    A task may own nothing, so ``finished_tasks`` counts them.
    ``pruned`` marks the units that the open task has given up. ``outside`` are the units of
    output layers, which every task has for itself, and of parameters that no output depends on;
    ``locked`` those that every task needs.
    """

    plan: Plan
    task: Array
    pruned: Array
    outside: Array
    locked: Array
    finished_tasks: int = 0
    open_task: int | None = None
    forward_transfer: bool = True

    @staticmethod
    def none(plan: Plan, outside: Array, locked: Array, forward_transfer: bool) -> Owners:
        """Nothing is owned."""
        return Owners(
            plan=plan,
            task=np.full(plan.units + 1, FREE, np.int16),
            pruned=np.zeros(plan.units + 1, bool),
            outside=outside,
            locked=locked,
            forward_transfer=forward_transfer,
        )

    # -- steps ---------------------------------------------------------------------------------

    def opened(self, task: int) -> Owners:
        """A new task takes every free unit into training."""
        return replace(self, open_task=task, pruned=np.zeros_like(self.pruned))

    def pruning(self, units: Array) -> Owners:
        """The open task gives up these units (a boolean vector)."""
        if (units & (self.task != FREE)).any():
            raise AssertionError("an owned unit was to be pruned")
        return replace(self, pruned=self.pruned | units)

    def finished(self) -> Owners:
        """The open task owns what it kept."""
        task = self.task.copy()
        task[self.in_training] = self.open_task
        return replace(
            self,
            task=task,
            pruned=np.zeros_like(self.pruned),
            finished_tasks=self.finished_tasks + 1,
            open_task=None,
        )

    def upto(self, level: int) -> Owners:
        """As they were when the task of this level was the last one."""
        if self.tasks <= level + 1:
            return self
        task = np.where(self.task > level, FREE, self.task)
        return replace(self, task=task, finished_tasks=level + 1, open_task=None)

    # -- queries -------------------------------------------------------------------------------

    @property
    def tasks(self) -> int:
        """The number of tasks, finished and open."""
        return self.finished_tasks + (self.open_task is not None)

    @property
    def free(self) -> Array:
        """Units that no task owns."""
        free = (self.task == FREE) & ~self.outside
        free[0] = False
        return free

    @property
    def in_training(self) -> Array:
        """Units that the open task uses and has not given up."""
        if self.open_task is None:
            return np.zeros_like(self.pruned)
        return self.free & ~self.pruned

    @cached_property
    def levels(self) -> Array:
        """The task from which on each unit may be read."""
        level = np.where(self.task == FREE, LATER, self.task).astype(np.int64)
        if self.open_task is not None:
            level[self.in_training] = self.open_task
        level[0] = ALWAYS
        level[self.outside] = ALWAYS
        # A derived unit has no parameters: it stands for a value computed from the units that it
        # requires, and may be read when all of those may. Derived units may require each other,
        # so the maximum is taken until nothing changes.
        derived = (self.plan.elements == 0) & ~self.outside
        level[derived] = ALWAYS
        source, needed = self.plan.requires.T if len(self.plan.requires) else ([], [])
        follows = derived[np.asarray(source, np.int64)]
        source, needed = np.asarray(source)[follows], np.asarray(needed)[follows]
        while len(source):
            before = level[source]
            np.maximum.at(level, source, level[needed])
            if (level[source] == before).all():
                break
        return level

    @cached_property
    def _levels(self) -> Tensor:
        return torch.from_numpy(self.levels)

    @cached_property
    def _read_levels(self) -> Tensor:
        """Levels as a reader sees them.

        Without forward transfer a task reads its own units only, and locked ones, which all share.
        """
        if self.forward_transfer:
            return self._levels
        shared = self.locked & (self.task != FREE)
        return torch.from_numpy(np.where(shared, ALWAYS, self.levels))

    def level_of(self, units: Tensor) -> Tensor:
        """Levels of a tensor of units, with size 1 along dimensions in which none varies."""
        return self._levels[core(units)]

    def hidden(self, rows: Tensor | int, columns: Tensor) -> Tensor:
        """Must rows of these levels not read these units? (broadcast, sizes 1 kept)"""
        read = self._read_levels[core(columns)]
        if self.forward_transfer:
            return read > rows
        return (read != rows) & (read != ALWAYS)

    def zeros(self, name: str) -> Tensor | None:
        """Which elements of a parameter must be zero; None when none must.

        Those of finished tasks are left out: their zeros are frozen values like any other.
        """
        entry = self.plan.parameters[name]
        rows, free = self.level_of(entry.units), ~self.owned(entry.units)
        result: Tensor | None = None
        for read in entry.reads:
            if read.transformed or not self._may_hide(rows[free], read.columns):
                continue
            hidden = self.hidden(rows, read.columns) & free
            if bool(hidden.any()):
                result = hidden if result is None else result | hidden
        return result

    def _may_hide(self, rows: Tensor, columns: Tensor) -> bool:
        """Can any pair be hidden? A bound, because a large layer has millions of pairs."""
        if not rows.numel():
            return False
        return not self.forward_transfer or bool(
            self._read_levels[core(columns)].max() > rows.min()
        )

    def owned(self, units: Tensor) -> Tensor:
        """Which elements of a tensor of units belong to a finished task (sizes 1 kept).

        Statistics of the input and of constants (unit 0) belong to the first one.
        """
        small = core(units)
        found = torch.from_numpy(self.task)[small] != FREE
        return found | (small == 0) if (self.task != FREE).any() else found
