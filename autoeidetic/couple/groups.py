"""Groups: units with the same members in the same layers, and the operators that couple them.

layer stem    writes      8 units  -.
layer branch  writes  the same 8    +--  one group of 8 units, 2 writers, joined by aten.add
layer head    reads   the same 8  -'
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..capture.graph import place
from ..capture.names import layer_of
from ..errors import Place
from ..propagate.values import array
from .couple import Coupling

Array = np.ndarray


@dataclass(frozen=True)
class Member:
    """A layer's role in a group: output, input, depthwise, norm, free parameter, ...

    ``place`` is the operator that gave the parameter this role.
    """

    layer: str
    parameter: str
    role: str
    elements: int
    place: Place = field(default=Place(), compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "parameter": self.parameter,
            "role": self.role,
            "elements": self.elements,
        }


@dataclass(frozen=True)
class Bond:
    """An operator that couples the units of a group.

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
    """Units with the same members in the same layers; pruning takes a fraction of each group."""

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
class GroupTable:
    """All groups of a coupling.

    ``names`` has the name of every group by its number, including those of heads and of unused
    parameters. ``kept`` has the numbers of the backbone's groups, ``groups`` these groups
    themselves. ``requires`` has the first operator that makes one group require another.
    """

    groups: tuple[Group, ...]
    names: dict[int, str]
    kept: tuple[int, ...]
    requires: dict[tuple[str, str], Place]


def list_groups(coupling: Coupling, outside: Array) -> GroupTable:
    """Describe the groups; ``outside`` marks the units that are not in the backbone."""
    members = _members(coupling)
    names, kept = _names(coupling, members, outside)
    bonds, requires = _bonds(coupling, names)
    units = _units_by_group(coupling)
    groups = tuple(
        Group(
            name=names[g],
            size=len(units[g]),
            elements=int(coupling.elements[units[g]].sum()),
            members=tuple(members[g]),
            bonds=tuple(bonds[g]),
            units=tuple(units[g].tolist()),
        )
        for g in kept
    )
    return GroupTable(groups, names, tuple(kept), requires)


def _units_by_group(coupling: Coupling) -> list[Array]:
    """The units of each group, by its number: one stable sort, cut where the group changes."""
    # group_of_unit   -1  0  1  0  1        owning   1 2 3 4
    # sorted by group      0  0  1  1       order    1 3 | 2 4        cut after the 2 of group 0
    owning = np.flatnonzero(coupling.group_of_unit >= 0)
    order = owning[np.argsort(coupling.group_of_unit[owning], kind="stable")]
    bounds = np.cumsum(np.bincount(coupling.group_of_unit[owning], minlength=coupling.group_count))
    return np.split(order, bounds[:-1])


# -- members and names -------------------------------------------------------------------------


def _members(coupling: Coupling) -> list[list[Member]]:
    """By group: first the parameters that own elements, then the weights that read units."""
    propagation = coupling.propagation
    roles: dict[str, dict[str, int]] = defaultdict(dict)
    for (name, role), node in propagation.algebra.roles.items():
        roles[name][role] = node
    members: list[list[Member]] = [[] for _ in range(coupling.group_count)]
    for name, parameter in coupling.parameters.items():
        role = "+".join(roles[name]) or "free" if parameter.used else "unused"
        first = next(iter(roles[name].values()), None)
        where = Place() if first is None else place(propagation.nodes[first])
        for g, count in _group_counts(coupling, parameter.units):
            members[g].append(Member(layer_of(name), name, role, count, where))
    for name, parameter in coupling.parameters.items():
        for read in parameter.reads:
            where = Place(read.module, read.operator, read.line)
            for g, count in _group_counts(coupling, read.columns):
                members[g].append(Member(layer_of(name), name, "input", count, where))
    return members


