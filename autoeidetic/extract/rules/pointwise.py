"""Element by element: an operand is needed where the result is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ...common.trees import convert, leaves
from ...propagate.rules.pointwise import POINTWISE
from ..extents import (
    Extent,
    around,
    both,
    broadcast,
    cut,
    either,
    full,
    is_empty,
    lengths,
    nothing,
    spread,
)
from ..narrow import Narrow, shape_of
from .registry import Rule, register

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer

aten = torch.ops.aten


class Pointwise(Rule):
    """Zero where all operands are, if the operator makes zero of zeros."""

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        rank, found, met, made = len(shape_of(node)), set(), set(), set()
        for operand in leaves((node.args, node.kwargs), fx.Node):
            skipped = rank - len(shape_of(operand))
            after = shape_of(node)[skipped:]
            own = {d for d, n in enumerate(shape_of(operand)) if n == after[d]}
            if operand in known.channels:
                met |= {dim + skipped for dim in own}
                found |= {dim + skipped for dim in own & known.channels[operand]}
            elif operand.op != "get_attr" or operand.target not in known.capture.constants:
                # a parameter makes channels where inputs are broadcast to it; the size of a
                # constant may be that of an input
                made |= {dim + skipped for dim in own}
        return frozenset(found | (made - met))

    def support(self, node: fx.Node, known: Known) -> Extent:
        if not self._keeps_zero(node, known):
            return full(len(shape_of(node)))
        found: Extent | None = None
        for operand in leaves((node.args, node.kwargs), fx.Node):
            own = spread(known.support(operand), shape_of(operand), shape_of(node))
            found = own if found is None else either(found, own)
        assert found is not None
        return found

    def _keeps_zero(self, node: fx.Node, known: Known) -> bool:
        # as many dimensions as the operand has: some memory formats ask for four
        zero = lambda n: torch.zeros((1,) * len(shape_of(n)), dtype=n.meta["dtype"])  # noqa: E731
        args, kwargs = convert((tuple(node.args), dict(node.kwargs)), fx.Node, zero)
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        return isinstance(result, Tensor) and not bool((result != 0).any())

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        for operand in leaves((node.args, node.kwargs), fx.Node):
            known.demand(operand, broadcast(wanted, shape_of(operand), shape_of(node)))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        extent = self.extent(node, kept, out)
        cut_to = lambda n: out.operand(n, broadcast(extent, shape_of(n), shape_of(node)))  # noqa: E731
        args, kwargs = convert((tuple(node.args), dict(node.kwargs)), fx.Node, cut_to)
        return out.call(node, node.target, args, kwargs, extent)

    def extent(self, node: fx.Node, kept: Extent, out: Writer) -> Extent:
        """What is kept; more of it where all operands have the same unneeded positions."""
        known, shape = out.known, shape_of(node)
        chosen, need = list(kept), known.need(node)
        operands = [n for n in leaves((node.args, node.kwargs), fx.Node) if not known.is_folded(n)]
        for dim in range(len(shape)):
            found = [
                out.have(n)[dim - len(shape)]
                for n in operands
                if len(shape_of(n)) >= len(shape) - dim and shape_of(n)[dim - len(shape)] != 1
            ]
            own, wanted = chosen[dim], need[dim]
            if not found or own is None or wanted is None:
                continue
            first = found[0]
            if first is None:  # all positions are there
                alike = all(each is None for each in found)
                more = wanted & ~own
            else:
                alike = all(each is not None and (each == first).all() for each in found)
                more = first & wanted & ~own | own & ~first
            if alike and not more.any():
                chosen[dim] = first
        return tuple(chosen)


class Product(Pointwise):
    """Zero where any factor is."""

    def support(self, node: fx.Node, known: Known) -> Extent:
        found = full(len(shape_of(node)))
        for operand in leaves(node.args[:2], fx.Node):
            found = both(found, spread(known.support(operand), shape_of(operand), shape_of(node)))
        return found

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        # a factor does not matter where the other one is zero
        need = both(wanted, self.support(node, known))
        for operand in leaves(node.args, fx.Node):
            known.demand(operand, broadcast(need, shape_of(operand), shape_of(node)))


class Quotient(Pointwise):
    """Zero where the dividend is."""

    def support(self, node: fx.Node, known: Known) -> Extent:
        first = node.args[0]
        if not isinstance(first, fx.Node):
            return full(len(shape_of(node)))
        return spread(known.support(first), shape_of(first), shape_of(node))

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        need = both(wanted, self.support(node, known))
        for operand in leaves(node.args, fx.Node):
            known.demand(operand, broadcast(need, shape_of(operand), shape_of(node)))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        first = node.args[0]
        if not is_empty(both(out.known.support(node), kept)) or not isinstance(first, fx.Node):
            return super().write(node, kept, out)
        # all of it is zero: the dividend itself, because a divisor that nobody needs may be zero
        zero = out.operand(first, broadcast(kept, shape_of(first), shape_of(node)))
        sizes = list(lengths(kept, shape_of(node)))
        return out.call(node, aten.expand.default, (zero, sizes), {}, kept)


class Where(Pointwise):
    """Chooses: with a known condition each side is needed only where it is chosen."""

    def sides(self, node: fx.Node) -> tuple[Any, Any, Any]:
        """Condition, the value where it holds, the value where it does not."""
        condition, yes, no = node.args[:3]
        return condition, yes, no

    def _chosen(self, node: fx.Node, known: Known) -> list[tuple[Any, Extent]]:
        """Each side with the extent in which it is chosen."""
        condition, yes, no = self.sides(node)
        shape = shape_of(node)
        if not known.is_folded(condition):
            return [(yes, full(len(shape))), (no, full(len(shape)))]
        holds: Tensor = known.value(condition).cpu()
        return [
            (side, spread(around(where), holds.shape, shape))
            for side, where in ((yes, holds), (no, ~holds))
        ]

    def support(self, node: fx.Node, known: Known) -> Extent:
        found: Extent | None = None
        shape = shape_of(node)
        for side, chosen in self._chosen(node, known):
            if isinstance(side, fx.Node):
                chosen = both(chosen, spread(known.support(side), shape_of(side), shape))
            elif side == 0:
                continue
            found = chosen if found is None else either(found, chosen)
        return full(len(shape)) if found is None else found

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        shape, need = shape_of(node), wanted
        for side, chosen in self._chosen(node, known):
            if isinstance(side, fx.Node):
                known.demand(side, broadcast(both(need, chosen), shape_of(side), shape))
        condition = self.sides(node)[0]
        if isinstance(condition, fx.Node):
            known.demand(condition, broadcast(need, shape_of(condition), shape))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        condition, yes, no = self.sides(node)
        shape = shape_of(node)
        if out.known.is_folded(condition):
            extent = kept
            holds = out.known.value(condition).cpu()
            inside = cut(holds, broadcast(extent, holds.shape, shape))
            for side, always in ((yes, inside.all()), (no, (~inside).all())):
                if bool(always) and isinstance(side, fx.Node) and shape_of(side) == shape:
                    if side.meta.get("dtype") == node.meta.get("dtype"):
                        return Narrow(out.operand(side, extent), extent)
        return super().write(node, kept, out)


class MaskedFill(Where):
    """``masked_fill(x, mask, value)`` is ``where(mask, value, x)``."""

    def sides(self, node: fx.Node) -> tuple[Any, Any, Any]:
        x, condition, value = node.args[:3]
        return condition, value, x


class Fill(Pointwise):
    """``fill(into, value)``: only the shape of what was there before matters."""

    def support(self, node: fx.Node, known: Known) -> Extent:
        value = node.args[1] if len(node.args) > 1 else 0
        if isinstance(value, fx.Node) or value != 0:
            return full(len(shape_of(node)))
        return nothing(shape_of(node))

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        for value in node.args[1:]:
            known.demand(value, ())


#: Random numbers are drawn for all elements, in their order: cutting would draw others.
_RANDOM = {"bernoulli"}
#: Operators with several results are channelwise ones of no whole dimension.
_SEVERAL_RESULTS = {"native_dropout", "log_sigmoid_forward"}
_OWN = {"mul": Product(), "div": Quotient(), "where": Where(), "masked_fill": MaskedFill()}
for _name in set(POINTWISE.split()) - _RANDOM - _SEVERAL_RESULTS:
    register(_name, _OWN.get(_name, Pointwise()))
register("fill zero", Fill())
register("_to_copy clone alias detach lift_fresh lift_fresh_copy contiguous", Pointwise())
