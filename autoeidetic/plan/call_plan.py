"""Call plan: what holds for one analysed call, as plain data that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..capture.graph import operator_name
from ..capture.names import layer_of
from ..couple.nesting import output_leaves
from ..couple.tables import Nested
from ..errors import HeadError, Place
from ..propagate.values import compress, core, varies
from .analysis import Analysis
from .features import check_whole, features
from .plan import Plan

#: Operators that may follow heads whose results lie side by side. Pooling and interpolation may
#: not: the last bits of their results depend on the number of channels.
_SIDE_BY_SIDE = {"getitem"} | {
    f"aten.{name}"
    for name in "view reshape _unsafe_view flatten squeeze unsqueeze transpose permute contiguous "
    "clone alias detach dropout add sub mul div neg".split()
}
#: The name of a head that the model itself does not have.
ATTACHED = "attached"


@dataclass(frozen=True)
class HeadPlan:
    """One output layer; every task gets its own copy.

    ``holder`` is the module that is replaced; with ``leaf`` only that parameter of it is.
    ``inputs`` are the units that the layer reads; ``dim`` is the dimension of its results (of the
    parameter, for a leaf) along which its units lie. An *attached* head reads an output of the
    model, leaf number ``reads``. ``nested`` is the path of a module around the head that mixes
    channels; it is run on the units that the task may see.
    """

    layer: str
    holder: str
    leaf: str | None
    parameters: tuple[str, ...]
    size: int
    inputs: Tensor
    dim: int
    reads: int = -1
    nested: str = ""


@dataclass(frozen=True)
class CallPlan:
    """The plan of one analysed call; ``plan`` is the part that all calls share.

    ``nested`` are the modules that are evaluated level by level, as this call calls them.
    ``outputs`` has the units in each leaf of the model's output; None: it is no tensor. ``modules``
    has the units in the outputs of every module, by its path.

    ``split`` has, for each output, the dimension along which a head's units lie and that head's
    layer; None: the output contains no head. ``joint``: one pass of the body can answer for
    several tasks. ``looks``: the model's Python code looks at data, so that a signature alone does
    not determine the path.
    """

    plan: Plan
    heads: tuple[HeadPlan, ...]
    nested: tuple[Nested, ...]
    outputs: tuple[Tensor | None, ...]
    split: tuple[tuple[int, str] | None, ...]
    joint: bool
    modules: dict[str, tuple[Tensor | None, ...]]
    operators: tuple[str, ...]
    looks: bool

    def __deepcopy__(self, memo: Any) -> CallPlan:
        return self  # immutable: copies of a network share it


def call_plans(model: nn.Module, analysis: Analysis) -> tuple[CallPlan, ...]:
    """The plan of each of the analysed calls.

    Raises:
        HeadError: the model has no output layer and nothing a head could be attached to.
    """
    heads = _heads(model, analysis)
    examples = range(len(analysis.capture.roots))
    if heads:
        return tuple(_call_plan(analysis, heads, example) for example in examples)
    first = _attached(analysis)
    return tuple(_call_plan(analysis, (_same_leaf(first, analysis, e),), e) for e in examples)


def _call_plan(analysis: Analysis, heads: tuple[HeadPlan, ...], example: int) -> CallPlan:
    plan, capture = analysis.plan, analysis.capture
    leaves = output_leaves(plan.outputs[example])
    split = tuple(_split(leaf, heads, plan) for leaf in leaves)
    nested = (each.within(example) for each in plan.nested)
    return CallPlan(
        plan=plan,
        heads=heads,
        nested=tuple(each for each in nested if each.calls),
        outputs=tuple(leaves),
        split=split,
        joint=_joint(heads, split, analysis, example),
        modules=_modules(analysis, example),
        operators=tuple(f"{node.op} {node.target}" for node in capture.graph.nodes),
        looks=capture.way == "real",
    )


def _modules(analysis: Analysis, example: int) -> dict[str, tuple[Tensor | None, ...]]:
    """The units in the outputs of every module; for a module with several calls, of the first."""
    capture, units = analysis.capture, analysis.values
    # reversed: of several entries with one key the last one stays
    return {
        call.path: tuple(
            units.get(leaf.name) if isinstance(leaf, fx.Node) else None
            for leaf in pytree.tree_leaves(call.outputs)
        )
        for call in reversed(capture.calls.values())
        if capture.example_of(call.scope) == example
    }


# -- heads -------------------------------------------------------------------------------------


def _heads(model: nn.Module, analysis: Analysis) -> tuple[HeadPlan, ...]:
    result = []
    check_whole(analysis)
    for head in analysis.heads:
        # a parameter of the root module is its own layer: there is no module to replace
        holder = head.layer if head.layer not in head.parameters else ""
        own = {name for name, _ in model.get_submodule(holder).named_parameters(holder)}
        # a module whose parameters all belong to the head is replaced as a whole; in any other one
        # (the root, with a parameter that serves as output weight) only single parameters are
        if holder and own <= set(head.parameters):
            result.append(_module_head(analysis, holder, head.parameters, head.size))
        else:
            result += [_parameter_head(analysis, name) for name in head.parameters]
    return tuple(result)


def _module_head(analysis: Analysis, path: str, parameters: tuple[str, ...], size: int) -> HeadPlan:
    calls = [call for call in analysis.capture.calls.values() if call.path == path]
    given = [_nodes((call.args, call.kwargs)) for call in calls]
    inputs = [compress(analysis.values[node.name]) for nodes in given for node in nodes]
    outputs = [analysis.values[node.name] for call in calls for node in _nodes(call.outputs)]
    if (
        not outputs
        or any(len(nodes) != 1 for nodes in given)
        or any(not _same_channels(units, inputs[0]) for units in inputs)
    ):
        raise HeadError(
            "the output layer is called on different features, or not as a module",
            place=Place(module=path),
            remedy="give the model one output layer that is called once",
        )
    dims = varies(outputs[0])
    rows = {analysis.plan.parameters[name].units.shape[:1] for name in parameters}
    # classes are counted by rows, not by units: a softmax behind the layer makes its rows one unit
    if len(rows) == 1:
        (size,) = rows.pop() or (size,)
    dim = dims[-1] if dims else -1
    around = [n.module for n in analysis.plan.nested if path.startswith(f"{n.module}.")]
    nested = around[0] if around else ""
    return HeadPlan(path, path, None, parameters, size, inputs[0], dim, nested=nested)


def _same_channels(left: Tensor, right: Tensor) -> bool:
    """Are the units the same, apart from the sizes of dimensions in which nothing varies?"""
    left, right = core(compress(left)), core(compress(right))
    return left.shape == right.shape and torch.equal(left, right)


def _same_leaf(head: HeadPlan, analysis: Analysis, example: int) -> HeadPlan:
    """The attached head in another analysed call, where it reads the output of the same name.

    Raises:
        HeadError: there is none, or it has other channels.
    """
    paths = [
        [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(outputs)[0]]
        for outputs in (analysis.plan.outputs[0], analysis.plan.outputs[example])
    ]
    name = paths[0][head.reads]
    leaves = output_leaves(analysis.plan.outputs[example])
    found = leaves[paths[1].index(name)] if name in paths[1] else None
    if found is None or not _same_channels(found, head.inputs):
        raise HeadError(
            f"the heads read the model's output{name}, and this call returns other channels "
            "there, or nothing",
            remedy="call the model with the arguments that it was converted with",
        )
    return replace(head, reads=paths[1].index(name))


def _parameter_head(analysis: Analysis, name: str) -> HeadPlan:
    """A parameter that the model's own code uses to make the output."""
    holder, _, leaf = name.rpartition(".")
    entry = analysis.plan.parameters[name]
    dims = varies(entry.units)
    size = entry.units.shape[dims[0]] if dims else 1
    if entry.units.dim() == 1:  # by elements, not by units, see _module_head
        (size,) = entry.units.shape
    reads = [read for read in entry.reads if not read.transformed]
    columns = reads[0].columns if reads else torch.zeros((), dtype=torch.int64)
    dim = dims[0] if len(dims) == 1 else -1
    return HeadPlan(layer_of(name), holder, leaf, (name,), size, columns, dim)


