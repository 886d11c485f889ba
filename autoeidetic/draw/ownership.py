"""Ownership: the share of each task in every group and layer, and the blocks of each weight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..capture.names import layer_of
from ..couple.tables import ParameterUnits
from ..propagate.values import array, varies
from ..tasks.capacity import network_capacity, task_of_unit
from ..tasks.network import Network
from .elements import FREE, INPUT, DrawnGroup, TaskEntry

Runs = list[list[int]]


def task_entries(net: Network) -> tuple[TaskEntry, ...]:
    """The tasks of a network."""
    return tuple(TaskEntry(t.name, t.index, sum(t.classes.values())) for t in net.tasks)


def describe_ownership(
    net: Network, groups: Sequence[DrawnGroup], weights: set[str]
) -> dict[str, Any]:
    """Units of groups, elements of layers and blocks of weights by task.

    Units that the open task uses count as its own. ``groups`` are those of the drawing,
    ``weights`` the parameters that map channels to channels. In the drawing of a widened network
    the names of a column begin with its number.
    """
    if not net.tasks:
        return {}
    found: dict[str, Any] = {"groups": {}, "layers": {}, "sizes": {}, "blocks": {}}
    known = {(group.name, group.size): group.id for group in groups}
    start = 0
    for number, column in enumerate(net.networks):
        named = partial(_drawn_name, number if len(net.networks) > 1 else None)
        rest = len(net.tasks) - start - len(column.tasks)
        shares = network_capacity(column)
        for share in (*shares.groups, *shares.layers) if column.tasks else ():
            tasks = [0] * start + list(share.tasks) + [0] * rest
            if share in shares.layers:
                found["layers"][named(share.name)] = tasks
                found["sizes"][named(share.name)] = share.size
            elif (named(share.name), share.size) in known:
                found["groups"][known[named(share.name), share.size]] = tasks
        own = {name for name in column.call_plan.plan.parameters if named(name) in weights}
        for layer, block in _blocks(column, own).items():
            runs = {side: _moved(block[side], start) for side in ("levels", "columns")}
            found["blocks"][named(layer)] = {**block, **runs}
        start += len(column.tasks)
    return {**found, "forward_transfer": net.networks[0].owners.forward_transfer}


def _drawn_name(column: int | None, name: str) -> str:
    """The name of a layer or group in a drawing of all columns."""
    return name if column is None else f"columns.{column}.{name.removeprefix('model.')}"


def _moved(runs: Runs, start: int) -> Runs:
    """Runs of a column with the network's numbers of tasks."""
    return [[owner + start if owner >= 0 else owner, count] for owner, count in runs]


def _blocks(net: Network, weights: set[str]) -> dict[str, Any]:
    """Layer -> owners of the rows and columns of its largest plain weight, for the heat map."""
    count = net.owners.tasks
    state = task_of_unit(net.owners, count)
    owner = np.where(state == count, FREE, state)  # by unit: (units + 1,)
    owner[net.owners.outside] = INPUT
    owner[0] = INPUT  # unit 0 is "input or constant"
    found: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for name, entry in net.call_plan.plan.parameters.items():
        layer = layer_of(name)
        if entry.head or not entry.used or entry.units.numel() <= sizes.get(layer, 0):
            continue
        if name not in weights or not _is_plain_weight(entry):
            continue
        # units: one number for each row; columns: one for each column. array() drops dimensions of
        # stride 0, so both are vectors.
        columns = owner[array(entry.reads[0].columns)] if entry.reads else np.array([INPUT])
        found[layer] = {
            "parameter": name.removeprefix(f"{layer}."),
            "levels": _runs(owner[array(entry.units)], entry.units.shape[0]),
            "columns": _runs(columns, entry.units.shape[1]),
        }
        sizes[layer] = entry.units.numel()
    return found


def _is_plain_weight(entry: ParameterUnits) -> bool:
    """Whether each row has one owner and each column has one; columns may be input."""
    if entry.units.dim() < 2 or len(entry.reads) > 1 or varies(entry.units) not in ([0], []):
        return False
    return all(
        read.columns.shape == entry.units.shape and varies(read.columns) in ([1], [])
        for read in entry.reads
    )


def _runs(owners: np.ndarray, length: int) -> Runs:
    """Pairs (owner, count) in the order: input, tasks, free."""
    if len(owners) == 1:
        return [[int(owners[0]), length]]
    # Sorted by number: INPUT is -2 and FREE is -1, so only FREE has to be moved to the end.
    numbers, counts = np.unique(owners, return_counts=True)
    runs = [[int(n), int(c)] for n, c in zip(numbers, counts, strict=True)]
    return [r for r in runs if r[0] != FREE] + [r for r in runs if r[0] == FREE]
