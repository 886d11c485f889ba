"""From the plan and the owners to levels: who may read what inside modules that mix channels.

A module that mixes channels without a weight that could be zeroed (a layer norm, a softmax over
channels) is evaluated level by level. Level ``l`` reads what tasks ``0 .. l`` own:

    channel          0  1  2  3  4  5          owner   0 0 1 1 2 -
    level 0 reads    x  x  .  .  .  .          makes outputs 0 and 1
    level 1 reads    x  x  x  x  .  .          makes outputs 2 and 3
    level 2 reads    x  x  x  x  x  .          makes output 4

Masks and tables here have size 1 along dimensions in which they do not vary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..couple.tables import Nested, NestedCall, Norm
from ..plan.call_plan import CallPlan
from .kernels.level_tables import LevelTable
from .nested import CallMasks, Level
from .owners import LATER, Owners

# -- norms -------------------------------------------------------------------------------------


def norm_tables(
    calls: tuple[tuple[Norm, ...], ...], owners: Owners, device: torch.device, *, enclosed: bool
) -> dict[int | None, list[list[LevelTable | None]]]:
    """The table of each norm in each call of a module, by the level whose run it is part of.

    None stands for no such run. With ``enclosed`` a module around this one is run level by level,
    and within the run of one level later levels do not exist yet.
    """
    states: dict[int | None, tuple[int, Owners]] = {None: (owners.tasks, owners)}
    if enclosed:
        states |= {level: (level + 1, owners.upto(level)) for level in range(owners.tasks)}
    return {
        level: [[_table(norm, count, state, device) for norm in call] for call in calls]
        for level, (count, state) in states.items()
    }


def _table(norm: Norm, count: int, owners: Owners, device: torch.device) -> LevelTable | None:
    """One row for each of ``count`` levels, and a last one for channels that none of them uses.

    None when every level reads all channels: the stock kernel is used.
    """
    if not count:
        return None
    made_at = _per_channel(owners.level_of(norm.outputs), norm.outputs)
    include = torch.stack(
        [_per_channel(~owners.hidden(level, norm.inputs), norm.inputs) for level in range(count)]
    )
    if bool((made_at >= count).any()):
        # A channel that no task uses is still normalised, over all channels: left alone, its values
        # would grow without bound over a deep network.
        include = torch.cat([include, torch.ones_like(include[:1])])
    use = made_at.clamp(0, count)
    if bool(include[use.unique()].all()):
        return None
    return LevelTable(include.to(device), use.to(device), owners.open_task, norm.groups)


def _per_channel(small: Tensor, like: Tensor) -> Tensor:
    """``[C]``, from a tensor that has size 1 when it does not vary."""
    return small.reshape(-1).expand(like.shape[0]) if small.numel() == 1 else small.reshape(-1)


# -- whole modules -----------------------------------------------------------------------------


def module_levels(
    call_plan: CallPlan, nested: Nested, owners: Owners, device: torch.device
) -> list[Level]:
    """The runs that a module needs, in ascending order; none when one plain call is enough."""
    made_at = {
        int(level)
        for call in nested.calls
        for leaf in pytree.tree_leaves(call.outputs)
        if leaf is not None
        for level in owners.level_of(leaf).unique()
    }
    # Constant outputs (level ALWAYS) may be read by every task, so the first level computes them.
    # Outputs of unused units (LATER) come out of the last run, whatever they are.
    present = sorted({max(level, 0) for level in made_at if level < LATER})
    tensors = _tensors_inside(call_plan, nested.module)
    levels = [_level(level, nested.calls, tensors, owners, device) for level in present]
    hides = any(
        level.restricted or any(mask is not None for call in level.calls for mask in call.readable)
        for level in levels
    )
    return levels if hides or len(levels) > 1 else []


def task_levels(
    call_plan: CallPlan, nested: Nested, owners: Owners, device: torch.device
) -> dict[int, Level]:
    """The run of a module with an output layer in it, for each task."""
    tensors = _tensors_inside(call_plan, nested.module)
    return {
        task: _level(task, nested.calls, tensors, owners, device) for task in range(owners.tasks)
    }


def _level(
    level: int,
    calls: tuple[NestedCall, ...],
    tensors: list[tuple[str, str, Tensor]],
    owners: Owners,
    device: torch.device,
) -> Level:
    masks = [
        CallMasks(
            readable=[
                readable_mask(leaf, level, owners, device) for leaf in _leaves(c.args, c.kwargs)
            ],
            made=[
                None if leaf is None else (owners.level_of(leaf).clamp(min=0) == level).to(device)
                for leaf in pytree.tree_leaves(c.outputs)
            ],
        )
        for c in calls
    ]
    restricted = [
        (path, name, mask)
        for path, name, units in tensors
        if (mask := readable_mask(units, level, owners, device)) is not None
    ]
    return Level(level, masks, restricted, learns=level == owners.open_task)


def _leaves(args: Any, kwargs: Any) -> list[Tensor | None]:
    return pytree.tree_leaves((args, kwargs))


def readable_mask(
    units: Tensor | None, level: int, owners: Owners, device: torch.device
) -> Tensor | None:
    """Which elements of a tensor of units a level may read; None when all of them."""
    if units is None:
        return None
    hidden = owners.hidden(level, units)
    return (~hidden).to(device) if bool(hidden.any()) else None


def _tensors_inside(call_plan: CallPlan, path: str) -> list[tuple[str, str, Tensor]]:
    """(holder inside the module, name, units) of its parameters and running statistics."""
    plan = call_plan.plan
    units = {name: entry.units for name, entry in plan.parameters.items()} | plan.buffers
    units |= {other: units[first] for other, first in plan.aliases.items() if first in units}
    result = []
    for name, units_of_tensor in units.items():
        if name.startswith(f"{path}."):
            holder, _, leaf = name.removeprefix(f"{path}.").rpartition(".")
            result.append((holder, leaf, units_of_tensor))
    return result
