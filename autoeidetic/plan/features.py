"""Features: the output that a head is attached to, in a model without an output layer.

It is the deepest output, which depends on all parameters that the others depend on: the last of a
list of feature maps, the decoder's hidden state and not the encoder's. A model that ends in a layer
that cannot be copied for each task has no features: a head on top of that layer would be another
function than the model's.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..capture.graph import Capture, operator_name, place
from ..couple.nesting import output_leaves
from ..errors import HeadError
from ..propagate.values import is_zero, varies
from .analysis import Analysis

_LAYERS = {
    f"aten.{name}"
    for name in "linear conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d "
    "conv_transpose3d matmul mm bmm addmm baddbmm".split()
}


@dataclass(frozen=True)
class Features:
    """An output of the model: its number, the units in it, the dimension of its channels."""

    number: int
    units: Tensor
    dim: int


def features(analysis: Analysis) -> Features:
    """The output that a head can be attached to, in the first of the analysed calls.

    Raises:
        HeadError: there is none, or it is not clear which.
    """
    outputs = _outputs(analysis)
    node = _deepest(outputs, analysis.capture)
    layer = None if node is None else _layer(node, analysis)
    if layer is not None:
        raise _not_separable(layer, analysis.capture)
    if node is None or outputs[node].dim < 1:
        raise HeadError(
            "no layer makes the model's output, and no output has channels a head could read",
            remedy="convert a model that ends in a linear layer or a convolution, or in features "
            "of shape (batch, channels, ...)",
        )
    return outputs[node]


def _outputs(analysis: Analysis) -> dict[fx.Node, Features]:
    """Outputs with channels; ``dim`` is 0 where they lie in no single dimension."""
    nodes = pytree.tree_leaves(analysis.capture.outputs[0])
    leaves = output_leaves(analysis.plan.outputs[0])
    found: dict[fx.Node, Features] = {}
    for number, (node, units) in enumerate(zip(nodes, leaves, strict=True)):
        if units is not None and units.dim() > 1 and not is_zero(units):
            dims = varies(units)
            found.setdefault(node, Features(number, units, dims[0] if len(dims) == 1 else 0))
    return found


def _deepest(outputs: dict[fx.Node, Features], capture: Capture) -> fx.Node | None:
    """The output computed with all parameters of the others, or from them; None: no outputs.

    Raises:
        HeadError: several are not computed from each other.
    """
    if not outputs:
        return None
    # stem -> a -> b     outputs a and b: own[a] < own[b], so b is deepest
    # stem -> a, b       outputs a and b: neither has all parameters: ambiguous
    # stem -> a -> relu  outputs a and relu(a): equal parameters, so the later one is deepest
    before = {node: _before(node) for node in outputs}
    own = {node: {n.target for n in before[node] if _is_parameter(n, capture)} for node in outputs}
    all_parameters = set().union(*own.values())
    ends = [node for node in outputs if own[node] == all_parameters]
    ends = [node for node in ends if not any(node in before[end] for end in ends if end != node)]
    if len(ends) != 1:
        numbers = ", ".join(str(each.number) for each in outputs.values())
        raise HeadError(
            f"the model has no output layer but several outputs (numbers {numbers}), and no single "
            "one depends on all parameters of the others: it is unclear which one a head should "
            "read",
            remedy="convert a module that returns this one alone",
        )
    return ends[0]


def _before(node: fx.Node) -> set[fx.Node]:
    """A node and all nodes that it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        new = set(waiting.pop().all_input_nodes) - found
        found |= new
        waiting += new
    return found


def _is_parameter(node: fx.Node, capture: Capture) -> bool:
    return node.op == "get_attr" and str(node.target) in capture.parameters


# -- a layer that cannot be a task's own -----------------------------------------------------------


def _layer(node: fx.Node, analysis: Analysis) -> fx.Node | None:
    """The layer behind an output, if only functions of one value follow it; None: no layer."""
    # backwards along the only operand that depends on parameters: softmax <- view <- linear. Where
    # two learned values meet (a residual sum), there is no single last layer
    capture = analysis.capture
    roles = analysis.roles
    while True:
        learned = [
            each
            for each in node.all_input_nodes
            if any(_is_parameter(other, capture) for other in _before(each))
        ]
        weights = {str(each.target) for each in map(_unmoved, learned)}
        if operator_name(node) in _LAYERS and any((name, "output") in roles for name in weights):
            return node
        if len(learned) != 1:
            return None
        (node,) = learned


def _unmoved(node: fx.Node) -> fx.Node:
    """The value before it was transposed, reshaped and so on."""
    while node.op != "get_attr" and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    return node


def check_whole(analysis: Analysis) -> None:
    """Check that the parameters of a layer are either all a head's or none.

    Raises:
        HeadError: a layer is a head in part: the bias of an output layer whose weight is tied.
    """
    parameters = analysis.plan.parameters
    for node in analysis.capture.graph.nodes:
        if operator_name(node) in _LAYERS:
            names = {str(_unmoved(each).target) for each in node.all_input_nodes}
            if len({parameters[name].head for name in names & parameters.keys()}) > 1:
                raise _not_separable(node, analysis.capture)


def _not_separable(layer: fx.Node, capture: Capture) -> HeadError:
    """The error for an output layer that cannot be given to each task."""
    path = layer.meta.get("module", "")
    weights = [_unmoved(node) for node in layer.all_input_nodes]
    names = {str(node.target) for node in weights if _is_parameter(node, capture)}
    names -= {name for name in names if len(capture.parameters[name].shape) < 2}  # biases
    same = {alias for alias, first in capture.aliases.items() if first in names} | names
    elsewhere = sorted(
        user.meta.get("module", "")
        for node in capture.graph.nodes
        if node.op == "get_attr" and str(node.target) in names
        for user in node.users
        if user is not layer and user.meta.get("scope", ())[:1] == layer.meta["scope"][:1]
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
    reason = f"{fact}, so that tasks cannot have their own copies of it"
    return HeadError(reason, place=place(layer), remedy=remedy)
