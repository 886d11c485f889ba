"""Dimensions that pass through an operator, position by position; all others are needed whole.

softmax over tokens    x [N, T, C] -> [N, T, C]        N and C pass, T is whole
max_pool2d             x [N, C, H, W] -> [N, C, h, w]  N and C pass
embedding              table [words, C] -> [N, T, C]   C passes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ...common.trees import convert, leaves
from ..extents import Extent, either, full
from ..narrow import Extents, Narrow, shape_of
from .registry import Rule, everything

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer


@dataclass(frozen=True)
class Passed:
    """An operand, and for each of its dimensions the one of the result that it passes to, or None.

    ``carries``: the result is made of its elements, so that it is zero where the operand is.
    """

    operand: fx.Node
    dims: tuple[int | None, ...]
    carries: bool = True


class Through(Rule):
    """Cut along the dimensions that pass through; operands that are not listed stay whole."""

    #: Does the operator make zeros of zeros? None: it is run on zeros to find out.
    keeps_zero: bool | None = None

    def passed(self, node: fx.Node) -> list[Passed]:
        """The operands that are cut."""
        raise NotImplementedError

    def _passes(self, node: fx.Node) -> list[Passed]:
        """The same without dimensions whose sizes differ: positions are others there."""
        shape, found = shape_of_result(node), self.passed(node)
        other: set[int | None] = {
            dim
            for each in found
            for size, dim in zip(shape_of(each.operand), each.dims, strict=True)
            if dim is not None and size != shape[dim]
        }
        ways = {(each.operand, each.dims) for each in found}
        if len(ways) > len({operand for operand, _ in ways}):  # one operand in two places
            other = set(range(len(shape)))
        return [
            replace(each, dims=tuple(None if dim in other else dim for dim in each.dims))
            for each in found
        ]

    def _rest(self, node: fx.Node, extent: Extent) -> Extent:
        """The same extent, whole along dimensions that do not pass."""
        passing = {dim for each in self._passes(node) for dim in each.dims}
        return tuple(p if dim in passing else None for dim, p in enumerate(extent))

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        if shape_of(part) != shape_of_result(node):
            return super().channels(node, part, known)
        found, met = set(), set()
        for each in self._passes(node):
            if each.operand in known.channels:
                met |= set(each.dims)
                found |= {each.dims[dim] for dim in known.channels[each.operand]}
                if shape_of(each.operand) == shape_of(part):
                    # channels stay channels where all of them are read: a part of the result may
                    # be needed
                    found |= known.channels[each.operand]
        for each in self._passes(node):
            if each.operand not in known.channels:  # a table makes channels
                found |= set(each.dims) - met
        return frozenset(dim for dim in found if dim is not None)

    def support(self, node: fx.Node, known: Known) -> Extents:
        if "shape" not in node.meta or not self._makes_zero(node, known):
            return everything(node)
        found: Extent | None = None
        for each in self._passes(node):
            if each.carries:
                own = _placed(each, known.support(each.operand), len(shape_of(node)))
                found = own if found is None else either(found, own)
        return everything(node) if found is None else found

    def _makes_zero(self, node: fx.Node, known: Known) -> bool:
        if self.keeps_zero is not None:
            return self.keeps_zero
        passes = {each.operand: each for each in self._passes(node)}
        live = [n for n in leaves((node.args, node.kwargs), fx.Node) if not known.is_folded(n)]
        if not all(each in passes and passes[each].carries for each in live):
            return False

        def zeros(operand: fx.Node) -> Any:
            if operand not in passes:
                return known.value(operand)
            dims = zip(shape_of(operand), passes[operand].dims, strict=True)
            size = [n if dim is None else min(n, 1) for n, dim in dims]
            return torch.zeros(size, dtype=operand.meta["dtype"])

        args, kwargs = convert((tuple(node.args), dict(node.kwargs)), fx.Node, zeros)
        found = node.target(*args, **kwargs)  # type: ignore[operator]
        return not any(bool((each != 0).any()) for each in pytree.tree_leaves(found))

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        if node in known.parts:
            wanted = of_parts(node, known)
        cut = {each.operand: _taken(each, wanted) for each in self._passes(node)}
        for operand in leaves((node.args, node.kwargs), fx.Node):
            known.demand(operand, cut.get(operand, full(len(shape_of(operand)))))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        if node in out.known.parts:
            kept = of_parts(node, out.known)
        extent = self._rest(node, kept)
        cut = {each.operand: _taken(each, extent) for each in self._passes(node)}
        args, kwargs = convert(
            (tuple(node.args), dict(node.kwargs)),
            fx.Node,
            lambda operand: out.operand(operand, cut.get(operand)),
        )
        return out.call(node, node.target, args, kwargs, results(node, extent))


def _taken(passed: Passed, extent: Extent) -> Extent:
    """The extent of an operand, given that of the result."""
    return tuple(None if dim is None else extent[dim] for dim in passed.dims)


def _placed(passed: Passed, extent: Extent, rank: int) -> Extent:
    """The extent of the result, given that of an operand."""
    found = list(full(rank))
    for positions, dim in zip(extent, passed.dims, strict=True):
        if dim is not None:
            found[dim] = positions
    return tuple(found)


# -- several results -------------------------------------------------------------------------------


def shape_of_result(node: fx.Node) -> tuple[int, ...]:
    """The shape of the result; of several, that of the first one that is used."""
    if "shape" in node.meta:
        return shape_of(node)
    number: Callable[[fx.Node], Any] = lambda part: part.args[1]  # noqa: E731
    return shape_of(min(node.users, key=number))


def of_parts(node: fx.Node, known: Known) -> Extent:
    """What is wanted of several results of one shape; everything, if another one is used."""
    shape, found = shape_of_result(node), None
    for part in node.users:
        number: Any = part.args[1]
        if number in known.parts[node]:
            if shape_of(part) != shape:
                return full(len(shape))
            own = known.parts[node][number]
            found = own if found is None else either(found, own)
    assert found is not None
    return found


def results(node: fx.Node, extent: Extent) -> Extents:
    """The extent of a result, or of each of several."""
    if "shape" in node.meta:
        return extent
    shape = shape_of_result(node)
    return {
        int(part.args[1]): extent if shape_of(part) == shape else full(len(shape_of(part)))  # type: ignore[arg-type]
        for part in node.users
    }


def same_place(operand: fx.Node, whole: Iterable[int] = ()) -> Passed:
    """All dimensions of an operand pass to the same ones of the result, but for some."""
    left = set(whole)
    rank = len(shape_of(operand))
    return Passed(operand, tuple(None if dim in left else dim for dim in range(rank)))
