"""Data movement: each position of the result shows one position of the operand.

Nothing here knows what an operator means. It is run on masks (which positions are zero) and on
coordinates (which position of the operand is shown), and a cut operator is accepted when, run on
numbered positions, it shows exactly what the original one shows:

    x of 6 channels -> view (2, 3)            positions  0 1 2 | 3 4 5
    channels 3, 4, 5 are kept -> view (1, 3)  positions  3 4 5           the same: accepted
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx

from ...propagate.values import compress, core, varies
from ..extents import Extent, around, cut, full, holds, lengths, mask, same, simple
from ..memory.views import index_of
from ..narrow import Extents, Narrow, shape_of
from .channelwise import BITS, BORDER
from .registry import Rule, given, register

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer

aten = torch.ops.aten
Move = Callable[[Tensor], Tensor]
#: A way to write a cut operator: (target, arguments after the operand, keyword arguments).
Way = tuple[Any, tuple[Any, ...], dict[str, Any]]
#: Positions along channels that are looked at one by one.
_MOST_POSITIONS = 2**16


class Movement(Rule):
    """An operator that moves the elements of its first argument and fills gaps with zeros."""

    moves = True
    same_when_whole = True  # the operator itself is right where nothing is cut
    target: Any = None  # the operator that is written in its place, if it is another one

    def move(self, node: fx.Node, known: Known) -> Move:
        """The operator as a function of its first argument."""
        target: Any = node.target
        args, kwargs = node.args[1:], dict(node.kwargs)
        return lambda x: target(x, *args, **kwargs)

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        return moved_channels(self.move(node, known), _source(node), known)

    def support(self, node: fx.Node, known: Known) -> Extents:
        source = _source(node)
        return forward(self.move(node, known), known.support(source), shape_of(source))

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        demand_shown(self.move(node, known), wanted, _source(node), known)

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        return self.write_move(node, node, self.move(node, out.known), kept, out)

    def write_move(
        self, origin: fx.Node, node: fx.Node, move: Move, kept: Extent, out: Writer
    ) -> Narrow:
        """Write ``move``, which makes ``node``, as ``origin`` in one of its narrow ways."""
        known, source = out.known, _source(origin)
        need = known.need(node)
        one = self.picks_one(origin, node)
        if one is not None and not known.is_folded(source) and known.is_used(source):
            return self._write_picked(node, source, *one, kept, out)
        after = shape_of(node)
        if self.same_when_whole and not (known.channels.get(source) or known.channels[node]):
            args, kwargs = out.arguments(origin)  # nothing can be cut
            if origin is node:
                target = self.target or origin.target
                return out.call(node, target, args, kwargs, full(len(after)))
        # Positions that are zero are left out; where no narrow way does that (relative positions
        # that are shifted by padding and a view), zeros are moved like all else.
        for wanted in (kept, need) if holds(need, kept) else (kept,):
            shown = backward(move, wanted, source, known)
            operands = [shown]
            if not known.is_folded(source):  # first the operand as it is
                operands.insert(0, _with_unneeded(shown, out.have(source), known.need(source)))
            for each in operands:
                made = self._write_narrow(origin, node, move, each, wanted, out)
                if made is not None:
                    return made
        return self._write_full(origin, node, out)

    def _write_narrow(
        self,
        origin: fx.Node,
        node: fx.Node,
        move: Move,
        shown: Extent,
        kept: Extent,
        out: Writer,
    ) -> Narrow | None:
        """Write what is kept of a node from what is shown of its operand; None: no way does it."""
        known, source = out.known, _source(origin)
        before, after = shape_of(source), shape_of(node)
        made = forward(move, shown, before)
        if not holds(made, kept):  # positions that are filled, not moved
            made = kept
        # more than is kept may come along, if nobody needs it
        for extent in ([made] if _is_harmless(made, kept, known.need(node)) else []) + [kept]:
            # what was accepted at other sizes is right at these, too
            key = (node.name, *(_bytes(p) for p in (*shown, *extent)))
            if key not in out.ways:
                out.ways[key] = self._accepted(origin, move, shown, extent, before, after)
            number = out.ways[key]
            if number is not None:
                ways = self.ways(origin, shown, extent, before, after)
                target, args, kwargs = next(islice(ways, number, None))
                operand = out.operand(source, shown)
                if target is None:
                    return Narrow(operand, extent)
                return out.call(node, target, (operand, *args), kwargs, extent)
        return None

    def picks_one(self, origin: fx.Node, node: fx.Node) -> tuple[int, int] | None:
        """The dimension and the position that are picked, if it is one and the dimension goes."""
        return None

    def _write_picked(
        self, node: fx.Node, source: fx.Node, dim: int, number: int, kept: Extent, out: Writer
    ) -> Narrow:
        """One position of the operand, which is cut along the other dimensions only."""
        have = out.positions(source, dim)
        if have is not None and not have[number]:  # it is zero
            have = np.zeros(len(have), bool)
            have[number] = True
        place = number if have is None else int(have[:number].sum())
        operand = out.operand(source, (*kept[:dim], have, *kept[dim:]))
        return out.call(node, aten.select.int, (operand, dim, place), {}, kept)

    def _accepted(
        self,
        origin: fx.Node,
        move: Move,
        shown: Extent,
        extent: Extent,
        before: Sequence[int],
        after: Sequence[int],
    ) -> int | None:
        """The number of the first way that shows what the original operator does."""
        shape = lengths(extent, after)
        numbered = torch.arange(1, math.prod(before) + 1).view(tuple(before))
        wanted = cut(_run(move, numbered), extent)
        given_positions = cut(numbered, shown)
        ways = self.ways(origin, shown, extent, before, after)
        for number, (target, args, kwargs) in enumerate(ways):
            try:
                found = (
                    given_positions
                    if target is None
                    else _run(lambda x: target(x, *args, **kwargs), given_positions)  # noqa: B023
                )
            except (RuntimeError, IndexError, ValueError):  # sizes that do not fit any more
                continue
            if tuple(found.shape) == shape and torch.equal(found, wanted):
                return number
        return None

    def ways(
        self,
        node: fx.Node,
        shown: Extent,
        extent: Extent,
        before: Sequence[int],
        after: Sequence[int],
    ) -> Iterator[Way]:
        """Narrow spellings of the operator to try; ``None`` as a target: the operand itself."""
        yield node.target, tuple(node.args[1:]), dict(node.kwargs)

    def _write_full(self, origin: fx.Node, node: fx.Node, out: Writer) -> Narrow:
        args, kwargs = out.arguments(origin)
        target = self.target or origin.target
        return out.call(node, target, args, kwargs, full(len(shape_of(node))))


class Reshape(Movement):
    """view, reshape, expand: the sizes are those of the cut result."""

    target = aten.reshape.default

    def move(self, node: fx.Node, known: Known) -> Move:
        shape = shape_of(node)
        return lambda x: x.reshape(shape)

    def ways(self, node, shown, extent, before, after):  # type: ignore[no-untyped-def]
        yield self.target, (list(lengths(extent, after)),), {}


class Expand(Reshape):
    """A dimension of size 1 becomes longer."""

    target = aten.expand.default

    def move(self, node: fx.Node, known: Known) -> Move:
        shape = shape_of(node)
        return lambda x: x.expand(shape)


class Pick(Movement):
    """slice, narrow, index_select, roll: the operand itself, once it is cut to what is shown."""

    def ways(self, node, shown, extent, before, after):  # type: ignore[no-untyped-def]
        yield None, (), {}
        yield from super().ways(node, shown, extent, before, after)


class Select(Movement):
    """One position along a dimension, which is gone afterwards."""

    def picks_one(self, origin: fx.Node, node: fx.Node) -> tuple[int, int] | None:
        shape = shape_of(_source(origin))
        dim = int(given(origin)["dim"]) % len(shape)
        return dim, int(given(origin)["index"]) % shape[dim]

    def ways(self, node, shown, extent, before, after):  # type: ignore[no-untyped-def]
        yield aten.squeeze.dim, (given(node)["dim"],), {}
        yield aten.select.int, (given(node)["dim"], 0), {}


class Pad(Movement):
    """Zeros around the operand; along dimensions that are cut they are left out."""

    def ways(self, node, shown, extent, before, after):  # type: ignore[no-untyped-def]
        yield from super().ways(node, shown, extent, before, after)
        padding = list(given(node)["pad"])
        for dim, positions in enumerate(extent):
            place = 2 * (len(before) - 1 - dim)
            if positions is not None and place < len(padding):
                padding[place : place + 2] = [0, 0]
        if any(padding):
            yield aten.constant_pad_nd.default, (padding,), {}
        else:
            yield None, (), {}


class AsStrided(Movement):
    """A view of the storage, which is emulated: at run time the storage may be laid out otherwise.

    Mostly it is the value as it is; else its positions are gathered one by one.
    """

    same_when_whole = False

    def move(self, node: fx.Node, known: Known) -> Move:
        source = _source(node)
        arguments: Any = (*node.args[1:], None)
        size, stride, offset = arguments[:3]
        strides, start = source.meta["layout"]
        shape = shape_of(source)
        needed = 1 + start + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))

        def view(value: Tensor) -> Tensor:
            storage = torch.zeros(needed, dtype=value.dtype)
            storage.as_strided(shape, strides, start).copy_(value)
            return storage.as_strided(size, stride, start if offset is None else offset)

        return view

    def ways(self, node, shown, extent, before, after):  # type: ignore[no-untyped-def]
        yield None, (), {}
        yield aten.reshape.default, (list(lengths(extent, after)),), {}

    def _write_full(self, origin: fx.Node, node: fx.Node, out: Writer) -> Narrow:
        source = _source(origin)
        before, after = shape_of(source), list(shape_of(node))
        numbered = torch.arange(math.prod(before)).view(before)
        first, behind, places = index_of(before, self.move(origin, out.known)(numbered))
        shape = [*before[:first], math.prod(before[first:behind]), *before[behind:]]
        flat = out.new(aten.reshape.default, (out.operand(source), list(shape)), shape)
        shape[first] = len(places)
        chosen = out.constant("index", places)
        taken = out.new(aten.index_select.default, (flat, first, chosen), shape)
        return out.call(node, aten.reshape.default, (taken, after), {}, full(len(after)))


class Split(Movement):
    """Several parts: each is a slice of the operand, written on its own."""

    parts_are_separate = True

    def picks_one(self, origin: fx.Node, node: fx.Node) -> tuple[int, int] | None:
        shape = shape_of(_source(origin))
        if len(shape_of(node)) == len(shape):
            return None
        return int(given(origin)["dim"]) % len(shape), int(node.args[1])  # type: ignore[arg-type]

    def part(self, node: fx.Node, number: int, known: Known) -> Move:
        """One part as a function of the operand."""
        move = self.move(node, known)
        return lambda x: move(x)[number]

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        return moved_channels(self.part(node, int(part.args[1]), known), _source(node), known)  # type: ignore[arg-type]

    def support(self, node: fx.Node, known: Known) -> Extents:
        source = _source(node)
        support = known.support(source)
        numbers: list[Any] = [part.args[1] for part in node.users]
        return {
            number: forward(self.part(node, number, known), support, shape_of(source))
            for number in numbers
        }

    def need_part(self, node: fx.Node, part: fx.Node, wanted: Extent, known: Known) -> None:
        source = _source(node)
        move = self.part(node, int(part.args[1]), known)  # type: ignore[arg-type]
        demand_shown(move, wanted, source, known)

    def write_part(self, node: fx.Node, part: fx.Node, kept: Extent, out: Writer) -> Narrow:
        move = self.part(node, int(part.args[1]), out.known)  # type: ignore[arg-type]
        return self.write_move(node, part, move, kept, out)

    def ways(self, node, shown, extent, before, after):  # type: ignore[no-untyped-def]
        yield None, (), {}
        dims = [d for d, p in enumerate(shown) if p is not None and p.sum() == 1]
        for dim in dims:  # unbind
            yield aten.squeeze.dim, (dim,), {}

    def _write_full(self, origin: fx.Node, node: fx.Node, out: Writer) -> Narrow:
        args, kwargs = out.arguments(origin)
        shape = shape_of(node)
        parts = out.new(origin.target, args, (), kwargs)
        return out.call(node, operator.getitem, (parts, node.args[1]), {}, full(len(shape)))


# -- running an operator on masks and coordinates --------------------------------------------------


def moved_channels(move: Move, source: fx.Node, known: Known) -> frozenset[int]:
    """The dimensions of the result along which positions of the operand's channels differ."""
    before = shape_of(source)
    # of a parameter that is repeated for each input, all dimensions are channels
    along = known.channels.get(source, frozenset(range(len(before))))
    found: set[int] = set()
    for dim in along:
        if before[dim] > 1:
            place = torch.arange(1, before[dim] + 1, dtype=torch.int32)
            place = place.view([-1 if d == dim else 1 for d in range(len(before))])
            found.update(varies(compress(_run(move, place.expand(before)))))
    return frozenset(found)


