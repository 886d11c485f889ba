"""Reductions: the dimensions that stay pass through; of the others, a sum needs no zeros."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import fx

from ..extents import Extent, both, lengths
from ..narrow import Narrow, shape_of
from .channelwise import source_of
from .registry import given, register
from .through import Passed, Through

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer

aten = torch.ops.aten


class Reduce(Through):
    """A reduction in which zeros take part."""

    def dims(self, node: fx.Node) -> tuple[set[int], bool]:
        """The dimensions that are reduced, and whether they stay with size 1."""
        rank = len(shape_of(source_of(node)))
        a = given(node)
        keepdim, dim = bool(a.get("keepdim", False)), a.get("dim")
        if dim is None or dim == []:
            return set(range(rank)), keepdim
        found = dim if isinstance(dim, (list, tuple)) else [dim]
        return {int(d) % max(1, rank) for d in found}, keepdim

    def passed(self, node: fx.Node) -> list[Passed]:
        source = source_of(node)
        dims, keepdim = self.dims(node)
        rank = len(shape_of(source))
        left = [d for d in range(rank) if keepdim or d not in dims]
        places = {d: new for new, d in enumerate(left) if d not in dims}
        return [Passed(source, tuple(places.get(d) for d in range(rank)))]


class Sum(Reduce):
    """A reduction in which zeros do not count: they are left out."""

    def _before(self, node: fx.Node, extent: Extent, inside: Extent) -> Extent:
        """The extent of the operand, given that of the result and that of reduced dimensions."""
        (passed,) = self.passed(node)
        return tuple(
            inside[d] if place is None else extent[place] for d, place in enumerate(passed.dims)
        )

    def inside(self, node: fx.Node, out: Writer) -> Extent:
        """What there is of the operand, without what may be anything."""
        source = source_of(node)
        return both(out.have(source), out.known.support(source))

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        source = source_of(node)
        known.demand(source, self._before(node, wanted, known.support(source)))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        operand = out.operand(source_of(node), self._before(node, kept, self.inside(node, out)))
        return out.call(node, node.target, (operand, *node.args[1:]), dict(node.kwargs), kept)


class Mean(Sum):
    """A sum that is divided by the number of all positions, zero or not."""

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        source, (dims, keepdim) = source_of(node), self.dims(node)
        inside = self.inside(node, out)
        if all(inside[d] is None for d in dims):
            return super().write(node, kept, out)
        operand = out.operand(source, self._before(node, kept, inside))
        count = math.prod(shape_of(source)[d] for d in dims)
        shape = lengths(kept, shape_of(node))
        kwargs = dict(node.kwargs)
        total = out.new(aten.sum.dim_IntList, (operand, sorted(dims), keepdim), shape, kwargs)
        return out.call(node, aten.div.Tensor, (total, count), {}, kept)


def _is_sum(node: fx.Node, known: Known) -> bool:
    """Is a norm a sum of powers, or the largest of all? Zeros would be the smallest of all."""
    order = given(node).get("ord", given(node).get("p"))
    return order is None or order >= 0


register("sum nansum linalg_vector_norm norm", Sum(), when=_is_sum, otherwise=Reduce())
register("mean", Mean())
register(
    "amax amin prod any all argmax argmin var std logsumexp max min median nanmedian mode kthvalue "
    "aminmax std_mean var_mean count_nonzero",
    Reduce(),
)
