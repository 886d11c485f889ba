"""The boxes of a drawing: which operators of a graph form one node, and which are not drawn.

There is one box for each

- call of a layer (a module with parameters whose inner modules have none), with all its operators;
- call of a module without parameters (an activation, a pooling);
- other operator;
- parameter that the code of a container module uses itself.

A module that is called twice has two boxes. Operators that only move data (a view, a slice, a
permutation) and arithmetic with constants are not drawn: arrows pass through them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from ..capture.graph import Capture, operator_name

#: Operators that move data and compute nothing.
_MOVES = {"getitem", "storage_write"} | {
    f"aten.{name}"
    for name in "view reshape _unsafe_view flatten unflatten squeeze unsqueeze transpose t permute "
    "contiguous clone alias detach dropout expand expand_as slice select chunk split "
    "split_with_sizes unbind as_strided _to_copy to copy roll flip index_select narrow "
    "constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d pad pixel_shuffle "
    "pixel_unshuffle channel_shuffle im2col col2im unfold cat stack index gather repeat tile "
    "repeat_interleave diagonal tril triu masked_fill type_as slice_scatter select_scatter "
    "lift_fresh feature_dropout alpha_dropout".split()
}
_ARITHMETIC = {f"aten.{name}" for name in ("add", "sub", "mul", "div", "rsub", "neg", "addcmul")}


@dataclass(frozen=True)
class Box:
    """A node of the drawing, as found in the graph.

    ``scope`` has the ids of the module calls around it, the outermost first; ``steps`` its
    operators; ``value`` its result.
    """

    kind: str
    type: str
    path: str
    scope: tuple[int, ...]
    steps: tuple[fx.Node, ...]
    value: fx.Node | None


@dataclass(frozen=True)
class Flow:
    """A value that enters a box: ``source`` and ``target`` are boxes, ``step`` reads the value."""

    source: int
    target: int
    value: fx.Node
    step: fx.Node


@dataclass
class Boxes:
    """Boxes in the order of their first operator, and the values that flow between them.

    ``trained``: the paths of modules that have parameters, themselves or further inside.
    """

    capture: Capture
    trained: set[str]
    boxes: list[Box] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    #: Value -> the box it comes from, directly or through operators that are not drawn.
    source: dict[fx.Node, int] = field(default_factory=dict)


def find_boxes(capture: Capture) -> Boxes:
    """Find the boxes of a graph, which may end early when the capture failed."""
    found = Boxes(capture, _with_parameters(capture))
    leaf_of = _leaf_calls(found)
    # Inputs first: every value must have a source before an operator reads it.
    placeholders = [n for n in capture.graph.nodes if n.op == "placeholder"]
    for node in placeholders:
        name = "input" if len(placeholders) == 1 else str(node.target)
        found.source[node] = len(found.boxes)
        found.boxes.append(Box("input", "input", name, (), (node,), node))
    for call, steps in _operators_by_call(capture, leaf_of):
        _add_operators(found, call, steps)
    _add_outputs(found)
    return _without_dead_ends(found)


def _leaf_calls(found: Boxes) -> dict[int, int]:
    """Module call -> the outermost call around it (or itself) that is drawn as one box; -1: none.

    A call is a container, which is never one box, if a module with parameters is called inside it.
    Parametrizations (weight norm and others) are part of their layer, not modules inside it.
    """
    calls = found.capture.calls
    containers: set[int] = set()
    for call in calls.values():
        if call.path in found.trained and ".parametrizations." not in call.path:
            containers.update(call.scope[:-1])
    leaf: dict[int, int] = {}
    for ident, call in calls.items():
        # From the outermost inwards, without the model itself: the first call that is no container.
        around = [c for c in call.scope[1:] if c not in containers]
        leaf[ident] = around[0] if around else -1
    return leaf


def _with_parameters(capture: Capture) -> set[str]:
    """The paths of all modules that have parameters, themselves or further inside."""
    found = set()
    for name in (*capture.parameters, *capture.aliases):
        path = name.rpartition(".")[0]
        while path and path not in found:
            found.add(path)
            path = path.rpartition(".")[0]
    return found


def _operators_by_call(
    capture: Capture, leaf_of: dict[int, int]
) -> Iterator[tuple[int, tuple[fx.Node, ...]]]:
    """The operators in order: those of one leaf call together, others one by one with call -1."""
    steps: list[fx.Node] = []
    current = -1
    for node in capture.graph.nodes:
        if node.op != "call_function":
            continue
        scope = node.meta["scope"]
        call = leaf_of.get(scope[-1], -1) if scope else -1
        # Consecutive operators of one call form a box; -1 never collects more than one.
        if steps and (call != current or call == -1):
            yield current, tuple(steps)
            steps = []
        current = call
        steps.append(node)
    if steps:
        yield current, tuple(steps)


def _add_operators(found: Boxes, call: int, steps: tuple[fx.Node, ...]) -> None:
    """Add a box for these operators and the values that enter it, or pass their source on."""
    capture, own = found.capture, set(steps)
    path = capture.calls[call].path if call >= 0 else ""
    layer = call >= 0 and path in found.trained
    entering = [
        (value, step) for step in steps for value in step.all_input_nodes if value not in own
    ]
    # A layer's parameters belong to its box. Outside of layers, a parameter gets a box of its own.
    for value, step in entering:
        if not layer and _is_parameter(capture, value) and value not in found.source:
            found.source[value] = len(found.boxes)
            scope = step.meta["scope"]
            found.boxes.append(Box("layer", "Parameter", str(value.target), scope, (value,), value))
    sources = {found.source[value] for value, _ in entering if value in found.source}
    if not layer and not any(value in found.source for value, _ in entering):
        return  # computed from constants only
    if not layer and _passes(found, steps, sources):
        # not drawn: arrows from the results start at the box that the data comes from
        for step in steps:
            found.source[step] = next(iter(sources))
        return
    # Inner results of a layer may be read outside, so every operator points to the box.
    target = len(found.boxes)
    for step in steps:
        found.source[step] = target
    found.boxes.append(_box(capture, call, layer, steps))
    found.flows += [
        Flow(found.source[value], target, value, step)
        for value, step in entering
        if value in found.source and (not layer or not _is_parameter(capture, value))
    ]


def _is_parameter(capture: Capture, node: fx.Node) -> bool:
    return node.op == "get_attr" and str(node.target) in capture.parameters


def _passes(found: Boxes, steps: tuple[fx.Node, ...], sources: set[int]) -> bool:
    """Whether the operators only move data of one source or combine it with constants."""
    if len(sources) != 1:
        return False
    for step in steps:
        name = operator_name(step)
        if name in _MOVES:
            continue
        # Arithmetic passes one value through; with two it combines them and is drawn.
        live = [node for node in _operands(step) if node in found.source or node in steps]
        if name not in _ARITHMETIC or len(live) > 1:
            return False
    return True


def _operands(node: fx.Node) -> list[fx.Node]:
    """All tensor operands; one that is passed twice (``x * x``) counts twice."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


