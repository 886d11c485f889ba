"""Groups: the place of each group of the analysis in the drawing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..couple.groups import Bond, Group
from ..couple.layer_graph import node_of, requires
from ..couple.locks import Lock
from .boxes import Boxes
from .colours import choose_colours
from .elements import DrawnGroup, Edge, GroupRole
from .layers import Layers
from .meaning import Meaning
from .source_lines import short


@dataclass(frozen=True)
class _Places:
    """The boxes of one group."""

    nodes: list[int]
    readers: list[int]
    couplers: list[int]


def draw_groups(
    meaning: Meaning, found: Boxes, layers: Layers, edges: Sequence[Edge]
) -> tuple[tuple[DrawnGroup, ...], dict[int, tuple[GroupRole, ...]]]:
    """The drawn groups, and box -> its roles in groups."""
    deps = meaning.deps
    ids = {group.name: f"g{number}" for number, group in enumerate(deps.groups)}
    couplers = _couplers(meaning, found, edges)
    parts: dict[int, dict[GroupRole, None]] = defaultdict(dict)
    places = []
    for number, group in enumerate(deps.groups):
        nodes: dict[int, None] = {}
        readers: dict[int, None] = {}
        for member in group.members:
            for box in layers.boxes_of(member):
                # Dicts as ordered sets: a layer may be a member several times.
                (readers if member.role == "input" else nodes)[box] = None
                parts[box][GroupRole(f"g{number}", member.role)] = None
        places.append(_Places(sorted(nodes), sorted(readers), couplers[number]))
    colours = _colours(deps.groups, places, edges)
    locks = {lock.group: lock for lock in deps.locked}
    nodes_of = {node_of(group.name): ids[group.name] for group in deps.groups}
    drawn = tuple(
        DrawnGroup(
            id=ids[group.name],
            name=group.name,
            size=group.size,
            elements=group.elements,
            colour=colours[number],
            members=tuple(member.to_dict() for member in group.members),
            nodes=_names(places[number].nodes),
            readers=_names(places[number].readers),
            couplers=_names(places[number].couplers),
            bonds=tuple(_bond(bond, ids) for bond in group.bonds),
            requires=tuple(
                nodes_of[node] for node in requires(deps.analysis.graph, node_of(group.name))
            ),
            locked=_reason(locks.get(group.name)),
        )
        for number, group in enumerate(deps.groups)
    )
    return drawn, {box: tuple(found_parts) for box, found_parts in parts.items()}


def _names(boxes: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"n{box}" for box in boxes)


def _bond(bond: Bond, ids: dict[str, str]) -> dict[str, Any]:
    return {**bond.to_dict(), "line": short(bond.place.line), "other": ids.get(bond.other, "")}


def _reason(lock: Lock | None) -> str:
    """Why a group cannot be divided, and where that comes from."""
    if lock is None:
        return ""
    where = [lock.place.operator, lock.place.module, short(lock.place.line)]
    place = ", ".join(part for part in where if part)
    return f"{lock.reason} ({place})" if place else lock.reason


def _couplers(meaning: Meaning, found: Boxes, edges: Sequence[Edge]) -> dict[int, list[int]]:
    """Operators that join the units of a group, or that the group enters from two sides."""
    boxes: dict[int, set[int]] = defaultdict(set)
    for step, groups in meaning.joined.items():
        box = found.source.get(step)
        if (
            box is not None
            and found.boxes[box].kind == "operator"
            and step in found.boxes[box].steps
        ):
            for group in groups:
                boxes[group].add(box)
    # (group, box) -> the number of edges on which the group enters the box.
    sides: dict[tuple[int, int], int] = defaultdict(int)
    for edge in edges:
        target = int(edge.target[1:])
        if edge.kind == "coupled" and found.boxes[target].kind == "operator":
            for name in edge.groups:
                sides[int(name[1:]), target] += 1
    for (group, target), count in sides.items():
        if count > 1:
            boxes[group].add(target)
    return defaultdict(list, {group: sorted(places) for group, places in boxes.items()})


def _colours(
    groups: Sequence[Group], places: Sequence[_Places], edges: Sequence[Edge]
) -> list[int]:
    # box -> the groups that show there; groups that meet in a box need different colours.
    at: dict[int, set[int]] = defaultdict(set)
    for number, place in enumerate(places):
        for box in (*place.nodes, *place.readers, *place.couplers):
            at[box].add(number)
    for edge in edges:
        for end in (edge.source, edge.target):
            at[int(end[1:])].update(int(name[1:]) for name in edge.groups)
    touching: list[set[int]] = [set() for _ in groups]
    for together in at.values():
        for number in together:
            touching[number] |= together - {number}
    weight = [len(place.nodes) + len(place.couplers) for place in places]
    names = [group.name for group in groups]
    return choose_colours(names, [group.size for group in groups], touching, weight)
