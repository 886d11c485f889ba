"""Sizes: the input sizes for which a call is like one that was analysed.

Two things must hold.

    same path       ``torch.export`` runs the code with symbols for sizes and records every
                    condition that the code puts on them (``n >= 4``, ``n % 2 == 0``)
    same channels   two analyses with different sizes agree node by node; arguments may differ (the
                    sizes of a view, the end of a slice) unless they touch a dimension along which
                    channels vary

The exporter alone is not enough: it knows nothing of channels. Two analyses alone are not enough
either: a third size may take another path. With the path fixed, an argument that depends on sizes
shows as a difference between the two analyses.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..capture.graph import operator_name
from ..common.inputs import CallInputs
from ..common.undisturbed import undisturbed
from ..enforce.guard import original_class
from ..plan.analysis import Analysis
from ..propagate.values import core, varies
from .agreement import canonical

#: One entry per dimension of a tensor: its only size, or the symbol that stands for any.
_Shape = tuple[int | str, ...]
#: How the sizes of the second analysis are made from those of the first; the first way whose sizes
#: meet the conditions is taken (patches divide by 8 or 32, some sizes have a maximum).
_OTHERS: tuple[Callable[[int], int], ...] = (
    lambda n: n + 1,
    lambda n: 2 * n,
    lambda n: n + 2,
    lambda n: n + 8,
    lambda n: n + 32,
    lambda n: max(n - 1, 2),
)
#: Operators that give a value another shape.
_VIEWS = frozenset("view reshape _unsafe_view expand flatten unflatten".split())
#: Operators that move or choose along one dimension, which is their second argument.
_ALONG = frozenset("slice narrow select split chunk index_select gather cumsum".split())
#: Operators that change space only: the dimensions after the second.
_SPATIAL = frozenset(
    "adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d "
    "avg_pool2d max_pool2d max_pool2d_with_indices upsample_nearest2d upsample_bilinear2d "
    "upsample_bicubic2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa upsample_nearest1d "
    "upsample_linear1d".split()
)
#: Operators whose numbers apply to all positions alike.
_NUMBERS = frozenset("add sub mul div pow rsub clamp masked_fill fill".split())
#: Operators that pick elements by the values of an index.
_PICKS = frozenset("index _unsafe_index index_select gather index_put scatter embedding".split())


@dataclass(frozen=True, eq=False)
class Sizes:
    """The conditions on the sizes of a call's tensors, as ``torch.export`` writes them."""

    shapes: tuple[_Shape, ...]
    conditions: tuple[str, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {"shapes": self.shapes, "conditions": self.conditions}  # code cannot be pickled

    @cached_property
    def _code(self) -> list[CodeType]:
        return [compile(each, "<sizes>", "eval") for each in self.conditions]

    def hold(self, model: nn.Module, inputs: CallInputs) -> bool:
        """Do the inputs of another call of the same kind meet all conditions?"""
        tensors = _tensors(inputs)
        if not _fits(self.shapes, [tuple(t.shape) for t in tensors]):
            return False
        try:
            names = {"L": _arguments(model, inputs), "torch": torch, "math": math}
            return all(bool(eval(code, names)) for code in self._code)
        except Exception:  # a condition that uses names unknown here: treat it as not met
            return False

    def other(self, model: nn.Module, inputs: CallInputs) -> CallInputs | None:
        """Meta inputs that meet the conditions and have other sizes wherever these are free."""
        for change in _OTHERS:
            shapes = iter(self.shapes)

            def stand_in(leaf: Tensor, change: Any = change, shapes: Any = shapes) -> Tensor:
                pairs = zip(next(shapes), leaf.shape, strict=True)
                size = [change(n) if isinstance(kind, str) else n for kind, n in pairs]
                return torch.empty(size, dtype=leaf.dtype, device="meta")

            arguments = (inputs.args, inputs.kwargs)
            made = CallInputs(*pytree.tree_map_only(Tensor, stand_in, arguments))
            if self.hold(model, made):
                return made
        return None


def _tensors(inputs: CallInputs) -> list[Tensor]:
    leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _fits(shapes: tuple[_Shape, ...], found: list[tuple[int, ...]]) -> bool:
    if [len(shape) for shape in shapes] != [len(shape) for shape in found]:
        return False
    # shapes (n, 3, n), found (8, 3, 8): a number must match, a symbol must have one value
    values: dict[str, int] = {}
    for kind, size in ((k, n) for a, b in zip(shapes, found, strict=True) for k, n in zip(a, b)):  # noqa: B905
        # size 1 broadcasts and size 0 is empty: special cases, which the exporter leaves out
        if isinstance(kind, str) and (size < 2 or values.setdefault(kind, size) != size):
            return False
        if isinstance(kind, int) and kind != size:
            return False
    return True


def _arguments(model: nn.Module, inputs: CallInputs) -> Mapping[str, Any]:
    """The arguments by their names in ``forward``."""
    forward = original_class(model).forward  # type: ignore[attr-defined]
    bound = inspect.signature(forward).bind(model, *inputs.args, **inputs.kwargs)
    return bound.arguments


# -- the path ----------------------------------------------------------------------------------


def conditions(
    model: nn.Module, inputs: CallInputs, varied: Sequence[Collection[int]]
) -> tuple[Sizes, list[str]] | None:
    """The sizes for which the code takes the path of this call, and the parameters along it.

    None when ``torch.export`` cannot determine them. The model is left as it was. ``varied`` are
    the dimensions of each tensor whose sizes get symbols: the exporter takes long with many.
    """
    # by identity: arguments have another order in the signature
    dims = {id(tensor): each for tensor, each in zip(_tensors(inputs), varied, strict=True)}
    any_size = lambda t: dict.fromkeys(dims[id(t)], torch.export.Dim.AUTO)  # noqa: E731
    try:
        shapes = pytree.tree_map_only(Tensor, any_size, _arguments(model, inputs))
        shapes.pop("self", None)
        with (
            undisturbed(
                model, evaluate=True, attributes=True, generators="all", gradients=False, quiet=True
            ),
            _exporter_silenced(),
        ):
            program = torch.export.export(
                model, inputs.args, inputs.kwargs, dynamic_shapes=shapes, strict=False
            )
        noted = tuple(program._guards_code)
        given = set(program.graph_signature.user_inputs)
        nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in given]
        values = [n.meta["val"] for n in nodes if isinstance(n.meta.get("val"), Tensor)]
        own = tuple(tuple(_size(n) for n in value.shape) for value in values)
        sizes = Sizes(own, noted)
        if not sizes.hold(model, inputs):  # conditions that the call itself does not meet
            return None
        names = dict(program.graph_signature.inputs_to_parameters)
        return sizes, _first_uses(program.graph, names)
    except Exception:  # not every model can be exported
        return None


