"""Indexing. A known index moves tags; an unknown one may pick anything along its dimension.

An index is known if it is a constant of the model. An index that is computed from activations is an
operand, too: the result requires the channels that it was computed from.

    x (batch, tokens, CHANNELS)    index along tokens      channels do not vary there: nothing mixed
                                   index along channels    all of them are mixed
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..algebra import Algebra
from ..values import Value
from .registry import aten, rule, side_results


def _known(index: Value | None) -> bool:
    return index is None or (index.const is not None and not index.const.is_meta)


def _unknown_channels(algebra: Algebra, indices: list[Any]) -> Tensor | None:
    """One tag for all the channels that the indices were computed from; None: constants only."""
    values = [i for i in indices if isinstance(i, Value) and not i.is_constant]
    return algebra.mix_everything(values) if values else None


def _require(algebra: Algebra, value: Value, channels: Tensor | None) -> Value:
    """The value, with every channel requiring the given one."""
    if channels is None:
        return value
    return Value(value.shape, algebra.combine(algebra.tags(value), channels, value.shape))


@rule(*aten("index _unsafe_index"))
def index(algebra: Algebra, x: Value, indices: list[Value | None]) -> Value:
    if all(_known(i) for i in indices):
        known = [None if i is None else i.const for i in indices]
        return algebra.move(x, lambda t: torch.ops.aten.index.Tensor(t, known))
    masks = _masks(algebra)
    if any(masks):  # which elements come out depends on the mask, and so does how many
        return algebra.result(algebra.mix_everything([x, *indices]))
    # anything along the indexed dimensions may come out: mix them, then index the mixture at
    # position 0. ATen's own kernel gives the result its shape, which has special cases (indices
    # that are not adjacent move to the front)
    dims = _indexed_dims(indices, masks)
    mixed = _spread(algebra, algebra.reduce(x, dims, keepdim=True), x.shape)
    anywhere = [None if i is None else _first_everywhere(i.shape) for i in indices]
    moved = algebra.move(
        mixed, lambda t: torch.ops.aten.index.Tensor(t, anywhere).expand(algebra.shape)
    )
    return _require(algebra, moved, _unknown_channels(algebra, indices))


def _first_everywhere(shape: tuple[int, ...]) -> Tensor:
    """An index of zeros, at least one: with other inputs an empty index has entries."""
    return torch.zeros([n or 1 for n in shape], dtype=torch.int64)


def _masks(algebra: Algebra) -> list[bool]:
    """Which of the operator's indices are boolean masks."""
    indices: Any = algebra.node.args[1]
    return [i is not None and i.meta["dtype"] is torch.bool for i in indices]


def _indexed_dims(indices: list[Value | None], masks: list[bool]) -> list[int]:
    """The dimensions that are indexed; a mask covers as many as it has."""
    dims: list[int] = []
    position = 0
    for i, is_mask in zip(indices, masks, strict=True):
        width = len(i.shape) if i is not None and is_mask else 1
        if i is not None:
            dims.extend(range(position, position + width))
        position += width
    return dims


def _spread(algebra: Algebra, value: Value, shape: tuple[int, ...]) -> Value:
    return algebra.move(value, lambda t: t.expand(shape))


@rule(*aten("index_select"))
def index_select(algebra: Algebra, x: Value, dim: int, i: Value) -> Value:
    if _known(i):
        return algebra.move(x, lambda t: t.index_select(dim, i.const))  # type: ignore[arg-type]
    mixed = algebra.reduce(x, [dim], keepdim=True)
    moved = _spread(algebra, mixed, algebra.shape)
    return _require(algebra, moved, _unknown_channels(algebra, [i]))


@rule(*aten("gather"))
def gather(algebra: Algebra, x: Value, dim: int, i: Value, **_: Any) -> Value:
    if _known(i):
        return algebra.move(x, lambda t: t.gather(dim, i.const))  # type: ignore[arg-type]
    # x (n, k), index (m, j) along dim 1, m <= n: mixed (n, 1) -> (n, j) -> its first m rows
    mixed = algebra.reduce(x, [dim], keepdim=True)
    size = [algebra.shape[d] if d == dim % len(x.shape) else n for d, n in enumerate(x.shape)]
    moved = _spread(algebra, mixed, tuple(size))
    moved = algebra.move(moved, lambda t: t[tuple(slice(0, n) for n in algebra.shape)])
    return algebra.pointwise(moved, Value(i.shape, algebra.tags(i)))


