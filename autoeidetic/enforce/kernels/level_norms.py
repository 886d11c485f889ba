"""Norms with one set of statistics per level.

A *level* is a finished task or the task in training. Level ``l`` takes its mean and variance over
the channels it may read, and every output channel is normalised with the statistics of one level
for ever. One call serves all levels:

    x        [N, C]
    shifted  [N, C]         x - mean of level 0, which every level may read
    first    [BLOCK, N]     average @ shifted.T       E[x - s] of every level
    second   [BLOCK, N]     average @ shifted.T^2     E[(x - s)^2]
    rstd     [BLOCK, N]     (second - first^2 + eps)^-1/2
    scale    [N, C]         rstd.T @ select           each channel gets its own level's
    y        [N, C]         (x - mean.T @ select) * scale + bias

The outputs of a level keep their bits whatever the channels outside it hold, and however many
levels come later:

* A sum over channels is a product with indicators, ``average`` (see ``level_tables.py``). A channel
  outside the level adds an exact zero, and no product ever changes its shape.
* ``select`` is one-hot: one term and exact zeros. The product is exact in any shape, as long as
  every level's statistics are finite; hence the bounds below.
* The shift before squaring avoids the cancellation of ``E[x^2] - E[x]^2``.

Finite values of any size outside a level are harmless, ``nan`` is not (``0 * nan``). The products
follow ``torch.set_float32_matmul_precision``: anything below "highest" keeps the bits stable but
makes the statistics themselves less accurate.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .level_tables import BLOCK, LevelTable

BOUND = 1e18  # of a shifted value: its square is finite, so 0 * square is 0
TINY = 1e-36  # least eps: the rstd of a level without channels, or without variance, is finite


def layer_norm(
    x: Tensor,
    table: LevelTable,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    restrict: bool = True,
) -> Tensor:
    """``F.layer_norm`` over the last dimension, each channel with its level's statistics.

    With ``restrict`` only the level in training has gradients: outputs of other levels are
    constants, and so are inputs that an earlier level reads, since those are frozen.

    >>> include = torch.tensor([[True, True, False], [True, True, True]])
    >>> table = LevelTable(include, torch.tensor([0, 0, 1]), current=1)
    >>> layer_norm(torch.tensor([[1.0, 3.0, 8.0]]), table, None, None, 0.0)
    tensor([[-1.0000,  1.0000,  1.3587]])
    """
    rows = x.reshape(-1, x.shape[-1])
    return _call("layer", rows, table, weight, bias, eps, restrict).view(x.shape)


def rms_norm(
    x: Tensor, table: LevelTable, weight: Tensor | None, eps: float | None, *, restrict: bool = True
) -> Tensor:
    """``F.rms_norm`` over the last dimension, each channel with its level's statistics."""
    rows = x.reshape(-1, x.shape[-1])
    if eps is None:  # that of the dtype it computes in, as F.rms_norm does in half precision
        eps = torch.finfo(_compute_dtype(x)).eps
    return _call("rms", rows, table, weight, None, eps, restrict).view(x.shape)


def group_norm(
    x: Tensor,
    groups: int,
    table: LevelTable,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    restrict: bool = True,
) -> Tensor:
    """``F.group_norm`` of ``[N, C, *space]``, each channel with its level's statistics.

    They are taken over the channels of the level within the channel's group.
    """
    table = table.grouped(groups)
    flat = x.flatten(2) if x.dim() > 2 else x[..., None]
    return _call("group", flat, table, weight, bias, eps, restrict).view(x.shape)


def _call(
    kind: str,
    x: Tensor,
    table: LevelTable,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    restrict: bool,
) -> Tensor:
    result = x.dtype
    autocast = _autocasts(x)
    if autocast and x.device.type != "cpu":
        # The norms are on autocast's list of float32 functions everywhere but on CPUs.
        result = _compute_dtype(x)
    table = (table if kind == "group" else table.grouped(1)).to(x.device, _compute_dtype(x))
    with _exact(x) if autocast else nullcontext():
        if not restrict:
            y = _normalise(kind, x, table, weight, bias, eps)[0]
        elif table.current is None or not torch.is_grad_enabled():
            with torch.no_grad():
                y = _normalise(kind, x, table, weight, bias, eps)[0]
        else:
            y = _Restricted.apply(kind, x, table, weight, bias, eps)
    return y.to(result)


