"""Agreement: does the analysis of one call more say the same of every parameter?

The plan of a network is made from its example inputs. Whatever the analysis of a call that they did
not show finds must be in force already: the units of all parameter elements that it reaches, what
each weight reads, and what requires what.
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
        EnforcementError: ``other`` asks for something that ``plan`` does not keep.
    """
    _check_same_use(plan, other)
    _check_buffers(plan, other)
    units = _units(plan, other)
    mine = labels(plan, np.arange(plan.units + 1))
    theirs = labels(other, units)
    _check_reads(plan, other, mine, theirs)
    _check_requires(plan, other, units, mine, theirs)
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
    """The unit of ``plan`` with the elements of each unit of ``other``."""
    found = np.zeros(other.units + 1, np.int64)
    rest = np.zeros(other.units + 1, np.int64)
    for name, left, right in _pairs(plan, other):
        left, right = left[~other.unreached[right]], right[~other.unreached[right]]
        unreached = plan.unreached[left]
        rest[right[unreached]] = left[unreached]
        left, right = left[~unreached], right[~unreached]
        if name in other.parameters and other.parameters[name].head:
            found[right] = left  # every task has a head of its own: they may be tied together
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
    """Names for units that two plans share.

    One with elements has the number that ``units`` gives it; one without is known by what it
    requires, as a negative hash of that.
    """
    derived = plan.elements == 0
    derived[0] = False
    label = np.where(derived, 0, units).astype(np.int64)
    source, needed = plan.requires.T if len(plan.requires) else (np.zeros(0, np.int64),) * 2
    follows = derived[source]
    source, needed = source[follows], needed[follows]
    for _ in range(len(label)):
        total = np.zeros(len(label), np.uint64)
        np.add.at(total, source, _scrambled(label[needed]))
        hashed = -(_scrambled(total.view(np.int64)) >> np.uint64(2)).astype(np.int64)
        fresh = np.where(derived & (total != 0), hashed, label)
        if np.array_equal(fresh, label):
            break
        label = fresh
    return label


def _scrambled(numbers: Array) -> Array:
    mixed = numbers.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))


# -- reads and requires ------------------------------------------------------------------------


def _check_reads(plan: Plan, other: Plan, mine: Array, theirs: Array) -> None:
    for name, entry in other.parameters.items():
        if entry.head or not entry.used:
            continue
        known = {_read_key(read, mine) for read in plan.parameters[name].reads}
        for read in entry.reads:
            if _read_key(read, theirs) not in known:
                raise _refuse(f"in this call the weight '{name}' reads other channels", name)


def _read_key(read: Read, label: Array) -> tuple[object, ...]:
    rows = canonical(read.rows, label) if read.transformed else None
    return read.transformed, canonical(read.columns, label), rows


def canonical(units: Tensor, label: Array) -> tuple[tuple[int, ...], bytes]:
    """Labels without the dimensions in which they do not vary, as something to compare."""
    small = core(units)
    named = compress(torch.from_numpy(label)[small])
    small = core(named)
    return tuple(small.shape), small.numpy().tobytes()


def _check_requires(plan: Plan, other: Plan, units: Array, mine: Array, theirs: Array) -> None:
    head = _heads(plan)
    known, _, _ = _edges(plan, np.arange(plan.units + 1), mine, head)
    keys, source, needed = _edges(other, units, theirs, head)
    missing = ~np.isin(keys, known)
    for left, right in zip(source[missing].tolist(), needed[missing].tolist(), strict=True):
        reached = plan.closure(head == left)
        further = other.closure(np.arange(other.units + 1) == right) & (other.elements > 0)
        if not reached[units[further]].all():
            name = _layer(plan, left)
            raise _refuse(f"in this call channels of layer '{name}' depend on further ones", name)


def _heads(plan: Plan) -> Array:
    """The first unit of the head that a unit belongs to; its own number for any other."""
    result = np.arange(plan.units + 1)
    for entry in plan.parameters.values():
        if entry.head:
            own = array(entry.units)
            result[own] = own.min()
    return result


def _edges(plan: Plan, units: Array, label: Array, head: Array) -> tuple[Array, Array, Array]:
    """Requires edges of units with elements, each once.

    A key that both plans share, the unit of ``units`` that requires, and what it requires.
    """
    source, needed = plan.requires.T if len(plan.requires) else (np.zeros(0, np.int64),) * 2
    left, right = head[units[source]], label[needed]
    kept = (plan.elements[source] > 0) & (left != right) & (right != 0)
    left, right, needed = left[kept], right[kept], needed[kept]
    keys, first = np.unique(_scrambled(left) ^ _scrambled(_scrambled(right)), return_index=True)
    return keys, left[first], needed[first]
