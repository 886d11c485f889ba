"""Data movement: the rule runs the same operator on the tags."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...capture.aliases import storage_write
from ..algebra import Algebra
from ..tags import narrow
from ..values import ZERO, Value, compress, core, varies
from .registry import aten, rule

_SAME_OPERATOR = """
transpose permute t expand select slice squeeze unsqueeze flip roll repeat
pixel_shuffle pixel_unshuffle channel_shuffle unfold diagonal tril triu rot90 reflection_pad1d
reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
diag_embed
"""
_RESHAPES = "view reshape _unsafe_view _reshape_alias"
_SPLITS = "split split_with_sizes unsafe_split unsafe_split_with_sizes unbind"


@rule(*aten(_SAME_OPERATOR))
def same_operator(algebra: Algebra, x: Value, *args: Any, **kwargs: Any) -> Value:
    operator = algebra.node.target
    shapes = [_like(a) if isinstance(a, Value) else a for a in args]
    return _move(algebra, x, lambda t: operator(t, *shapes, **kwargs))  # type: ignore[operator]


def _move(algebra: Algebra, x: Value, function: Callable[[Tensor], Tensor]) -> Value:
    """Move tags; an empty value is moved as if its empty dimensions had one position.

    Otherwise the channels of an expert that gets no tokens would be lost.
    """
    if 0 not in x.shape or x.tags is None:
        return algebra.move(x, function)
    shape = function(ZERO.expand(x.shape)).shape
    filled = narrow(x.tags, [d for d, n in enumerate(x.shape) if n == 0])
    try:
        return algebra.result(compress(function(filled).expand(shape)), shape)
    except RuntimeError:  # arguments that only fit the empty value
        return algebra.result(algebra.mix_everything([x]), shape)


@rule(*aten("im2col"))
def im2col(algebra: Algebra, x: Value, *args: Any) -> Value:
    """ATen has no integer kernel for this one; tags are exact in float64."""
    return algebra.move(x, lambda t: torch.ops.aten.im2col(t.double(), *args).long())


@rule(*aten("as_strided"))
def as_strided(
    algebra: Algebra, x: Value, size: list[int], stride: list[int], offset: int | None = None
) -> Value:
    """A view by strides sees the storage, so the tags are laid out like the tensor first."""
    # tags have their own strides (0 where nothing varies): they are written into a stand-in for
    # the storage, with the strides of the tensor, and viewed there
    strides, start = algebra.node.args[0].meta["layout"]  # type: ignore[union-attr]
    if tuple(size) == x.shape and all(
        a == b or n == 1 for a, b, n in zip(stride, strides, size, strict=True)
    ):
        return x
    needed = 1 + start + sum((n - 1) * step for n, step in zip(x.shape, strides, strict=True))

    def view(tags: Tensor) -> Tensor:
        storage = torch.zeros(needed, dtype=tags.dtype)
        storage.as_strided(x.shape, strides, start).copy_(tags)
        return storage.as_strided(size, stride, start if offset is None else offset)

    return algebra.move(x, view)


@rule(*aten(_RESHAPES))
def reshape(algebra: Algebra, x: Value, *_: Any) -> Value:
    shape = algebra.shape
    if math.prod(shape) != math.prod(x.shape):  # a view as another dtype
        return algebra.result(algebra.tags(algebra.reduce(x, [-1], keepdim=True)))
    filled = [n or 1 for n in shape]  # empty dimensions as one position, see _move
    return _move(algebra, x, lambda t: t.reshape(filled if t.numel() else shape))


@rule(*aten(_SPLITS))
def split(algebra: Algebra, x: Value, *args: Any, **kwargs: Any) -> list[Value]:
    """Run the operator once for each part."""
    operator: Any = algebra.node.target
    count = len(operator(torch.empty(x.shape, device="meta"), *args, **kwargs))
    return [
        _move(algebra, x, lambda t, i=i: operator(t, *args, **kwargs)[i])  # type: ignore[misc]
        for i in range(count)
    ]


@rule(*aten("constant_pad_nd"))
def pad(algebra: Algebra, x: Value, padding: list[int], *args: Any, **kwargs: Any) -> Value:
    """Padding is a constant; channels next to it keep their tags."""
    tags = algebra.tags(x)
    rank = tags.dim()
    padded = {rank - 1 - i // 2 for i, n in enumerate(padding) if n}
    if not padded & set(varies(tags)):
        # a constant and a channel side by side: the channel covers both, and the tags stay small
        return Value(algebra.shape, narrow(tags, padded).expand(algebra.shape))
    return algebra.result(compress(torch.nn.functional.pad(tags, padding)))


@rule(*aten("cat"))
def cat(algebra: Algebra, values: list[Value], dim: int = 0) -> Value:
    """Tags side by side; an empty value is combined with the others: it may have elements."""
    rank = len(algebra.shape)
    dim = dim % rank
    values = [v for v in values if len(v.shape) == rank]  # one without a shape adds nothing
    filled = [v for v in values if v.shape[dim]]
    result = _side_by_side(algebra, filled, dim) if filled else algebra.constant()
    for value in values:
        if not value.shape[dim]:  # with other inputs it has elements, at any position
            side = narrow(algebra.tags(value), {dim})
            result = algebra.result(algebra.combine(algebra.tags(result), side))
    return result


@rule(*aten("stack"))
def stack(algebra: Algebra, values: list[Value], dim: int = 0) -> Value:
    dim = dim % (len(values[0].shape) + 1)
    return _side_by_side(
        algebra, [algebra.move(v, lambda t: t.unsqueeze(dim)) for v in values], dim
    )


def _side_by_side(algebra: Algebra, values: list[Value], dim: int) -> Value:
    """Concatenate; a free parameter (a class token) takes the channels of its neighbours."""
    # cat([class_token (batch, 1, c), patches (batch, n, CHANNELS)], 1): the same layers read both,
    # so element i of the token gets channel i. Only if the neighbour has no channels along dim
    known = [v for v in values if v.tags is not None and v.parameter is None]
    neighbour = next((v for v in known if not v.is_constant and dim not in varies(v.tags)), None)  # type: ignore[arg-type]
    if neighbour is not None:
        side = narrow(algebra.tags(neighbour), {dim})
        for value in values:
            if value.tags is None:
                algebra.pointwise(
                    value, Value(value.shape, side.expand(value.shape)), shape=value.shape
                )
    # concatenate the small tensors, without dimensions in which none of them varies
    tags = [algebra.tags(v) for v in values]
    moving = {d for t in tags for d in varies(t)}
    compact = [narrow(t, set(range(t.dim())) - moving - {dim}) for t in tags]
    if dim not in moving and all(torch.equal(core(t), core(compact[0])) for t in compact[1:]):
        return algebra.result(narrow(compact[0], {dim}))
    return algebra.result(compress(torch.cat(compact, dim)))


@rule(*aten("select_scatter slice_scatter diagonal_scatter"))
def scatter_view(algebra: Algebra, into: Value, source: Value, *args: Any, **kw: Any) -> Value:
    operator: Any = algebra.node.target
    dense = algebra.tags(into).contiguous()
    return algebra.result(compress(operator(dense, algebra.tags(source).contiguous(), *args, **kw)))


@rule(storage_write)
def write(
    algebra: Algebra, storage: Value, value: Value, size: list[int], stride: list[int], offset: int
) -> Value:
    dense = algebra.tags(storage).contiguous().clone()
    dense.as_strided(size, stride, offset).copy_(algebra.tags(value))
    return algebra.result(compress(dense))


@rule(*aten("col2im"))
def col2im(algebra: Algebra, x: Value, size: list[int], kernel: list[int], *_: Any) -> Value:
    """Overlapping blocks are added: the positions inside a block are mixed, channels are not."""
    window = kernel[0] * kernel[1]
    split = algebra.move(x, lambda t: t.reshape(*t.shape[:-2], -1, window, t.shape[-1]))
    mixed = algebra.reduce(split, [-2, -1])
    return algebra.result(algebra.tags(mixed)[..., None, None])


def _like(value: Value) -> Tensor:
    """A stand-in for an operand whose shape alone matters (expand_as, view_as)."""
    return value.const if value.const is not None else torch.empty(value.shape, device="meta")