@contextmanager
def _exporter_silenced() -> Iterator[None]:
    """Silences the exporter's log."""
    logger = logging.getLogger("torch._export")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _size(size: Any) -> int | str:
    return int(str(size)) if str(size).isdigit() else str(size)


def _first_uses(graph: fx.Graph, names: Mapping[str, str]) -> list[str]:
    """The parameters in the order of their first uses."""
    used = (
        names[source.name]
        for node in graph.nodes
        if node.op == "call_function"
        for source in node.all_input_nodes
        if source.name in names
    )
    return list(dict.fromkeys(used))


def used_parameters(analysis: Analysis) -> list[str]:
    """The parameters that an analysed call uses, in the order of their first uses."""
    names = {
        node.name: str(node.target)
        for node in analysis.capture.graph.nodes
        if node.op == "get_attr" and str(node.target) in analysis.capture.parameters
    }
    used = (
        names[source.name]
        for node in _nodes(analysis)
        for source in node.all_input_nodes
        if source.name in names
    )
    return list(dict.fromkeys(used))


# -- the places of channels --------------------------------------------------------------------


def _nodes(analysis: Analysis) -> list[fx.Node]:
    return [node for node in analysis.capture.graph.nodes if node.op == "call_function"]


def alike(calls: tuple[Analysis, Analysis], named: Sequence[np.ndarray]) -> bool:
    """Do two analysed calls differ in nothing but sizes along which no channels lie?

    ``named`` has, for each call, the labels of its units that both share.
    """
    # The graphs are walked side by side, in the order of execution: when an operator is reached,
    # the nodes that it reads were found to be alike, and `same` has them as pairs.
    first, second = map(_nodes, calls)
    if len(first) != len(second):
        return False
    same: dict[fx.Node, fx.Node] = {}
    for a, b in zip(first, second, strict=True):
        if a.target != b.target or a.meta.get("module") != b.meta.get("module"):
            return False
        tags = [
            analysis.values.get(node.name) for analysis, node in zip(calls, (a, b), strict=True)
        ]
        if not _same_arguments(a, b, same, calls[0]) or not _same_tags(tags, named):
            return False
        same[a] = b
    return True


