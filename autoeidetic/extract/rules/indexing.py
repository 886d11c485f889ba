"""Look-ups by an index: a known one moves positions, another one picks along whole dimensions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx

from ..extents import Extent, Positions, cut, simple
from ..narrow import Narrow, shape_of
from .channelwise import source_of
from .movement import Move, Movement
from .registry import Sometimes, given, register
from .through import Passed, Through, same_place, shape_of_result

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer

aten = torch.ops.aten


class Embedding(Through):
    """Rows of a table: the channels of the result are those of the table."""

    keeps_zero = True

    def passed(self, node: fx.Node) -> list[Passed]:
        return [Passed(source_of(node), (None, len(shape_of_result(node)) - 1))]


class Bags(Embedding):
    """Sums of rows; other results (counts, places) are of all channels."""

    def passed(self, node: fx.Node) -> list[Passed]:
        numbers = {part.args[1] for part in node.users}
        return super().passed(node) if 0 in numbers else []


# -- x[:, i, j] ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Which dimensions are indexed, and where the dimensions of the index are in the result.

    ``picked`` are dimensions of the operand, ``rest`` the others; the result has ``count``
    dimensions of the index, from dimension ``start`` on.
    """

    picked: tuple[int, ...]
    rest: tuple[int, ...]
    start: int
    count: int

    def result(self, dim: int) -> int | None:
        """Where a dimension of the operand is in the result."""
        if dim in self.picked:
            return None
        number = self.rest.index(dim)
        return number if number < self.start else number + self.count

    def operand(self, extent: Extent) -> dict[int, Positions]:
        """The positions along dimensions of the operand that are not indexed."""
        return {dim: extent[self.result(dim)] for dim in self.rest}  # type: ignore[index]

    def index(self, extent: Extent) -> Extent:
        """The part of an extent of the result that belongs to the index."""
        return extent[self.start : self.start + self.count]


def places(rank: int, picked: list[int], count: int) -> Places:
    """The places for indexed dimensions; with others between them, the index goes to the front."""
    together = picked == list(range(picked[0], picked[-1] + 1))
    rest = tuple(dim for dim in range(rank) if dim not in picked)
    return Places(tuple(picked), rest, picked[0] if together else 0, count)


def places_of(node: fx.Node) -> Places:
    """The places of an index that has no masks."""
    picked = [dim for dim, each in enumerate(indices(node)) if each is not None]
    count = max(len(shape_of(indices(node)[dim])) for dim in picked)
    return places(len(shape_of(source_of(node))), picked, count)


def indices(node: fx.Node) -> list[Any]:
    """The index of each dimension, or None; a mask covers as many dimensions as it has."""
    if "index" in given(node):  # index_select
        dim = int(given(node)["dim"]) % max(1, len(shape_of(node.args[0])))  # type: ignore[arg-type]
        return [None] * dim + [given(node)["index"]]
    return list(given(node)["indices"])


def known_indices(node: fx.Node, known: Known) -> list[Tensor | None]:
    """The same as numbers: masks become the numbers of their positions."""
    found: list[Tensor | None] = []
    for each in indices(node):
        value = known.value(each)
        if value is not None and value.dtype is torch.bool:
            found += value.cpu().nonzero().unbind(1)
        else:
            found.append(None if value is None else value.cpu())
    return found


