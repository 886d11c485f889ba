"""Sizes: several captures of one model, at several input sizes, become one graph for all sizes.

The captures have the same operators. They differ in numbers, such as the sizes of a view, and in
constants, such as a mask. The graph that they become computes both from sizes of its tensors.

    captured with 2 inputs     view(x, [2, 64])
    captured with 3 inputs     view(x, [3, 64])
    for all sizes              view(x, [sym_size(x, 0), 64])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ...capture.graph import operator_name
from ...capture.graph_writer import describe
from ...common.bits import same
from ...common.trees import convert, leaves
from .constants import recipe
from .expressions import Sizes

aten = torch.ops.aten
#: Operators that give a value another shape. One of the sizes may be -1, and is found by them.
_VIEWS = frozenset({"aten.view", "aten.reshape", "aten._unsafe_view"})


@dataclass(frozen=True)
class Variant:
    """A graph of operators at some input sizes, and the tensors of its ``get_attr`` nodes.

    ``node.meta["shape"]`` is the shape of a tensor.
    """

    graph: fx.Graph
    attributes: dict[str, Tensor]


@dataclass(frozen=True)
class SizeProblem:
    """The reason why graphs of several sizes are not one graph, and the node that shows it."""

    node: str
    module: str
    line: str
    reason: str

    def __str__(self) -> str:
        where = [f"in module '{self.module}'"] if self.module else []
        where += [f"at {self.line}"] if self.line else []
        return " ".join([self.reason, *where])


class _DifferenceError(Exception):
    """A difference between the variants that no expression of sizes explains."""


class _Unknown:
    """Takes the place of a number for which there is no expression."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values


def generalise(variants: Sequence[Variant]) -> tuple[Variant, SizeProblem | None]:
    """One graph that is right for the sizes of all variants; if there is none, the first variant.

    The given graphs stay as they are. The nodes of the new one are those of the first variant, with
    their names, and some that compute numbers and constants.
    """
    base = variants[0]
    other = _other_operator([each.graph for each in variants])
    if other is not None:
        return base, _problem(other, "the model runs other operators at other sizes")
    merge = _Merge(variants)
    for made, row in zip(tuple(merge.graph.nodes), merge.rows, strict=True):
        try:
            merge.add(made, row)
        except _DifferenceError as difference:
            return base, _problem(row[0], str(difference))
    merge.graph.lint()
    return Variant(merge.graph, merge.attributes), None


def _problem(node: fx.Node, reason: str) -> SizeProblem:
    return SizeProblem(node.name, node.meta.get("module", ""), node.meta.get("line", ""), reason)


def _other_operator(graphs: Sequence[fx.Graph]) -> fx.Node | None:
    """The first node of the first graph that another graph does not have at the same position."""
    first, *others = (list(graph.nodes) for graph in graphs)
    for nodes in others:
        for node, other in zip(first, nodes, strict=False):
            # constants are numbered in each capture anew
            if node.op != other.op or (node.op != "get_attr" and node.target != other.target):
                return node
        if len(first) != len(nodes):
            return first[min(len(first), len(nodes)) - 1]
    return None


