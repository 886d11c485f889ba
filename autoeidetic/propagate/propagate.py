"""Propagate: carry tags through the graph, one rule per operator.

A tag tensor has the shape of a value and holds channel numbers: which channel each element
belongs to.

    x       (2, 4)       0 0 0 0        the input: available to every task
    stem    (2, 3)       1 2 3          three rows of stem.weight, three new channels
    branch  (2, 3)       4 5 6
    sum     (2, 3)       1 2 3          1-4, 2-5, 3-6 joined

Every operator is handled by a rule, by rules for the operators of its ATen decomposition, or, as
the last resort, by mixing everything it reads; operators of the last kind are listed.
"""

from __future__ import annotations

import math
import operator as python_operator
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from ..capture.graph import Capture, operator_name, place
from ..capture.names import layer_of
from ..common.trees import leaves
from ..errors import Place, RuleError
from .algebra import Algebra
from .apply import apply_rule, decomposed, lookup
from .values import ParameterView, Value, array, constant

Scope = tuple[int, ...]


@dataclass
class MixingSite:
    """A place where channels are mixed without a weight between them.

    ``scope`` is the innermost module call in which the mixture is made and used up: running
    that module level by level keeps later channels out of earlier ones.
    """

    node: int
    scope: Scope


@dataclass(frozen=True)
class Unhandled:
    """An operator without a rule: everything it reads is mixed."""

    place: Place
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True)
class Propagation:
    """The result of propagation; the coupling stage reads it and changes nothing in it.

    ``tags`` has the channels in the value of every node, ``unused`` the parameters that no output
    depends on. Every parameter element has a channel.
    """

    capture: Capture
    algebra: Algebra
    nodes: list[fx.Node]
    values: dict[fx.Node, Any]
    tags: dict[fx.Node, Tensor]
    unused: frozenset[str]
    sites: list[MixingSite]
    operators: Counter[str]
    unhandled: list[Unhandled]