def forward(move: Move, inside: Extent, before: Sequence[int]) -> Extent:
    """The extent of the result that shows something of an extent of the operand."""
    if all(positions is None for positions in inside):
        shown = _run(move, torch.ones((), dtype=torch.bool).expand(tuple(before)))
    else:
        shown = _run(move, mask(inside, before))
    return around(compress(shown) if shown.numel() else shown)


def backward(move: Move, inside: Extent, source: fx.Node, known: Known) -> Extent:
    """The extent of the operand that an extent of the result shows, along its channels."""
    before = shape_of(source)
    along = known.channels.get(source, frozenset(range(len(before))))
    found: list[Any] = []
    for dim, size in enumerate(before):
        if size == 1 or dim not in along:
            found.append(None)
            continue
        view = [-1 if d == dim else 1 for d in range(len(before))]
        # position + 1: 0 are positions that the operator fills
        place = torch.arange(1, size + 1, dtype=torch.int32).view(view).expand(tuple(before))
        shown = cut_small(_run(move, place), inside)
        positions = np.zeros(size + 1, bool)
        positions[shown.reshape(-1).numpy()] = True
        found.append(simple(positions[1:]))
    return tuple(found)


def demand_shown(move: Move, inside: Extent, source: fx.Node, known: Known) -> None:
    """Demand exactly what an extent of the result shows of the operand.

    Channels that are scattered over the heads of an attention are no product of heads and
    channels. The rest of such a product has weights that read everything.
    """
    around_all = backward(move, inside, source, known)
    before = shape_of(source)
    along = [d for d in sorted(known.channels.get(source, ())) if before[d] > 1]
    sizes = [before[d] for d in along]
    if len(along) < 2 or not 0 < math.prod(sizes) <= _MOST_POSITIONS:
        known.demand(source, around_all)
        return
    # numbers of positions along channels, from 1: 0 are positions that the operator fills
    number = torch.arange(1, math.prod(sizes) + 1, dtype=torch.int32).view(sizes)
    number = number.view([before[d] if d in along else 1 for d in range(len(before))])
    shown = cut_small(_run(move, number.expand(before)), inside)
    held = np.zeros(math.prod(sizes) + 1, bool)
    held[shown.reshape(-1).numpy()] = True
    if held[1:].sum() == math.prod(lengths([around_all[d] for d in along], sizes)):
        known.demand(source, around_all)  # it is a product
        return
    for box in _boxes(held[1:].reshape(sizes)):
        extent = list(around_all)
        for dim, positions in zip(along, box, strict=True):
            extent[dim] = simple(positions)
        known.demand(source, tuple(extent))


