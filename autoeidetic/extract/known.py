"""Known: what is known about the values of a graph before it is cut.

folded     the value of each node that depends on no input: computed once, at full size
channels   the dimensions along which channels lie; all others (batch, space, tokens) stay whole
support    forward: outside of it a value is zero, whatever the inputs
need       backward: outside of it no output depends on the value

kept = support and need        what a program must compute of each value; positions outside are
                               zero (no support) or may be anything (no need)
"""

from __future__ import annotations

import math
import operator as python_operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx

from ..capture.graph import Capture, operator_name
from ..common.trees import convert, leaves
from .extents import (
    Extent,
    around,
    both,
    either,
    full,
    holds,
    is_empty,
    lengths,
    nothing,
    same,
)
from .narrow import Extents, shape_of
from .rules import Rule, rule_of

#: A need of more separate extents than this is covered by one.
_MOST_BOXES = 64


@dataclass
class Known:
    """The knowledge about every node of a captured graph.

    ``wanted`` is the need of a node: a few extents that cover it exactly, because the queries and
    the values of an attention may need different heads of one tensor. A node with several results
    has the need of each of them, by number.
    """

    capture: Capture
    folded: dict[fx.Node, Any] = field(default_factory=dict)
    channels: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    supports: dict[fx.Node, Extents] = field(default_factory=dict)
    wanted: dict[fx.Node, list[Extent]] = field(default_factory=dict)
    parts: dict[fx.Node, dict[int, Extent]] = field(default_factory=dict)

    # -- queries of rules ----------------------------------------------------------------------

    def value(self, given: Any) -> Any:
        """The value of an argument that depends on no input; None for one that does."""
        return self.folded.get(given) if isinstance(given, fx.Node) else given

    def is_folded(self, given: Any) -> bool:
        """Does an argument depend on no input?"""
        return not isinstance(given, fx.Node) or given in self.folded

    def is_learned(self, given: Any) -> bool:
        """Is an argument a parameter, or a part of one? Its zeros may be a start, not the end.

        A branch whose last scale starts at zero is a branch of the model all the same.
        """
        while isinstance(given, fx.Node) and given.op == "call_function":
            if len(given.all_input_nodes) != 1 and operator_name(given) != "aten.index_select":
                return False
            given = given.args[0]
        return isinstance(given, fx.Node) and str(given.target) in self.capture.parameters

    def support(self, node: fx.Node) -> Extent:
        """The extent outside of which a value is zero."""
        if node not in self.supports:
            value = self.folded[node]
            learned = isinstance(value, Tensor) and self.is_learned(node)
            self.supports[node] = full(value.dim()) if learned else _support_of_value(value)
        found = self.supports[node]
        assert isinstance(found, tuple)
        return found

    def need(self, node: fx.Node) -> Extent:
        """The smallest extent outside of which no output depends on a value."""
        found = self.wanted.get(node)
        return reduce(either, found) if found else nothing(shape_of(node))

    def is_scattered(self, node: fx.Node) -> bool:
        """Does the need leave gaps in the smallest extent around it?"""
        boxes = self.wanted[node]
        if len(boxes) == 1:
            return False
        shape = shape_of(node)
        volume = [math.prod(lengths(box, shape)) for box in (*boxes, self.need(node))]
        return sum(volume[:-1]) < volume[-1]

    def kept(self, node: fx.Node, within: Extent | None = None) -> Extent:
        """What must be computed of a value: at least one position along each dimension."""
        need = self.need(node) if within is None else within
        kept = list(both(self.support(node), need))
        for dim, positions in enumerate(kept):
            if positions is not None and not positions.any():
                # all of it is zero, or unused: one position stands for all
                kept[dim] = positions.copy()
                kept[dim][_first(need[dim])] = True  # type: ignore[index]
        return tuple(kept)

    def is_used(self, node: fx.Node) -> bool:
        """Does an output depend on the value?"""
        return node in self.wanted or node in self.parts

    def along_channels(self, node: fx.Node, extent: Extent) -> Extent:
        """The same extent, whole along dimensions in which no channels lie.

        A size that may vary must not be cut, and sets of channels and positions would not be
        products.
        """
        along = self.channels[node]
        return tuple(p if dim in along else None for dim, p in enumerate(extent))

    # -- backward ------------------------------------------------------------------------------

    def demand(self, given: Any, extent: Extent) -> None:
        """Note that an operand is needed in an extent."""
        if not isinstance(given, fx.Node) or given in self.folded:
            return
        if is_empty(extent):
            return
        extent = self.along_channels(given, extent)
        boxes = _joined(self.wanted.get(given, []), extent)
        self.wanted[given] = boxes if len(boxes) <= _MOST_BOXES else [reduce(either, boxes)]


