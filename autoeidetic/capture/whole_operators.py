"""Whole operators: two tables that keep capture fast and its graph small.

``WHOLE`` maps functions that ATen would split to the one operator that is recorded for them.
``shortcut`` gives the result's shape of the most frequent operators without running their meta
kernels, which are Python code and take most of the time of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
#: The operator, its positional arguments and, where it has some, its keyword arguments; None where
#: the function must be split after all.
Bound = tuple[Any, tuple[Any, ...]] | tuple[Any, tuple[Any, ...], dict[str, Any]] | None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Bound:
    return aten.linear.default, (input, weight, bias)


def _convolution(overload: Any, dims: int) -> Callable[..., Bound]:
    def bind(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Bound:
        # "same" and "valid", and inputs without a batch dimension: ATen splits these
        if isinstance(padding, str) or input.dim() != dims + 2:
            return None
        window = [_tuple(value, dims) for value in (stride, padding, dilation)]
        return overload, (input, weight, bias, *window, groups)

    return bind


def _transposed(overload: Any, dims: int) -> Callable[..., Bound]:
    def bind(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Bound:
        if input.dim() != dims + 2:
            return None
        window = [_tuple(value, dims) for value in (stride, padding, output_padding)]
        return overload, (input, weight, bias, *window, groups, _tuple(dilation, dims))

    return bind


def _tuple(value: Any, dims: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Bound:
    arguments = (input, weight, bias, running_mean, running_var, training, momentum, eps, False)
    return aten.batch_norm.default, arguments


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Bound:
    # ATen takes weight and bias first; F takes the statistics first
    statistics = (running_mean, running_var, use_input_stats)
    return aten.instance_norm.default, (input, weight, bias, *statistics, momentum, eps, False)


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = False,
) -> Bound:
    return aten.layer_norm.default, (input, list(normalized_shape), weight, bias, eps, False)


def _rms_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Bound:
    return aten.rms_norm.default, (input, list(normalized_shape), weight, eps)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = False,
) -> Bound:
    return aten.group_norm.default, (input, num_groups, weight, bias, eps, False)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Bound:
    # no dropout: models are captured in eval mode, but some pass a rate all the same
    arguments = (query, key, value, attn_mask, 0.0, is_causal)
    keywords = {"scale": scale, "enable_gqa": enable_gqa} if enable_gqa or scale else {}
    return aten.scaled_dot_product_attention.default, arguments, keywords


def _matmul(input: Tensor, other: Tensor) -> Bound:
    return aten.matmul.default, (input, other)


def _recurrent(name: str) -> Callable[..., Bound]:
    packet = getattr(aten, name)

    def bind(*args: Any) -> Bound:
        packed = isinstance(args[3], (tuple, list))  # (data, batch_sizes, hx, params, ...)
        return (packet.data if packed else packet.input), args

    return bind


# Why whole: ATen turns linear into t, addmm and view, and attention into a chain of products. Rules
# for these parts would have to find out again which weight is meant and which dimension is reduced.
WHOLE: dict[Any, Callable[..., Bound]] = {
    F.linear: _linear,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.rms_norm: _rms_norm,
    torch.layer_norm: _layer_norm,
    torch.group_norm: _group_norm,
    torch.rms_norm: _rms_norm,
    F.scaled_dot_product_attention: _attention,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    **{
        getattr(torch, f"conv{dims}d"): _convolution(getattr(aten, f"conv{dims}d").default, dims)
        for dims in (1, 2, 3)
    },
    **{
        getattr(torch, f"conv_transpose{dims}d"): _transposed(
            getattr(getattr(aten, f"conv_transpose{dims}d"), "input" if dims > 1 else "default"),
            dims,
        )
        for dims in (1, 2, 3)
    },
    **{getattr(torch._VF, name): _recurrent(name) for name in _RECURRENT},
    # programs call these operators themselves
    **{getattr(aten, name).input: _recurrent(name) for name in _RECURRENT},
    **{getattr(aten, name).data: _recurrent(name) for name in _RECURRENT},
}


def _meta(reference: Tensor, shape: Any) -> Tensor:
    return torch.empty(shape, dtype=reference.dtype, device="meta")


def _same(input: Tensor, *_: Any) -> Tensor | None:
    # pointwise: one value out for each in. Dense memory keeps its layout; the result of a slice, an
    # expanded or an overlapping view is dense, and has strides that the operator chooses
    made = torch.empty_like(input)
    return made if made.stride() == input.stride() else None


def _binary(left: Any, right: Any, *_: Any) -> Tensor | None:
    if not left.is_floating_point():  # a sum of integers and floats has another type
        return None
    if isinstance(right, Tensor) and (
        left.shape != right.shape or left.dtype != right.dtype or not right.is_meta
    ):
        return None
    return _same(left)


def _linear_shape(input: Tensor, weight: Tensor, bias: Any) -> Tensor | None:
    # [..., I], [O, I] -> [..., O]
    if weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        return None
    return _meta(input, (*input.shape[:-1], weight.shape[0]))


def _conv_shape(
    input: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor | None:
    # [N, C, *space], [O, C / groups, *kernel] -> [N, O, *space]
    if input.shape[1] != weight.shape[1] * groups:
        return None
    space = [
        (size + 2 * pad - dil * (kernel - 1) - 1) // step + 1
        for size, pad, dil, kernel, step in zip(
            input.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    if min(space, default=1) <= 0:
        return None
    return _meta(input, (input.shape[0], weight.shape[0], *space))


def _batch_norm_shape(input: Tensor, *tensors: Any) -> Tensor | None:
    # [N, C, ...] and vectors [C]: weight, bias, mean, variance
    given = [t for t in tensors[:4] if t is not None]
    if input.dim() < 2 or any(t.shape != (input.shape[1],) for t in given):
        return None
    return _meta(input, input.shape)


def _layer_norm_shape(input: Tensor, shape: Any, *tensors: Any) -> Tensor | None:
    # [..., *shape] and tensors [*shape]: weight, bias
    own = tuple(shape)
    if tuple(input.shape[-len(own) :]) != own:
        return None
    if any(t is not None and tuple(t.shape) != own for t in tensors[:2]):
        return None
    return _meta(input, input.shape)


def _group_norm_shape(input: Tensor, groups: int, *tensors: Any) -> Tensor | None:
    # [N, C, ...] with C a multiple of the groups, and vectors [C]: weight, bias
    if input.dim() < 2 or input.shape[1] % groups:
        return None
    if any(t is not None and t.shape != (input.shape[1],) for t in tensors[:2]):
        return None
    return _meta(input, input.shape)


def _attention_shape(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor | None:
    # [..., L, E], [..., S, E], [..., S, V] -> [..., L, V]; grouped queries are left to ATen
    if query.shape[:-2] != value.shape[:-2] or key.shape[:-2] != value.shape[:-2]:
        return None
    return _meta(query, (*query.shape[:-1], value.shape[-1]))


def _lstm_shape(
    input: Tensor,
    hidden: Any,
    parameters: Any,
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Shapes of an LSTM's results; ATen's meta kernel would unroll the sequence.

    input ``[T, N, C]`` or ``[N, T, C]``, states ``[layers * directions, N, H]``,
    output ``[..., H * directions]``.
    """
    states = tuple(_meta(input, state.shape) for state in hidden)
    width = hidden[0].shape[-1] * (2 if bidirectional else 1)
    return (_meta(input, (*input.shape[:-1], width)), *states)


