"""Drawing: turns an analysis into the description that every format is written from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import fx

from ..capture.graph import Capture, operator_name
from ..report.dependencies import Dependencies
from ..tasks.network import Network
from .boxes import Box, Boxes, find_boxes
from .elements import Drawing, DrawnGroup, Edge, GroupRole, Module, Node, Summary
from .groups import draw_groups
from .layers import Layers
from .meaning import Meaning
from .modules import list_modules
from .source_lines import short

__all__ = ["Drawing", "describe", "describe_capture"]
_SHORT_NAMES = {
    "scaled_dot_product_attention": "attention",
    "linalg_vector_norm": "norm",
    "max_pool1d_with_indices": "max_pool1d",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d",
}


def describe(deps: Dependencies, net: Network | None = None, title: str = "") -> Drawing:
    """Describe an analysed model; with a network, also the owners of its units.

    One node stands for one call of a layer or for one operator; see
    :mod:`autoeidetic.draw.boxes`.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> from autoeidetic.draw import describe
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> drawing = describe(autoeidetic.analyze(net, torch.randn(2, 4)))
        >>> [(node.kind, node.label) for node in drawing.nodes]
        [('input', 'input'), ('layer', '0'), ('operator', '1'), ('head', '2'), ('output', 'output')]
        >>> [edge.kind for edge in drawing.edges]
        ['consumes', 'coupled', 'consumes', 'coupled']
    """
    meaning = Meaning(deps)
    drawing = _describe(find_boxes(deps.capture), meaning, title)
    if net is None:
        return drawing
    from .ownership import describe_ownership, task_entries

    ownership = describe_ownership(net, drawing.groups, meaning.weights)
    return replace(drawing, tasks=task_entries(net), ownership=ownership)


def describe_capture(capture: Capture, title: str = "") -> tuple[Drawing, dict[fx.Node, str]]:
    """Describe a captured graph without an analysis: boxes and arrows, no groups.

    Also returns, for each operator, the id of the node that contains it or that its value comes
    from.
    """
    found = find_boxes(capture)
    ids = {node: f"n{box}" for node, box in found.source.items()}
    return _describe(found, None, title), ids


def _describe(found: Boxes, meaning: Meaning | None, title: str) -> Drawing:
    capture = found.capture
    layers = Layers(capture, found.boxes)
    # Edges first: modules are compared by their edges to find repeated blocks, and groups are
    # coloured by their neighbours.
    edges = _edges(found, layers, meaning)
    arrows = [(int(e.source[1:]), int(e.target[1:]), e.kind) for e in edges]
    modules, home = list_modules(found, layers, arrows)
    groups: tuple[DrawnGroup, ...] = ()
    roles: dict[int, tuple[GroupRole, ...]] = {}
    if meaning is not None:
        groups, roles = draw_groups(meaning, found, layers, edges)
    nodes = _nodes(found, layers, meaning, home, groups, roles)
    title = title or capture.types.get("", "")
    return Drawing(title, _summary(capture, meaning), modules, nodes, edges, groups)


def _summary(capture: Capture, meaning: Meaning | None) -> Summary:
    known = Summary(
        parameters=sum(p.numel() for p in capture.parameters.values()),
        captured_by=capture.way,
        operators=sum(node.op == "call_function" for node in capture.graph.nodes),
    )
    if meaning is None:
        return known
    deps = meaning.deps
    return replace(
        known,
        groups=len(deps.groups),
        units=deps.plan.units,
        locked_share=deps.locked.share,
        nested=len(deps.plan.nested),
    )


# -- edges -------------------------------------------------------------------------------------


def _edges(found: Boxes, layers: Layers, meaning: Meaning | None) -> tuple[Edge, ...]:
    """One edge for all values of the same kind between the same two boxes."""
    # (source, target, kind) -> all groups on the way, and the first operator that reads.
    merged: dict[tuple[int, int, str], tuple[set[int], fx.Node]] = {}
    names = [list(layers.parameters(box).values()) for box in found.boxes]
    for flow in found.flows:
        target = found.boxes[flow.target]
        if meaning is None:
            kind, groups = _likely_kind(target), ()  # type: tuple[str, tuple[int, ...]]
        else:
            kind = meaning.kind(flow, target, names[flow.target])
            groups = meaning.groups(flow.value)
        merged.setdefault((flow.source, flow.target, kind), (set(), flow.step))[0].update(groups)
    return tuple(
        Edge(
            source=f"n{source}",
            target=f"n{target}",
            kind=kind,
            groups=_ids(sorted(groups)),
            operator=operator_name(step) if step.op == "call_function" else "",
            line=short(str(step.meta.get("line", ""))),
        )
        for (source, target, kind), (groups, step) in merged.items()
    )


def _likely_kind(target: Box) -> str:
    """The kind of an edge guessed from the type of the target, without an analysis."""
    if target.kind != "layer":
        return "coupled"
    return "normalises" if "Norm" in target.type else "consumes"


def _ids(groups: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"g{group}" for group in groups)


# -- nodes -------------------------------------------------------------------------------------


def _nodes(
    found: Boxes,
    layers: Layers,
    meaning: Meaning | None,
    home: dict[int, Module],
    groups: Sequence[DrawnGroup],
    roles: dict[int, tuple[GroupRole, ...]],
) -> tuple[Node, ...]:
    locked = {group.id: group.locked for group in groups}
    heads = set() if meaning is None else {head.layer for head in meaning.deps.heads}
    nested = set() if meaning is None else {each.module for each in meaning.deps.plan.nested}
    calls: dict[str, int] = defaultdict(int)
    nodes = []
    for index, box in enumerate(found.boxes):
        # The number of this call of the module; operators have no path.
        calls[box.path] += bool(box.path)
        label = _label(box, home[index], calls[box.path])
        node = _node(found, layers, box, f"n{index}", home[index].id, label)
        own = roles.get(index, ())
        # A node that only reads a locked group is not locked itself.
        reasons = [locked[each.group] for each in own if each.role != "input"]
        node = replace(
            node,
            kind="head" if box.kind == "layer" and box.path in heads else box.kind,
            groups=own,
            locked=next((reason for reason in reasons if reason), ""),
            nested=_is_inside(box.path, nested),
        )
        if meaning is not None and box.value is not None:
            carries = _ids(meaning.groups(box.value))
            node = replace(node, units=meaning.units(box.value), carries=carries)
        nodes.append(node)
    return tuple(nodes)


def _node(found: Boxes, layers: Layers, box: Box, ident: str, module: str, label: str) -> Node:
    known = found.capture.parameters
    names = layers.parameters(box)
    lines = [str(step.meta.get("line", "")) for step in box.steps]
    return Node(
        id=ident,
        module=module,
        kind=box.kind,
        label=label,
        type=box.type,
        path="" if box.kind in ("input", "output") else box.path,
        shape=tuple(box.value.meta.get("shape", ())) if box.value is not None else (),
        # a tied parameter has two names and counts once
        parameters=sum(known[name].numel() for name in dict.fromkeys(names.values())),
        parameter_shapes={leaf: tuple(known[name].shape) for leaf, name in names.items()},
        line=short(next((line for line in lines if line), "")),
    )


def _label(box: Box, module: Module, call: int) -> str:
    """The path relative to the module's box, or the operator's name; ``#2`` marks a second call."""
    if not box.path:
        name = box.type.removeprefix("aten.").strip("_")
        return _SHORT_NAMES.get(name, name)
    name = box.path.removeprefix(f"{module.path}.") if module.path else box.path
    return name if call < 2 else f"{name} #{call}"


def _is_inside(path: str, modules: set[str]) -> bool:
    while path:
        if path in modules:
            return True
        path = path.rpartition(".")[0]
    return False
