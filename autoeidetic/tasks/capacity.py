"""Capacity: which task owns how much of the network, and what later tasks reuse."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..capture.names import layer_of
from ..common.tables import notebook_html, table
from ..enforce.owners import FREE, Owners
from ..plan.call_plan import CallPlan
from ..propagate.values import array, core, varies
from .network import Network


@dataclass(frozen=True)
class Share:
    """How a group or a layer is divided: units (or elements) per task, and the free ones.

    For an open task ``tasks`` counts what it uses and has not pruned yet.
    """

    name: str
    size: int
    tasks: tuple[int, ...]
    free: int


@dataclass(frozen=True)
class Capacity:
    """Fractions of the backbone's parameter elements.

    ``free``: neither pinned nor used by the open task. ``tasks[t]``: owned by task ``t``, or kept
    by it so far. ``reuse[t][s]``: the part of the weights (by magnitude) into units of task ``t``
    that reads units of task ``s``.
    """

    free: float
    tasks: tuple[float, ...]
    groups: tuple[Share, ...]
    layers: tuple[Share, ...]
    reuse: tuple[tuple[float, ...], ...]

    @property
    def used(self) -> float:
        """The fraction that tasks own."""
        return 1.0 - self.free

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "used": self.used}

    def __str__(self) -> str:
        rows = [["group", "units", *(f"task {t}" for t in range(len(self.tasks))), "free"]]
        rows += [[g.name, str(g.size), *map(str, g.tasks), str(g.free)] for g in self.groups]
        shares = [*(f"{share:.1%}" for share in self.tasks), f"{self.free:.1%}"]
        rows.append(["all parameters", "", *shares])
        lines = [table(rows, right=())]
        for task, parts in enumerate(self.reuse):
            built = [f"{part:.1%} of task {s}" for s, part in enumerate(parts[:task]) if part]
            if built:
                lines.append(f"task {task} builds on {', '.join(built)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return notebook_html(str(self))


def network_capacity(network: Network) -> Capacity:
    """The division of a network's units between its tasks."""
    parameters: dict[str, Tensor] = dict(network.backbone.named_parameters())
    return capacity(network.call_plan, network.owners, parameters)


def capacity(call_plan: CallPlan, owners: Owners, parameters: dict[str, Tensor]) -> Capacity:
    """Count elements and units by owner; ``parameters`` give the magnitudes of reuse."""
    # state: the task of each unit, with `count` for free units, so that one bincount over it has
    # a column for each task and a last one for what is free
    count = owners.tasks
    state = task_of_unit(owners, count)
    elements = np.where(owners.outside, 0, call_plan.plan.elements)
    totals = np.bincount(state, weights=elements, minlength=count + 1)
    whole = max(float(totals.sum()), 1.0)
    return Capacity(
        free=float(totals[count]) / whole,
        tasks=tuple(float(n) / whole for n in totals[:count]),
        groups=tuple(
            _share(group.name, np.bincount(state[list(group.units)], minlength=count + 1))
            for group in call_plan.plan.groups
        ),
        layers=_layers(call_plan, state, count),
        reuse=_reuse(call_plan, state, count, parameters),
    )


def free_share(call_plan: CallPlan, owners: Owners) -> float:
    """The part of the backbone's parameter elements that no task uses."""
    elements = np.where(owners.outside, 0, call_plan.plan.elements)
    used = (owners.task != FREE) | owners.in_training
    return 1 - float(elements[used].sum()) / max(float(elements.sum()), 1.0)


def task_of_unit(owners: Owners, count: int) -> np.ndarray:
    """For each unit the task that uses it; ``count`` for free ones."""
    state = np.where(owners.task == FREE, count, owners.task).astype(np.int64)
    if owners.open_task is not None:
        state[owners.in_training] = owners.open_task
    return state


def _share(name: str, counts: np.ndarray) -> Share:
    *tasks, free = (int(n) for n in counts)
    return Share(name, int(counts.sum()), tuple(tasks), free)


def _layers(call_plan: CallPlan, state: np.ndarray, count: int) -> tuple[Share, ...]:
    totals: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(count + 1, np.int64))
    for name, entry in call_plan.plan.parameters.items():
        if entry.head or not entry.used:
            continue
        # units are stored once per row: each number stands for `each` elements
        small = state[array(entry.units)]
        each = entry.units.numel() // max(len(small), 1)
        totals[layer_of(name)] += np.bincount(small, minlength=count + 1) * each
    return tuple(_share(layer, counts) for layer, counts in totals.items())


@torch.no_grad()
def _reuse(
    call_plan: CallPlan, state: np.ndarray, count: int, parameters: dict[str, Tensor]
) -> tuple[tuple[float, ...], ...]:
    """Magnitudes of weights by (task of the row, task of the column).

    ``total[t, s]`` sums ``|W[n, d]|`` over rows ``n`` of task ``t``, columns ``d`` of task ``s``;
    one ``bincount`` over the pair numbers ``t * (count + 1) + s`` does it for a whole weight.
    """
    total = torch.zeros(count + 1, count + 1, dtype=torch.float64)
    task = torch.from_numpy(state)
    task[0] = count  # the input belongs to no task
    for name, entry in call_plan.plan.parameters.items():
        for read in entry.reads:
            if entry.head or read.transformed:
                continue
            weight = parameters[name].detach().abs().cpu()
            # weight (out, in, k, k): rows vary along 0, columns along 1; sum the kernel first
            rest = set(range(weight.dim())) - {*varies(entry.units), *varies(read.columns)}
            if rest:
                weight = weight.sum(sorted(rest), keepdim=True)
            pair = task[core(entry.units)] * (count + 1) + task[core(read.columns)]
            found = torch.bincount(
                pair.expand(weight.shape).reshape(-1), weight.reshape(-1), (count + 1) ** 2
            )
            total += found.view(count + 1, count + 1)
    rows = total[:count, :count]
    return tuple(tuple(float(x) for x in row / row.sum().clamp(min=1e-300)) for row in rows)
