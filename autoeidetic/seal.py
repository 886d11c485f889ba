"""Seals: what a task was when it was finished, to be compared with what it is later.

A seal is plain data, a part of its task: it is copied, pickled and saved with it, and no move to
another device or type touches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .pins import Where
from .reference import Reference, digest, refer
from .values import core

if TYPE_CHECKING:
    from .answering import Answering


@dataclass(frozen=True)
class SealedTensor:
    """The values that a task froze in one tensor: their type, their number, their digest."""

    type: str
    values: int
    digest: str


@dataclass(frozen=True)
class Frozen:
    """All that a task froze: a digest of its classes, and values by the name of their tensor."""

    owned: str
    tensors: dict[str, SealedTensor]

    @property
    def values(self) -> int:
        return sum(tensor.values for tensor in self.tensors.values())


@dataclass(frozen=True)
class Seal:
    """Taken when a task is finished.

    ``reference`` is what it answered then; without one ``why_not`` tells why. ``converted``: the
    type that the network was brought to afterwards, which may have rounded what is sealed.
    """

    frozen: Frozen
    reference: Reference | None
    why_not: str = ""
    converted: str = ""


def take(net: Answering, task: int) -> Seal:
    """The seal of a finished task."""
    answer = refer(net, task)
    if isinstance(answer, str):
        return Seal(frozen(net, task), None, answer)
    return Seal(frozen(net, task), answer)


def frozen(net: Answering, task: int) -> Frozen:
    """What a finished task has frozen, as it is now."""
    own = torch.from_numpy(net.owners.task == task).nonzero()
    tensors = {}
    for name, where in elements(net, task).items():
        home, leaf = net._slots[name]
        values = where.to(home[leaf].device).take(home[leaf].detach())
        tensors[name] = SealedTensor(str(values.dtype), values.numel(), digest(values))
    return Frozen(digest(own), tensors)


def holds(net: Answering, task: int, sealed: Seal) -> bool:
    """Are the frozen values of a task those that were sealed?"""
    return not other_type(net, sealed) and frozen(net, task) == sealed.frozen


def other_type(net: Answering, sealed: Seal) -> str:
    """A type that a sealed tensor has now and had not when it was sealed; empty: none."""
    for name, kind in net._types().items():
        if name in sealed.frozen.tensors and sealed.frozen.tensors[name].type != str(kind):
            return str(kind)
    return ""


def elements(net: Answering, task: int) -> dict[str, Where]:
    """The elements of each tensor that a finished task froze.

    Not those of caches, which a model makes by itself.
    """
    plan, owner = net.blueprint.plan, torch.from_numpy(net.owners.task)

    def owned(classes: Tensor) -> Where | None:
        return Where.of(owner[core(classes)] == task)

    found: dict[str, Where | None] = {}
    for name, entry in plan.parameters.items():
        if entry.used and not entry.head:
            found[f"backbone.{name}"] = owned(entry.owner)
    for name, classes in plan.buffers.items():
        found[f"backbone.{name}"] = owned(classes)
    if bool((owner == task).any()) and not bool(((owner >= 0) & (owner < task)).any()):
        found |= {f"backbone.{name}": Where() for name in net.blueprint.constants}
    if task == 0:
        found |= {f"backbone.{name}": Where() for name in net._own_heads()}
    found |= {name: Where() for name in net._slots if name.startswith(f"heads.{task}.")}
    return {
        name: where
        for name, where in found.items()
        if where is not None and not net._slots[name][0].is_cache(net._slots[name][1])
    }