@rule(*aten("embedding"))
def embedding(algebra: Algebra, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    """A row is picked by the index: the channels lie along the embedding's dimension."""
    return _embed(algebra, weight, indices, algebra.shape)


def _embed(algebra: Algebra, weight: Value, indices: Value, shape: tuple[int, ...]) -> Value:
    # weight (words, CHANNELS): a unit has a column of it, over all words. Rows cannot be divided,
    # because any word may occur in any task
    algebra.role(weight, "embedding")
    channels = algebra.own_rows(weight, [1]).reshape(-1)
    result = algebra.result(channels.view([1] * (len(shape) - 1) + [-1]), shape)
    return _require(algebra, result, _unknown_channels(algebra, [indices]))


@rule(*aten("_embedding_bag _embedding_bag_forward_only"))
def embedding_bag(
    algebra: Algebra, weight: Value, indices: Value, offsets: Value, *args: Any
) -> list[Value]:
    parts = {p.args[1]: p for p in algebra.node.users}
    computed = _unknown_channels(algebra, [indices, offsets, *args])
    shape = parts[0].meta["shape"] if 0 in parts else (1, weight.shape[1])
    result = _require(algebra, _embed(algebra, weight, indices, shape), computed)
    return [result, *side_results(algebra, [weight, indices, offsets, *args], 3)]


@rule(
    *aten(
        "scatter scatter_add scatter_reduce index_add index_copy index_fill index_put"
        " _unsafe_index_put index_reduce masked_scatter put"
    )
)
def scatter(algebra: Algebra, into: Value, *args: Any, **_: Any) -> Value:
    """Values are written where a known index says, or anywhere along a dimension."""
    values = [a for a in args if isinstance(a, Value)]
    lists = [a for a in args if isinstance(a, (list, tuple))]
    indices = [i for group in lists for i in group if isinstance(i, Value)]
    dims = [a for a in args if type(a) is int][:1]
    if lists:
        positions = _indexed_dims(list(lists[0]), _masks(algebra))
        written = _write_at(algebra, into, lists[0], values)
        if written is not None:
            return written
    else:
        positions = [dims[0] % len(into.shape)] if dims else list(range(len(into.shape)))
    # unknown positions: each element is an old one from anywhere along them, or a written value
    base = _spread(algebra, algebra.reduce(into, positions, keepdim=True), into.shape)
    channels = algebra.mix_everything([*values, *indices])
    return _require(algebra, base, channels)


def _write_at(algebra: Algebra, into: Value, indices: Any, values: list[Value]) -> Value | None:
    """``index_put`` at known positions: the tags go where the values go."""
    if not all(_known(i) for i in indices) or len(values) != 1:
        return None
    if algebra.node.args[3:] and algebra.node.args[3]:  # accumulate
        return None
    known = [None if i is None else i.const for i in indices]
    dense = algebra.tags(into).contiguous().clone()
    dense = torch.ops.aten.index_put.default(dense, known, algebra.tags(values[0]).contiguous())
    return algebra.result(dense)


@rule(
    *aten(
        "masked_select nonzero unique _unique2 unique_consecutive unique_dim nonzero_static"
        " bincount histc _local_scalar_dense equal repeat_interleave"
    )
)
def data_dependent(algebra: Algebra, *args: Any, **_: Any) -> Any:
    """The number of elements, or a Python value, depends on the data: everything is mixed."""
    tags = algebra.mix_everything(args)
    if "shape" in algebra.node.meta:
        return algebra.result(tags.expand(algebra.shape))
    parts = {p.args[1]: p for p in algebra.node.users}
    return [
        algebra.result(tags, parts[i].meta["shape"]) if i in parts else algebra.constant(())
        for i in range(3)
    ]