def _attached(analysis: Analysis) -> HeadPlan:
    """A linear layer on the model's features, for a model that has no output layer."""
    found = features(analysis)
    return HeadPlan(ATTACHED, "", None, (), 0, found.units, found.dim, found.number)


def _nodes(structure: Any) -> list[fx.Node]:
    return [leaf for leaf in pytree.tree_leaves(structure) if isinstance(leaf, fx.Node)]


# -- outputs -----------------------------------------------------------------------------------


def _split(leaf: Tensor | None, heads: tuple[HeadPlan, ...], plan: Plan) -> tuple[int, str] | None:
    """The dimension of an output along which a head's units lie side by side, and the head."""
    # (batch, CLASSES) or (batch, CLASSES, h, w): one dimension with a different unit at each
    # position, and all of them units of one head
    dims = [] if leaf is None else varies(leaf)
    if leaf is None or len(dims) != 1 or core(leaf).unique().numel() != leaf.shape[dims[0]]:
        return None
    for head in heads:
        if head.parameters:
            own = torch.cat([core(plan.parameters[n].units).reshape(-1) for n in head.parameters])
            if bool(torch.isin(core(leaf), own).all()):
                return dims[0], head.layer
    return None


def _joint(
    heads: tuple[HeadPlan, ...],
    split: tuple[tuple[int, str] | None, ...],
    analysis: Analysis,
    example: int,
) -> bool:
    """Can the results of several heads go side by side through the operators that follow?

    Only through operators that compute each class from itself, with the same bits in any company.
    """
    if heads[0].layer == ATTACHED:
        return True
    if any(head.leaf is not None or head.dim < 0 or head.nested for head in heads):
        return False
    paths = {head.holder for head in heads}
    calls = [
        call
        for call in analysis.capture.calls.values()
        if call.path in paths and analysis.capture.example_of(call.scope) == example
    ]
    # follow the heads' results forward; the nodes are in topological order
    after = {node for call in calls for node in _nodes(call.outputs)}
    for node in analysis.capture.graph.nodes:
        if node in after or not after.intersection(node.all_input_nodes):
            continue
        if node.op == "output":
            break
        if operator_name(node) not in _SIDE_BY_SIDE:
            return False
        after.add(node)
    outputs = pytree.tree_leaves(analysis.capture.outputs[example])
    return all(
        where is not None or node not in after
        for node, where in zip(outputs, split, strict=True)
        if isinstance(node, fx.Node)
    )
