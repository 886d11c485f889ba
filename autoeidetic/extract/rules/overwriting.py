"""Overwritten parts: each position of the result shows one position of one of several operands.

As in :mod:`.movement`, the operator is run on masks and on numbered positions, one operand at a
time. It is written as it is, on narrow operands, if that shows the same; else at full size, where
positions that nobody needs are zero.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ...common.trees import convert
from ..extents import Extent, cut, either, is_empty, nothing
from ..narrow import Extents, Narrow, shape_of
from .indexing import GATHER, PUT, SCATTER, indices
from .movement import Move, backward, forward, moved_channels
from .registry import Rule, everything, given, register

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer


class Overwrite(Rule):
    """Operands by their names in the schema; all other arguments are known."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        for operand, move in self._moves(node, known):
            found |= moved_channels(move, operand, known)
        return found

    def support(self, node: fx.Node, known: Known) -> Extents:
        if given(node).get("value", 0) != 0:
            return everything(node)
        found: Extent = nothing(shape_of(node))
        for operand, move in self._moves(node, known):
            found = either(found, forward(move, known.support(operand), shape_of(operand)))
        return found

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        for operand, move in self._moves(node, known):
            known.demand(operand, backward(move, wanted, operand, known))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        known = out.known
        shown = [backward(move, kept, each, known) for each, move in self._moves(node, known)]
        wanted = cut(self._run(node, known, self._numbered(node)), kept)
        parts = [cut(x, e) for x, e in zip(self._numbered(node), shown, strict=True)]
        for operand, extent, part in zip(self._operands(node), shown, parts, strict=True):
            if torch.equal(part, wanted):  # nothing is shown of the others
                return Narrow(out.operand(operand, extent), kept)
        if any(is_empty(each) for each in shown) or not self._shows(node, known, parts, wanted):
            return super().write(node, kept, out)
        pairs = zip(self.names, self._operands(node), shown, strict=True)
        narrow = {name: out.operand(operand, extent) for name, operand, extent in pairs}
        rest = convert(self._others(node), fx.Node, out.operand)
        return out.call(node, node.target, *_arguments(node, {**rest, **narrow}), kept)

    # -- parts ---------------------------------------------------------------------------------

    def _operands(self, node: fx.Node) -> list[fx.Node]:
        return [given(node)[name] for name in self.names]

    def _others(self, node: fx.Node) -> dict[str, Any]:
        return {name: each for name, each in given(node).items() if name not in self.names}

    def _moves(self, node: fx.Node, known: Known) -> list[tuple[fx.Node, Move]]:
        """Each operand, with the operator as a function of it; the others are zero."""
        operands = self._operands(node)

        def only(number: int) -> Move:
            def move(value: Tensor) -> Tensor:
                zero = torch.zeros((), dtype=value.dtype)
                values = [zero.expand(shape_of(each)) for each in operands]
                values[number] = value
                return self._run(node, known, values)

            return move

        return [(operand, only(number)) for number, operand in enumerate(operands)]

    def _numbered(self, node: fx.Node) -> list[Tensor]:
        """Numbers for the positions of all operands."""
        found, first = [], 1
        for operand in self._operands(node):
            size = math.prod(shape_of(operand))
            found.append(torch.arange(first, first + size).view(shape_of(operand)))
            first += size
        return found

    def _run(self, node: fx.Node, known: Known, operands: list[Tensor]) -> Tensor:
        target: Any = node.target
        values = convert(self._others(node), fx.Node, lambda n: known.value(n).cpu())
        values |= dict(zip(self.names, operands, strict=True))
        values |= {"value": 0} if "value" in values else {}  # gaps show nothing
        args, kwargs = _arguments(node, values)
        result: Tensor = target(*args, **kwargs)
        return result

    def _shows(self, node: fx.Node, known: Known, parts: list[Tensor], wanted: Tensor) -> bool:
        try:
            return torch.equal(self._run(node, known, parts), wanted)
        except (RuntimeError, IndexError, ValueError):  # sizes that do not fit any more
            return False


def _arguments(node: fx.Node, by_name: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as the operator takes them."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    args = [by_name[each.name] for each in schema.arguments if not each.kwarg_only]
    only = [each.name for each in schema.arguments if each.kwarg_only]
    return args, {name: by_name[name] for name in only if name in by_name}


def _among_channels(node: fx.Node, known: Known) -> bool:
    """Does a known index choose channels? Along other dimensions an index need not be known."""
    a, chosen = given(node), indices(node)
    dims = {dim for dim, each in enumerate(chosen) if each is not None}
    if a.get("accumulate") or not all(known.is_folded(each) for each in chosen):
        return False
    return bool(dims & known.channels.get(a["self"], frozenset(dims)))


def _of_tensor(name: str) -> Any:
    """The same for the overload that has an operand of this name."""
    return lambda node, known: name in given(node) and _among_channels(node, known)


def _of_number(node: fx.Node, known: Known) -> bool:
    return not isinstance(given(node)["value"], fx.Node) and _among_channels(node, known)


register("select_scatter slice_scatter diagonal_scatter", Overwrite("self", "src"))
register("gather", Overwrite("self"), when=_among_channels, otherwise=GATHER)
register("scatter", Overwrite("self", "src"), when=_of_tensor("src"), otherwise=SCATTER)
register("index_copy", Overwrite("self", "source"), when=_among_channels, otherwise=SCATTER)
register("index_fill", Overwrite("self"), when=_of_number, otherwise=SCATTER)
register(
    "index_put _unsafe_index_put",
    Overwrite("self", "values"),
    when=_among_channels,
    otherwise=PUT,
)
