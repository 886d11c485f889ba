"""Matrix products. A product with a parameter is a layer; one between activations mixes.

layer      x (.., in) @ weight (out, in)   one channel per row; a zero in the weight keeps an
                                           input channel out of an output channel
shared     the channels of x lie along     the weight serves all channels alike: it is one
           another dimension               channel, and they all require it
product    activations only                no weight to zero: each result requires the
                                           channels of the contracted dimension
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..algebra import Algebra
from ..values import Value, varies
from .registry import aten, rule


def shared(algebra: Algebra, tags: Tensor, contracted: list[int], weight: Value) -> Value:
    """A weight that serves many channels alike: one channel, required by them all."""
    # x (batch, CHANNELS, tokens), weight (m, tokens): the same numbers for every channel, so no
    # element of the weight belongs to one of them
    algebra.role(weight, "shared")
    mixed = algebra.reduce_tags(tags, contracted, "auto")
    channel = algebra.own_rows(weight, []).reshape(())
    return algebra.result(algebra.combine(mixed.expand(algebra.shape), channel))


@rule(*aten("linear"))
def linear(algebra: Algebra, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """A layer: one channel for each row of the weight."""
    if len(weight.shape) == 1:
        result = matmul(algebra, x, weight)
        return result if bias is None else algebra.pointwise(result, bias)
    weight = algebra.as_weight(weight)
    if weight.parameter is None:
        result = matmul(algebra, x, algebra.move(weight, lambda t: t.transpose(-1, -2)))
    else:
        result = _layer(algebra, x, weight)
    return biased(algebra, result, bias, -1)


def _layer(algebra: Algebra, x: Value, weight: Value) -> Value:
    """x (.., in), weight (out, in): ``seen`` has ``in`` channels, the result ``out``."""
    algebra.own_channels(x, -1)
    #     x (batch, tokens, in)       seen      in channels, joined over batch and tokens
    #     weight (out, in)            channels  out new ones, one per row
    #                                 columns   seen, at every row: weight[o, i] multiplies seen[i]
    tags = algebra.tags(x)
    last = tags.dim() - 1
    if algebra.is_shared(tags, [last]):
        return shared(algebra, tags, [last], weight)
    algebra.role(weight, "output")
    seen = algebra.columns(tags, [last]).reshape(-1)
    channels = algebra.own_rows(weight, [0]).reshape(-1)
    # a weight that is no parameter has no zeros to write: every row requires every input
    if not algebra.read(weight, seen):
        channels = algebra.combine(channels, algebra.reduce_tags(seen, [0], "hard"), channels.shape)
    return algebra.result(channels)


def biased(algebra: Algebra, result: Value, bias: Value | None, dim: int) -> Value:
    """Add a layer's bias, which takes the channels of the result along ``dim``."""
    if bias is None:
        return result
    algebra.role(bias, "bias")
    return algebra.scale(result, bias, dim)


@rule(*aten("addmm baddbmm addmv"))
def added_product(algebra: Algebra, bias: Value, left: Value, right: Value, **_: Any) -> Value:
    return algebra.pointwise(matmul(algebra, left, right), bias)


@rule(*aten("mm bmm matmul mv dot vdot"))
def matmul(algebra: Algebra, left: Value, right: Value) -> Value:
    """Products of activations, of an activation with a parameter, and batched ones."""
    # vectors become matrices, and the dimension that was added is dropped from the result
    left_vector, right_vector = len(left.shape) == 1, len(right.shape) == 1
    if left_vector:
        left = algebra.move(left, lambda t: t.unsqueeze(0))
    if right_vector:
        right = algebra.move(right, lambda t: t.unsqueeze(1))
    full = _full_shape(left, right)
    tags = _product_tags(algebra, left, right, full)
    if right_vector:
        tags = tags.squeeze(-1)
    if left_vector:
        tags = tags.squeeze(-1 if right_vector else -2)
    return algebra.result(tags)


def _full_shape(left: Value, right: Value) -> tuple[int, ...]:
    """(batch.., n, k) times (batch.., k, m) is (batch.., n, m), batch dimensions broadcast."""
    lead, other = left.shape[:-2], right.shape[:-2]
    rank = max(len(lead), len(other))
    lead = (1,) * (rank - len(lead)) + lead
    other = (1,) * (rank - len(other)) + other
    batch = tuple(b if a == 1 else a for a, b in zip(lead, other, strict=True))
    return (*batch, left.shape[-2], right.shape[-1])


