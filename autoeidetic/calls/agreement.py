"""Agreement: whether the analysis of a further call fits the network's plan.

The plan is made from the example inputs. A call that they do not cover is analysed later, and its
analysis may ask for nothing that the plan does not enforce already:

    use        it uses no parameter that the examples leave unused, and the heads are the same
    units      no two units of the plan become one
    reads      every weight reads the same units
    requires   no unit requires a unit that it did not require before
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..couple.tables import Read
from ..errors import EnforcementError, Place
from ..plan.plan import Plan
from ..propagate.values import array, compress, core

Array = np.ndarray
_REMEDY = (
    "convert the model with this call among the examples: convert(model, [example, another]), "
    "where each example is a tensor, a tuple of positional or a dict of keyword arguments"
)


def translation(plan: Plan, other: Plan) -> Array:
    """For each unit of ``other`` the unit of ``plan`` that has its elements; 0 for none.

    Raises:
        EnforcementError: ``other`` asks for something that ``plan`` does not enforce.
    """
    # in this order: reads and requires can only be compared once units have common names
    _check_same_use(plan, other)
    _check_buffers(plan, other)
    units = _units(plan, other)
    plan_labels = labels(plan, np.arange(plan.units + 1))
    other_labels = labels(other, units)
    _check_reads(plan, other, plan_labels, other_labels)
    _check_requires(plan, other, units, plan_labels, other_labels)
    return units


def _refuse(fact: str, name: str) -> EnforcementError:
    return EnforcementError(
        f"the model takes a path that no example has shown: {fact}",
        place=Place(module=name.rpartition(".")[0]),
        remedy=_REMEDY,
    )


def _check_same_use(plan: Plan, other: Plan) -> None:
    for name, entry in other.parameters.items():
        if not entry.used:
            continue
        if not plan.parameters[name].used:
            raise _refuse(f"this call uses the parameter '{name}'", name)
        if entry.head != plan.parameters[name].head:
            what = "makes an output and nothing else" if entry.head else "feeds other layers"
            raise _refuse(f"in this call the parameter '{name}' {what}", name)


def _check_buffers(plan: Plan, other: Plan) -> None:
    for name in other.buffers:
        if name not in plan.buffers:
            raise _refuse(f"in this call the buffer '{name}' has one value per channel", name)


# -- units -----------------------------------------------------------------------------------


def _units(plan: Plan, other: Plan) -> Array:
    """The unit of ``plan`` with the elements of each unit of ``other``.

    Raises:
        EnforcementError: a unit of ``other`` has elements of two units of ``plan``.
    """
    # element by element    plan   1 1 2 2 3 3     other   5 5 6 6 7 7     found[5, 6, 7] = 1, 2, 3
    #                       plan   1 1 2 2 3 3     other   5 5 5 5 7 7     5 ties 1 and 2: refused
    # Several units of `other` may share one of `plan`, which then keeps more together than needed.
    # Elements that no example reads are one unit of the plan (and locked), whatever they are in
    # `other`: they name a unit, in `rest`, only where it has no other elements.
    found = np.zeros(other.units + 1, np.int64)
    rest = np.zeros(other.units + 1, np.int64)
    for name, left, right in _pairs(plan, other):
        left, right = left[~other.unreached[right]], right[~other.unreached[right]]
        unreached = plan.unreached[left]
        rest[right[unreached]] = left[unreached]
        left, right = left[~unreached], right[~unreached]
        if name in other.parameters and other.parameters[name].head:
            found[right] = left  # each task has its own copy of a head, so its units may be tied
            continue
        fresh = found[right] == 0
        found[right[fresh]] = left[fresh]
        tied = found[right] != left
        if tied.any():
            one, two = int(found[right[tied][0]]), int(left[tied][0])
            layers = _layer(plan, one), _layer(plan, two)
            where = "layers '{}' and '{}'".format(*layers)
            if layers[0] == layers[1]:
                where = f"layer '{layers[0]}'"
            raise _refuse(f"this call ties channels of {where} together", name)
    return np.where(found == 0, rest, found)


def _pairs(plan: Plan, other: Plan) -> Iterator[tuple[str, Array, Array]]:
    """The units of each tensor's elements in both plans, side by side."""
    used = {name: entry.units for name, entry in other.parameters.items() if entry.used}
    both = [(name, plan.parameters[name].units, units) for name, units in used.items()]
    both += [(name, plan.buffers[name], units) for name, units in other.buffers.items()]
    for name, left, right in both:
        small = torch.broadcast_tensors(core(left), core(right))
        yield name, *(each.reshape(-1).numpy() for each in small)


def _layer(plan: Plan, number: int) -> str:
    for name, entry in plan.parameters.items():
        if (array(entry.units) == number).any():
            return name.rpartition(".")[0] or name
    return ""