def _boxes(held: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Products that together are a set: those of the rows that have the same part of it."""
    if held.ndim == 1:
        if held.any():
            yield (held,)
        return
    rows, which = np.unique(held.reshape(len(held), -1), axis=0, return_inverse=True)
    for number, row in enumerate(rows):
        for rest in _boxes(row.reshape(held.shape[1:])):
            yield (which.reshape(-1) == number, *rest)


def cut_small(value: Tensor, extent: Extent) -> Tensor:
    """The distinct part of a value inside an extent."""
    small = core(value)
    within = tuple(None if small.shape[d] == 1 else p for d, p in enumerate(extent))
    return cut(small, within)


def _run(move: Move, value: Tensor) -> Tensor:
    """Run a movement on integers; where there is no such kernel, on exact floats."""
    try:
        return move(value)
    except (RuntimeError, NotImplementedError):
        return move(value.double()).to(value.dtype)


def _with_unneeded(shown: Extent, have: Extent, need: Extent) -> Extent:
    """What is shown, and along each dimension what the operand has beyond it, if nobody needs it.

    Then the operand can be used as it is.
    """
    result: list[Any] = []
    for wanted, there, needed in zip(shown, have, need, strict=True):
        more = wanted
        if wanted is not None and there is not None and needed is not None:
            if not (wanted & ~there).any() and not (there & needed & ~wanted).any():
                more = there
        result.append(more)
    return tuple(result)


def _bytes(positions: Any) -> Any:
    return None if positions is None else positions.tobytes()


def _is_harmless(made: Extent, kept: Extent, need: Extent) -> bool:
    """Is everything that is made and not kept needed by nobody?"""
    for there, wanted, needed in zip(made, kept, need, strict=True):
        if wanted is None or same((there,), (wanted,)):
            continue
        extra = ~wanted if there is None else there & ~wanted
        if needed is None or (extra & needed).any():
            return False
    return True


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


register(
    "transpose permute t squeeze unsqueeze flip repeat pixel_shuffle pixel_unshuffle "
    "channel_shuffle unfold diagonal tril triu rot90 diag_embed im2col movedim swapaxes "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d",
    Movement(),
)
register("reshape _unsafe_view _reshape_alias", Reshape())
# a view as another type has other elements
register(
    "view",
    Reshape(),
    when=lambda node, known: not isinstance(node.args[1], torch.dtype),
    otherwise=BITS,
)
register("expand", Expand())
register("slice narrow roll", Pick())
register("select", Select())
register("as_strided", AsStrided())
register(
    "constant_pad_nd",
    Pad(),
    when=lambda node, known: not given(node)["value"],
    otherwise=BORDER,
)
register("split split_with_sizes unsafe_split unsafe_split_with_sizes unbind chunk", Split())
