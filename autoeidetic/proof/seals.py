"""Seals: what a task was when it was finished, to be compared with what it is later.

A seal is plain data, a part of its task: it is copied, pickled and saved with it, and no move to
another device or type touches it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..enforce.pins import Where
from ..propagate.values import core
from ..tasks.reference import Reference, digest, of_example, refer

if TYPE_CHECKING:
    from ..tasks.network import Answering


@dataclass(frozen=True)
class SealedTensor:
    """The values that a task froze in one tensor: their type, their number, their digest."""

    type: str
    values: int
    digest: str


@dataclass(frozen=True)
class Frozen:
    """All that a task froze: a digest of its units, and values by the name of their tensor."""

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
    ``terms``: what it was besides values, in words; None in a seal of an earlier version.
    """

    frozen: Frozen
    reference: Reference | None
    why_not: str = ""
    converted: str = ""
    terms: dict[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a seal of an earlier version has the same ones as then."""
        values = asdict(self)
        if self.terms is None:
            del values["terms"]
        return values


def take(net: Answering, task: int) -> Seal:
    """The seal of a finished task."""
    answer, what = refer(net, task), terms(net, task)
    if isinstance(answer, str):
        return Seal(frozen(net, task), None, answer, terms=what)
    return Seal(frozen(net, task), answer, terms=what)


def terms(net: Answering, task: int) -> dict[str, str]:
    """What decides about the answers of a finished task besides values and owners.

    None of it changes in the life of a network. The keys follow "its" in a sentence.
    """
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

    def owned(units: Tensor) -> Where | None:
        return Where.of(owner[core(units)] == task)

    found: dict[str, Where | None] = {}
    for name, entry in plan.parameters.items():
        if entry.used and not entry.head:
            found[f"backbone.{name}"] = owned(entry.units)
    for name, units in plan.buffers.items():
        found[f"backbone.{name}"] = owned(units)
    if bool((owner == task).any()) and not bool(((owner >= 0) & (owner < task)).any()):
        found |= {f"backbone.{name}": Where() for name in net.blueprint.plan.constants}
    if task == 0:
        found |= {f"backbone.{name}": Where() for name in net._own_heads()}
    found |= {name: Where() for name in net._slots if name.startswith(f"heads.{task}.")}
    return {
        name: where
        for name, where in found.items()
        if where is not None and not net._slots[name][0].is_cache(net._slots[name][1])
    }