def labels(plan: Plan, units: Array) -> Array:
    """Names of units that two plans have in common.

    The name of a unit with elements is its number in ``units``. A derived unit has no elements to
    compare: its name is a hash of its requirements, negated, so that no unit number equals it.
    """
    # derived d requires units 3 and 8, derived e requires d and 2:
    #     round 1    label[d] = -hash{3, 8}      label[e] = -hash{0, 2}      d had no name yet
    #     round 2    label[d] = -hash{3, 8}      label[e] = -hash{label[d], 2}
    # One round for each level of derived units; requires has no cycles between units, so it ends.
    # A sum of scrambled names stands for the set: the order of the edges does not matter.
    derived = plan.elements == 0
    derived[0] = False
    label = np.where(derived, 0, units).astype(np.int64)
    source, needed = plan.requires.T if len(plan.requires) else (np.zeros(0, np.int64),) * 2
    follows = derived[source]
    source, needed = source[follows], needed[follows]
    for _ in range(len(label)):
        total = np.zeros(len(label), np.uint64)
        np.add.at(total, source, _scrambled(label[needed]))
        # 62 bits: positive as int64 before the sign is changed
        hashed = -(_scrambled(total.view(np.int64)) >> np.uint64(2)).astype(np.int64)
        fresh = np.where(derived & (total != 0), hashed, label)
        if np.array_equal(fresh, label):
            break
        label = fresh
    return label


def _scrambled(numbers: Array) -> Array:
    """Splitmix64: a fixed 64-bit hash of each number, the same in every process."""
    mixed = numbers.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))


# -- reads and requires ------------------------------------------------------------------------


def _check_reads(plan: Plan, other: Plan, plan_labels: Array, other_labels: Array) -> None:
    for name, entry in other.parameters.items():
        if entry.head or not entry.used:
            continue
        known = {_read_key(read, plan_labels) for read in plan.parameters[name].reads}
        for read in entry.reads:
            if _read_key(read, other_labels) not in known:
                raise _refuse(f"in this call the weight '{name}' reads other channels", name)


def _read_key(read: Read, label: Array) -> tuple[object, ...]:
    rows = canonical(read.rows, label) if read.transformed else None
    return read.transformed, canonical(read.columns, label), rows


def canonical(units: Tensor, label: Array) -> tuple[tuple[int, ...], bytes]:
    """Labels without the dimensions along which they do not vary, as a value to compare."""
    # (64, 256, 56, 56) and (8, 256, 28, 28) with channels along dimension 1: both (1, 256, 1, 1).
    # Two units can have one label, so what does not vary is looked for again after the lookup.
    small = core(units)
    named = compress(torch.from_numpy(label)[small])
    small = core(named)
    return tuple(small.shape), small.numpy().tobytes()


def _check_requires(
    plan: Plan, other: Plan, units: Array, plan_labels: Array, other_labels: Array
) -> None:
    head = _heads(plan)
    known, _, _ = _edges(plan, np.arange(plan.units + 1), plan_labels, head)
    keys, source, needed = _edges(other, units, other_labels, head)
    # a missing edge is an error only if the plan does not imply it: a -> b -> c includes a -> c
    missing = ~np.isin(keys, known)
    for left, right in zip(source[missing].tolist(), needed[missing].tolist(), strict=True):
        reached = plan.closure(head == left)
        further = other.closure(np.arange(other.units + 1) == right) & (other.elements > 0)
        if not reached[units[further]].all():
            name = _layer(plan, left)
            raise _refuse(f"in this call channels of layer '{name}' depend on further ones", name)


def _heads(plan: Plan) -> Array:
    """The first unit of the head that a unit belongs to; its own number for any other unit."""
    result = np.arange(plan.units + 1)
    for entry in plan.parameters.values():
        if entry.head:
            own = array(entry.units)
            result[own] = own.min()
    return result


def _edges(plan: Plan, units: Array, label: Array, head: Array) -> tuple[Array, Array, Array]:
    """The requires edges of units with elements, each once.

    Returns for each edge a key that both plans share, the unit of the network's plan at its start,
    and the unit of ``plan`` at its end.
    """
    source, needed = plan.requires.T if len(plan.requires) else (np.zeros(0, np.int64),) * 2
    left, right = head[units[source]], label[needed]
    kept = (plan.elements[source] > 0) & (left != right) & (right != 0)
    left, right, needed = left[kept], right[kept], needed[kept]
    # hashing the right side twice makes the key of a -> b differ from that of b -> a
    keys, first = np.unique(_scrambled(left) ^ _scrambled(_scrambled(right)), return_index=True)
    return keys, left[first], needed[first]
