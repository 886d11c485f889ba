"""Convolutions: dense, grouped, depthwise, transposed, and those that run over channels.

dense        weight (out, in, k..)            row o reads every input channel
grouped      weight (out, in / groups, k..)   row o reads the inputs of its group
depthwise    weight (out, 1, k..)             row c reads input c alone and joins its unit
transposed   weight (in, out / groups, k..)   rows lie along the second dimension
channels along space                          one kernel serves all channels alike
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..algebra import Algebra
from ..values import Value, compress, varies
from .linear import biased, shared
from .registry import aten, rule


@rule(*aten("conv1d conv2d conv3d"))
def conv(
    algebra: Algebra,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    return biased(algebra, _conv(algebra, x, weight, groups, False, padding), bias, 1)


@rule(*aten("conv_transpose1d conv_transpose2d conv_transpose3d"))
def conv_transpose(
    algebra: Algebra,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    return biased(algebra, _conv(algebra, x, weight, groups, True, padding), bias, 1)


@rule(*aten("convolution"))
def convolution(
    algebra: Algebra,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Value:
    return biased(algebra, _conv(algebra, x, weight, groups, transposed, padding), bias, 1)


def _conv(
    algebra: Algebra, x: Value, weight: Value, groups: int, transposed: bool, padding: Any
) -> Value:
    """The result without its bias."""
    # x (batch, CHANNELS, h, w). In this order: channels along space make it a shared kernel, unless
    # it is depthwise, which leaves every position of dimension 1 to itself
    tags = algebra.tags(x)
    depthwise = tags.shape[1] == groups > 1
    if not depthwise and algebra.is_shared(tags, [1]):
        return _over_channels(algebra, tags, weight, padding)
    outputs = algebra.shape[1] // groups
    if depthwise and weight.parameter is not None:
        return _depthwise(algebra, tags, weight, outputs)
    seen = algebra.columns(tags, [1]).reshape(groups, -1)  # (groups, inputs of a group)
    inputs = seen.shape[1]
    weight = algebra.as_weight(weight)
    if weight.parameter is None and weight.tags is not None:
        return _computed_weight(algebra, seen, weight, transposed)
    algebra.role(weight, "output")
    kernel = weight.shape[2:]
    if transposed:  # [inputs, outputs of its group, ...]
        channels = _rows_of_transposed(algebra, weight, groups, outputs)
        columns = seen.reshape(-1, 1, *[1] * len(kernel))
    else:
        # groups 2, inputs 2, outputs 3:     seen     1 2      columns    1 2   three rows
        #                                             3 4                 3 4   three rows
        channels = algebra.own_rows(weight, [0]).reshape(-1)
        columns = seen.repeat_interleave(outputs, 0) if groups > 1 else seen
        columns = columns.view(-1, inputs, *[1] * len(kernel))
    if not algebra.read(weight, columns):  # no weight to zero: rows require their inputs
        mixed = algebra.reduce_tags(seen, [1], "hard").expand(groups, outputs).reshape(-1)
        channels = algebra.combine(channels, mixed, channels.shape)
    return algebra.result(_along_channels(algebra, channels))


def _rows_of_transposed(algebra: Algebra, weight: Value, groups: int, outputs: int) -> Tensor:
    """A transposed convolution's weight is [inputs, outputs of a group, ...]."""
    if groups == 1:
        return algebra.own_rows(weight, [1]).reshape(-1)
    # row (i, o) of the weight belongs to output o of the group of input i:
    #     weight (groups * per_group, outputs, ..)  as  (groups, per_group, outputs, ..)
    #     channels (groups, 1, outputs), repeated over the inputs of a group
    view = weight.parameter
    per_group = weight.shape[0] // groups
    if view is not None and weight.tags is None and not algebra.is_assigned(view):
        channels = torch.from_numpy(algebra.channels.new(groups * outputs)).view(groups, 1, outputs)
        assigned = channels.expand(groups, per_group, outputs).reshape(weight.shape[0], outputs)
        assigned = assigned.view(*assigned.shape, *[1] * (len(weight.shape) - 2)).expand(
            weight.shape
        )
        algebra.write_channels(view, assigned)
        return channels.reshape(-1)
    tags = algebra.tags(weight)
    split = tags.reshape(groups, per_group, outputs, -1)
    return algebra.reduce_tags(split, [1, 3], "hard").reshape(-1)


def _depthwise(algebra: Algebra, tags: Tensor, weight: Value, multiplier: int) -> Value:
    """Row c reads input c alone, and joins its unit.

    If the weight serves several channels at one position (all heads of an attention layer), they
    require it, like any other parameter that is applied channel by channel.
    """
    algebra.role(weight, "depthwise")
    space = range(2, tags.dim())
    kernel_dims = range(2, len(weight.shape))
    tags = algebra.reduce_tags(tags, space, "auto").repeat_interleave(multiplier, 1)
    flat_space = [1] * len(kernel_dims)
    inputs = Value(tuple(tags.shape), compress(tags))
    if set(varies(inputs.tags)) <= {1} and weight.tags is None:  # type: ignore[arg-type]
        # one channel per row: the weight adopts the channels of its inputs, element by element
        rows = algebra.tags(inputs)[0].reshape(weight.shape[0], weight.shape[1], *flat_space)
        met = Value(weight.shape, rows.expand(weight.shape))
        rows = algebra.tags(algebra.pointwise(met, weight, shape=weight.shape))
        rows = algebra.reduce_tags(rows, kernel_dims, "hard").reshape(-1)
        return algebra.result(_along_channels(algebra, rows))
    channels = algebra.own_rows(weight, [0, 1]).reshape(1, -1, *flat_space)
    return algebra.result(algebra.combine(algebra.tags(inputs), channels, inputs.shape))


def _computed_weight(algebra: Algebra, seen: Tensor, weight: Value, transposed: bool) -> Value:
    """A weight made of activations cannot be zeroed: rows require the channels that they read."""
    groups, _ = seen.shape
    tags = algebra.tags(weight)
    outputs = algebra.shape[1]
    if transposed:
        rows = algebra.reduce_tags(tags, [0, *range(2, tags.dim())], "hard").reshape(-1)
        rows = rows.repeat(groups)
    else:
        rows = algebra.reduce_tags(tags, range(1, tags.dim()), "hard").reshape(-1)
    mixed = algebra.reduce_tags(seen, [1], "hard").expand(groups, outputs // groups).reshape(-1)
    return algebra.result(_along_channels(algebra, algebra.combine(rows, mixed, rows.shape)))


def _over_channels(algebra: Algebra, tags: Tensor, weight: Value, padding: Any) -> Value:
    """The channels lie along space (ECA): the kernel mixes neighbours and serves all alike."""
    space = set(range(2, tags.dim()))
    moving = set(varies(tags)) & space
    in_place = (
        max(weight.shape[2:]) == 1
        and not any([padding] if isinstance(padding, int) else padding)
        and tuple(tags.shape[2:]) == tuple(algebra.shape[2:])
    )
    # a kernel of size 1 without padding leaves every position to itself
    tags = algebra.reduce_tags(tags, sorted(space if not in_place else space - moving), "soft")
    return shared(algebra, tags, [1], weight)


def _along_channels(algebra: Algebra, channels: Tensor) -> Tensor:
    """A vector of channels along dimension 1 of the result."""
    return channels.view(1, -1, *[1] * (len(algebra.shape) - 2))
