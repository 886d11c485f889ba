"""Attach: which output of a model without an output layer are the features that a head reads.

It is the output that all others lead to: the last of a list of feature maps, the last hidden state
and not the encoder's. A model that does end in a layer, but in one that tasks cannot have of their
own, has no features to offer: a head on top of that layer would be another function.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from .dependencies import Dependencies
from .errors import HeadError
from .graph import Capture, operator_name, place
from .values import is_zero, varies

_LAYERS = {
    f"aten.{name}"
    for name in "linear conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d "
    "conv_transpose3d matmul mm bmm addmm baddbmm".split()
}


@dataclass(frozen=True)
class Features:
    """An output of the model: its number among all, the classes in it, where channels lie."""

    number: int
    classes: Tensor
    dim: int


def features(deps: Dependencies) -> Features:
    """The output that a head can be attached to.

    Raises:
        HeadError: there is none, or it is not clear which.
    """
    capture = deps.capture
    learned = _following(capture.graph, _parameters(capture))
    ends = _ends(deps)
    for node in ends:
        layer = _layer(node, learned)
        if layer is not None:
            raise _not_separable(layer, capture)
    found = [ends[node] for node in ends if ends[node].dim > 0]
    if len(ends) > 1:
        raise HeadError(
            f"the model has no output layer, but {len(ends)} outputs of which none leads to the "
            f"others: numbers {_listed(ends[node].number for node in ends)}",
            remedy="convert a module that returns the one output that a head is to read",
        )
    if not found:
        raise HeadError(
            "no layer makes the model's output, and no output has channels a head could read",
            remedy="convert a model that ends in a linear layer or a convolution, or in features "
            "of shape (batch, channels, ...)",
        )
    return found[0]


def _ends(deps: Dependencies) -> dict[fx.Node, Features]:
    """Outputs with channels that no other such output is computed from; ``dim`` 0: unclear."""
    leaves = zip(
        pytree.tree_leaves(deps.capture.output), pytree.tree_leaves(deps.plan.outputs), strict=True
    )
    found: dict[fx.Node, Features] = {}
    for number, (node, classes) in enumerate(leaves):
        if classes is None or classes.dim() < 2 or is_zero(classes):
            continue
        dims = varies(classes)
        found.setdefault(node, Features(number, classes, dims[0] if len(dims) == 1 else 0))
    return {
        node: own
        for node, own in found.items()
        if not (_following(deps.capture.graph, {node}) - {node}) & found.keys()
    }


def _parameters(capture: Capture) -> set[fx.Node]:
    nodes = capture.graph.nodes
    return {n for n in nodes if n.op == "get_attr" and str(n.target) in capture.parameters}


def _following(graph: fx.Graph, start: set[fx.Node]) -> set[fx.Node]:
    """Nodes that are computed from some of these, and these."""
    found = set(start)
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


# -- a layer that cannot be a task's own -----------------------------------------------------------


def _layer(node: fx.Node, learned: set[fx.Node]) -> fx.Node | None:
    """The layer that an output comes from through nothing but functions of one value."""
    while operator_name(node) not in _LAYERS:
        inputs = [each for each in node.all_input_nodes if each in learned]
        if len(inputs) != 1:
            return None
        (node,) = inputs
    return node if _weights(node) else None


def _weights(node: fx.Node) -> list[fx.Node]:
    """Parameters that an operator uses as they are, or moved."""
    found = []
    for each in node.all_input_nodes:
        while each.op != "get_attr" and len(each.all_input_nodes) == 1:
            (each,) = each.all_input_nodes
        if each.op == "get_attr":
            found.append(each)
    return found


def _not_separable(layer: fx.Node, capture: Capture) -> HeadError:
    """The error for an output layer that is not the tasks' to have."""
    path = layer.meta.get("module", "")
    names = {str(weight.target) for weight in _weights(layer)} & capture.parameters.keys()
    same = {alias for alias, first in capture.aliases.items() if first in names} | names
    elsewhere = sorted(
        user.meta.get("module", "")
        for node in capture.graph.nodes
        if node.op == "get_attr" and str(node.target) in names
        for user in node.users
        if user is not layer
    )
    leaf = next((n for n in sorted(same) if n.rpartition(".")[0] == path), f"{path}.weight")
    if not elsewhere:
        fact = "the output layer cannot be separated from the rest of the model"
        remedy = "end the model in a linear layer or a convolution of its own"
    elif set(elsewhere) == {path}:
        fact = f"the output layer is used {len(elsewhere) + 1} times in one pass"
        remedy = "end the model in a linear layer or a convolution of its own"
    else:
        fact = f"the output layer shares its weight with '{elsewhere[0]}'"
        remedy = (
            f"give it one of its own before the conversion, model.{leaf} = nn.Parameter(model."
            f"{leaf}.detach().clone()), or convert a model without the output layer, which gets a "
            "head for each task"
        )
    reason = f"{fact}, so that tasks cannot have output layers of their own"
    return HeadError(reason, place=place(layer), remedy=remedy)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
