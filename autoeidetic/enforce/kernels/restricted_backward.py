"""Linear and convolution whose backward is restricted to the rows that still learn.

The weight of a layer in the training of task 1; *active* means "of task 1":

                      frozen columns   active columns
    frozen rows             F                0           no gradient, and none passed on: their
                                                         weights to active columns are zeros
    active rows             w                w           gradient for all columns
                       no gradient of    gradient of
                       the input         the input       a frozen input has nothing that learns

    grad_weight[rows]      = grad[:, rows].T @ x                        the other rows are zeros
    grad_x[:, columns]     = grad[:, rows] @ weight[rows][:, columns]   the other columns are zeros

So the incoming gradient is gathered to the active rows first, and everything after that is as much
smaller as the task is smaller than the network.

The forward pass is the stock kernel on the whole weight. Cutting it down as well would change the
shape of the product, hence the order of its additions and the bits of finished tasks.

An index holds each position once, in any order. Gradients outside it are exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Size = int | Sequence[int]
Gradients = tuple[Tensor | None, ...]


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor, columns: Tensor | None
) -> Tensor:
    """`F.linear`, with gradients for the active `rows` and input features `columns` only.

    `columns=None` stands for all of them.

    >>> x, weight = torch.ones(1, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    >>> linear(x, weight, None, torch.tensor([1]), torch.tensor([0])).sum().backward()
    >>> weight.grad.tolist(), x.grad.tolist()
    ([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0]])
    """
    return _Linear.apply(*_autocast(x, weight, bias), rows, _distinct(columns, rows))


def conv(
    function: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    rows: Tensor,
    columns: Tensor | None,
) -> Tensor:
    """`function` (`F.conv1d`, `F.conv2d` or `F.conv3d`), with gradients for the active `rows`
    and input channels `columns` only.

    A depthwise row reads one channel, so `columns=None` already restricts it to `rows` there.

    >>> x, weight = torch.ones(1, 2, 4), torch.ones(3, 2, 1, requires_grad=True)
    >>> y = conv(F.conv1d, x, weight, None, 1, 0, 1, 1, torch.tensor([2]), None)
    >>> y.sum().backward()
    >>> weight.grad.flatten(1).tolist()
    [[0.0, 0.0], [0.0, 0.0], [4.0, 4.0]]
    """
    batched = x.dim() == weight.dim()
    x, weight, bias = _autocast(x if batched else x[None], weight, bias)
    x, padding = _numeric_padding(x, weight, stride, padding, dilation)
    columns, geometry = _distinct(columns, rows), (stride, padding, dilation)
    y = _Conv.apply(x, weight, bias, rows, columns, function, geometry, groups)
    return y if batched else y[0]


def _distinct(columns: Tensor | None, rows: Tensor) -> Tensor | None:
    # torch.compile refuses a Function that is given one tensor twice.
    return rows[:] if columns is rows else columns


def _autocast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Any]:
    # Outside the Functions, so that the casts are differentiated like stock's, and the kernels
    # of the backward see one dtype whether or not autocast is on by then.
    device = x.device.type
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor: Tensor) -> Tensor:
        # Autocast leaves doubles alone.
        return tensor if tensor.dtype is torch.double else tensor.to(dtype)

    return cast(x), cast(weight), None if bias is None else cast(bias)


def _each(size: Size, sides: int) -> list[int]:
    sizes = [size] if isinstance(size, int) else list(size)
    return sizes * sides if len(sizes) == 1 else sizes


def _numeric_padding(
    x: Tensor, weight: Tensor, stride: Size, padding: Size | str, dilation: Size
) -> tuple[Tensor, Size | str]:
    """Padding "valid" or "same" as numbers, by stock's own steps.

    A word that stock refuses (with a stride, for instance) stays, so that stock raises its error.
    """
    sides = weight.dim() - 2
    if padding == "valid":
        return x, 0
    if padding != "same" or max(_each(stride, sides)) > 1:
        return x, padding
    total = [d * (k - 1) for d, k in zip(_each(dilation, sides), weight.shape[2:], strict=True)]
    if any(t % 2 for t in total):
        # F.pad counts from the last dimension, (before, after) for each.
        x = F.pad(x, [n for t in reversed(total) for n in (0, t % 2)])
    return x, [t // 2 for t in total]


def _take(tensor: Tensor, dim: int, index: Tensor | None) -> Tensor:
    """The slices at `index`; the tensor itself when that is all of them."""
    if index is None or index.shape[0] == tensor.shape[dim]:
        return tensor
    return tensor.index_select(dim, index)


def _put(values: Tensor, dim: int, index: Tensor | None, like: Tensor) -> Tensor:
    """Zeros in the shape and memory format of `like` that hold `values` at `index`."""
    if index is None or index.shape[0] == like.shape[dim]:
        return values
    # Adding is up to three times faster than index_copy_, and onto zeros it is the same.
    return torch.zeros_like(like, dtype=values.dtype).index_add_(dim, index, values)


def _restrict(tensor: Tensor, dim: int, index: Tensor | None) -> Tensor:
    """The tensor with zeros outside `index`."""
    return _put(_take(tensor, dim, index), dim, index, tensor)


def _is_empty(index: Tensor | None) -> bool:
    return index is not None and index.shape[0] == 0


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        columns: Tensor | None,
    ) -> Tensor:
        # A copy if it is not contiguous, as stock makes one: the caller may then write to its own
        # tensor before the backward pass.
        ctx.save_for_backward(x.contiguous(), weight, bias, rows, columns)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight, bias, rows, columns = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_x = grad_weight = grad_bias = None
        # [rows, batch]: gathering along the first dimension is the faster way round.
        active = _take(grad.reshape(-1, grad.shape[-1]).t(), 0, rows)
        flat = x.reshape(-1, x.shape[-1])
        if for_x and (_is_empty(rows) or _is_empty(columns)):
            grad_x = torch.zeros_like(x)
        elif for_x:
            product = active.t() @ _take(_take(weight, 0, rows), 1, columns)
            grad_x = _put(product, 1, columns, flat).reshape(x.shape)
        if for_weight:
            grad_weight = _put(active @ flat, 0, rows, weight)
        if for_bias:
            grad_bias = _put(active.sum(1), 0, rows, bias)
        return grad_x, grad_weight, grad_bias, None, None


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        columns: Tensor | None,
        function: Callable[..., Tensor],
        geometry: tuple[Size, Size | str, Size],
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, rows, columns)
        ctx.geometry, ctx.groups = geometry, groups
        return function(x, weight, bias, *geometry, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, weight, bias, rows, columns = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_x = grad_weight = grad_bias = None
        active = _take(grad, 1, rows)
        if for_x and (_is_empty(rows) or _is_empty(columns)):
            grad_x = torch.zeros_like(x)
        elif for_x:
            grad_x = _input_gradient(active, x, weight, rows, columns, ctx.geometry, ctx.groups)
        if for_weight and _is_empty(rows):
            grad_weight = torch.zeros_like(weight)
        elif for_weight:
            grad_weight = _weight_gradient(active, x, weight, rows, ctx.geometry, ctx.groups)
        if for_bias:
            grad_bias = _put(active.flatten(2).sum((0, 2)), 0, rows, bias)
        return grad_x, grad_weight, grad_bias, None, None, None, None, None


def _input_gradient(
    active: Tensor,
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    columns: Tensor | None,
    geometry: Any,
    groups: int,
) -> Tensor:
    # Three cases. One group: a smaller convolution, rows by columns. Depthwise: row r reads channel
    # r alone, so the active rows are the only channels. Else rows and groups cut across each other.
    if groups == 1:
        block = _take(_take(weight, 0, rows), 1, columns)
        # Of the input only the shape is read.
        some = _kernel(active, torch.empty_like(x[:, : block.shape[1]]), block, geometry, 1, 0)
        return _put(some, 1, columns, x)
    if _is_depthwise(x, weight, groups):
        block, count = _take(weight, 0, rows), rows.shape[0]
        some = _kernel(active, torch.empty_like(x[:, :count]), block, geometry, count, 0)
        return _restrict(_put(some, 1, rows, x), 1, columns)
    every = _kernel(_all(active, rows, weight), x, weight, geometry, groups, 0)
    return _restrict(every, 1, columns)


def _weight_gradient(
    active: Tensor, x: Tensor, weight: Tensor, rows: Tensor, geometry: Any, groups: int
) -> Tensor:
    count = rows.shape[0]
    shape = weight[:count]  # Of the weight only the shape is read.
    if groups == 1:
        return _put(_kernel(active, x, shape, geometry, 1, 1), 0, rows, weight)
    if _is_depthwise(x, weight, groups):
        some = _kernel(active, _take(x, 1, rows), shape, geometry, count, 1)
        return _put(some, 0, rows, weight)
    every = _kernel(_all(active, rows, weight), x, weight, geometry, groups, 1)
    return _restrict(every, 0, rows)


def _is_depthwise(x: Tensor, weight: Tensor, groups: int) -> bool:
    return groups == x.shape[1] == weight.shape[0]


def _all(active: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """The gradient with its inactive rows, as zeros: in a grouped convolution the active rows
    need not fill their groups, so all groups take part.
    """
    shape = (active.shape[0], weight.shape[0], *active.shape[2:])
    return _put(active, 1, rows, active.new_empty(shape))


def _kernel(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Any, groups: int, wanted: int
) -> Tensor:
    """The gradient of the input (`wanted=0`) or of the weight (1)."""
    sides = weight.dim() - 2
    stride, padding, dilation = (_each(size, sides) for size in geometry)
    mask = [wanted == 0, wanted == 1, False]
    return torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride, padding, dilation, False, [0] * sides, groups, mask
    )[wanted]
