"""From the plan and the owners to guards: how each module must run.

Everything is derived: the same owners and the same call give the same guards, also after a move to
another device, a copy or a load.

| the module has | its guard gets |
|---|---|
| a weight with frozen rows, used in one product | ``RestrictedBackward`` |
| running statistics of finished tasks | ``RunningStatistics`` |
| a weight computed from a parameter, with hidden elements | ``ComputedWeight`` |
| layer, RMS or group norms over channels of several levels | ``LevelNorms`` |
| another mixture of channels of several levels | ``NestedModule``, around the whole call |
| such a mixture, and an output layer in it | ``NestedHead``, around the whole call |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from ..couple.tables import Nested, Read
from ..plan.call_plan import CallPlan, HeadPlan
from .derive_levels import module_levels, norm_tables, task_levels
from .derive_pins import is_restrictable
from .guard import CallCounter, Guard, Runtime, Treatment
from .nested import NestedHead, NestedModule
from .owners import Owners
from .treatments import (
    ComputedWeight,
    LevelNorms,
    RestrictedBackward,
    RunningStatistics,
    Use,
    use_of,
)

#: The device of the tensors of the module at a path.
Devices = Callable[[str], torch.device]


def guards(
    call_plan: CallPlan,
    owners: Owners,
    this_call: CallPlan,
    call_owners: Owners,
    runtime: Runtime,
    device: Devices,
) -> dict[str, Guard]:
    """The guard of every module that needs one, by path.

    Parameters and buffers are those of the network's own plan, whatever the call. What modules read
    and make depends on how the model is called: ``this_call`` is the plan of that call, and
    ``call_owners`` are the owners of the units in it.
    """
    found: dict[str, Guard] = {}
    for treatments in (_restricted_backward, _running_statistics, _computed_weights):
        for path, treatment in treatments(call_plan, owners, runtime, device).items():
            found.setdefault(path, Guard(path)).treatments.append(treatment)
    for nested in this_call.nested:
        # a head's module is replaced by each task's own, which gets only what its task may read
        if not any(_is_replaced(nested.module, head) for head in this_call.heads):
            guard = found.get(nested.module, Guard(nested.module))
            if _guard_nested(guard, nested, this_call, call_owners, runtime, device):
                found[nested.module] = guard
    return found


def _is_replaced(path: str, head: HeadPlan) -> bool:
    """Does every task have its own module instead of this one?"""
    whole = head.leaf is None and head.holder
    return path == head.holder or bool(whole and path.startswith(f"{head.holder}."))


def _guard_nested(
    guard: Guard,
    nested: Nested,
    call_plan: CallPlan,
    owners: Owners,
    runtime: Runtime,
    device: Devices,
) -> bool:
    """Let a guard evaluate its module level by level; False when it need not.

    A guard with a counter is checked after the pass: its module must have been called. It is also
    a border for norms: a norm inside it belongs to it and to no module around it.
    """
    place = device(nested.module)
    counter = CallCounter(nested.module, len(nested.calls))
    if any(nested.module == head.nested for head in call_plan.heads):
        tasks = task_levels(call_plan, nested, owners, place)
        guard.whole = NestedHead(runtime, nested.module, tasks, counter)
    elif nested.norms is not None:
        tables = norm_tables(nested.norms, owners, place, enclosed=nested.enclosed)
        used = any(table is not None for calls in tables.values() for c in calls for table in c)
        if not used and not nested.enclosed:
            return False
        guard.treatments.append(LevelNorms(runtime, nested.module, tables, counter))
    else:
        levels = module_levels(call_plan, nested, owners, place)
        if not levels and not nested.enclosed:
            return False
        if levels:
            guard.whole = NestedModule(runtime, nested.module, levels, counter)
    guard.runtime, guard.counter = runtime, counter
    return True


def _restricted_backward(
    call_plan: CallPlan, owners: Owners, runtime: Runtime, device: Devices
) -> dict[str, Treatment]:
    """Layers in which some rows are frozen while a task is open."""
    result: dict[str, Treatment] = {}
    if owners.open_task is None or not (owners.task >= 0).any():
        return result
    for name, entry in call_plan.plan.parameters.items():
        if entry.head or not entry.used or not is_restrictable(name, entry):
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
        result[path] = RestrictedBackward(
            runtime,
            leaf,
            rows.nonzero().reshape(-1).to(place),
            None if index is None else index.to(place),
        )
    return result


def _running_statistics(
    call_plan: CallPlan, owners: Owners, runtime: Runtime, device: Devices
) -> dict[str, Treatment]:
    """Norms some of whose channels belong to a finished task."""
    result: dict[str, Treatment] = {}
    for name, units in call_plan.plan.buffers.items():
        path = name.rpartition(".")[0]
        if path in result:  # the mean and the variance of a norm follow the same units
            continue
        owned = owners.owned(units).reshape(-1)
        if bool(owned.any()):
            if len(owned) == 1:
                owned = owned.expand(units.shape[0])
            active = (~owned).nonzero().reshape(-1)
            alone = name not in call_plan.plan.spread
            result[path] = RunningStatistics(runtime, active.to(device(path)), alone)
    return result


def _computed_weights(
    call_plan: CallPlan, owners: Owners, runtime: Runtime, device: Devices
) -> dict[str, Treatment]:
    """Modules that compute a weight from a parameter, some of whose elements must be zero."""
    counts: dict[str, Counter[Use]] = defaultdict(Counter)
    reads: dict[str, list[tuple[Use, Read]]] = defaultdict(list)
    for entry in call_plan.plan.parameters.values():
        for read in entry.reads:
            if read.transformed:
                use = use_of(read.operator, read.columns.shape)
                counts[read.module][use] += 1
                if not entry.head:
                    reads[read.module].append((use, read))
    result: dict[str, Treatment] = {}
    for path, found in reads.items():
        place = device(path)
        read_by_own = [
            (use, owners.hidden(owners.level_of(read.rows), read.columns)) for use, read in found
        ]
        keep = _visible(read_by_own, place)
        in_run = {}
        for level in range(owners.tasks) if runs_by_level(path, call_plan) else ():
            in_run[level] = _visible([(u, owners.hidden(level, r.rows)) for u, r in found], place)
        if keep or any(in_run.values()):
            result[path] = ComputedWeight(
                runtime=runtime,
                path=path,
                keep=keep,
                keep_in_run=in_run,
                counts=dict(counts[path]),
                operators=", ".join(dict.fromkeys(read.operator for _, read in found)),
                lines=", ".join(dict.fromkeys(read.line for _, read in found if read.line)),
            )
    return result


def _visible(uses: list[tuple[Use, Tensor]], device: torch.device) -> dict[Use, Tensor]:
    """The elements that may be non-zero, for each use with hidden elements."""
    keep: dict[Use, Tensor] = {}
    for use, hidden in uses:
        if bool(hidden.any()):
            # A module may be called several times, or compute several weights of one shape.
            # Their masks cannot be told apart, so they are joined: extra zeros do no harm.
            keep[use] = ~hidden & keep[use] if use in keep else ~hidden
    return {use: mask.to(device) for use, mask in keep.items()}


def runs_by_level(path: str, call_plan: CallPlan) -> bool:
    """Is there a module at or around this path that is run once per level?"""
    return any(
        nested.norms is None and f"{path}.".startswith(f"{nested.module}.")
        for nested in call_plan.nested
    )
