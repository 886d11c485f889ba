"""Seals: digests of a finished task's frozen values and answers, taken and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..enforce.elements import Elements
from ..propagate.values import core
from ..tasks.network import Network
from ..tasks.reference import digest, of_example, refer
from ..tasks.task import Frozen, Seal, SealedTensor


def take(net: Network, task: int) -> Seal:
    """The seal of a finished task."""
    answer, what = refer(net, task), terms(net, task)
    if isinstance(answer, str):
        return Seal(frozen(net, task), None, answer, terms=what)
    return Seal(frozen(net, task), answer, terms=what)


def take_all(net: Network) -> None:
    """Seal every finished task anew."""
    taken = {task.index: take(net, task.index) for task in net.tasks if task.finished}
    for index, seal in taken.items():
        net.update_task(index, seal=seal)


def note_conversion(net: Network, before: Mapping[str, torch.dtype]) -> None:
    """After a change of type: note in the seals whether it has rounded the sealed values."""
    now = net.types()
    changed = [kind for name, kind in now.items() if before.get(name, kind) != kind]
    for task in net.tasks if changed else ():
        if task.seal is not None:
            rounded = "" if holds(net, task.index, task.seal) else str(changed[0])
            net.update_task(task.index, seal=replace(task.seal, converted=rounded))


def terms(net: Network, task: int) -> dict[str, str]:
    """The settings that determine the answers of a finished task, besides values and owners.

    They never change. The keys complete sentences that begin with "its".
    """
    # saved files hold these keys: their wording stays
    own = net.tasks[task]
    again = "none" if own.revisits is None else str(own.revisits)
    return {
        "number": str(own.index),
        "name": own.name,
        "numbers of classes": json.dumps(own.classes, sort_keys=True),
        "earlier task that it is a second go at": again,
        "network's forward_transfer": str(net.owners.forward_transfer),
        "network's keep_head": str(net.keep_head),
        "network's example inputs (their digest)": of_example(net),
    }


def frozen(net: Network, task: int) -> Frozen:
    """The digests of the values that a finished task froze, as they are now."""
    own = torch.from_numpy(net.owners.task == task).nonzero()
    tensors = {}
    for name, where in elements(net, task).items():
        home, leaf = net.slots[name]
        values = where.to(home[leaf].device).take(home[leaf].detach())
        tensors[name] = SealedTensor(str(values.dtype), values.numel(), digest(values))
    return Frozen(digest(own), tensors)


def holds(net: Network, task: int, sealed: Seal) -> bool:
    """Are the frozen values of a task those that were sealed?"""
    return not other_type(net, sealed) and frozen(net, task) == sealed.frozen


def other_type(net: Network, sealed: Seal) -> str:
    """The new type of a sealed tensor whose type has changed; empty if none has."""
    for name, kind in net.types().items():
        if name in sealed.frozen.tensors and sealed.frozen.tensors[name].type != str(kind):
            return str(kind)
    return ""


def elements(net: Network, task: int) -> dict[str, Elements]:
    """The elements of each tensor that a finished task froze.

    Caches, which a model fills by itself, are left out.
    """
    plan, owner = net.call_plan.plan, torch.from_numpy(net.owners.task)

    def owned(units: Tensor) -> Elements | None:
        return Elements.of(owner[core(units)] == task)

    found: dict[str, Elements | None] = {}
    for name, entry in plan.parameters.items():
        if entry.used and not entry.head:
            found[f"backbone.{name}"] = owned(entry.units)
    for name, units in plan.buffers.items():
        found[f"backbone.{name}"] = owned(units)
    # constants are frozen with the first task that owns units, and sealed with it
    if bool((owner == task).any()) and not bool(((owner >= 0) & (owner < task)).any()):
        found |= {f"backbone.{name}": Elements() for name in net.call_plan.plan.constants}
    if task == 0:
        found |= {f"backbone.{name}": Elements() for name in net.kept_head_names()}
    found |= {name: Elements() for name in net.slots if name.startswith(f"heads.{task}.")}
    return {
        name: where
        for name, where in found.items()
        if where is not None and not net.slots[name][0].is_cache(net.slots[name][1])
    }
