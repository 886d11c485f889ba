"""Sums of products: a factor is needed where those that multiply it are not zero.

Every such operator is read as labels of dimensions, as in ``einsum``: numbers are dimensions of the
result, names are those that are summed over. The rule does not know more than that:

    linear      x [N, T, I], weight [O, I]         (0, 1, "k"), (2, "k")
    matmul      left [B, n, k], right [k, m]       (0, 1, "k"), ("k", 2)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor, fx

from ..extents import (
    Extent,
    Positions,
    around,
    both,
    broadcast,
    cut,
    either,
    full,
    nothing,
    simple,
    spread,
)
from ..narrow import Narrow, shape_of
from .registry import Rule, given, register

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer

Label: TypeAlias = int | str


@dataclass(frozen=True)
class Factor:
    """A factor: where it stands among the arguments, and the labels of its dimensions."""

    node: fx.Node
    argument: int
    labels: tuple[Label, ...]

    def along(self, label: Label) -> int:
        """The dimension that has a label."""
        return self.labels.index(label)


@dataclass(frozen=True)
class Sum:
    """``added + sum of products``; ``added`` is the number of an argument, or None."""

    factors: tuple[Factor, ...]
    added: int | None = None


class Contraction(Rule):
    """A sum over a product of factors."""

    def __init__(self, read: Callable[[fx.Node], Sum]) -> None:
        self.read = read

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        shape, found, met = shape_of(node), set(), set()
        factors = self.read(node).factors
        for factor in factors:
            for dim, label in enumerate(factor.labels):
                if factor.node in known.channels and not _stretched(factor, dim, shape):
                    met.add(label)
                    found |= {label} if dim in known.channels[factor.node] else set()
        for factor in factors:  # a weight makes channels
            found |= set(factor.labels) - met if factor.node in known.folded else set()
        added = self._added(node)
        if added in known.channels:
            skipped = len(shape) - len(shape_of(added))
            found |= {d + skipped for d in known.channels[added] if shape_of(added)[d] > 1}
        return frozenset(label for label in found if isinstance(label, int))

    def support(self, node: fx.Node, known: Known) -> Extent:
        shape = shape_of(node)
        product = full(len(shape))
        summed = self._summed(node, known)
        for factor in self.read(node).factors:
            inside = known.support(factor.node)
            if not known.is_learned(factor.node):
                inside = _value_support(factor, summed, known)
            product = both(product, _spread(factor, inside, shape))
        if any(positions is not None and not positions.any() for positions in summed.values()):
            product = nothing(shape)
        added = self._added(node)
        if added is None:
            return product
        return either(product, spread(known.support(added), shape_of(added), shape))

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        shape = shape_of(node)
        inside = both(wanted, known.support(node))
        summed = self._summed(node, known)
        factors = self.read(node).factors
        for factor in factors:
            limits = dict(summed)
            for other in factors:  # zeros of a known factor hide the others
                if other is not factor and other.node in known.folded:
                    read = _value_support(other, _limits(other, inside, shape), known)
                    for label, positions in zip(other.labels, read, strict=True):
                        if label in limits:
                            limits[label] = both((limits[label],), (positions,))[0]
            known.demand(factor.node, _extent(factor, inside, limits, shape))
        added = self._added(node)
        if added is not None:
            known.demand(added, broadcast(wanted, shape_of(added), shape))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        shape, sums = shape_of(node), self.read(node)
        positions = {name: self._have(name, node, out) for name in self._summed(node, out.known)}
        arguments = list(node.args)
        for factor in sums.factors:
            extent = _extent(factor, kept, positions, shape)
            arguments[factor.argument] = out.operand(factor.node, extent)
        if sums.added is not None:
            added: Any = node.args[sums.added]
            extent = broadcast(kept, shape_of(added), shape)
            arguments[sums.added] = out.operand(added, extent)
        self._in_found_order(sums, kept, positions, shape, arguments, out)
        return out.call(node, node.target, arguments, dict(node.kwargs), kept)

    # -- parts ---------------------------------------------------------------------------------

    def _added(self, node: fx.Node) -> Any:
        number = self.read(node).added
        return None if number is None else node.args[number]

    def _summed(self, node: fx.Node, known: Known) -> dict[Label, Positions]:
        """The positions of each label that is summed over at which no factor is zero."""
        found: dict[Label, Positions] = {}
        for factor in self.read(node).factors:
            for label, positions in zip(factor.labels, known.support(factor.node), strict=True):
                if isinstance(label, str):
                    found[label] = both((found.get(label),), (positions,))[0]
        return found

    def _have(self, label: Label, node: fx.Node, out: Writer) -> Positions:
        """The positions to sum over: those that the factors have, at least one.

        A known factor is zero where nobody needs the other one. Of several others, none need be
        right outside of what all of them are needed in.
        """
        factors = [each for each in self.read(node).factors if label in each.labels]
        live = [each for each in factors if not out.known.is_folded(each.node)]
        have = [out.positions(each.node, each.along(label)) for each in live]
        if len(have) < 2:
            return have[0] if have else None
        needed = [out.known.support(each.node)[each.along(label)] for each in live]
        found = reduce(lambda a, b: both((a,), (b,))[0], (*have, *needed))
        return found if found is None or found.any() else have[0]

    def _in_found_order(
        self,
        sums: Sum,
        kept: Extent,
        positions: dict[Label, Positions],
        shape: tuple[int, ...],
        arguments: list[Any],
        out: Writer,
    ) -> None:
        """Read channels in the order in which they are, if a known factor can follow it."""
        known = out.known
        live = [each for each in sums.factors if each.node not in known.folded]
        folded = [each for each in sums.factors if each.node in known.folded]
        if len(live) != 1 or len(folded) != 1 or len(positions) != 1:
            return
        (factor,), (weight,), (label,) = live, folded, positions
        source, order = out.unordered(arguments[factor.argument], factor.along(label))
        if order is not None:
            value = cut(known.value(weight.node), _extent(weight, kept, positions, shape))
            moved = value.index_select(weight.along(label), order.to(value.device))
            arguments[factor.argument] = source
            arguments[weight.argument] = out.computed(weight.node, moved)


def _stretched(factor: Factor, dim: int, shape: tuple[int, ...]) -> bool:
    """Does a dimension of size 1 stand for many of the result?"""
    label = factor.labels[dim]
    return isinstance(label, int) and shape_of(factor.node)[dim] == 1 != shape[label]


def _spread(factor: Factor, extent: Extent, shape: tuple[int, ...]) -> Extent:
    """The extent of the result, given that of a factor."""
    found = list(full(len(shape)))
    for dim, label in enumerate(factor.labels):
        if isinstance(label, int):
            size = shape_of(factor.node)[dim]
            (found[label],) = spread((extent[dim],), (size,), (shape[label],))
    return tuple(found)


def _limits(factor: Factor, wanted: Extent, shape: tuple[int, ...]) -> dict[Label, Positions]:
    """What is wanted of a factor along dimensions of the result."""
    return {
        label: None if _stretched(factor, dim, shape) else wanted[label]
        for dim, label in enumerate(factor.labels)
        if isinstance(label, int)
    }


def _extent(
    factor: Factor, wanted: Extent, summed: dict[Label, Positions], shape: tuple[int, ...]
) -> Extent:
    """The extent of a factor, given those of the result and of what is summed over."""
    limits = {**summed, **_limits(factor, wanted, shape)}
    return tuple(limits[label] for label in factor.labels)


def _value_support(factor: Factor, limits: dict[Label, Positions], known: Known) -> Extent:
    """Where a factor is not zero; of one that is known, inside of limits."""
    if factor.node not in known.folded:
        return known.support(factor.node)
    value: Tensor = known.folded[factor.node]
    extent = tuple(limits.get(label) for label in factor.labels)
    if value.is_meta:
        return full(value.dim())
    found = around(cut(value, extent).cpu() != 0)
    return tuple(_placed(part, chosen) for part, chosen in zip(found, extent, strict=True))


def _placed(part: Positions, chosen: Positions) -> Positions:
    """Positions among chosen ones as positions among all."""
    if part is None or chosen is None:
        return chosen if part is None else part
    placed = chosen.copy()
    placed[chosen] = part
    return simple(placed)


# -- labels ----------------------------------------------------------------------------------------


def _linear(node: fx.Node) -> Sum:
    x, weight, *bias = node.args
    rank = len(shape_of(node))
    makes = (rank - 1,) if len(shape_of(weight)) == 2 else ()  # type: ignore[arg-type]
    rows = tuple(range(rank - len(makes)))
    factors = Factor(x, 0, (*rows, "k")), Factor(weight, 1, (*makes, "k"))  # type: ignore[arg-type]
    return Sum(factors, 2 if bias and bias[0] is not None else None)


def _matmul(node: fx.Node, first: int = 0) -> Sum:
    left, right = node.args[first : first + 2]
    rank = len(shape_of(node))
    ranks = [len(shape_of(x)) for x in (left, right)]  # type: ignore[arg-type]
    columns = (rank - 1,) if ranks[1] > 1 else ()
    rows = (rank - 1 - len(columns),) if ranks[0] > 1 else ()
    lead = tuple(range(rank - len(columns) - len(rows)))
    leads = [lead[len(lead) - max(0, n - 2) :] for n in ranks]
    return Sum(
        (
            Factor(left, first, (*leads[0], *rows, "k")),  # type: ignore[arg-type]
            Factor(right, first + 1, (*leads[1], "k", *columns)),  # type: ignore[arg-type]
        ),
        0 if first else None,
    )


def _summed_batches(node: fx.Node) -> Sum:
    _, left, right = node.args
    return Sum((Factor(left, 1, ("b", 0, "k")), Factor(right, 2, ("b", "k", 1))), 0)  # type: ignore[arg-type]


def _trilinear(node: fx.Node) -> Sum:
    """Three factors of one rank, after dimensions of size 1 are put in; some are summed."""
    summed: Any = node.args[6]
    rank = len(shape_of(node)) + len(summed)
    left = [d for d in range(rank) if d not in summed]
    names: list[Label] = [left.index(d) if d in left else f"k{d}" for d in range(rank)]
    factors = []
    for number in range(3):
        new: Any = node.args[3 + number]
        labels = tuple(name for d, name in enumerate(names) if d not in new)
        factors.append(Factor(node.args[number], number, labels))  # type: ignore[arg-type]
    return Sum(tuple(factors))


class Attention(Rule):
    """``softmax(query @ key.T * scale + mask) @ value``: channels of q and k are contracted.

    query [..., H, L, E], key [..., S, E], value [..., S, V]; the result is [..., L, V].
    """

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        a, rank = given(node), len(shape_of(node))
        found = set()
        for name in ("query", "value"):
            size = len(shape_of(a[name]))
            own = known.channels.get(a[name], range(size))
            found |= {d + rank - size for d in own if name == "value" or d < size - 1}
        return frozenset(found)

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        a, need = given(node), wanted
        query, key, value = a["query"], a["key"], a["value"]
        shape = shape_of(node)
        lead = self._lead(node, wanted)
        shared = both((known.support(query)[-1],), (known.support(key)[-1],))[0]
        fits = lambda x: broadcast(lead, shape_of(x)[:-2], shape[:-2])  # noqa: E731
        known.demand(query, (*fits(query), need[-2], shared))
        known.demand(key, (*self._groups(a, key, lead, shape), None, shared))
        known.demand(value, (*self._groups(a, value, lead, shape), None, need[-1]))
        mask = a.get("attn_mask")
        if isinstance(mask, fx.Node):
            scores = (*shape[:-1], shape_of(key)[-2])
            known.demand(mask, broadcast((*lead, need[-2], None), shape_of(mask), scores))

    def _lead(self, node: fx.Node, wanted: Extent) -> Extent:
        """The batch dimensions and heads: with grouped queries, whole groups of heads."""
        a = given(node)
        lead = list(wanted[:-2])
        if a.get("enable_gqa") and lead and lead[-1] is not None:
            heads, groups = shape_of(a["query"])[-3], shape_of(a["key"])[-3]
            used = lead[-1].reshape(groups, heads // groups).any(1)
            lead[-1] = simple(used.repeat(heads // groups))
        return tuple(lead)

    @staticmethod
    def _groups(a: dict[str, Any], x: fx.Node, lead: Extent, shape: Any) -> Extent:
        """The heads of keys or values that belong to heads of queries."""
        own = shape_of(x)[:-2]
        if not a.get("enable_gqa") or not lead or lead[-1] is None or own[-1] == shape[-3]:
            return broadcast(lead, own, shape[:-2])
        heads: Positions = np.asarray(lead[-1].reshape(own[-1], -1).any(1))
        return (*broadcast(lead[:-1], own[:-1], shape[:-3]), heads)

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        a = given(node)
        query, key, value = a["query"], a["key"], a["value"]
        shape = shape_of(node)
        lead = self._lead(node, kept)
        sides = [None if out.known.is_folded(x) else out.positions(x, -1) for x in (query, key)]
        shared = both((sides[0],), (sides[1],))[0]
        if shared is not None and not shared.any():
            shared = sides[0]
        fits = lambda x: broadcast(lead, shape_of(x)[:-2], shape[:-2])  # noqa: E731
        operands = [
            out.operand(query, (*fits(query), kept[-2], shared)),
            out.operand(key, (*self._groups(a, key, lead, shape), None, shared)),
            out.operand(value, (*self._groups(a, value, lead, shape), None, kept[-1])),
        ]
        mask = a.get("attn_mask")
        if isinstance(mask, fx.Node):
            scores = (*shape[:-1], shape_of(key)[-2])
            mask = out.operand(mask, broadcast((*lead, kept[-2], None), shape_of(mask), scores))
        kwargs = dict(node.kwargs)
        if shared is not None and a.get("scale") is None:
            kwargs["scale"] = 1 / math.sqrt(shape_of(query)[-1])  # that of all channels
        arguments = (*operands, mask, a.get("dropout_p", 0.0), a.get("is_causal", False))
        return out.call(node, node.target, arguments, kwargs, (*lead, *kept[-2:]))


register("linear", Contraction(_linear))
register("mm bmm matmul mv dot vdot", Contraction(_matmul))
register("addmm baddbmm addmv", Contraction(lambda node: _matmul(node, 1)))
register("addbmm", Contraction(_summed_batches))
register("_trilinear", Contraction(_trilinear))
register("scaled_dot_product_attention", Attention())
