"""Graph writer: makes the nodes of the graph, each with its place in the user's model."""

from __future__ import annotations

import operator
from types import CodeType
from typing import Any

from torch import Tensor, fx

from ..errors import Place
from .call_stack import CallStack
from .names import Names
from .source_lines import calling_line


class GraphWriter:
    """Grows the graph, node by node. It sees nodes only, never the tensors behind them.

    ``entrance`` is the code that calls the model: lines outside of it are not the model's.
    """

    def __init__(self, names: Names, stack: CallStack, entrance: CodeType) -> None:
        self.graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self.recorded = 0  # operators so far
        self._names = names
        self._stack = stack
        self._entrance = entrance
        self._inputs = 0
        # the tensor is kept with its node: while it lives, no other one has its id
        self._constant_nodes: dict[int, tuple[Tensor, fx.Node]] = {}

    def placeholder(self) -> fx.Node:
        node = self.graph.placeholder(f"input_{self._inputs}")
        self._inputs += 1
        node.meta.update(module="", line="", scope=())
        return node

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> fx.Node:
        """A node that calls an operator or function."""
        name = getattr(func, "_opname", None) or func.__name__
        node = self.graph.create_node("call_function", func, tuple(args), kwargs, name)
        node.meta["module"] = self._stack.path
        # module, line, scope: for messages and drawings; scope also for nested modules (couple)
        node.meta["line"] = calling_line(self._entrance)
        node.meta["scope"] = self._stack.scope
        self.recorded += 1
        return node

    def part(self, node: fx.Node, index: int) -> fx.Node:
        """One of several results of a node; it does not count as an operator."""
        part = self.graph.create_node("call_function", operator.getitem, (node, index), name="part")
        part.meta.update({key: node.meta[key] for key in ("module", "line", "scope")})
        return part

    def attribute(self, name: str, tensor: Tensor) -> fx.Node:
        """A parameter, a buffer or a constant."""
        node = self.graph.create_node("get_attr", name, name=name.replace(".", "_"))
        describe(node, tensor)
        node.meta.update(module=name.rpartition(".")[0], line="", scope=())
        return node

    def constant(self, tensor: Tensor) -> fx.Node:
        """The one node of a tensor that depends on neither inputs nor parameters."""
        known = self._constant_nodes.get(id(tensor))
        if known is not None:
            return known[1]
        name = self._names.buffer_names.get(id(tensor))
        if name is None:
            name = f"_constant_{len(self.constants)}"
            self.constants[name] = tensor
        node = self.attribute(name, tensor)
        node.meta["const"] = tensor
        self._constant_nodes[id(tensor)] = (tensor, node)
        return node

    def keep_constants(self, written: Tensor) -> None:
        """Constants that share the memory of a tensor keep their values: it will be written."""
        memory = written.untyped_storage()._cdata
        for key, (tensor, node) in list(self._constant_nodes.items()):
            if node.target in self.constants and tensor.untyped_storage()._cdata == memory:
                node.meta["const"] = self.constants[str(node.target)] = tensor.clone()
                del self._constant_nodes[key]  # it is another constant from here on

    def place(self, func: Any = "") -> Place:
        """The place that the model is executing, for messages."""
        return Place(self._stack.path, str(func), calling_line(self._entrance))


def describe(node: fx.Node, tensor: Tensor) -> None:
    """Note the shape, type and memory layout of a node's value."""
    node.meta["shape"] = tuple(tensor.shape)
    node.meta["dtype"] = tensor.dtype
    node.meta["layout"] = (tensor.stride(), tensor.storage_offset())