def _group_counts(coupling: Coupling, units: Tensor) -> list[tuple[int, int]]:
    """How many elements of a tensor of units lie in each group."""
    small = coupling.group_of_unit[array(units)]
    if len(small) and (small == small[0]).all():  # nearly always: one layer, one group
        return [(int(small[0]), units.numel())] if small[0] >= 0 else []
    each = units.numel() // max(len(small), 1)
    counts = np.bincount(small + 1, minlength=1)  # shifted: -1 is "no group"
    return [(int(g), int(counts[g + 1]) * each) for g in np.flatnonzero(counts[1:])]


def _names(
    coupling: Coupling, members: list[list[Member]], left_out: Array
) -> tuple[dict[int, str], list[int]]:
    """A readable, unique name for every group, and the groups that belong to the backbone."""
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    kept = []
    outside = np.zeros(coupling.group_count, bool)
    owning = coupling.group_of_unit >= 0
    outside[coupling.group_of_unit[owning & left_out]] = True
    for g in range(coupling.group_count):
        name = _name(coupling, g, members[g])
        taken[name] = taken.get(name, 0) + 1
        names[g] = name if taken[name] == 1 else f"{name}:{taken[name]}"
        if not outside[g]:
            kept.append(g)
    return names, kept


def _name(coupling: Coupling, group: int, members: list[Member]) -> str:
    """The layer that writes the group, or the path that its writers have in common."""
    writers = [m for m in members if m.role.split("+")[0] in ("output", "recurrent", "embedding")]
    writers = writers or [m for m in members if m.role != "input"]
    layers = list(dict.fromkeys(m.layer for m in writers))
    if len(layers) == 1:
        return layers[0] + _rows(coupling, group, writers[0].parameter)
    return _common_prefix(layers) or layers[0]


def _rows(coupling: Coupling, group: int, parameter: str) -> str:
    """``[a:b]`` when the group has only a run of the parameter's rows."""
    units = coupling.parameters[parameter].units
    if not units.dim():
        return ""
    first = units.flatten(1)[:, 0] if units.dim() > 1 else units
    rows = np.flatnonzero(coupling.group_of_unit[first.numpy()] == group)
    if not len(rows) or len(rows) == len(first) or rows[-1] - rows[0] + 1 != len(rows):
        return ""
    return f"[{rows[0]}:{rows[-1] + 1}]"


def _common_prefix(paths: list[str]) -> str:
    """The path of the innermost module around all of them."""
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
) -> tuple[list[list[Bond]], dict[tuple[str, str], Place]]:
    """What couples each group, and the first place where one group requires another."""
    propagation = coupling.propagation
    bonds: list[dict[Bond, None]] = [{} for _ in range(coupling.group_count)]
    between: dict[tuple[str, str], Place] = {}
    places: dict[int, Place] = {}
    for event in propagation.algebra.channels.events:
        if event.node not in places:
            places[event.node] = place(propagation.nodes[event.node])
        where = places[event.node]
        left = coupling.group_of_unit[coupling.unit_of_channel[event.left]]
        right = coupling.group_of_unit[coupling.unit_of_channel[event.right]]
        # `left` requires `right`, or is joined with it; a derived channel has no group (-1)
        if event.mixing in coupling.nested_sites:
            for g in _distinct(right):
                bonds[g][Bond("nested", where)] = None
        elif event.kind == "joined":
            for g in _distinct(left):
                bonds[g][Bond("joined", where)] = None
        else:
            # an event has a pair for each channel, and mostly one pair of groups: make one number
            # of both, shifted by 1 so that "no group" is 0, and look at distinct ones only
            for pair in _distinct((left + 1) * (coupling.group_count + 1) + right + 1):
                a, b = divmod(pair, coupling.group_count + 1)
                _note_requirement(bonds, between, names, a - 1, b - 1, where)
    return [list(b) for b in bonds], between


def _distinct(groups: Array) -> list[int]:
    """The distinct group numbers, without -1 (no group); most events are of one group."""
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
    # a derived channel (no group) requires what was mixed in it
    if left < 0 or left == right:
        bonds[right][Bond("mixed", where)] = None
        return
    bonds[left][Bond("requires", where, names[right])] = None
    between.setdefault((names[left], names[right]), where)