class KnownIndex(Movement):
    """The index is known: positions move, and those that are not shown leave."""

    def move(self, node: fx.Node, known: Known) -> Move:
        chosen = known_indices(node, known)
        shape = shape_of(node)
        return lambda x: aten.index.Tensor(x, chosen).reshape(shape)

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        source: Any = node.args[0]
        chosen = known_indices(node, out.known)
        picked = [dim for dim, each in enumerate(chosen) if each is not None]
        together = torch.broadcast_tensors(*(chosen[dim] for dim in picked))
        at = places(len(shape_of(source)), picked, together[0].dim())
        want = at.operand(kept)
        moved: list[Any] = [None] * (picked[-1] + 1)
        for dim, positions in zip(picked, together, strict=True):
            size = shape_of(source)[dim]
            numbers = cut(positions, at.index(kept)).numpy() % size
            want[dim] = simple(np.isin(np.arange(size), numbers))
            moved[dim] = np.searchsorted(np.unique(numbers), numbers)
        operand = out.operand(source, tuple(want[dim] for dim in range(len(shape_of(source)))))
        if len(picked) == 1 and moved[-1].ndim == 1:
            if np.array_equal(moved[-1], np.arange(len(moved[-1]))):
                return Narrow(operand, kept)
            number = out.constant("index", torch.from_numpy(moved[-1]))
            return out.call(node, aten.index_select.default, (operand, picked[0], number), {}, kept)
        indices = [
            None if each is None else out.constant("index", torch.from_numpy(each))
            for each in moved
        ]
        return out.call(node, aten.index.Tensor, (operand, indices), {}, kept)


class Index(Through):
    """The index depends on the input: indexed dimensions are whole, others pass."""

    keeps_zero = True

    def passed(self, node: fx.Node) -> list[Passed]:
        source = source_of(node)
        at = places_of(node)
        return [Passed(source, tuple(at.result(d) for d in range(len(shape_of(source)))))]


def _has_mask(node: fx.Node) -> bool:
    return any(each is not None and each.meta["dtype"] is torch.bool for each in indices(node))


def _is_known(node: fx.Node, known: Known) -> bool:
    return all(known.is_folded(each) for each in indices(node))


class Gather(Through):
    """``gather(x, dim, index)``: whole along its dimension, element by element along others."""

    keeps_zero = True

    def passed(self, node: fx.Node) -> list[Passed]:
        a = given(node)
        dim = int(a["dim"]) % max(1, len(shape_of(node)))
        return [same_place(a["self"], {dim}), replace(same_place(a["index"]), carries=False)]


class Scatter(Through):
    """Values are put into a tensor at places along one dimension: others pass."""

    def passed(self, node: fx.Node) -> list[Passed]:
        a = given(node)
        dim = int(a["dim"]) % max(1, len(shape_of(node)))
        found = [same_place(a["self"], {dim})]
        for name in ("src", "source"):
            if name in a:
                found.append(same_place(a[name], {dim}))
        if len(shape_of(a["index"])) == len(shape_of(node)) > 1:  # not a plain list of places
            found.append(replace(same_place(a["index"], {dim}), carries=False))
        return found

    def _makes_zero(self, node: fx.Node, known: Known) -> bool:
        return given(node).get("value", 0) == 0


class Put(Through):
    """``x[:, i, j] = values``: dimensions that are not indexed pass."""

    keeps_zero = True

    def passed(self, node: fx.Node) -> list[Passed]:
        into, values = source_of(node), given(node)["values"]
        rank = len(shape_of(into))
        at = places_of(node)
        kept = tuple(None if dim in at.picked else dim for dim in range(rank))
        # dimensions of the values, which may be fewer, or of size 1: from the end
        places = {at.result(dim): dim for dim in at.rest}
        skipped = rank - len(at.picked) + at.count - len(shape_of(values))
        dims = tuple(
            places.get(dim + skipped) if size > 1 else None
            for dim, size in enumerate(shape_of(values))
        )
        return [Passed(into, kept), Passed(values, dims)]


#: For an index that is not known, or not one of channels.
GATHER = Gather()
SCATTER = Scatter()
PUT = Sometimes(Put(), when=lambda node, known: not _has_mask(node))
register("embedding", Embedding())
register("_embedding_bag _embedding_bag_forward_only", Bags())
_BY_DATA = Sometimes(Index(), when=lambda node, known: not _has_mask(node))
register("index _unsafe_index index_select", KnownIndex(), when=_is_known, otherwise=_BY_DATA)
register("scatter_add scatter_reduce index_add index_reduce", SCATTER)
