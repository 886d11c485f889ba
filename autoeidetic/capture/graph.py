"""The captured graph: a model as operators, with module paths, source lines and constants."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..errors import Place

#: Takes the place of leaves of an output that are no tensors. Not None: some output classes leave
#: out what is None, and would have another number of leaves.
ABSENT = ...


@dataclass(frozen=True)
class ModuleCall:
    """One call of one module: the nodes that went in and came out, in the call's own structure.

    ``writes_outside``: it changed a tensor in place that existed before the call.
    ``hooks_compute``: forward hooks of the module change what goes in or comes out, so a wrapper
    around its ``forward`` does not enclose all that it computes.
    """

    path: str
    scope: tuple[int, ...]
    args: Any
    kwargs: Any
    outputs: Any
    writes_outside: bool
    hooks_compute: bool


@dataclass(frozen=True)
class Capture:
    """A model as a graph of operators.

    ``node.meta`` holds ``shape``, ``dtype`` and ``layout`` (strides and offset) of a tensor,
    ``module`` (path), ``line`` (``file:line`` of the user's source), ``scope`` (numbers of the
    module calls around it) and, for constants, ``const``.

    ``way`` is "meta" or "real", ``types`` the class of every module by its path. Each analysed call
    has the structure of its output in ``outputs``, its own number in ``roots`` (the first of every
    ``scope`` in it), and what its code has read out of tensors in ``decisions``. ``folded`` are the
    buffers from which constants were computed, which the graph does not show.
    """

    graph: fx.Graph
    way: str
    parameters: dict[str, nn.Parameter]
    aliases: dict[str, str]
    buffers: dict[str, Tensor]
    constants: dict[str, Tensor]
    folded: frozenset[str]
    calls: dict[int, ModuleCall]
    types: dict[str, str]
    outputs: tuple[Any, ...]
    roots: tuple[int, ...]
    decisions: tuple[tuple[Hashable, ...], ...]

    def example_of(self, scope: tuple[int, ...]) -> int:
        """The number of the analysed call that something in this scope belongs to."""
        return self.roots.index(scope[0])

    def module(self) -> fx.GraphModule:
        """The graph as a module that can be run; it shares the model's tensors."""
        tensors = {**self.parameters, **self.buffers, **self.constants}
        used = {str(node.target) for node in self.graph.nodes if node.op == "get_attr"}
        return fx.GraphModule({name: tensors[name] for name in used}, self.graph)


def place(node: fx.Node) -> Place:
    """The place in the model that a node comes from, for messages."""
    return Place(node.meta.get("module", ""), operator_name(node), node.meta.get("line", ""))


def operator_name(node: fx.Node) -> str:
    """``aten.add`` for ``aten.add.Tensor``; the function's name for anything else."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._overloadpacket)
    return str(getattr(target, "__name__", target))
