"""Values side by side: each operand is needed where its part of the result is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from ...common.trees import leaves
from ..extents import Extent, Positions, either, full, is_empty, simple
from ..narrow import Narrow, shape_of
from .registry import Rule, register

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer

aten = torch.ops.aten


class Cat(Rule):
    """Operands along a dimension; those of which nothing is kept are left out."""

    def parts(self, node: fx.Node) -> tuple[int, list[tuple[fx.Node, int, int]]]:
        """The dimension, and each operand with the part of the result that it makes."""
        operands: Any = node.args[0]
        dim = int(node.args[1]) if len(node.args) > 1 else int(node.kwargs.get("dim", 0))  # type: ignore[arg-type]
        dim %= len(shape_of(node))
        start, found = 0, []
        for operand in operands:
            if len(shape_of(operand)) != len(shape_of(node)):
                continue  # an empty tensor without a shape adds nothing
            size = shape_of(operand)[dim]
            found.append((operand, start, start + size))
            start += size
        return dim, found

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        _, parts = self.parts(node)
        along = {d for operand, _, _ in parts for d in known.channels.get(operand, ())}
        # whole operands are left out where none of their channels is kept
        return frozenset(along)

    def support(self, node: fx.Node, known: Known) -> Extent:
        dim, parts = self.parts(node)
        size = shape_of(node)[dim]
        found: Extent | None = None
        for operand, start, end in parts:
            own = list(known.support(operand))
            if start == end or is_empty(tuple(own)):
                continue
            own[dim] = _placed(own[dim], start, end, size)
            found = tuple(own) if found is None else either(found, tuple(own))
        return full(len(shape_of(node))) if found is None else found

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        dim, parts = self.parts(node)
        need = wanted
        for operand, start, end in parts:
            own = list(need)
            own[dim] = _part(need[dim], start, end)
            if start < end:
                known.demand(operand, tuple(own))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        dim, parts = self.parts(node)
        operands = []
        for operand, start, end in parts:
            own = list(kept)
            own[dim] = _part(kept[dim], start, end)
            if start < end and not is_empty(tuple(own)):
                operands.append(out.operand(operand, tuple(own)))
        if len(operands) == 1:
            return Narrow(operands[0], kept)
        else:
            return out.call(node, aten.cat.default, (operands, dim), {}, kept)


def _placed(positions: Positions, start: int, end: int, size: int) -> Positions:
    placed = np.zeros(size, bool)
    placed[start:end] = True if positions is None else positions
    return simple(placed)


def _part(positions: Positions, start: int, end: int) -> Positions:
    return None if positions is None else simple(positions[start:end])


class Stack(Rule):
    """Operands along a new dimension."""

    def _dim(self, node: fx.Node) -> int:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        return int(dim) % len(shape_of(node))  # type: ignore[arg-type]

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        dim, operands = self._dim(node), leaves(node.args[0], fx.Node)
        along = {d for operand in operands for d in known.channels.get(operand, ())}
        return frozenset({dim, *(d + (d >= dim) for d in along)})

    def support(self, node: fx.Node, known: Known) -> Extent:
        dim = self._dim(node)
        operands: Sequence[fx.Node] = node.args[0]  # type: ignore[assignment]
        there = np.array([not is_empty(known.support(each)) for each in operands])
        found: Extent | None = None
        for each in operands:
            own = known.support(each)
            if not is_empty(own):
                found = own if found is None else either(found, own)
        if found is None:
            return full(len(shape_of(node)))
        return (*found[:dim], simple(there), *found[dim:])

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        dim, need = self._dim(node), wanted
        for number, operand in enumerate(node.args[0]):  # type: ignore[arg-type]
            positions = need[dim]
            if positions is None or positions[number]:
                known.demand(operand, (*need[:dim], *need[dim + 1 :]))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        dim = self._dim(node)
        positions = kept[dim]
        chosen = [
            out.operand(operand, (*kept[:dim], *kept[dim + 1 :]))
            for number, operand in enumerate(node.args[0])  # type: ignore[arg-type]
            if positions is None or positions[number]
        ]
        return out.call(node, aten.stack.default, (chosen, dim), {}, kept)


register("cat", Cat())
register("stack", Stack())
