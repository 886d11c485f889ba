"""Structure: groups, what couples them, and what is locked, in words people read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from ..capture.graph import operator_name, place
from ..errors import Place
from ..plan.plan import layer_of
from ..propagate.values import array
from .couple import Coupling

Array = np.ndarray
_WRITES = ("output", "recurrent", "embedding", "shared", "depthwise", "norm", "bias", "free")
_MOST_PAIRS = 20_000_000


@dataclass(frozen=True)
class Member:
    """A layer's part in a group: as output, input, depthwise, norm, free parameter, ..."""

    layer: str
    parameter: str
    role: str
    elements: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "parameter": self.parameter,
            "role": self.role,
            "elements": self.elements,
        }


@dataclass(frozen=True)
class Bond:
    """What couples the units of a group, and where.

    ``kind``: ``joined`` (channel by channel), ``requires`` (reads ``other`` without a weight
    that could be zeroed), ``mixed`` (lies along a dimension that is summed or normalised),
    ``nested`` (mixed in a module that is evaluated level by level).
    """

    kind: str
    place: Place
    other: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "operator": self.place.operator,
            "module": self.place.module,
            "line": self.place.line,
            "other": self.other,
        }


@dataclass(frozen=True)
class Group:
    """Units with the same members in the same layers: what is pruned by percentage."""

    name: str
    size: int
    elements: int
    members: tuple[Member, ...]
    bonds: tuple[Bond, ...]
    units: tuple[int, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that own elements of the group."""
        return tuple(dict.fromkeys(m.layer for m in self.members if m.role != "input"))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "size": self.size,
            "elements": self.elements,
            "members": [m.to_dict() for m in self.members],
            "bonds": [b.to_dict() for b in self.bonds],
        }


@dataclass(frozen=True)
class Head:
    """A layer that makes an output and feeds nothing else; each task gets its own."""

    layer: str
    parameters: tuple[str, ...]
    size: int
    elements: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "parameters": list(self.parameters),
            "size": self.size,
            "elements": self.elements,
        }


@dataclass(frozen=True)
class Lock:
    """Something every task needs whole, so that it is frozen with the first."""

    group: str
    elements: int
    share: float
    reason: str
    place: Place

    def __str__(self) -> str:
        where = f" ({self.place})" if str(self.place) else ""
        return f"{self.group}: {self.share:.2%} of the backbone: {self.reason}{where}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "elements": self.elements,
            "share": self.share,
            "reason": self.reason,
            "operator": self.place.operator,
            "module": self.place.module,
            "line": self.place.line,
        }


@dataclass(frozen=True)
class Locked(Sequence[Lock]):
    """Everything that cannot be divided between tasks; ``share`` is its part of the backbone."""

    locks: tuple[Lock, ...]
    share: float

    def __len__(self) -> int:
        return len(self.locks)

    def __getitem__(self, index: Any) -> Any:
        return self.locks[index]

    def __iter__(self) -> Iterator[Lock]:
        return iter(self.locks)

    def __str__(self) -> str:
        if not self.locks:
            return "nothing is locked"
        return "\n".join([f"locked: {self.share:.2%} of the backbone", *map(str, self.locks)])

    def to_dict(self) -> dict[str, Any]:
        return {"share": self.share, "locks": [lock.to_dict() for lock in self.locks]}


@dataclass(frozen=True)
class Structure:
    """Groups, heads and locks of one model."""

    groups: tuple[Group, ...]
    heads: tuple[Head, ...]
    unused: tuple[str, ...]
    locked: Locked
    group_requires: tuple[tuple[str, str, Place], ...]
    backbone: int
    largest_unit: int
    locked_units: Array
    outside: Array


def build(coupling: Coupling) -> Structure:
    """Describe a coupling."""
    plan = coupling.plan
    heads = set(coupling.heads)
    head_unit = _owned_by(coupling, heads)
    unused = {name for name, p in plan.parameters.items() if not p.used}
    idle_unit = _owned_by(coupling, unused)
    members = _members(coupling, heads, unused)
    names, kept = _names(coupling, members, head_unit | idle_unit)
    bonds, requires = _bonds(coupling, names)
    units = _units_by_group(coupling)
    groups = tuple(
        Group(
            name=names[g],
            size=len(units[g]),
            elements=int(plan.elements[units[g]].sum()),
            members=tuple(members[g]),
            bonds=tuple(bonds[g]),
            units=tuple(units[g].tolist()),
        )
        for g in kept
    )
    backbone = int(plan.elements.sum()) - sum(
        plan.parameters[name].units.numel() for name in heads | unused
    )
    outside = head_unit | idle_unit
    inside = np.where(outside, 0, plan.elements)
    locked_units = _locked_units(coupling, kept, head_unit)
    return Structure(
        groups=groups,
        heads=_heads(coupling),
        unused=tuple(sorted(unused)),
        locked=_locked(coupling, kept, names, locked_units, backbone),
        group_requires=requires,
        backbone=backbone,
        largest_unit=int(inside.max()),
        locked_units=locked_units,
        outside=outside,
    )


def _owned_by(coupling: Coupling, parameters: set[str]) -> Array:
    """The units that have elements in these parameters."""
    found = np.zeros(coupling.plan.units + 1, bool)
    for name in parameters:
        found[array(coupling.plan.parameters[name].units)] = True
    return found


def _units_by_group(coupling: Coupling) -> list[Array]:
    owning = np.flatnonzero(coupling.group_of_unit >= 0)
    order = owning[np.argsort(coupling.group_of_unit[owning], kind="stable")]
    bounds = np.cumsum(np.bincount(coupling.group_of_unit[owning], minlength=coupling.groups))
    return np.split(order, bounds[:-1])


def _heads(coupling: Coupling) -> tuple[Head, ...]:
    layers: dict[str, list[str]] = defaultdict(list)
    for name in coupling.heads:
        layers[layer_of(name)].append(name)
    result = []
    for layer, parameters in layers.items():
        units = [coupling.plan.parameters[name].units for name in parameters]
        size = len(np.unique(np.concatenate([array(each) for each in units])))
        elements = sum(each.numel() for each in units)
        result.append(Head(layer, tuple(parameters), size, elements))
    return tuple(result)


# -- members and names -------------------------------------------------------------------------


def _members(coupling: Coupling, heads: set[str], unused: set[str]) -> list[list[Member]]:
    roles: dict[str, list[str]] = defaultdict(list)
    for name, role in coupling.propagation.algebra.roles:
        roles[name].append(role)
    members: list[list[Member]] = [[] for _ in range(coupling.groups)]
    for name, parameter in coupling.plan.parameters.items():
        role = "unused" if name in unused else "+".join(roles[name]) or "free"
        for g, count in _group_counts(coupling, parameter.units):
            members[g].append(Member(layer_of(name), name, role, count))
    for name, parameter in coupling.plan.parameters.items():
        for read in parameter.reads:
            for g, count in _group_counts(coupling, read.columns):
                members[g].append(Member(layer_of(name), name, "input", count))
    return members


def _group_counts(coupling: Coupling, units: Tensor) -> list[tuple[int, int]]:
    """How many elements of a tensor of units lie in each group."""
    small = coupling.group_of_unit[array(units)]
    each = units.numel() // max(len(small), 1)
    counts = np.bincount(small + 1, minlength=1)
    return [(int(g), int(counts[g + 1]) * each) for g in np.flatnonzero(counts[1:])]


def _names(
    coupling: Coupling, members: list[list[Member]], left_out: Array
) -> tuple[dict[int, str], list[int]]:
    """Readable, unique names; the groups that belong to the backbone."""
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    kept = []
    outside = np.zeros(coupling.groups, bool)
    owning = coupling.group_of_unit >= 0
    outside[coupling.group_of_unit[owning & left_out]] = True
    for g in range(coupling.groups):
        name = _name(coupling, g, members[g])
        taken[name] = taken.get(name, 0) + 1
        names[g] = name if taken[name] == 1 else f"{name}:{taken[name]}"
        if not outside[g]:
            kept.append(g)
    return names, kept


def _name(coupling: Coupling, group: int, members: list[Member]) -> str:
    writers = [m for m in members if m.role.split("+")[0] in ("output", "recurrent", "embedding")]
    writers = writers or [m for m in members if m.role != "input"]
    layers = list(dict.fromkeys(m.layer for m in writers))
    if len(layers) == 1:
        return layers[0] + _rows(coupling, group, writers[0].parameter)
    return _common_prefix(layers) or layers[0]


def _rows(coupling: Coupling, group: int, parameter: str) -> str:
    """``[a:b]`` when the group has only a run of the parameter's rows."""
    units = coupling.plan.parameters[parameter].units
    if not units.dim():
        return ""
    first = units.flatten(1)[:, 0] if units.dim() > 1 else units
    rows = np.flatnonzero(coupling.group_of_unit[first.numpy()] == group)
    if not len(rows) or len(rows) == len(first) or rows[-1] - rows[0] + 1 != len(rows):
        return ""
    return f"[{rows[0]}:{rows[-1] + 1}]"


def _common_prefix(paths: list[str]) -> str:
    parts = [path.split(".") for path in paths]
    shared = []
    for step in zip(*parts, strict=False):
        if len(set(step)) > 1:
            break
        shared.append(step[0])
    return ".".join(shared)


# -- bonds -------------------------------------------------------------------------------------


def _bonds(
    coupling: Coupling, names: dict[int, str]
) -> tuple[list[list[Bond]], tuple[tuple[str, str, Place], ...]]:
    """For each group what couples it, and the requires edges between groups."""
    propagation = coupling.propagation
    bonds: list[dict[Bond, None]] = [{} for _ in range(coupling.groups)]
    between: dict[tuple[str, str], Place] = {}
    places: dict[int, Place] = {}
    for event in propagation.algebra.channels.events:
        if event.node not in places:
            places[event.node] = place(propagation.nodes[event.node])
        where = places[event.node]
        left = coupling.group_of_unit[coupling.unit_of_channel[event.left]]
        right = coupling.group_of_unit[coupling.unit_of_channel[event.right]]
        if event.mixing in coupling.nested_sites:
            for g in _distinct(right):
                bonds[g][Bond("nested", where)] = None
        elif event.kind == "joined":
            for g in _distinct(left):
                bonds[g][Bond("joined", where)] = None
        else:
            for pair in _distinct((left + 1) * (coupling.groups + 1) + right + 1):
                a, b = divmod(pair, coupling.groups + 1)
                _note_requirement(bonds, between, names, a - 1, b - 1, where)
    return [list(b) for b in bonds], tuple((a, b, w) for (a, b), w in between.items())


def _distinct(groups: Array) -> list[int]:
    """The different numbers that are not negative; events are mostly of one group."""
    if (groups == groups[0]).all():
        return [int(groups[0])] if groups[0] >= 0 else []
    return [int(g) for g in np.unique(groups) if g >= 0]


def _note_requirement(
    bonds: list[dict[Bond, None]],
    between: dict[tuple[str, str], Place],
    names: dict[int, str],
    left: int,
    right: int,
    where: Place,
) -> None:
    if right < 0:
        return
    if left < 0 or left == right:
        bonds[right][Bond("mixed", where)] = None
        return
    bonds[left][Bond("requires", where, names[right])] = None
    between.setdefault((names[left], names[right]), where)


# -- locked ------------------------------------------------------------------------------------


def _locked_units(coupling: Coupling, kept: list[int], head_unit: Array) -> Array:
    """Units that every task must own: all units of some group, or of a head, require them."""
    plan, group = coupling.plan, coupling.group_of_unit
    pairs_needed = reach(plan.requires, plan.units + 1)
    in_backbone = np.zeros(coupling.groups, bool)
    in_backbone[kept] = True
    source = np.where((group >= 0) & in_backbone[np.maximum(group, 0)], group, -1)
    source[head_unit] = group[head_unit]
    sizes = np.bincount(source[source >= 0], minlength=coupling.groups)
    locked = np.zeros(plan.units + 1, bool)
    locked[(source >= 0) & ~head_unit] = sizes[source[(source >= 0) & ~head_unit]] == 1
    if len(pairs_needed):
        from_group = source[pairs_needed[:, 0]]
        valid = from_group >= 0
        pairs = np.unique(
            from_group[valid] * (plan.units + 1) + pairs_needed[valid, 1], return_counts=True
        )
        needed_by, needed = np.divmod(pairs[0], plan.units + 1)
        locked[needed[pairs[1] == sizes[needed_by]]] = True
        locked[pairs_needed[locked[pairs_needed[:, 0]], 1]] = True
    return (locked | plan.unreached) & ~head_unit & (plan.elements > 0)


def _locked(
    coupling: Coupling, kept: list[int], names: dict[int, str], locked: Array, backbone: int
) -> Locked:
    group = coupling.group_of_unit
    locks = [
        _lock(coupling, g, names[g], locked, backbone) for g in kept if locked[(group == g)].any()
    ]
    locks.sort(key=lambda lock: -lock.elements)
    return Locked(tuple(locks), sum(lock.elements for lock in locks) / max(backbone, 1))


def reach(requires: Array, size: int) -> Array:
    """All (unit, unit it requires, directly or not), without itself."""
    if not len(requires):
        return requires
    step = csr_matrix((np.ones(len(requires), bool), tuple(requires.T)), shape=(size, size))
    total = step
    while total.nnz < _MOST_PAIRS:
        further = (total + total @ step).astype(bool)
        if further.nnz == total.nnz:
            break
        total = further
    found = total.tocoo()
    return np.stack([found.row, found.col], axis=1).astype(np.int64)


def _lock(coupling: Coupling, group: int, name: str, locked: Array, backbone: int) -> Lock:
    chosen = locked & (coupling.group_of_unit == group)
    elements = int(coupling.plan.elements[chosen].sum())
    reason, where = _reason(coupling, chosen)
    return Lock(name, elements, elements / max(backbone, 1), reason, where)


def _reason(coupling: Coupling, chosen: Array) -> tuple[str, Place]:
    propagation = coupling.propagation
    for (name, role), node in propagation.algebra.roles.items():
        if role == "shared" and chosen[array(coupling.plan.parameters[name].units)].any():
            text = "one weight serves all channels alike"
            return text, place(propagation.nodes[node])
    joined = required = None
    for event in propagation.algebra.channels.events:
        if event.mixing in coupling.nested_sites:
            continue
        right = chosen[coupling.unit_of_channel[event.right]]
        if not right.any():
            continue
        left = chosen[coupling.unit_of_channel[event.left]]
        if (left & right).any():
            joined = joined or event
        if event.kind == "requires" and (right & ~left).any():
            required = required or event
    if joined is not None:
        where = propagation.nodes[joined.node]
        text = f"{operator_name(where)} mixes its channels and no module could be evaluated "
        text = text + "level by level" if joined.mixing >= 0 else "its units cannot be separated"
        return text, place(where)
    if required is not None:
        return "every channel it acts on needs it", place(propagation.nodes[required.node])
    return "it has a single unit", Place()