def _compute_dtype(x: Tensor) -> torch.dtype:
    """Half precision is computed in single, as the stock norms do."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _autocasts(x: Tensor) -> bool:
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _exact(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast would run the products in half precision."""
    return torch.autocast(x.device.type, enabled=False)


def _normalise(
    kind: str,
    x: Tensor,
    table: LevelTable,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, list[Tensor] | None, list[Tensor]]:
    """The output, and the means and rstds that went into it.

    ``x`` is ``[N, C]``, for groups ``[N, C, S]``. There, each channel's mean and variance over
    space come first: no other channel enters them, so the levels only combine ``[N, C]``.
    """
    dtype = _compute_dtype(x)
    x = x.to(dtype)
    rough, channel_means, variances = x, x, None
    if kind == "group":
        # Two passes: the mean of a channel far from 0 is rounded, and its error would enter the
        # variance. The mean of what is left is that error.
        rough = _bounded_mean(x)
        x = x - rough[..., None]
        rest = _bounded_mean(x)
        channel_means = rough + rest
        # Not var_mean, which is thirty times slower than a norm on a CPU.
        variances = torch.linalg.vector_norm(x, dim=-1).square() / x.shape[-1]
        variances = torch.addcmul(variances.clamp_max(BOUND * BOUND), rest, rest, value=-1)
    means: list[Tensor] | None
    if kind == "rms":
        means, rstds = None, _rms_statistics(x, table, eps)
    else:
        means, rstds = _statistics(channel_means, variances, table, eps)

    scale: Tensor | None = None
    centred = rough
    for b, select in enumerate(table.select):
        if means is not None:
            centred = torch.addmm(centred, means[b].t(), select, alpha=-1)
        weighted = select if weight is None else select * weight.to(dtype)
        part = rstds[b].t() @ weighted
        scale = part if scale is None else scale + part
    assert scale is not None  # a table has at least one block

    y = _times(scale, centred) if kind != "group" else centred * scale
    if kind != "rms":
        # Add +0 where there is no bias, and to a bias of -0: a result of zero may be -0 or +0,
        # depending on the signs of other levels' means, and -0 + 0 is +0.
        y = y.add_(0.0 if bias is None else bias.to(dtype) + 0.0)
    if kind == "group":
        y = _times(x, scale[..., None]).add_(y[..., None])

    return y, means, rstds


def _times(own: Tensor, other: Tensor) -> Tensor:
    """The product, in the memory of the first factor where autograd does not need it.

    Fresh memory for temporaries can take more than half of the time of a large norm.
    """
    return own * other if torch.is_grad_enabled() else own.mul_(other)


def _bounded_mean(x: Tensor) -> Tensor:
    """The mean over space, always finite: sums of channels outside the level may overflow."""
    return x.mean(-1).nan_to_num(0.0).clamp(-BOUND, BOUND)


