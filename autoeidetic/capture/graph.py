"""The captured graph: a model as operators, with module paths, source lines and constants."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..errors import Place

#: Stands in the structure of an output for what is no tensor. Not None: some kinds of outputs leave
#: out what is None, and then have another number of leaves.
ABSENT = ...


@dataclass(frozen=True)
class ModuleCall:
    """One call of one module: the nodes that went in and came out, in the call's own structure.

    ``writes_outside`` tells that it changed a tensor in place that existed before the call,
    ``hooks_compute`` that forward hooks of the module change what goes in or comes out: what is
    put around its ``forward`` does not enclose them.
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
    ``module`` (path), ``line`` (``file:line`` of the user's source), ``scope`` (ids of the
    module calls around it) and, for constants, ``const``. ``types`` has the class of every module
    by its path. ``outputs`` has the structure of each analysed call's output, ``roots`` the id of
    the call itself: the first of every ``scope`` in it.
    ``decisions`` is what the code has read out of tensors in each call.
    """

    graph: fx.Graph
    way: str
    parameters: dict[str, nn.Parameter]
    aliases: dict[str, str]
    buffers: dict[str, Tensor]
    constants: dict[str, Tensor]
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
    """Where a node comes from, for messages."""
    return Place(node.meta.get("module", ""), operator_name(node), node.meta.get("line", ""))


def operator_name(node: fx.Node) -> str:
    """``aten.add`` for ``aten.add.Tensor``; the function's name for anything else."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._overloadpacket)
    return str(getattr(target, "__name__", target))
