"""The layer graph: layers and groups as one ``networkx.DiGraph``, and queries on it.

    layer --writes, normalises, filters, parameter--> group --reads--> layer
                                                      group --requires--> group

It is built once, as the last step of coupling, is a part of the plan, and never changes. Heads,
streams, norms, locks, what requires what and the order of pruning are read off it.

Every node and edge attribute is a plain value, so that GraphML can hold the graph. An edge has
the ``operator`` and source ``line`` that caused it, if an operator did. Groups of heads and of
unused parameters are not nodes: a head only reads.

The functions below take the plain graph. Layers are named by their module path and groups by
``group:`` and their name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..capture.names import layer_of
from ..errors import Place
from ..propagate.values import array
from .couple import Coupling
from .groups import Group, GroupTable
from .heads import Head
from .locks import Lock, Locked, lock_reason

if TYPE_CHECKING:
    import networkx as nx

Array = np.ndarray
#: Between names in one attribute: a line break is in no name of a parameter.
_SEPARATOR = "\n"
_ROLE_EDGES = {"norm": "normalises", "depthwise": "filters", "free": "parameter"}


def build(coupling: Coupling, table: GroupTable, locked: Array) -> nx.DiGraph:
    """The graph of a coupling; ``locked`` marks the units that every task needs."""
    import networkx as nx

    graph = nx.DiGraph()
    _add_layers(graph, coupling)
    requirers = np.bincount(coupling.requires[:, 1], minlength=coupling.units + 1)
    for number, group in zip(table.kept, table.groups, strict=True):
        chosen = locked & (coupling.group_of_unit == number)
        _add_group(graph, coupling, group, chosen)
        most = int(requirers[list(group.units)].max())
        graph.nodes[node_of(group.name)]["required_by"] = most
    for (left, right), where in table.requires.items():
        if node_of(left) in graph and node_of(right) in graph:
            _add_edge(graph, node_of(left), node_of(right), "requires", where)
    return nx.freeze(graph)


def node_of(group: str) -> str:
    """The node of a group."""
    return f"group:{group}"


def _add_layers(graph: nx.DiGraph, coupling: Coupling) -> None:
    shapes: dict[str, list[str]] = {}
    made: dict[str, dict[str, Array]] = {}  # head -> its parameters -> their units
    for name, entry in coupling.parameters.items():
        layer = layer_of(name)
        if layer not in graph:
            graph.add_node(layer, kind="layer", label=layer, elements=0, shapes="")
        node = graph.nodes[layer]
        if entry.head:
            made.setdefault(layer, {})[name] = array(entry.units)
        node["elements"] += entry.units.numel()
        leaf = name.removeprefix(f"{layer}.")
        shapes.setdefault(layer, []).append(f"{leaf}{list(entry.units.shape)}")
    for layer, each in shapes.items():
        graph.nodes[layer]["shapes"] = " ".join(each)
    for layer, units in made.items():
        graph.nodes[layer].update(
            kind="head",
            parameters=_SEPARATOR.join(units),
            size=len(np.unique(np.concatenate(list(units.values())))),
            head_elements=sum(coupling.parameters[name].units.numel() for name in units),
        )


def _add_group(graph: nx.DiGraph, coupling: Coupling, group: Group, locked: Array) -> None:
    node = node_of(group.name)
    joins = dict.fromkeys(bond.place.operator for bond in group.bonds if bond.kind == "joined")
    graph.add_node(
        node,
        kind="group",
        label=group.name,
        size=group.size,
        elements=group.elements,
        coupled_by=", ".join(joins),
        **_lock_attributes(coupling, locked),
    )
    for member in group.members:
        if member.role == "input":
            _add_edge(graph, node, member.layer, "reads", member.place)
        else:
            kind = _ROLE_EDGES.get(member.role.split("+")[0], "writes")
            _add_edge(graph, member.layer, node, kind, member.place)


def _lock_attributes(coupling: Coupling, chosen: Array) -> dict[str, Any]:
    """Why units of a group are locked, and by which operator; ``locked`` is empty if none are."""
    reason, where = lock_reason(coupling, chosen) if chosen.any() else ("", Place())
    return {
        "locked": reason,
        "locked_elements": int(coupling.elements[chosen].sum()),
        "locked_module": where.module,
        "locked_operator": where.operator,
        "locked_line": where.line,
    }


def _add_edge(graph: nx.DiGraph, source: str, target: str, kind: str, where: Place) -> None:
    """The first edge between two nodes stays, but a layer that also writes a group writes it."""
    known = graph.get_edge_data(source, target)
    if known is None or (kind == "writes" and known["kind"] != "writes"):
        graph.add_edge(source, target, kind=kind, operator=where.operator, line=where.line)


# -- queries -----------------------------------------------------------------------------------


def heads(graph: nx.DiGraph) -> tuple[Head, ...]:
    """The layers that make the outputs."""
    return tuple(
        Head(node, tuple(data["parameters"].split(_SEPARATOR)), data["size"], data["head_elements"])
        for node, data in graph.nodes(data=True)
        if data["kind"] == "head"
    )


def groups(graph: nx.DiGraph) -> list[str]:
    """The nodes of groups, in the order of the model's parameters."""
    return [node for node, kind in graph.nodes(data="kind") if kind == "group"]


