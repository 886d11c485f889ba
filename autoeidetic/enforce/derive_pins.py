"""From the plan and the owners to pins.

Everything is derived: the same owners give the same pins, also after a move to another device, a
copy or a load.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..couple.tables import ParameterUnits
from ..plan.call_plan import CallPlan
from ..propagate.values import varies
from .elements import Elements
from .owners import Owners
from .pins import Pin

#: Operators that a layer's backward can be restricted for: ``kernels/restricted_backward.py``.
_RESTRICTABLE = ("aten.linear", "aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution")


def backbone_pins(call_plan: CallPlan, owners: Owners, own_heads: Iterable[str]) -> list[Pin]:
    """The pins of the backbone; ``own_heads``: parameters of output layers that a task keeps."""
    result = []
    whole = set(own_heads)
    for name, entry in call_plan.plan.parameters.items():
        if name in whole:
            result.append(Pin(name, Elements(), None))
            continue
        if entry.head or not entry.used:
            continue
        frozen = Elements.of(owners.owned(entry.units))
        zeros = owners.zeros(name)
        hidden = None if zeros is None else Elements.of(zeros)
        if frozen is not None or hidden is not None:
            result.append(Pin(name, frozen, hidden))
    for name, units in call_plan.plan.buffers.items():
        frozen = Elements.of(owners.owned(units))
        if frozen is not None:
            result.append(Pin(name, frozen, None))
    # every task may read constants, so they are frozen as soon as one task has finished
    if (owners.task >= 0).any():
        result += [Pin(name, Elements(), None) for name in call_plan.plan.constants]
    return result


def backward_restricted(call_plan: CallPlan) -> list[str]:
    """Weights whose gradient never has a frozen part, so that no hook needs to clear it."""
    plans = call_plan.plan.parameters
    return [name for name, entry in plans.items() if is_restrictable(name, entry)]


def is_restrictable(name: str, entry: ParameterUnits) -> bool:
    """Is the only use of a weight the product of its own layer, rows by columns?

    Then the layer's backward can leave out frozen rows. A weight that is shared, computed from, or
    whose units vary along other dimensions gets its gradient from somewhere else as well.
    """
    if len(entry.reads) != 1:
        return False
    read = entry.reads[0]
    return (
        not read.transformed
        and read.operator in _RESTRICTABLE
        and read.module == name.rpartition(".")[0]
        and varies(entry.units) in ([0], [])
        and varies(read.columns) in ([1], [])
        and entry.units.dim() >= 2
    )
