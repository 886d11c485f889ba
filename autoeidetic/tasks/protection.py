"""Protection: the guards and masks of one call, derived from the plan and the owners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..calls.calls import Call
from ..enforce import derive_guards
from ..enforce.derive_levels import readable_mask
from ..enforce.guard import Guard, guard
from ..plan.call_plan import ATTACHED, HeadPlan
from . import heads

if TYPE_CHECKING:
    from .network import Network

#: For each output layer or output number, and each task: the elements it may see; None: all.
Visible = dict[tuple[str | int, int], Tensor | None]


@dataclass(frozen=True)
class Protection:
    """Guards by the path of their module, and what each task may see."""

    guards: dict[str, Guard]
    visible: Visible


def protection(network: Network, call: Call) -> Protection:
    """The guards that a call needs, and what each task may see in it."""

    def device(path: str) -> torch.device:
        return device_of(network.backbone, path)

    owners = call.owners(network.owners)
    found = derive_guards.guards(
        network.call_plan, network.owners, call.call_plan, owners, network.runtime, device
    )
    looked_at: dict[str | int, Tensor | None] = dict(enumerate(call.call_plan.outputs))
    looked_at |= {head.layer: head.inputs for head in call.call_plan.heads}
    visible: Visible = {
        (key, task.index): readable_mask(units, task.index, owners, device(""))
        for key, units in looked_at.items()
        for task in network.tasks
    }
    for head in call.call_plan.heads:
        if head.leaf is None and head.layer != ATTACHED and network.tasks:
            found[head.holder] = Guard(head.holder, whole=_head_slot(network, head, visible))
    return Protection(found, visible)


def _head_slot(network: Network, head: HeadPlan, visible: Visible) -> heads.HeadSlot:
    slot = heads.HeadSlot(network.runtime, head.layer, head.dim)
    for task in network.tasks:
        slot.heads[task.index] = network.head(task.index, head.layer)
        # a module around a nested head masks its inputs already
        slot.visible[task.index] = None if head.nested else visible[head.layer, task.index]
    return slot


@contextmanager
def unguarded(network: Network) -> Iterator[None]:
    """The backbone without guards, to look at it; not to run tasks."""
    try:
        for path in network.guards:
            guard(network.backbone.get_submodule(path), None)
        yield
    finally:
        for path, found in network.guards.items():
            guard(network.backbone.get_submodule(path), found)


def device_of(model: nn.Module, path: str) -> torch.device:
    """The device of a module's first tensor."""
    module = model.get_submodule(path)
    for tensor in chain(module.parameters(), module.buffers(), model.parameters()):
        return tensor.device
    return torch.device("cpu")
