"""Enforce: from the blueprint and the owners to pins and guards.

Everything here is derived: calling :func:`pins` and :func:`guards` again with the same owners gives
the same result, after a move to another device, a copy or a load.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..calls.calls import Call
from ..common.inputs import PLAIN
from ..couple.tables import Nested, NestedCall, Norm, ParameterUnits, Read
from ..errors import EnforcementError, Place
from ..plan.call_plan import CallPlan, HeadPlan
from ..propagate.values import varies
from .guard import CallCounter, Guard, Runtime
from .kernels.level_tables import LevelTable
from .nested import Level, Masks, NestedHead, NestedModule
from .owners import LATER, Owners
from .pins import Home, Pin, Slot, Where
from .treatments import ActiveRows, ComputedWeight, LevelNorms, RunningStatistics, Use, use_of

_PRODUCERS = ("aten.linear", "aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")


def slots(module: nn.Module, prefix: str = "") -> dict[str, Slot]:
    """Where each parameter and buffer of a module is held, by name."""
    found: dict[str, Slot] = {}
    for path, part in module.named_modules(prefix=prefix, remove_duplicate=False):
        for kind in ("_parameters", "_buffers"):
            for name, tensor in part.__dict__[kind].items():
                if tensor is not None:
                    found[f"{path}.{name}" if path else name] = (Home(part, kind, path), name)
    return found


# -- pins --------------------------------------------------------------------------------------


def backbone_pins(blueprint: CallPlan, owners: Owners, own_heads: Iterable[str]) -> list[Pin]:
    """What is pinned in the backbone; ``own_heads``: its output layers that a task keeps."""
    result = []
    whole = set(own_heads)
    for name, entry in blueprint.plan.parameters.items():
        if name in whole:
            result.append(Pin(name, Where(), None))
            continue
        if entry.head or not entry.used:
            continue
        frozen = Where.of(owners.owned(entry.units))
        zeros = owners.zeros(name)
        hidden = None if zeros is None else Where.of(zeros)
        if frozen is not None or hidden is not None:
            result.append(Pin(name, frozen, hidden))
    for name, units in blueprint.plan.buffers.items():
        frozen = Where.of(owners.owned(units))
        if frozen is not None:
            result.append(Pin(name, frozen, None))
    if (owners.task >= 0).any():
        result += [Pin(name, Where(), None) for name in blueprint.plan.constants]
    return result


def covered(blueprint: CallPlan) -> list[str]:
    """Weights whose gradient never has a frozen part: their only use is in their own layer."""
    return [name for name, entry in blueprint.plan.parameters.items() if _is_layer(name, entry)]


def _is_layer(name: str, entry: ParameterUnits) -> bool:
    if len(entry.reads) != 1:
        return False
    read = entry.reads[0]
    return (
        not read.transformed
        and read.operator in _PRODUCERS
        and read.module == name.rpartition(".")[0]
        and varies(entry.units) in ([0], [])
        and varies(read.columns) in ([1], [])
        and entry.units.dim() >= 2
    )


# -- guards ------------------------------------------------------------------------------------


def guards(
    blueprint: CallPlan,
    owners: Owners,
    call: Call,
    runtime: Runtime,
    device: Callable[[str], torch.device],
) -> dict[str, Guard]:
    """The guard of every module that needs one, by path. ``device`` of a module's tensors.

    What modules read and make depends on how the model is called.
    """
    found: dict[str, Guard] = {}

    def at(path: str) -> Guard:
        return found.setdefault(path, Guard(path))

    def counted(path: str, counter: CallCounter) -> Guard:
        """One that must not be passed by, and inside which the norms are its own."""
        guard = at(path)
        guard.runtime, guard.counter = runtime, counter
        return guard

    for path, rows in _rows(blueprint, owners, runtime, device).items():
        at(path).treatments.append(rows)
    for path, statistics in _statistics(blueprint, owners, runtime, device).items():
        at(path).treatments.append(statistics)
    for path, weight in _computed(blueprint, owners, runtime, device).items():
        at(path).treatments.append(weight)
    blueprint, owners = call.blueprint, call.owners(owners)
    for nested in blueprint.nested:
        if any(_in_place_of(nested.module, head) for head in blueprint.heads):
            continue  # heads look at nothing but what their task may see
        place = device(nested.module)
        counter = CallCounter(nested.module, len(nested.calls))
        if any(nested.module == head.nested for head in blueprint.heads):
            held = _held(blueprint, nested.module)
            tasks = {
                task: _level(task, nested.calls, held, owners, place)
                for task in range(owners.tasks)
            }
            guarded = counted(nested.module, counter)
            guarded.whole = NestedHead(runtime, nested.module, tasks, counter)
            continue
        if nested.norms is not None:
            tables = _tables(nested.norms, owners, place, enclosed=nested.enclosed)
            used = any(table is not None for calls in tables.values() for c in calls for table in c)
            if used or nested.enclosed:
                counted(nested.module, counter).treatments.append(
                    LevelNorms(runtime, nested.module, tables, counter)
                )
        else:
            levels = _levels(blueprint, nested, owners, place)
            if levels or nested.enclosed:
                guarded = counted(nested.module, counter)
                if levels:
                    guarded.whole = NestedModule(runtime, nested.module, levels, counter)
    return found


def _in_place_of(path: str, head: HeadPlan) -> bool:
    """Does every task have its own module instead of this one?"""
    whole = head.leaf is None and head.holder
    return path == head.holder or bool(whole and path.startswith(f"{head.holder}."))


def _rows(
    blueprint: CallPlan,
    owners: Owners,
    runtime: Runtime,
    device: Callable[[str], torch.device],
) -> dict[str, ActiveRows]:
    result: dict[str, ActiveRows] = {}
    if owners.open_task is None or not (owners.task >= 0).any():
        return result
    for name, entry in blueprint.plan.parameters.items():
        if entry.head or not entry.used or not _is_layer(name, entry):
            continue
        path, _, leaf = name.rpartition(".")
        rows = owners.level_of(entry.units).reshape(-1) == owners.open_task
        if len(rows) == 1:
            rows = rows.expand(entry.units.shape[0])
        if bool(rows.all()):
            continue
        columns = owners.level_of(entry.reads[0].columns).reshape(-1) == owners.open_task
        index = columns.nonzero().reshape(-1) if len(columns) > 1 else None
        place = device(path)
        result[path] = ActiveRows(
            runtime,
            leaf,
            rows.nonzero().reshape(-1).to(place),
            None if index is None else index.to(place),
        )
    return result


def _statistics(
    blueprint: CallPlan,
    owners: Owners,
    runtime: Runtime,
    device: Callable[[str], torch.device],
) -> dict[str, RunningStatistics]:
    result = {}
    for name, units in blueprint.plan.buffers.items():
        path = name.rpartition(".")[0]
        if path in result:
            continue
        owned = owners.owned(units).reshape(-1)
        if bool(owned.any()):
            if len(owned) == 1:
                owned = owned.expand(units.shape[0])
            active = (~owned).nonzero().reshape(-1)
            result[path] = RunningStatistics(runtime, active.to(device(path)))
    return result


def _computed(
    blueprint: CallPlan,
    owners: Owners,
    runtime: Runtime,
    device: Callable[[str], torch.device],
) -> dict[str, ComputedWeight]:
    found: dict[str, dict[Use, Tensor]] = defaultdict(dict)
    counts: dict[str, Counter[Use]] = defaultdict(Counter)
    reads: dict[str, list[Read]] = defaultdict(list)
    for entry in blueprint.plan.parameters.values():
        for read in entry.reads:
            if not read.transformed:
                continue
            use = use_of(read.operator, read.columns.shape)
            counts[read.module][use] += 1
            if entry.head:
                continue
            hidden = owners.hidden(owners.level_of(read.rows), read.columns)
            if bool(hidden.any()):
                # a module may be called several times, or compute several weights of one shape:
                # a zero too many does no harm
                keep, before = ~hidden, found[read.module].get(use)
                found[read.module][use] = keep if before is None else keep & before
                reads[read.module].append(read)
    return {
        path: ComputedWeight(
            runtime=runtime,
            path=path,
            keep={use: keep.to(device(path)) for use, keep in masks.items()},
            counts=dict(counts[path]),
            operators=", ".join(dict.fromkeys(read.operator for read in reads[path])),
            lines=", ".join(dict.fromkeys(read.line for read in reads[path] if read.line)),
        )
        for path, masks in found.items()
    }


# -- level by level ----------------------------------------------------------------------------


def _tables(
    calls: tuple[tuple[Norm, ...], ...], owners: Owners, device: torch.device, *, enclosed: bool
) -> dict[int | None, list[list[LevelTable | None]]]:
    """Tables of all norms, and with ``enclosed`` also those in the run of each single level."""
    states: dict[int | None, tuple[int, Owners]] = {None: (owners.tasks, owners)}
    if enclosed:
        states |= {level: (level + 1, owners.upto(level)) for level in range(owners.tasks)}
    return {
        level: [[_table(norm, number, state, device) for norm in call] for call in calls]
        for level, (number, state) in states.items()
    }


def _table(norm: Norm, number: int, owners: Owners, device: torch.device) -> LevelTable | None:
    """One row for each of ``number`` levels, and one for what none of them uses.

    None when there is nothing to divide.
    """
    if not number:
        return None
    made = _vector(owners.level_of(norm.outputs), norm.outputs)
    include = torch.stack(
        [_vector(~owners.hidden(level, norm.inputs), norm.inputs) for level in range(number)]
    )
    if bool((made >= number).any()):
        # what no task uses is normalised by itself: over a deep network it would grow without bound
        include = torch.cat([include, torch.ones_like(include[:1])])
    use = made.clamp(0, number)
    if bool(include[use.unique()].all()):
        return None
    return LevelTable(include.to(device), use.to(device), owners.open_task, norm.groups)


def _vector(small: Tensor, like: Tensor) -> Tensor:
    return small.reshape(-1).expand(like.shape[0]) if small.numel() == 1 else small.reshape(-1)


def _levels(
    blueprint: CallPlan, nested: Nested, owners: Owners, device: torch.device
) -> list[Level]:
    """The runs that a module needs; none when it may simply be called."""
    made = {
        int(level)
        for call in nested.calls
        for leaf in pytree.tree_leaves(call.outputs)
        if leaf is not None
        for level in owners.level_of(leaf).unique()
    }
    # what counts as a constant may be read by every task: it is computed at the first level
    present = sorted({max(level, 0) for level in made if level < LATER})
    held = _held(blueprint, nested.module)
    levels = [_level(level, nested.calls, held, owners, device) for level in present]
    hides = any(
        level.held or any(mask is not None for call in level.calls for mask in call.visible)
        for level in levels
    )
    return levels if hides or len(levels) > 1 else []


def _level(
    level: int,
    calls: tuple[NestedCall, ...],
    held: list[tuple[str, str, Tensor]],
    owners: Owners,
    device: torch.device,
) -> Level:
    masks = [
        Masks(
            visible=[visible(leaf, level, owners, device) for leaf in _leaves(c.args, c.kwargs)],
            own=[
                None if leaf is None else (owners.level_of(leaf).clamp(min=0) == level).to(device)
                for leaf in pytree.tree_leaves(c.outputs)
            ],
        )
        for c in calls
    ]
    restricted = [
        (path, name, mask)
        for path, name, units in held
        if (mask := visible(units, level, owners, device)) is not None
    ]
    return Level(level, masks, restricted, learns=level == owners.open_task)


def _leaves(args: Any, kwargs: Any) -> list[Tensor | None]:
    return pytree.tree_leaves((args, kwargs))


def visible(
    units: Tensor | None, level: int, owners: Owners, device: torch.device
) -> Tensor | None:
    """Which elements a level may read; None when all of them."""
    if units is None:
        return None
    hidden = owners.hidden(level, units)
    return (~hidden).to(device) if bool(hidden.any()) else None


def _held(blueprint: CallPlan, path: str) -> list[tuple[str, str, Tensor]]:
    """(holder inside the module, name, units) of its parameters and running statistics."""
    plan = blueprint.plan
    units = {name: entry.units for name, entry in plan.parameters.items()} | plan.buffers
    units |= {other: units[first] for other, first in plan.aliases.items() if first in units}
    result = []
    for name, owner in units.items():
        if name.startswith(f"{path}."):
            holder, _, leaf = name.removeprefix(f"{path}.").rpartition(".")
            result.append((holder, leaf, owner))
    return result


def check_outputs(leaves: list[Any], blueprint: CallPlan) -> None:
    """Does a call return what its analysis saw, and nothing that could hide something?

    Raises:
        EnforcementError: it does not.
    """
    if len(leaves) != len(blueprint.outputs):
        raise EnforcementError(
            f"the model returned {len(leaves)} values where the analysis saw "
            f"{len(blueprint.outputs)}",
            remedy="call the model as it was analysed, or convert it with this call among the "
            "examples: convert(model, [example, another])",
        )
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *PLAIN)):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise EnforcementError(
                f"the model returned a {kind}, of which nobody can tell what a task may see",
                remedy="switch that output off (use_cache=False, for a cache), or let the model "
                "return tensors in tuples, lists and dicts",
            )


def start_runs(guards: dict[str, Guard]) -> None:
    """Before a pass: no module has been called yet."""
    for guard in guards.values():
        guard.runs = 0
        if guard.counter is not None:
            guard.counter.done = 0


def check_runs(guards: dict[str, Guard]) -> None:
    """Has every module that is evaluated level by level been called?

    Raises:
        EnforcementError: one was passed by, so its channels were mixed.
    """
    for path, guard in guards.items():
        if guard.counter is not None and guard.runs < guard.counter.calls:
            raise EnforcementError(
                f"module '{path}' ran {guard.runs} times where the analysis saw "
                f"{guard.counter.calls}: the model took another path, or a fused kernel passed it "
                "by",
                place=Place(module=path),
                remedy="convert the model with example inputs of the kind it is used with",
            )
