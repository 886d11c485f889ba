"""Normalisation: statistics over space stay in a channel, statistics over channels mix them.

    batch norm   (batch, CHANNELS, h, w)     statistics per channel: nothing is mixed
    group norm   (batch, groups, c, h, w)    statistics over c, h, w: c channels are mixed
    layer norm   (batch, tokens, CHANNELS)   statistics over all channels: all are mixed

Mixing by a norm is ``soft``: evaluating a module around it level by level undoes it.
"""

from __future__ import annotations

from typing import Any

from ..algebra import Algebra
from ..values import Value
from .registry import arguments, aten, part_like, rule


def _affine(algebra: Algebra, x: Value, dim: int, *parameters: Value | None) -> Value:
    """Weight and bias of a norm, one element per channel along ``dim``."""
    for parameter in parameters:
        if parameter is not None:
            algebra.role(parameter, "norm")
            x = algebra.scale(x, parameter, dim)
    return x


@rule(*aten("batch_norm instance_norm"))
def batch_norm(
    algebra: Algebra,
    x: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    mean: Value | None = None,
    var: Value | None = None,
    use_batch: bool = False,
    *_: Any,
) -> Value:
    """Per channel; batch statistics mix whatever varies along batch and space."""
    # running statistics are constants of eval mode; without them an instance norm computes its own
    others = [d for d in range(len(x.shape)) if d != 1]
    if mean is None or use_batch:
        x = algebra.mix(x, others)
    if x.parameter is not None and (weight is None or weight.parameter is not None):
        return _standardised(algebra, x, weight, bias)
    for statistic in (mean, var):
        if statistic is not None and not statistic.is_constant:
            x = algebra.scale(x, statistic, 1)
    result = _affine(algebra, x, 1, weight, bias)
    # running_mean[c] belongs to the unit of channel c, and is frozen with it
    channels = algebra.columns(algebra.tags(result), [1]).reshape(-1)
    for buffer in (mean, var):
        algebra.follow(buffer, channels)
    return result


def _standardised(algebra: Algebra, x: Value, *parameters: Value | None) -> Value:
    """A weight standardised by batch_norm (timm's StdConv2d): it stays a weight."""
    # StdConv2d calls batch_norm on weight.reshape(1, out, -1): its rows are the "channels"
    for parameter in parameters:
        if parameter is not None:
            view = [1, -1] + [1] * (len(x.shape) - 2)
            moved = algebra.move(parameter, lambda t: t.reshape(view))  # noqa: B023
            x = algebra.pointwise(x, moved, shape=x.shape)
    return x


@rule(*aten("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training"))
def native_batch_norm(algebra: Algebra, x: Value, *args: Any) -> list[Value]:
    given = arguments(algebra, args)
    result = batch_norm(
        algebra,
        x,
        given["weight"],
        given["bias"],
        given.get("running_mean"),
        given.get("running_var"),
        bool(given.get("training", False)),
    )
    statistics = algebra.reduce(result, [d for d in range(len(x.shape)) if d != 1])
    return [result, *(part_like(algebra, i, statistics) for i in (1, 2))]


@rule(*aten("layer_norm"))
def layer_norm(
    algebra: Algebra,
    x: Value,
    normalized_shape: list[int],
    weight: Value | None = None,
    bias: Value | None = None,
    *_: Any,
) -> Value:
    """Statistics over the last dimensions mix their channels."""
    rank = len(normalized_shape)
    x = algebra.mix(x, range(-rank, 0), "soft")
    return _affine_block(algebra, x, weight, bias)


def _affine_block(algebra: Algebra, x: Value, *parameters: Value | None) -> Value:
    """Affine parameters over the last dimensions."""
    for parameter in parameters:
        if parameter is not None:
            algebra.role(parameter, "norm")
            if len(parameter.shape) == 1:
                x = algebra.scale(x, parameter, -1)
            else:
                x = algebra.pointwise(x, parameter, shape=x.shape)
    return x


@rule(*aten("native_layer_norm"))
def native_layer_norm(
    algebra: Algebra, x: Value, normalized_shape: list[int], *args: Any
) -> list[Value]:
    result = layer_norm(algebra, x, normalized_shape, *args)
    statistics = algebra.reduce(x, range(-len(normalized_shape), 0), keepdim=True)
    return [result, statistics, statistics]


@rule(*aten("rms_norm"))
def rms_norm(
    algebra: Algebra, x: Value, normalized_shape: list[int], weight: Value | None = None, *_: Any
) -> Value:
    return layer_norm(algebra, x, normalized_shape, weight)


@rule(*aten("group_norm"))
def group_norm(
    algebra: Algebra,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    *_: Any,
) -> Value:
    """Statistics over the channels of a group, and space, mix the channels of that group."""
    # (batch, CHANNELS, h, w) -> (batch, groups, c, h, w), mixed over c, h, w, and back. The affine
    # parameters come after it: one element per channel, not per group
    batch, channels, *space = x.shape
    split = algebra.move(x, lambda t: t.reshape(batch, groups, channels // groups, *space))
    mixed = algebra.mix(split, range(2, len(split.shape)), "soft")
    joined = algebra.move(mixed, lambda t: t.reshape(batch, channels, *space))
    return _affine(algebra, joined, 1, weight, bias)


@rule(*aten("native_group_norm"))
def native_group_norm(
    algebra: Algebra,
    x: Value,
    weight: Any,
    bias: Any,
    n: int,
    c: int,
    hw: int,
    groups: int,
    eps: float,
) -> list[Value]:
    result = group_norm(algebra, x, groups, weight, bias)
    split = algebra.move(x, lambda t: t.reshape(n, groups, -1))
    statistics = algebra.reduce(split, [2])
    return [result, statistics, statistics]