def members(graph: nx.DiGraph, group: str, kind: str = "") -> list[str]:
    """The layers that own elements of a group; with ``kind`` only those with such an edge."""
    return [
        layer
        for layer, _, found in graph.in_edges(group, data="kind")
        if found != "requires" and kind in ("", found)
    ]


def readers(graph: nx.DiGraph, group: str) -> list[str]:
    """The layers that read a group."""
    return [layer for _, layer, kind in graph.out_edges(group, data="kind") if kind == "reads"]


def required_first(graph: nx.DiGraph) -> list[str]:
    """The names of all groups, those whose units are required most first: the order of pruning.

    A unit takes with it everything that requires it, so what is required is decided first.
    """
    found = [graph.nodes[group] for group in groups(graph)]
    return [data["label"] for data in sorted(found, key=lambda data: -data["required_by"])]


def requires(graph: nx.DiGraph, group: str, *, directly: bool = True) -> list[str]:
    """The groups that a group requires; with ``directly=False`` also what these require."""
    if directly:
        return [node for _, node, kind in graph.out_edges(group, data="kind") if kind == "requires"]
    import networkx as nx

    between = nx.DiGraph(_requirements(graph))
    found = nx.descendants(between, group) if group in between else set()
    return [node for node in groups(graph) if node in found]


def _requirements(graph: nx.DiGraph) -> list[tuple[str, str]]:
    return [(a, b) for a, b, kind in graph.edges(data="kind") if kind == "requires"]


def groups_of(graph: nx.DiGraph, layer: str) -> list[str]:
    """The groups in which a layer owns elements."""
    return list(graph.successors(layer))


def producers(graph: nx.DiGraph, layer: str) -> list[str]:
    """The layers whose channels a layer reads."""
    return _distinct(
        owner for group in graph.predecessors(layer) for owner in members(graph, group)
    )


def consumers(graph: nx.DiGraph, layer: str) -> list[str]:
    """The layers that read the channels of a layer."""
    return _distinct(user for group in groups_of(graph, layer) for user in readers(graph, group))


def coupled_with(graph: nx.DiGraph, layer: str) -> list[str]:
    """The other layers that own elements of the same units."""
    found = _distinct(other for group in groups_of(graph, layer) for other in members(graph, group))
    return [other for other in found if other != layer]


def streams(graph: nx.DiGraph) -> list[str]:
    """Residual streams: groups that several layers write and an operator joins."""
    return [
        group
        for group in groups(graph)
        if graph.nodes[group]["coupled_by"] and len(members(graph, group, "writes")) > 1
    ]


def norms(graph: nx.DiGraph, group: str) -> list[str]:
    """The layers that normalise a group, in the order of the model's parameters."""
    return members(graph, group, "normalises")


def order(graph: nx.DiGraph) -> list[tuple[str, ...]]:
    """Layers and groups, each after those that it depends on.

    Nodes that depend on each other (a residual stream and the layers of its branches) are one
    entry: the strongly connected components in the topological order of the condensation.
    """
    #     stem -> [stream <-> branch.0, branch.1] -> head        3 entries; where the order is open,
    #                                                            that of the model's parameters
    import networkx as nx

    rank = {node: number for number, node in enumerate(graph)}
    # data flows along all edges except requires, which points from a group to what it needs
    against = _requirements(graph)
    flow = nx.DiGraph(graph.edges)
    flow.add_nodes_from(graph)
    flow.remove_edges_from(against)
    flow.add_edges_from((needed, group) for group, needed in against)
    condensed = nx.condensation(flow)
    parts = {
        part: tuple(sorted(inside, key=rank.__getitem__))
        for part, inside in condensed.nodes(data="members")
    }
    first = lambda part: rank[parts[part][0]]  # noqa: E731
    return [parts[part] for part in nx.lexicographical_topological_sort(condensed, key=first)]


def locks(graph: nx.DiGraph, backbone: int) -> Locked:
    """The groups with units that every task needs, the largest first.

    Shares are of the ``backbone`` elements.
    """
    found = [
        Lock(
            group=data["label"],
            elements=data["locked_elements"],
            share=data["locked_elements"] / max(backbone, 1),
            reason=data["locked"],
            place=Place(data["locked_module"], data["locked_operator"], data["locked_line"]),
        )
        for _, data in graph.nodes(data=True)
        if data["kind"] == "group" and data["locked"]
    ]
    found.sort(key=lambda lock: -lock.elements)
    return Locked(tuple(found), sum(lock.elements for lock in found) / max(backbone, 1))


def _distinct(names: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(names))