def _joined(boxes: list[Extent], new: Extent) -> list[Extent]:
    """The same positions in fewer extents, where two of them make one.

    Of the extents that are there already, no two do.
    """
    while True:
        for number, box in enumerate(boxes):
            differ = [not same((a,), (b,)) for a, b in zip(box, new, strict=True)]
            if sum(differ) <= 1 or holds(box, new) or holds(new, box):
                boxes, new = boxes[:number] + boxes[number + 1 :], either(box, new)
                break
        else:
            return [*boxes, new]


def _first(positions: Any) -> int:
    return 0 if positions is None or not positions.any() else int(positions.argmax())


def analyse(capture: Capture, sized: Collection[int]) -> Known:
    """Fold, then find support and need.

    ``sized`` are the numbers of the nodes whose shape depends on the sizes of inputs: they are
    never folded.
    """
    known = Known(capture)
    tensors: Mapping[str, Tensor] = {
        **capture.parameters,
        **capture.buffers,
        **capture.constants,
    }
    nodes = list(capture.graph.nodes)
    with torch.no_grad():
        for number, node in enumerate(nodes):
            if node.op == "get_attr":
                known.folded[node] = tensors[str(node.target)].detach()
            elif node.op == "call_function":
                _forward(known, node, number in sized)
            elif node.op == "placeholder":
                known.channels[node] = frozenset()
                known.supports[node] = full(len(shape_of(node)))
        for node in reversed(nodes):
            if node.op == "output":
                for leaf in node.all_input_nodes:
                    known.demand(leaf, full(len(shape_of(leaf))))
            elif node.op == "call_function" and known.is_used(node):
                _backward(known, node)
    return known


def _forward(known: Known, node: fx.Node, sized: bool) -> None:
    if node.target is python_operator.getitem:
        container, number = node.args
        if container in known.folded:
            known.folded[node] = known.folded[container][number]  # type: ignore[index]
        else:
            rule = _rule(container)  # type: ignore[arg-type]
            known.channels[node] = rule.channels(container, node, known)  # type: ignore[arg-type]
            parts: Any = known.supports[container]  # type: ignore[index]
            known.supports[node] = known.along_channels(node, parts[number])
        return
    operands = leaves((node.args, node.kwargs), fx.Node)
    if not sized and all(each in known.folded for each in operands):
        args, kwargs = convert((node.args, node.kwargs), fx.Node, known.folded.__getitem__)
        state = torch.get_rng_state()
        value = node.target(*args, **kwargs)  # type: ignore[operator]
        if torch.equal(torch.get_rng_state(), state):  # else it draws random numbers
            known.folded[node] = value
            return
        torch.set_rng_state(state)
    rule = _rule(node)
    support = rule.support(node, known)
    if isinstance(support, tuple):
        known.channels[node] = rule.channels(node, node, known)
        support = known.along_channels(node, support)
    known.supports[node] = support


def _backward(known: Known, node: fx.Node) -> None:
    if node in known.folded:
        return
    boxes = known.wanted.get(node)
    if boxes and all(is_empty(both(known.support(node), box)) for box in boxes):
        del known.wanted[node]  # zeros are written where they are used
        return
    if node.target is python_operator.getitem:
        container, number = node.args
        rule = _rule(container)  # type: ignore[arg-type]
        if rule.parts_are_separate:
            for wanted in known.wanted[node]:
                rule.need_part(container, node, wanted, known)  # type: ignore[arg-type]
        else:
            known.parts.setdefault(container, {})[number] = known.need(node)  # type: ignore
        return
    rule = _rule(node)
    if node in known.parts:
        rule.need(node, (), known)
    for wanted in known.wanted.get(node, ()):
        rule.need(node, wanted, known)


def _rule(node: fx.Node) -> Rule:
    return rule_of(operator_name(node))


def _support_of_value(value: Any) -> Extent:
    if not isinstance(value, Tensor):
        return ()
    if value.is_meta:  # too large a constant to have a value
        return full(value.dim())
    return around(value.cpu() != 0)