def _statistics(
    values: Tensor, variances: Tensor | None, table: LevelTable, eps: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Mean and rstd of every level, in blocks of ``[BLOCK * G, N]``."""
    means: dict[int, Tensor] = {}
    rstds: dict[int, Tensor] = {}
    for shift in table.shifts:
        if table.groups == 1:
            # Not ``average @ values.T``: the bits of a matrix-vector product depend on the
            # alignment of the caller's tensor. All other products are of tensors allocated here.
            origin = torch.stack([(values * average).sum(-1) for average in shift.average])
        else:
            origin = torch.cat([average @ values.t() for average in shift.average])
        if shift.spread is None:
            shifted = values - origin.t()
        else:
            shifted = torch.addmm(values, origin.t(), shift.spread, alpha=-1)
        shifted = shifted.clamp_(-BOUND, BOUND)
        used = [b for b, pick in enumerate(shift.pick) if pick is not None]
        firsts = {b: table.average[b] @ shifted.t() for b in used}
        squares = _times(shifted, shifted)
        if variances is not None:
            squares = squares + variances
        for b in used:
            pick, mine, first = shift.pick[b], shift.mine[b], firsts[b]
            assert pick is not None
            assert mine is not None
            second = table.average[b] @ squares.t()
            rstd = torch.addcmul(second, first, first, value=-1).clamp_min_(0)
            rstd = rstd.add_(max(eps, TINY)).rsqrt_()
            mean = origin.index_select(0, pick).add_(first)
            means[b] = torch.where(mine, mean, means[b]) if b in means else mean
            rstds[b] = torch.where(mine, rstd, rstds[b]) if b in rstds else rstd
    blocks = range(len(table.average))
    return [means[b] for b in blocks], [rstds[b] for b in blocks]


def _rms_statistics(values: Tensor, table: LevelTable, eps: float) -> list[Tensor]:
    squares = (values * values).clamp_max_(BOUND * BOUND).t()
    return [(average @ squares).add_(max(eps, TINY)).rsqrt_() for average in table.average]


class _Restricted(torch.autograd.Function):
    """Gradients of the level in training, from its outputs to the inputs that it is first to read.

    The backward pass works on the U channels of ``table.narrow`` and puts zeros around the result:

        grad [N, C]  --take-->  [N, U]  --formula-->  [N, U]  --zeros around-->  grad_x [N, C]
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        x: Tensor,
        table: LevelTable,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        y, means, rstds = _normalise(kind, x, table, weight, bias, eps)
        block, row = divmod(table.current or 0, BLOCK)
        rows = slice(row * table.groups, (row + 1) * table.groups)
        mean, rstd = None if means is None else means[block][rows].t(), rstds[block][rows].t()
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.kind, ctx.table = kind, table
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        with _exact(x) if _autocasts(x) else nullcontext():
            to_x, to_weight, to_bias = _narrow_gradients(
                ctx.kind, x, ctx.table, weight, mean, rstd, grads[0]
            )
        needs = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        index = ctx.table.narrow
        if needs[1]:
            grad_x = _widen(to_x.to(x.dtype), index, x.shape)
        if needs[3]:
            grad_weight = _widen(to_weight.to(weight.dtype), index, weight.shape)
        if needs[4]:
            grad_bias = _widen(to_bias.to(ctx.bias_dtype), index, (x.shape[1],))
        return None, grad_x, None, grad_weight, grad_bias, None


def _narrow_gradients(
    kind: str,
    x: Tensor,
    table: LevelTable,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``x``, ``weight`` and ``bias`` for the channels in ``table.narrow``.

    With ``n`` channels in the level, ``g`` the gradient, ``w`` the weight, ``h`` the normalised x:

        grad_x = rstd * (g*w - sum(g*w) / n - h * sum(g*w*h) / n)

    The sums are products with ``pool`` [U, G], which has ``w`` and ``1 / n`` in it.
    """
    dtype, space = rstd.dtype, kind == "group"
    scale = table.outputs if weight is None else weight.index_select(0, table.narrow).to(dtype)
    pool = table.pool * scale[:, None] / table.count
    outputs, inputs = table.outputs, table.inputs
    if space:
        scale, outputs, inputs = scale[:, None], outputs[:, None], inputs[:, None]
        pool = pool / x.shape[-1]
        rstd = _per_channel(rstd, table)
        mean = None if mean is None else _per_channel(mean, table)

    x = x.index_select(1, table.narrow).to(dtype)
    grad = grad.index_select(1, table.narrow)
    if not table.same:
        grad = grad * outputs
    hat = (x if mean is None else x - mean).mul(rstd)
    first, second = grad, grad * hat
    if space:
        first, second = first.sum(-1), second.sum(-1)
    by_variance = second @ pool
    to_x = grad * scale - hat * (_per_channel(by_variance, table) if space else by_variance)
    if mean is not None:
        by_mean = first @ pool
        to_x = to_x.sub_(_per_channel(by_mean, table) if space else by_mean)
    to_x = to_x.mul_(rstd)
    if not table.same:
        to_x = to_x.mul_(inputs)
    return to_x, second.sum(0), first.sum(0)


def _per_channel(values: Tensor, table: LevelTable) -> Tensor:
    """From ``[N, G]`` to ``[N, U, 1]``."""
    return values.index_select(1, table.group)[..., None]


def _widen(narrow: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros of ``shape`` with ``narrow`` in the channels ``index``."""
    wide = narrow.new_zeros(shape)
    if narrow.dim() == 3:
        return wide.index_copy_(1, index, narrow)
    # Along a last dimension, index_copy is several times slower.
    return wide.scatter_(-1, index.expand_as(narrow), narrow)