def _same_tags(tags: Sequence[Tensor | None], named: Sequence[np.ndarray]) -> bool:
    one, two = tags
    if one is None or two is None:
        return one is two
    return canonical(one, named[0]) == canonical(two, named[1])


def _same_arguments(
    a: fx.Node, b: fx.Node, same: Mapping[fx.Node, fx.Node], analysis: Analysis
) -> bool:
    one, one_spec = pytree.tree_flatten((a.args, a.kwargs))
    two, two_spec = pytree.tree_flatten((b.args, b.kwargs))
    if one_spec != two_spec:
        return _may_differ(a, analysis)
    for x, y in zip(one, two, strict=True):
        if isinstance(x, fx.Node) != isinstance(y, fx.Node):
            return False
        if not isinstance(x, fx.Node):
            if type(x) is not type(y) or (x != y and not _may_differ(a, analysis)):
                return False
        elif same.get(x) is y or _same_attribute(x, y):
            continue
        elif not (_is_given(x) and _is_given(y)) or not _may_be_another(a, x, analysis):
            return False
    return True


def _same_attribute(left: fx.Node, right: fx.Node) -> bool:
    """Is it the same parameter or buffer? Constants are numbered in each call anew."""
    both = left.op == right.op == "get_attr" and left.target == right.target
    return both and not str(left.target).startswith("_constant_")


def _is_given(node: fx.Node) -> bool:
    """Is it an input of the call, or a constant that the call made?"""
    return node.op == "placeholder" or (node.op == "get_attr" and "const" in node.meta)


def _may_be_another(node: fx.Node, operand: fx.Node, analysis: Analysis) -> bool:
    """May a constant have other values here? Not if it decides which channel is picked."""
    name, source = _name(node), node.args[0]
    if operand.op == "placeholder" or name not in _PICKS:
        return True
    if not isinstance(source, fx.Node) or source.name not in analysis.values:
        return False
    moving = set(_varying(analysis.values[source.name], analysis))
    return not moving & _picked(node, name, len(source.meta["shape"]))


def _picked(node: fx.Node, name: str, rank: int) -> set[int]:
    """The dimensions along which an operator picks elements by an index."""
    by: Any = node.args[1]
    if name == "embedding":
        return {0}
    if isinstance(by, int):
        return {by % rank}
    if name in ("index", "_unsafe_index"):
        return {dim for dim, index in enumerate(by) if index is not None}
    return set(range(rank))


def _may_differ(node: fx.Node, analysis: Analysis) -> bool:
    """May the numbers among an operator's arguments differ without moving a channel?"""
    #     x (batch, tokens, CHANNELS)     x[:, :n]       along tokens: any n will do
    #                                     x[:, :, :n]    along channels: n decides which there are
    name, moving = _name(node), _moving(node, analysis)
    if name in _VIEWS or name in _NUMBERS or not moving:
        return True  # the tags of a view's result are compared, and they show where channels went
    if name in _SPATIAL:
        return max(moving) < 2
    if name in _ALONG and len(node.args) > 1 and isinstance(node.args[1], int):
        shape = node.args[0].meta["shape"]  # type: ignore[union-attr]
        return node.args[1] % len(shape) not in moving
    return False


def _moving(node: fx.Node, analysis: Analysis) -> set[int]:
    """The dimensions along which channels vary in an operator's operands."""
    known = (analysis.values.get(source.name) for source in node.all_input_nodes)
    return {dim for tags in known if tags is not None for dim in _varying(tags, analysis)}


def _varying(units: Tensor, analysis: Analysis) -> list[int]:
    """The dimensions along which units vary, apart from unreached units."""
    dims = varies(units)
    unreached = torch.from_numpy(analysis.plan.unreached)[core(units)]
    if not bool(unreached.any()):
        return dims
    # A position table is (positions, CHANNELS); rows that the call does not read are one unreached
    # unit, and differ from the others along positions. Compare only what is reached: there units
    # vary along a dimension if the smallest and the largest one differ.
    small = core(units)
    low, high = (
        small.masked_fill(unreached, analysis.plan.units + 1),
        small.masked_fill(unreached, 0),
    )
    return [dim for dim in dims if bool((low.amin(dim) < high.amax(dim)).any())]


def _name(node: fx.Node) -> str:
    return operator_name(node).removeprefix("aten.")
