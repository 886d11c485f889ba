"""GraphML: every node and edge of a drawing, unfolded, for programs that work on graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..elements import Drawing
from ..picture.markup import printable

if TYPE_CHECKING:
    import networkx as nx


def to_graph(drawing: Drawing) -> nx.MultiDiGraph:
    """The drawing as a networkx graph with plain attributes."""
    import networkx as nx

    graph = nx.MultiDiGraph(title=printable(drawing.title))
    modules = {module.id: module for module in drawing.modules}
    names = {group.id: group.name for group in drawing.groups}
    for node in drawing.nodes:
        graph.add_node(
            node.id,
            kind=node.kind,
            label=printable(node.label),
            type=printable(node.type),
            path=printable(node.path),
            module=printable(modules[node.module].path),
            shape="x".join(map(str, node.shape)),
            parameters=node.parameters,
            units=node.units,
            line=printable(node.line),
            groups=printable(" ".join(names[part.group] for part in node.groups)),
            locked=printable(node.locked),
            nested=node.nested,
        )
    for edge in drawing.edges:
        groups = printable(" ".join(names[group] for group in edge.groups))
        graph.add_edge(
            edge.source,
            edge.target,
            kind=edge.kind,
            groups=groups,
            operator=printable(edge.operator),
            line=printable(edge.line),
        )
    return graph


def to_graphml(drawing: Drawing) -> str:
    """The drawing as GraphML."""
    import networkx as nx

    return "\n".join(nx.generate_graphml(to_graph(drawing))) + "\n"