def _product_tags(algebra: Algebra, left: Value, right: Value, full: tuple[int, ...]) -> Tensor:
    if right.parameter is not None and left.parameter is None:
        return _with_weight(algebra, left, right, full, on_right=True)
    if left.parameter is not None and right.parameter is None:
        return _with_weight(algebra, right, left, full, on_right=False)
    a, b = algebra.contract(left, right, -1, -2)
    return algebra.combine(a.expand(*full[:-2], *a.shape[-2:]), b, full)


def _with_weight(
    algebra: Algebra, x: Value, weight: Value, full: tuple[int, ...], on_right: bool
) -> Tensor:
    """An activation times a (batch of) parameter matrices.

    It is a layer when the channels of ``x`` lie along the contracted dimension, and perhaps along
    batch dimensions that the weight has too (a layer per attention head). It is a table that
    serves many channels alike when they also lie elsewhere (relative positions for all heads).
    """
    #     on_right     x (.., n, k) @ weight (.., k, m)      rows of the weight along its last dim
    #     otherwise    weight (.., n, k) @ x (.., k, m)      rows along its last but one
    # Dimensions are those of the full result; d - rank counts them from the end, as the weight,
    # which may have fewer, does.
    tags = algebra.tags(x)
    tags = tags.expand(*full[:-2], *tags.shape[-2:])
    rank, weight_rank = len(full), len(weight.shape)
    contracted = rank - 1 if on_right else rank - 2
    batch = [d for d in range(rank - 2) if d - rank >= -weight_rank and weight.shape[d - rank] > 1]
    moving = varies(tags)
    across = [d for d in moving if d not in (*batch, contracted)]
    # relative positions: a parameter looked up by index, with one matrix per query position
    table = bool(batch) and not set(batch) & set(moving) and _repeats(weight)
    if table or (across and (rank > 2 or algebra.is_shared(tags, [contracted]))):
        algebra.role(weight, "shared")
        mixed = algebra.reduce_tags(tags, [contracted], "hard")
        return algebra.combine(mixed, algebra.own_rows(weight, []).reshape(()), full)
    # x has the contracted dimension where the weight has its rows: transposed, `seen` lies along
    # the weight's contracted dimension and broadcasts over its rows
    seen = algebra.columns(tags, [*batch, contracted]).transpose(-1, -2)
    seen = seen.reshape(seen.shape[rank - weight_rank :])
    algebra.role(weight, "output")
    rows = weight_rank - 1 if on_right else weight_rank - 2
    channels = algebra.own_rows(weight, [*(d - rank + weight_rank for d in batch), rows])
    if not algebra.read(weight, seen):
        mixed = algebra.reduce_tags(seen, [2 * weight_rank - 3 - rows], "hard")
        channels = algebra.combine(channels, mixed, channels.shape)
    return channels.expand(full)


def _repeats(weight: Value) -> bool:
    """Was the parameter looked up by an index, so that an element occurs in several places?"""
    view = weight.parameter
    return view is not None and math.prod(weight.shape) > math.prod(view.shape)


@rule(*aten("addbmm"))
def addbmm(algebra: Algebra, bias: Value, left: Value, right: Value, **_: Any) -> Value:
    a, b = algebra.contract(left, right, -1, -2)
    tags = algebra.reduce_tags(algebra.combine(a, b, _full_shape(left, right)), [0], "hard")
    return algebra.pointwise(bias, Value(algebra.shape, tags[0]))


@rule(*aten("_trilinear"))
def trilinear(algebra: Algebra, first: Value, weight: Value, third: Value, *_: Any) -> Value:
    """ATen's spelling of a bilinear layer: [.., 1, i, 1], [1, o, i, j], [.., 1, 1, j]."""
    algebra.role(weight, "output")
    channels = algebra.own_rows(weight, [0]).reshape(-1)
    # result[o] = sum over i, j of first[i] * weight[o, i, j] * third[j]: two reads of one weight,
    # with columns along i and along j; a zero at (o, i, j) keeps both channels out of o
    for x, dim in ((first, 1), (third, 2)):
        tags = algebra.tags(x)
        seen = algebra.columns(tags, [tags.dim() - 1]).reshape(-1)
        size = [1, 1, 1]
        size[dim] = -1
        if not algebra.read(weight, seen.view(size)):
            channels = algebra.combine(
                channels, algebra.reduce_tags(seen, [0], "hard"), channels.shape
            )
    return algebra.result(channels)
