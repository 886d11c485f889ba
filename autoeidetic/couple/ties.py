"""Ties: the operators and source lines that tie two layers together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..capture.graph import place
from ..capture.names import layer_of
from ..errors import Place
from ..propagate.values import array
from .couple import Coupling
from .structure import Structure

if TYPE_CHECKING:
    import networkx as nx

#: Lengths of edges: sharing units ties layers closer than reading them. If two layers read each
#: other's units, the chain in which the second layer reads the first is shorter.
_OWNS, _SECOND_READS, _FIRST_READS = 1.0, 2.0, 2.1


@dataclass(frozen=True)
class Link:
    """One link of a chain: ``subject`` writes, reads, joins or requires ``object`` at a place.

    ``kind`` is that of an edge of the layer graph, or ``joins`` for an operator that makes
    channels of two layers one unit.
    """

    subject: str
    kind: str
    object: str
    operator: str = ""
    line: str = ""

    def __str__(self) -> str:
        where = [self.operator if self.subject != self.operator else "", self.line]
        source = ", ".join(part for part in where if part)
        return f"{self.subject} {self.kind} {self.object}" + (f" ({source})" if source else "")


@dataclass(frozen=True)
class Chain(Sequence[Link]):
    """The links that tie two layers together; empty, and false, if nothing does."""

    first: str
    last: str
    links: tuple[Link, ...]

    def __len__(self) -> int:
        return len(self.links)

    def __getitem__(self, index: Any) -> Any:
        return self.links[index]

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links)

    def __str__(self) -> str:
        if self.first == self.last:
            return f"'{self.first}' is one layer"
        if not self.links:
            return (
                f"nothing ties '{self.first}' and '{self.last}' together: they share no units, "
                "neither reads the other's channels, and no group of one requires a group of "
                "the other"
            )
        return "\n".join(map(str, self.links))


def why(structure: Structure, first: str, last: str) -> Chain:
    """The shortest chain between two layers that passes through groups only.

    A path through a third layer ties nothing: the weights of that layer lie between.
    """
    import networkx as nx

    if first == last:
        return Chain(first, last, ())
    between = _between(structure.graph, first, last)
    try:
        path = nx.shortest_path(between, first, last, weight="length")
    except nx.NetworkXNoPath:
        return Chain(first, last, ())
    links: list[Link] = []
    for number, (left, right) in enumerate(pairwise(path)):
        links.append(between.edges[left, right]["link"])
        # layer, group, layer: both own elements of the group; name the operators that joined them
        if number == 0 and len(path) == 3 and "reads" not in _kinds(between, path):
            links += _joins(structure, right, first, last)
    return Chain(first, last, tuple(links))


def _between(graph: nx.DiGraph, first: str, last: str) -> nx.Graph:
    """The two layers and all groups, without directions; of two edges the shorter one stays."""
    import networkx as nx

    result = nx.Graph()
    result.add_nodes_from([first, last])
    ends = {first, last}
    for source, target, data in graph.edges(data=True):
        kind = data["kind"]
        reads = _FIRST_READS if target == first else _SECOND_READS
        length = reads if kind == "reads" else _OWNS
        layers = {node for node in (source, target) if graph.nodes[node]["kind"] != "group"}
        known = result.get_edge_data(source, target)
        if layers <= ends and (known is None or length < known["length"]):
            pair = (target, source) if kind == "reads" else (source, target)
            link = Link(pair[0], kind, pair[1], data["operator"], data["line"])
            result.add_edge(source, target, length=length, link=link)
    return result


def _kinds(between: nx.Graph, path: list[str]) -> set[str]:
    return {between.edges[pair]["link"].kind for pair in pairwise(path)}


# -- inside a group ----------------------------------------------------------------------------


def _joins(structure: Structure, group: str, first: str, last: str) -> list[Link]:
    """The operators that make channels of two layers of a group one unit.

    All units of a group have the same members, so it is enough to look at one.
    """
    coupling = structure.coupling
    unit = next(g.units[0] for g in structure.groups if f"group:{g.name}" == group)
    places = _shortest(coupling, unit, first, last)
    return [Link(p.operator, "joins channels of", group, p.operator, p.line) for p in places]


def _shortest(coupling: Coupling, unit: int, first: str, last: str) -> list[Place]:
    """The operators on the shortest path from a channel of one layer to a channel of the other.

    Edges are the events (joined, requires) with an end in the unit.
    """
    #     stem -- 1 --add-- 9 --add-- 17 -- branch       layers, their channels, events in between
    import networkx as nx

    propagation, labels = coupling.propagation, coupling.unit_of_channel
    graph = nx.Graph()
    for layer in (first, last):
        graph.add_edges_from((layer, channel) for channel in _channels(coupling, layer, unit))
    for event in propagation.algebra.channels.events:
        if event.mixing in coupling.nested_sites:
            continue
        inside = (labels[event.left] == unit) | (labels[event.right] == unit)
        for pair in zip(event.left[inside].tolist(), event.right[inside].tolist(), strict=True):
            if 0 not in pair and not graph.has_edge(*pair):
                graph.add_edge(*pair, node=event.node)
    try:
        path = nx.shortest_path(graph, first, last)
    except (nx.NetworkXNoPath, nx.NodeNotFound):
        return []
    nodes = [graph.edges[pair]["node"] for pair in pairwise(path[1:-1])]
    return list(dict.fromkeys(place(propagation.nodes[node]) for node in nodes))


def _channels(coupling: Coupling, layer: str, unit: int) -> list[int]:
    """The channels of a layer's own parameters that belong to a unit."""
    known = coupling.propagation.algebra.channels_of
    own = [array(known[name]) for name in coupling.parameters if layer_of(name) == layer]
    found = np.unique(np.concatenate(own))
    return [int(c) for c in found[coupling.unit_of_channel[found] == unit]]