def _recurrent_shape(input: Tensor, hidden: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _lstm_shape(input, (hidden,), *rest)


# A rule here may give up (None) but never guess: the shape decides everything that follows.
_SHAPES: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: _lstm_shape,
    aten.gru.input: _recurrent_shape,
    aten.rnn_tanh.input: _recurrent_shape,
    aten.rnn_relu.input: _recurrent_shape,
    aten.linear.default: _linear_shape,
    aten.conv1d.default: _conv_shape,
    aten.conv2d.default: _conv_shape,
    aten.conv3d.default: _conv_shape,
    aten.batch_norm.default: _batch_norm_shape,
    aten.layer_norm.default: _layer_norm_shape,
    aten.group_norm.default: _group_norm_shape,
    aten.scaled_dot_product_attention.default: _attention_shape,
    aten.relu.default: _same,
    aten.gelu.default: _same,
    aten.silu.default: _same,
    aten.sigmoid.default: _same,
    aten.hardswish.default: _same,
    aten.hardsigmoid.default: _same,
    aten.tanh.default: _same,
    aten.add.Tensor: _binary,
    aten.mul.Tensor: _binary,
    aten.sub.Tensor: _binary,
    aten.div.Tensor: _binary,
}


def shortcut(func: Any, args: tuple[Any, ...]) -> Any:
    """Empty meta tensors of the result's shape, or None where the operator must be run."""
    rule = _SHAPES.get(func)
    if rule is None or not args[0].is_meta:
        return None
    return rule(*args)