class _Merge:
    """Merges the nodes of all variants into those of a copy of the first graph."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.graph = _copied(variants[0].graph)
        self.attributes = dict(variants[0].attributes)
        self.rows = list(zip(*(each.graph.nodes for each in variants), strict=True))
        self._tensors = [each.attributes for each in variants]
        self._row_of = {node: number for number, row in enumerate(self.rows) for node in row}
        self._made: list[fx.Node] = []  # the node of each row in the new graph
        self._sizes = Sizes()

    def add(self, made: fx.Node, row: tuple[fx.Node, ...]) -> None:
        """Merge one node of each variant into their twin in the new graph.

        Raises:
            _DifferenceError: they differ, and not by sizes.
        """
        if made.op == "get_attr":
            made = self._constant(made, row)
        else:
            made.args, made.kwargs = self._arguments(made, row)
            # at other sizes a view may need a copy, which reshape makes
            if operator_name(made) in _VIEWS and len({node.meta["shape"] for node in row}) > 1:
                made.target = aten.reshape.default
        self._made.append(made)
        if all("shape" in node.meta for node in row):
            self._sizes.add(made, [node.meta["shape"] for node in row])

    # -- numbers -----------------------------------------------------------------------------------

    def _arguments(self, made: fx.Node, row: tuple[fx.Node, ...]) -> tuple[Any, Any]:
        operands = self._known(row[0].all_input_nodes)
        both = tuple((node.args, node.kwargs) for node in row)
        merged = self._merged(both, made, operands)
        unknown = leaves(merged, _Unknown)
        if len(unknown) == 1 and operator_name(made) in _VIEWS and -1 not in merged[0][1]:
            merged = convert(merged, _Unknown, lambda _: -1)
        elif unknown:
            raise _DifferenceError(
                f"{operator_name(made)} is given a number that is {_listed(unknown[0].values)} at "
                "the sizes that were tried, which is no known function of them"
            )
        return merged

    def _merged(self, values: tuple[Any, ...], made: fx.Node, operands: Sequence[fx.Node]) -> Any:
        """The argument that takes the place of one argument per variant."""
        first = values[0]
        if len(set(map(self._form, values))) > 1:
            raise _other_arguments(made)
        if isinstance(first, fx.Node):
            return self._made[self._row_of[first]]
        if isinstance(first, (tuple, list)):
            items = zip(*values, strict=True)
            return type(first)(self._merged(each, made, operands) for each in items)
        if isinstance(first, Mapping):
            entries = {key: tuple(value[key] for value in values) for key in first}
            return {key: self._merged(each, made, operands) for key, each in entries.items()}
        if all(value == first for value in values):
            return first
        if isinstance(first, bool) or not isinstance(first, (int, float)):
            raise _other_arguments(made)
        number = self._sizes.find(values, operands)
        return _Unknown(values) if number is None else self._sizes.write(number, made)

    def _form(self, argument: Any) -> Any:
        """What no size can change about an argument."""
        if isinstance(argument, fx.Node):
            return self._row_of[argument]
        if isinstance(argument, (tuple, list)):
            return type(argument), len(argument)
        if isinstance(argument, Mapping):
            return type(argument), *argument
        return type(argument)

    def _known(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        """The nodes of the new graph for those of the first variant that are merged already."""
        numbers = (self._row_of[node] for node in nodes)
        return [self._made[number] for number in numbers if number < len(self._made)]

    # -- constants ---------------------------------------------------------------------------------

    def _constant(self, made: fx.Node, row: tuple[fx.Node, ...]) -> fx.Node:
        pairs = zip(self._tensors, row, strict=True)
        tensors = [tensors[str(node.target)] for tensors, node in pairs]
        if all(_equal(tensor, tensors[0]) for tensor in tensors):
            return made
        users = [operand for user in row[0].users for operand in user.all_input_nodes]
        operands = self._known(users)
        found = recipe(tensors, lambda values: self._sizes.find(values, operands))
        if found is None:
            shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in tensors))
            raise _DifferenceError(
                f"a constant of shape {_listed(shapes)} has values that are no known function of "
                "the sizes that were tried"
            )
        self.attributes[str(made.target)] = found.seed
        describe(made, found.seed)
        if "const" in made.meta:
            made.meta["const"] = found.seed
        return found.write(made, self._sizes.write)


def _copied(graph: fx.Graph) -> fx.Graph:
    copy = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        copies[node] = copy.node_copy(node, copies.__getitem__)
    return copy


def _equal(tensor: Tensor, other: Tensor) -> bool:
    # parameters are the same object in all variants; without data there is nothing to compare
    if tensor is other or tensor.is_meta:
        return tensor.shape == other.shape
    return tensor.shape == other.shape and same(tensor, other)


def _other_arguments(node: fx.Node) -> _DifferenceError:
    return _DifferenceError(f"{operator_name(node)} is given other arguments at other sizes")


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