def _box(capture: Capture, call: int, layer: bool, steps: tuple[fx.Node, ...]) -> Box:
    if call < 0:
        (step,) = steps
        return Box("operator", operator_name(step), "", step.meta["scope"], steps, _first(step))
    made = capture.calls[call]
    # A module may return several values; the first one gives the box its shape.
    results = [n for n in pytree.tree_leaves(made.outputs) if isinstance(n, fx.Node)]
    value = results[0] if results else _first(steps[-1])
    kind = "layer" if layer else "operator"
    return Box(kind, capture.types.get(made.path, ""), made.path, made.scope[:-1], steps, value)


def _first(step: fx.Node) -> fx.Node:
    """The result of an operator; the first one if it has several."""
    if "shape" in step.meta:
        return step
    # An operator with several results has no shape itself; its parts (getitem) have.
    parts = [user for user in step.users if operator_name(user) == "getitem"]
    return min(parts, key=lambda part: str(part.args[1]), default=step)


def _add_outputs(found: Boxes) -> None:
    leaves: list[Any] = pytree.tree_leaves(found.capture.outputs)
    nodes = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
    ends = [node for node in found.capture.graph.nodes if node.op == "output"]
    for index, node in enumerate(nodes):
        if node not in found.source:
            continue
        name = "output" if len(nodes) == 1 else f"output_{index}"
        target = len(found.boxes)
        found.boxes.append(Box("output", "output", name, (), (ends[0],), node))
        found.flows.append(Flow(found.source[node], target, node, ends[0]))


def _without_dead_ends(found: Boxes) -> Boxes:
    """Remove operators whose results are not used; all stay in a graph that ends early.

    Removing one can make the operators before it unused, hence the loop.
    """
    if not found.capture.outputs:
        return found
    kept = set(range(len(found.boxes)))
    while True:
        used = {flow.source for flow in found.flows if flow.target in kept}
        idle = {i for i in kept if found.boxes[i].kind == "operator" and i not in used}
        if not idle:
            break
        kept -= idle
    # Numbers stay dense and in the order of execution: other files compare them (draw.tree).
    number = {old: new for new, old in enumerate(sorted(kept))}
    flows = [
        Flow(number[f.source], number[f.target], f.value, f.step)
        for f in found.flows
        if f.source in kept and f.target in kept
    ]
    source = {node: number[box] for node, box in found.source.items() if box in kept}
    boxes = [found.boxes[i] for i in sorted(kept)]
    return Boxes(found.capture, found.trained, boxes, flows, source)
