"""Blueprint: all that conversion needs from the analysis, as plain data that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from .dependencies import Dependencies
from .errors import HeadError, Place
from .graph import Capture
from .plan import Plan
from .structure import Group, layer_of
from .values import array, core, varies

Array = np.ndarray
#: The name of a head that the model itself does not have.
ATTACHED = "attached"


@dataclass(frozen=True)
class HeadPlan:
    """One output layer, of which every task gets its own.

    ``holder`` is the module replaced; with ``leaf`` it is only that parameter of the module.
    ``inputs`` are the classes of what the layer reads; ``dim`` is where the classes lie in what
    it makes (in the parameter, for a leaf). A head that is *attached* reads an output of the
    model, leaf number ``reads``.
    """

    layer: str
    holder: str
    leaf: str | None
    parameters: tuple[str, ...]
    size: int
    inputs: Tensor
    dim: int
    reads: int = -1


@dataclass(frozen=True)
class Blueprint:
    """``outputs`` are the leaves of the model's output: the classes in each, None for none.

    ``split`` gives for each of them the dimension along which the heads' classes lie; None: no
    head is in it. ``joint``: one pass of the body can answer for several tasks.
    """

    plan: Plan
    groups: tuple[Group, ...]
    heads: tuple[HeadPlan, ...]
    outside: Array
    locked: Array
    backbone_elements: int
    outputs: tuple[Tensor | None, ...]
    split: tuple[int | None, ...]
    joint: bool
    constants: tuple[str, ...]
    aliases: dict[str, str]
    modules: dict[str, tuple[Tensor | None, ...]]
    operators: tuple[str, ...]

    def __deepcopy__(self, memo: Any) -> Blueprint:
        return self  # immutable: copies of a network share it


def blueprint(model: nn.Module, deps: Dependencies) -> Blueprint:
    """Read a blueprint off an analysis.

    Raises:
        HeadError: the model has no output layer and nothing a head could be attached to.
    """
    plan, capture = deps.plan, deps.capture
    classes = deps.values
    of = lambda node: classes.get(node.name)  # noqa: E731
    leaves = pytree.tree_leaves(plan.outputs)
    heads = _heads(model, deps)
    head_class = np.zeros(plan.classes + 1, bool)
    for head in heads:
        for name in head.parameters:
            head_class[array(plan.parameters[name].owner)] = True
    if not heads:
        heads = (_attached(leaves),)
    split = tuple(_split(leaf, head_class) for leaf in leaves)
    structure = deps._structure
    return Blueprint(
        plan=plan,
        groups=deps.groups,
        heads=heads,
        outside=structure.outside,
        locked=structure.locked_classes,
        backbone_elements=deps.backbone_elements,
        outputs=tuple(leaves),
        split=split,
        joint=_joint(heads, leaves, split, head_class, plan),
        constants=_constants(capture, plan),
        aliases=dict(capture.aliases),
        modules={
            call.path: tuple(
                of(leaf) if isinstance(leaf, fx.Node) else None
                for leaf in pytree.tree_leaves(call.outputs)
            )
            for call in reversed(capture.calls.values())
        },
        operators=tuple(f"{node.op} {node.target}" for node in capture.graph.nodes),
    )


def _constants(capture: Capture, plan: Plan) -> tuple[str, ...]:
    """Buffers that the outputs read and that follow no channel: frozen with the first task."""
    read = {str(node.target) for node in capture.graph.nodes if node.op == "get_attr"}
    return tuple(name for name in capture.buffers if name in read and name not in plan.buffers)


# -- heads -------------------------------------------------------------------------------------


def _heads(model: nn.Module, deps: Dependencies) -> tuple[HeadPlan, ...]:
    result = []
    for head in deps.heads:
        holder = head.parameters[0].rpartition(".")[0]
        own = {name for name, _ in model.get_submodule(holder).named_parameters(holder)}
        if holder and own <= set(head.parameters):
            result.append(_module_head(deps, holder, head.parameters, head.size))
        else:
            result += [_parameter_head(deps, name) for name in head.parameters]
    return tuple(result)


def _module_head(
    deps: Dependencies, path: str, parameters: tuple[str, ...], size: int
) -> HeadPlan:
    calls = [call for call in deps.capture.calls.values() if call.path == path]
    inputs = [deps.values[node.name] for call in calls for node in _nodes(call.args)]
    outputs = [deps.values[node.name] for call in calls for node in _nodes(call.outputs)]
    if not calls or any(not torch.equal(i, inputs[0]) for i in inputs) or len(outputs) < 1:
        raise HeadError(
            "the output layer is called on different features, or not as a module",
            place=Place(module=path),
            remedy="give the model one output layer that is called once",
        )
    dims = varies(outputs[0])
    return HeadPlan(path, path, None, parameters, size, inputs[0], dims[-1] if dims else -1)


def _parameter_head(deps: Dependencies, name: str) -> HeadPlan:
    """A parameter that the model's own code uses to make the output."""
    holder, _, leaf = name.rpartition(".")
    entry = deps.plan.parameters[name]
    dims = varies(entry.owner)
    size = entry.owner.shape[dims[0]] if dims else 1
    reads = [read for read in entry.reads if not read.transformed]
    columns = reads[0].columns if reads else torch.zeros((), dtype=torch.int64)
    dim = dims[0] if len(dims) == 1 else -1
    return HeadPlan(layer_of(name), holder, leaf, (name,), size, columns, dim)


def _attached(leaves: list[Tensor | None]) -> HeadPlan:
    """A linear layer on the model's features, for a model that has no output layer."""
    for number, leaf in reversed(list(enumerate(leaves))):
        if leaf is None or leaf.dim() < 2:
            continue
        dims = varies(leaf)
        if len(dims) == 1 and dims[0] > 0:
            return HeadPlan(ATTACHED, "", None, (), 0, leaf, dims[0], number)
    raise HeadError(
        "no layer makes the model's output, and no output has channels a head could read",
        remedy="convert a model that ends in a linear layer or a convolution, or in features of "
        "shape (batch, channels, ...)",
    )


def _nodes(structure: Any) -> list[fx.Node]:
    return [leaf for leaf in pytree.tree_leaves(structure) if isinstance(leaf, fx.Node)]


# -- outputs -----------------------------------------------------------------------------------


def _split(leaf: Tensor | None, head_class: Array) -> int | None:
    """The dimension of an output along which the head's classes lie."""
    if leaf is None or not head_class[array(leaf)].all():
        return None
    dims = varies(leaf)
    return dims[0] if len(dims) == 1 else None


def _joint(
    heads: tuple[HeadPlan, ...],
    leaves: list[Tensor | None],
    split: tuple[int | None, ...],
    head_class: Array,
    plan: Plan,
) -> bool:
    """Can several heads' results go side by side through what follows the heads?"""
    if heads[0].layer == ATTACHED:
        return True
    if any(head.leaf is not None or head.dim < 0 for head in heads):
        return False
    reads_head = head_class.copy()  # and what is derived from it
    source, needed = plan.requires.reshape(-1, 2).T
    while (reads_head[needed] & ~reads_head[source]).any():
        reads_head[source[reads_head[needed]]] = True
    for leaf, dim in zip(leaves, split, strict=True):
        if leaf is None or not reads_head[array(leaf)].any():
            continue
        if dim is None or core(leaf).unique().numel() != leaf.shape[dim]:
            return False
    return True
