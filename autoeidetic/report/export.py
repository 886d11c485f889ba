"""Export: the dependencies as a networkx graph, JSON and a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import networkx as nx

from ..capture.graph import Capture
from ..common.tables import table as aligned
from ..couple.structure import Structure

if TYPE_CHECKING:
    from .dependencies import Dependencies

_ROLE_EDGES = {"norm": "normalises", "depthwise": "filters", "free": "parameter"}
_ROWS = 60


def graph(structure: Structure, capture: Capture) -> nx.DiGraph:
    """Layers and groups. Node and edge attributes are plain values, so GraphML can hold them.

    Nodes: ``kind`` is ``layer``, ``head`` or ``group``. Edges: ``kind`` is ``writes``,
    ``normalises``, ``filters`` or ``parameter`` (layer to group), ``reads`` (group to layer) or
    ``requires`` (group to group), with ``operator`` and ``line`` where an operator caused it.
    """
    result = nx.DiGraph()
    locked = {lock.group: lock.reason for lock in structure.locked}
    heads = {head.layer for head in structure.heads}
    for name, parameter in capture.parameters.items():
        layer = name.rpartition(".")[0] or name
        if layer not in result:
            kind = "head" if layer in heads else "layer"
            result.add_node(layer, kind=kind, label=layer, elements=0, shapes="")
        node = result.nodes[layer]
        node["elements"] += parameter.numel()
        shape = f"{name.rpartition('.')[2]}{list(parameter.shape)}"
        node["shapes"] = f"{node['shapes']} {shape}".strip()
    for group in structure.groups:
        node = f"group:{group.name}"
        couples = [b for b in group.bonds if b.kind == "joined"]
        result.add_node(
            node,
            kind="group",
            label=group.name,
            size=group.size,
            elements=group.elements,
            locked=locked.get(group.name, ""),
            coupled_by=", ".join(dict.fromkeys(b.place.operator for b in couples)),
        )
        for member in group.members:
            if member.role == "input":
                _edge(result, node, member.layer, "reads")
            else:
                kind = _ROLE_EDGES.get(member.role.split("+")[0], "writes")
                _edge(result, member.layer, node, kind)
    names = {group.name for group in structure.groups}
    for left, right, where in structure.group_requires:
        if left in names and right in names:
            result.add_edge(
                f"group:{left}",
                f"group:{right}",
                kind="requires",
                operator=where.operator,
                line=where.line,
            )
    return result


def _edge(result: nx.DiGraph, source: str, target: str, kind: str) -> None:
    """A layer that writes and normalises a group counts as writing it."""
    if not result.has_edge(source, target) or kind == "writes":
        result.add_edge(source, target, kind=kind)


def to_dict(deps: Dependencies) -> dict[str, Any]:
    return {
        "captured_by": deps.capture.way,
        "nodes": len(deps.capture.graph.nodes),
        "operators": dict(deps.operators),
        "unhandled": [str(unhandled) for unhandled in deps.unhandled],
        "units": deps.plan.units,
        "backbone_elements": deps.backbone_elements,
        "largest_unit_share": deps.largest_unit_share,
        "groups": [group.to_dict() for group in deps.groups],
        "heads": [head.to_dict() for head in deps.heads],
        "locked": deps.locked.to_dict(),
        "unused": list(deps.unused),
        "nested": [
            {"module": n.module, "operators": list(n.operators), "lines": list(n.lines)}
            for n in deps.plan.nested
        ],
    }


def to_json(deps: Dependencies) -> str:
    return json.dumps(to_dict(deps), indent=2)


def table(deps: Dependencies) -> str:
    """A summary, the groups, the heads and what is locked."""
    total = max(deps.backbone_elements, 1)
    rows = [("group", "units", "elements", "share", "layers", "coupled by")]
    for group in deps.groups[:_ROWS]:
        operators = dict.fromkeys(
            b.place.operator.removeprefix("aten.") for b in group.bonds if b.kind != "nested"
        )
        rows.append(
            (
                group.name,
                str(group.size),
                f"{group.elements:,}",
                f"{group.elements / total:.1%}",
                _shortened(group.layers),
                ", ".join(operators) or "-",
            )
        )
    lines = [_summary(deps), "", aligned(rows, right=(1, 2, 3))]
    if len(deps.groups) > _ROWS:
        lines.append(f"... {len(deps.groups) - _ROWS} more groups in .groups")
    lines.append("")
    for head in deps.heads:
        lines.append(f"head: {head.layer} ({head.size} outputs, {head.elements:,} elements)")
    if not deps.heads:
        lines.append("head: none, the outputs are features of the backbone")
    lines.append(str(deps.locked))
    if deps.unused:
        lines.append(f"unused in eval mode: {', '.join(deps.unused)}")
    lines.extend(f"unhandled: {unhandled}" for unhandled in deps.unhandled)
    return "\n".join(lines)


def _summary(deps: Dependencies) -> str:
    return (
        f"{len(deps.groups)} groups, {deps.plan.units:,} units, "
        f"{deps.backbone_elements:,} backbone elements; largest unit "
        f"{deps.largest_unit_share:.2%}; {len(deps.plan.nested)} modules evaluated level by level"
    )


def _shortened(layers: tuple[str, ...], most: int = 3) -> str:
    shown = ", ".join(layers[:most])
    return shown if len(layers) <= most else f"{shown} and {len(layers) - most} more"