@dataclass
class _Interpreter:
    capture: Capture
    algebra: Algebra = field(default_factory=Algebra)
    nodes: list[fx.Node] = field(default_factory=list)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    soft: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    sites: list[MixingSite] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)
    unhandled: list[Unhandled] = field(default_factory=list)
    read_by_python: list[fx.Node] = field(default_factory=list)
    sources: dict[fx.Node, frozenset[str] | None] = field(default_factory=dict)
    #: buffers that some operator does not use channel by channel: every task needs all of them
    read_by_all: set[str] = field(default_factory=set)

    def run(self) -> None:
        for node in self.capture.graph.nodes:
            self.algebra.node, self.algebra.index = node, len(self.nodes)
            self.nodes.append(node)
            if node.op == "output":
                self._leave_model(node)
            else:
                # for its cache: filled node by node, the recursion in it is never deep
                self._parameters_in(node)
                self.values[node] = self._evaluate(node)
        for name in self.read_by_all | self.capture.folded:
            self.algebra.buffers.pop(name, None)

    def _evaluate(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return constant(node.meta["shape"])
        if node.op == "get_attr":
            return self._attribute(node)
        if node.target is python_operator.getitem:
            container, index = node.args
            sites = self.soft.get(container)  # type: ignore[arg-type]
            if sites:
                self.soft[node] = sites
            return self.values[container][index]  # type: ignore[index]
        return self._operator(node)

    def _attribute(self, node: fx.Node) -> Value:
        name, shape = str(node.target), node.meta["shape"]
        if name in self.capture.parameters:
            return Value(shape, None, ParameterView(name, shape))
        buffer = name if name in self.capture.buffers else ""
        return constant(shape, node.meta.get("const"), buffer)

    def _operator(self, node: fx.Node) -> Any:
        args = [lookup(a, self.values) for a in node.args]
        kwargs = {k: lookup(a, self.values) for k, a in node.kwargs.items()}
        self.operators[operator_name(node)] += 1
        operands = leaves((args, kwargs), Value)
        used = {value.buffer for value in operands if value.buffer}
        if all(v.is_constant for v in operands):  # no rule is needed: the result is constant
            self.read_by_all |= used
            return self._constant_results(node)
        if node.meta.get("read_by_python"):
            self.read_by_python.append(node)
        result = apply_rule(self.algebra, node, args, kwargs)
        if result is None:
            result = self._without_rule(node, args, kwargs)
        self.read_by_all |= {
            name for name in used if (name, self.algebra.index) not in self.algebra.followed
        }
        self._check(node, result)
        self._follow_mixtures(node, result)
        return self._with_source(node, result)

    def _with_source(self, node: fx.Node, result: Any) -> Any:
        """Note the largest parameter that a value was computed from, if all are of one layer."""
        if isinstance(result, Value) and result.parameter is None:
            names = self._parameters_in(node)
            if names and len({layer_of(name) for name in names}) == 1:
                shapes = self.algebra.parameter_shapes
                return replace(result, source=max(names, key=lambda n: math.prod(shapes[n])))
        return result

    def _parameters_in(self, node: fx.Node) -> frozenset[str] | None:
        """The parameters that a value was computed from; None if it depends on an input."""
        if node not in self.sources:
            found: frozenset[str] | None = frozenset()
            if node.op == "placeholder":
                found = None
            elif node.op == "get_attr" and str(node.target) in self.capture.parameters:
                found = frozenset([str(node.target)])
            for arg in node.all_input_nodes:
                other = self._parameters_in(arg)
                found = None if found is None or other is None else found | other
            self.sources[node] = found
        return self.sources[node]

    def _constant_results(self, node: fx.Node) -> Any:
        if "shape" in node.meta:
            return constant(node.meta["shape"])
        parts = {user.args[1]: user for user in node.users}
        return {index: constant(part.meta["shape"]) for index, part in parts.items()}

    def _without_rule(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        result = decomposed(self.algebra, node, args, kwargs)
        if result is not None:
            return result
        # the last resort is sound, costs capacity, and is therefore listed
        remedy = f"write a rule for it: @autoeidetic.rule(torch.ops.{operator_name(node)})"
        reason = "no rule and no decomposition, everything it reads is mixed"
        self.unhandled.append(Unhandled(place(node), reason, remedy))
        operands = leaves((args, kwargs), Value)
        tags = self.algebra.mix_everything(operands)
        if "shape" in node.meta:
            return self.algebra.result(tags)
        parts = {user.args[1]: user for user in node.users}
        return {i: self.algebra.result(tags, p.meta["shape"]) for i, p in parts.items()}

    def _check(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, Value) and result.shape != node.meta.get("shape"):
            raise RuleError(
                f"the rule for this operator gave shape {result.shape}, the operator gives "
                f"{node.meta.get('shape')}",
                place=place(node),
                remedy="correct the rule that was registered for it",
            )

    # -- where mixtures of channels are made and used up ----------------------------------

    def _follow_mixtures(self, node: fx.Node, result: Any) -> None:
        """Widen the scope of every mixture that this node reads to a module around both.

        ``soft[node]`` are the sites whose derived channels are in the node's value. A mixture is
        used up when a layer reads it: its result has the channels of the layer's rows.
        """
        # attention(norm -> qkv)    made in norm, used up by qkv: the scope is the call of attention
        # block(norm) -> sum        read outside of block: the scope is the call around block
        # Invariant: a scope only ever shrinks to a shorter prefix of itself.
        for index in self.algebra.mixing_nodes[len(self.sites) :]:
            self.sites.append(MixingSite(index, node.meta["scope"]))
            self.soft[node] = frozenset()
        entering = {site for arg in node.all_input_nodes for site in self.soft.get(arg, ())}
        for site in entering:
            scope = self.sites[site].scope
            # entry 0 is the model's call: a node of another call says nothing of this scope
            if scope[:1] == node.meta["scope"][:1]:
                self.sites[site].scope = _common(scope, node.meta["scope"])
        if entering or node in self.soft:
            self.soft[node] = self._mixtures_in(result)

    def _mixtures_in(self, result: Any) -> frozenset[int]:
        operands = leaves(result, Value)
        channels = self.algebra.channels
        found = [
            channels.mixing_sites(channels.find(array(v.tags)))
            for v in operands
            if v.tags is not None
        ]
        return frozenset(int(s) for sites in found for s in sites)

    def _leave_model(self, node: fx.Node) -> None:
        """Give a mixture that reaches the model's output no scope: no module uses it up."""
        for arg in node.all_input_nodes:
            for site in self.soft.get(arg, ()):
                self.sites[site].scope = ()
        if self.read_by_python:
            self._lock_what_python_read(node)

    def _lock_what_python_read(self, output: fx.Node) -> None:
        """Let every output require the values that Python read: they may decide anything."""
        algebra = self.algebra
        reason = "Python code looks at a value that depends on parameters, all of it is locked"
        remedy = "compute with tensors instead of numbers (torch.where instead of if)"
        self.unhandled.extend(
            Unhandled(place(node), reason, remedy) for node in self.read_by_python
        )
        sources = [self.values[a] for n in self.read_by_python for a in n.all_input_nodes]
        looked_at = algebra.mix_everything(sources).numpy()
        for arg in output.all_input_nodes:
            channels = channel_numbers(algebra.tags(self.values[arg]))
            algebra.channels.require(
                channels, np.broadcast_to(looked_at, channels.shape), algebra.index
            )


def propagate(capture: Capture) -> Propagation:
    """Carry tags through a captured graph."""
    interpreter = _Interpreter(capture)
    interpreter.algebra.parameter_shapes = {
        name: tuple(p.shape) for name, p in capture.parameters.items()
    }
    interpreter.run()
    # in this order: channels are numbered as they are made, and a lookup of tags makes some
    unused = _give_channels_to_the_rest(interpreter.algebra)
    tags = {
        node: interpreter.algebra.tags(value)
        for node, value in interpreter.values.items()
        if isinstance(value, Value)
    }
    return Propagation(
        capture=capture,
        algebra=interpreter.algebra,
        nodes=interpreter.nodes,
        values=interpreter.values,
        tags=tags,
        unused=unused,
        sites=interpreter.sites,
        operators=interpreter.operators,
        unhandled=interpreter.unhandled,
    )


def _give_channels_to_the_rest(algebra: Algebra) -> frozenset[str]:
    """Give a new channel to each parameter, and to each part of one, that no operator has read.

    Returns the parameters that no operator has read at all.
    """
    unused = [name for name in algebra.parameter_shapes if name not in algebra.channels_of]
    for name in unused:
        channel = torch.from_numpy(algebra.channels.new(1)).reshape(())
        algebra.channels_of[name] = channel.expand(algebra.parameter_shapes[name])
    # entries so far are parts that an operator read with the whole parameter; keep only those that
    # no operator read, which :meth:`complete` adds now
    algebra.rests.clear()
    for name in algebra.parameter_shapes:
        algebra.complete(name)
    return frozenset(unused)


def _common(left: Scope, right: Scope) -> Scope:
    """The module calls around both."""
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return left[:length]


def channel_numbers(tags: Tensor) -> np.ndarray:
    """The different channels in a tag tensor."""
    found = np.unique(array(tags))
    return found[found != 0]
