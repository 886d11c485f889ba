"""How far the graph of a narrow copy is that of the model, with the shapes that were predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from ...capture.capture import capture, captured_part
from ...capture.graph import Capture, operator_name, place
from ...common.inputs import CallInputs
from ...common.undisturbed import undisturbed
from ...errors import AutoeideticError
from .shapes import ANY

#: Operators whose numbers are sizes, or follow from sizes: their results are compared instead.
_SIZES = frozenset(
    f"aten.{name}"
    for name in (
        "view _unsafe_view reshape _reshape_copy expand split split_with_sizes slice narrow unfold "
        "as_strided repeat tile select layer_norm native_layer_norm rms_norm group_norm "
        "native_group_norm constant_pad_nd pad slice_scatter select_scatter new_zeros new_ones "
        "new_full new_empty zeros ones full empty index_select unflatten chunk tensor_split "
        "constant unsafe_split unsafe_split_with_sizes unsafe_chunk scaled_dot_product_attention"
    ).split()
)
#: The dimension along which vectors among the arguments lie.
_CHANNELS = {
    "aten.linear": -1,
    **{f"aten.conv{d}d": 1 for d in (1, 2, 3)},
    **{f"aten.conv_transpose{d}d": 1 for d in (1, 2, 3)},
    **{f"aten.{kind}_norm": 1 for kind in ("batch", "instance", "group")},
}


@dataclass(frozen=True)
class Match:
    """The result of a comparison.

    ``length`` is the number of nodes that agree, ``whole`` whether all do, ``node`` the first node
    of the model that does not, ``reason`` what is wrong there.
    """

    length: int
    whole: bool
    node: fx.Node | None
    reason: str


def compute_nodes(captured: Capture) -> list[fx.Node]:
    """Inputs and operators in order, without those that depend on sizes.

    Constants come and go with the code that makes them; a copy of a value is made where its
    memory has gaps, and has none where there is one head.
    """
    return [
        n
        for n in captured.graph.nodes
        if n.op in ("placeholder", "call_function") and not _is_copy(n)
    ]


def _is_copy(node: fx.Node) -> bool:
    return node.op == "call_function" and operator_name(node) in ("aten.clone", "aten.alias")


def _without_copies(value: Any) -> Any:
    while isinstance(value, fx.Node) and _is_copy(value):
        value = value.args[0]
    return value


def _operator(node: fx.Node) -> Any:
    """What a node calls; a view of a value and of its copy are the same."""
    return "aten.view" if operator_name(node) == "aten._unsafe_view" else operator_name(node)


def match(
    model: nn.Module,
    examples: tuple[CallInputs, ...],
    original: Capture,
    shapes: Mapping[fx.Node, tuple[int, ...]],
) -> Match:
    """Capture a narrow copy and compare it with the graph of the model.

    ``shapes``: the predicted shape of each node of the model's graph that depends on an input.
    """
    failure = ""
    try:
        with undisturbed(quiet=True):
            captured: Capture | None = capture(model, *examples, real=original.way == "real")
    except AutoeideticError as error:
        captured, failure = captured_part(error), error.reason or error.fact
    ours = compute_nodes(original)
    theirs = [] if captured is None else compute_nodes(captured)
    found: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate(ours):
        if number == len(theirs):
            said = failure or "the copy calls no further operator"
            return Match(number, False, node, f"{place(node)}: {said}")
        difference = _difference(node, theirs[number], shapes, found)
        if difference:
            return Match(number, False, node, f"{place(node)}: {difference}")
        found[node] = theirs[number]
    if failure or len(theirs) > len(ours):
        said = failure or f"the copy goes on with {place(theirs[len(ours)])}"
        return Match(len(ours), False, ours[-1], said)
    return Match(len(ours), True, None, "")


def _difference(
    ours: fx.Node,
    theirs: fx.Node,
    shapes: Mapping[fx.Node, tuple[int, ...]],
    found: Mapping[fx.Node, fx.Node],
) -> str:
    """What is different between a node of the model and one of the copy; empty if nothing is."""
    if _operator(ours) != _operator(theirs) or ours.meta["module"] != theirs.meta["module"]:
        return f"the copy calls {place(theirs)} instead"
    wanted, given = shapes.get(ours), theirs.meta.get("shape")
    if wanted is not None and not _fits(ours, wanted, given, found):
        return f"the copy has the shape {given}, and {wanted} was expected"
    if not _agrees_with_vectors(theirs):
        return f"the copy passes vectors of another size than {given}"
    left, right = _flat(ours), _flat(theirs)
    if len(left) != len(right):
        return "" if operator_name(ours) in _SIZES else "the copy has other arguments"
    for a, b in zip(left, right, strict=True):
        if isinstance(a, fx.Node) != isinstance(b, fx.Node):
            return "the copy has other arguments"
        if isinstance(a, fx.Node):
            if a in found and found[a] is not b:
                return "the copy reads other values"
        elif a != b and not _may_differ(ours, a):
            return f"the copy passes {b} where the model passes {a}"
    return ""


def _agrees_with_vectors(node: fx.Node) -> bool:
    """Have biases, weights of norms and statistics the size of the result? Capture does not ask."""
    dim = _CHANNELS.get(operator_name(node))
    shape = node.meta.get("shape", ())
    if dim is None or len(shape) < 2:
        return True
    vectors = (arg.meta.get("shape", ()) for arg in node.all_input_nodes[1:])
    return all(len(vector) != 1 or vector[0] == shape[dim] for vector in vectors)


def _fits(
    node: fx.Node,
    wanted: tuple[int, ...],
    given: tuple[int, ...] | None,
    found: Mapping[fx.Node, fx.Node],
) -> bool:
    """Is it the predicted shape?

    Where channels of two kinds meet, only one kind may be seen: along the other a value has shrunk
    if one that it was computed from has.
    """
    before = node.meta["shape"]
    if given is None or len(wanted) != len(given):
        return False
    inputs = node.all_input_nodes
    if inputs and "shape" not in inputs[0].meta:  # one of several results
        inputs = inputs[0].all_input_nodes
    shrunk = {
        pair
        for each in inputs
        if each in found and "shape" in each.meta
        for pair in zip(each.meta["shape"], found[each].meta["shape"], strict=False)
    }
    return all(
        new in (size, ANY) or (old == new and (old, size) in shrunk)
        for old, new, size in zip(before, wanted, given, strict=True)
    )


def _flat(node: fx.Node) -> list[Any]:
    """The arguments of a node, without their structure."""
    found: list[Any] = []

    def collect(value: Any) -> None:
        if isinstance(value, (tuple, list)):
            for item in value:
                collect(item)
        elif isinstance(value, dict):
            for item in value.values():
                collect(item)
        else:
            found.append(_without_copies(value))

    collect((node.args, node.kwargs))
    return found


def _may_differ(node: fx.Node, ours: Any) -> bool:
    """May a copy pass another value here? Scales may, and numbers that are sizes."""
    if not isinstance(ours, int):
        return True
    name = operator_name(node)
    # the recorder's own operators (storage_write) have strides of memory
    if name in _SIZES or name.startswith("storage"):
        return True
    # strides and dilations of a convolution are lists, the number of groups is none
    return name.startswith("aten.conv") and ours in [a for a in node.args if isinstance(a, int)]
