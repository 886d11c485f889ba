"""Norms with one set of statistics per level.

A *level* is a finished task or the task in training. Level ``l`` takes its mean and variance
over the channels it may read, and every output channel is normalised with the statistics of
one level for ever. One call serves all levels, and the outputs of a level keep their bits
whatever the channels outside it hold and however many levels come later:

* A sum over channels is a product with 0/1 indicators. A channel outside the level adds an
  exact zero, so its value cannot matter. Indicators are padded to blocks of ``BLOCK`` levels and
  each block is a product of its own, so that no product ever changes its shape.
* Giving each channel the statistics of its level is a product with a one-hot matrix: one term
  and exact zeros. It is exact in any shape, as long as every level's statistics are finite;
  hence the bounds below.
* Values are shifted by a mean that all levels concerned may read before they are squared,
  which avoids the cancellation of ``E[x^2] - E[x]^2``.

Finite values of any size outside a level are harmless, ``nan`` is not (``0 * nan``). The
products follow ``torch.set_float32_matmul_precision``: anything below "highest" keeps the
bits stable but makes the statistics themselves less accurate.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BLOCK = 8  # levels per product
BOUND = 1e18  # of a shifted value: its square is finite, so 0 * square is 0
TINY = 1e-36  # least eps: the rstd of a level without channels, or without variance, is finite


@dataclass(frozen=True, eq=False)
class _Shift:
    """What is subtracted before squaring, for those levels that can share it.

    Channels have an *origin*: the first level that reads them, provided that every level
    using the shift reads all of that level. Nested levels have level 0 as their only origin;
    disjoint levels are each their own.
    """

    average: tuple[Tensor, ...]  # each [G, C]: the k-th origin of each group
    spread: Tensor | None  # [K * G, C], one-hot: the origin of each channel; None: all have one
    pick: tuple[Tensor | None, ...]  # per block [BLOCK * G]: the origin of each level
    mine: tuple[Tensor | None, ...]  # per block bool [BLOCK * G, 1]: the levels that use it

    def to(self, device: torch.device, dtype: torch.dtype) -> _Shift:
        return _Shift(
            tuple(_averages(a, device, dtype) for a in self.average),
            None if self.spread is None else self.spread.to(device, dtype),
            tuple(None if p is None else p.to(device) for p in self.pick),
            tuple(None if m is None else m.to(device) for m in self.mine),
        )


@dataclass(frozen=True, eq=False)
class LevelTable:
    """Which channels each level reads, and which level normalises each channel.

    Everything else is derived from these, once: a table is rebuilt when ownership changes.

    >>> include = torch.tensor([[True, True, False], [True, True, True]])
    >>> table = LevelTable(include, torch.tensor([0, 0, 1]), current=1)
    >>> layer_norm(torch.tensor([[1.0, 3.0, 8.0]]), table, None, None, 0.0)
    tensor([[-1.0000,  1.0000,  1.3587]])
    """

    include: Tensor  # bool [L, C]: the channels whose values enter the statistics of level l
    use: Tensor  # int64 [C]: the level whose statistics channel c is normalised with
    current: int | None = None  # the level in training; other outputs are constants to autograd
    groups: int = 1  # of the group norm it is for; others are derived at the first call
    average: tuple[Tensor, ...] = field(init=False, repr=False)  # blocks of [BLOCK * G, C]
    select: tuple[Tensor, ...] = field(init=False, repr=False)  # one-hot of `use`, same shape
    shifts: tuple[_Shift, ...] = field(init=False, repr=False)
    # The rest is the narrow world of the backward pass: U channels that have a gradient.
    narrow: Tensor = field(init=False, repr=False)  # int64 [U]
    outputs: Tensor = field(init=False, repr=False)  # [U]: 1 where use == current
    inputs: Tensor = field(init=False, repr=False)  # [U]: 1 where only `current` reads it
    same: bool = field(init=False, repr=False)  # outputs and inputs are all ones
    group: Tensor = field(init=False, repr=False)  # int64 [U]: the group of each channel
    pool: Tensor = field(init=False, repr=False)  # [U, G]: one-hot of `group`
    count: Tensor = field(init=False, repr=False)  # [G]: channels that `current` reads
    _grouped: dict[int, LevelTable] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        levels, channels = self.include.shape
        if channels % self.groups:
            raise ValueError(f"{channels} channels do not divide into {self.groups} groups")
        if self.use.shape != (channels,) or not 0 <= int(self.use.min()) <= self.use.max() < levels:
            raise ValueError(
                f"use must hold one of {levels} levels for each of {channels} channels"
            )
        if self.current is not None and not 0 <= self.current < levels:
            raise ValueError(f"current level {self.current} of {levels}")
        device, groups = self.include.device, self.groups
        of = torch.arange(channels, device=device) // (channels // groups)
        grouped = of == torch.arange(groups, device=device)[:, None]  # [G, C]
        chosen = torch.arange(levels, device=device)[:, None] == self.use  # [L, C]
        none = torch.zeros(channels, dtype=torch.bool, device=device)
        reads = none if self.current is None else self.include[self.current]
        written = none if self.current is None else chosen[self.current]
        read = reads & (self.include.sum(0) == 1)
        narrow = (written | read).nonzero()[:, 0]
        derived: dict[str, Any] = {
            "average": tuple(
                _averages(block, device, torch.float32) for block in _blocks(self.include, grouped)
            ),
            "select": tuple(block.float() for block in _blocks(chosen, grouped)),
            "shifts": _shifts(self.include, grouped),
            "narrow": narrow,
            "outputs": written[narrow].float(),
            "inputs": read[narrow].float(),
            "same": bool((written == read).all()),
            "group": of[narrow],
            "pool": grouped[:, narrow].t().float(),
            "count": (grouped & reads).sum(1).clamp_min(1).float(),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> LevelTable:
        """The table for computing in ``dtype`` on ``device``: itself where that is so already."""
        if self.average[0].dtype == dtype and self.average[0].device == device:
            return self
        moved = copy.copy(self)
        derived: dict[str, Any] = {
            name: getattr(self, name).to(device) for name in ("include", "use", "narrow", "group")
        }
        for name in ("outputs", "inputs", "pool", "count"):
            derived[name] = getattr(self, name).to(device, dtype)
        derived["average"] = tuple(_averages(block, device, dtype) for block in self.average)
        derived["select"] = tuple(block.to(device, dtype) for block in self.select)
        derived["shifts"] = tuple(shift.to(device, dtype) for shift in self.shifts)
        derived["_grouped"] = {}
        for name, value in derived.items():
            object.__setattr__(moved, name, value)
        return moved

    def grouped(self, groups: int) -> LevelTable:
        """The same levels for a group norm with ``groups`` groups."""
        if groups == self.groups:
            return self
        if groups not in self._grouped:
            if torch.compiler.is_compiling():  # the derivation reads the table's values
                raise ValueError(f"to be compiled, the table must be built with groups={groups}")
            self._grouped[groups] = LevelTable(self.include, self.use, self.current, groups)
        return self._grouped[groups]


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
    constants, and so are inputs that any other level reads.
    """
    rows = x.reshape(-1, x.shape[-1])
    return _call("layer", rows, table, weight, bias, eps, restrict).view(x.shape)


def rms_norm(
    x: Tensor, table: LevelTable, weight: Tensor | None, eps: float | None, *, restrict: bool = True
) -> Tensor:
    """``F.rms_norm`` over the last dimension, each channel with its level's statistics."""
    rows = x.reshape(-1, x.shape[-1])
    if eps is None:  # of the dtype it computes in, which is what F.rms_norm does in half precision
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

    Those are taken within the channel's group.
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

    ``x`` is ``[N, C]``, for groups ``[N, C, S]``. Its channels' means and variances over space
    come first, whose sums no other channel enters; the levels then see only ``[N, C]``.
    """
    dtype = _compute_dtype(x)
    x = x.to(dtype)
    rough, channel_means, variances = x, x, None
    if kind == "group":
        rough = _bounded_mean(x)
        x = x - rough[..., None]
        rest = _bounded_mean(x)  # the rounding error of a large mean
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
        # Add a zero where there is no bias, and to one that is -0: the sign of a zero would
        # depend on that of other levels' means.
        y = y.add_(0.0 if bias is None else bias.to(dtype) + 0.0)
    if kind == "group":
        y = _times(x, scale[..., None]).add_(y[..., None])

    return y, means, rstds


def _times(own: Tensor, other: Tensor) -> Tensor:
    """The product, in the memory of the first where autograd does not need it.

    More than half of the time of a large norm can go into the pages of its temporaries.
    """
    return own * other if torch.is_grad_enabled() else own.mul_(other)


def _bounded_mean(x: Tensor) -> Tensor:
    """Over space. The sum of a channel outside the level may overflow, even both ways."""
    return x.mean(-1).nan_to_num(0.0).clamp(-BOUND, BOUND)


def _statistics(
    values: Tensor, variances: Tensor | None, table: LevelTable, eps: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Mean and rstd of every level, in blocks of ``[BLOCK * G, N]``."""
    means: dict[int, Tensor] = {}
    rstds: dict[int, Tensor] = {}
    for shift in table.shifts:
        if table.groups == 1:
            # Not a product: the bits of a matrix-vector product depend on where the caller's
            # tensor lies in memory. All other products here are of tensors allocated here.
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
    """Gradients of the level in training, from and to the channels that are its own.

    All work of the backward pass but the zeros around its result is on narrow tensors.
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
    """Gradients of ``x``, ``weight`` and ``bias`` for the channels in ``table.narrow``."""
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
    along = second @ pool  # what the variance and, below, the mean pass on to every input
    to_x = grad * scale - hat * (_per_channel(along, table) if space else along)
    if mean is not None:
        level = first @ pool
        to_x = to_x.sub_(_per_channel(level, table) if space else level)
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


def _blocks(flags: Tensor, grouped: Tensor) -> list[Tensor]:
    """``[L, C]`` as blocks of ``[BLOCK * G, C]``: levels outside, groups inside, padded."""
    levels, channels = flags.shape
    padded = flags.new_zeros(-(-levels // BLOCK) * BLOCK, channels)
    padded[:levels] = flags
    return list((padded[:, None] & grouped).reshape(-1, BLOCK * len(grouped), channels))


def _averages(members: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows that take the mean over their non-zero entries, or give 0 where there are none."""
    indicator = (members != 0).to(device, dtype)
    return indicator / indicator.sum(1, keepdim=True).clamp_min(1)


def _shifts(include: Tensor, grouped: Tensor) -> tuple[_Shift, ...]:
    """Levels in order, each with the first shift that suits it, or else with a new one.

    Later levels change nothing for the earlier: a channel keeps its origin. Nested and
    disjoint levels need a single shift.
    """
    groups, channels = grouped.shape
    levels = len(include)
    reads = [
        [set(torch.nonzero(row & group)[:, 0].tolist()) for group in grouped] for row in include
    ]
    origins: list[list[list[int]]] = []  # per shift and group: levels
    homes: list[dict[int, int]] = []  # per shift: channel -> index of its origin in the group
    chosen: list[tuple[int, list[int]]] = []  # per level: its shift, its origin in each group
    for level, row in enumerate(reads):
        for number in range(len(homes) + 1):
            if number == len(homes):
                origins.append([[] for _ in range(groups)])
                homes.append({})
            own = [
                _origin(read, homes[number], [reads[k][g] for k in origins[number][g]])
                for g, read in enumerate(row)
            ]
            if None not in own:
                break
        picks = [0 if k is None else k for k in own]
        chosen.append((number, picks))
        for g, (k, read) in enumerate(zip(picks, row, strict=True)):
            if read and k == len(origins[number][g]):
                origins[number][g].append(level)
            for channel in read:
                homes[number].setdefault(channel, k)

    device = include.device
    size = channels // groups
    result = []
    for number, (starts, home) in enumerate(zip(origins, homes, strict=True)):
        slots = max(1, *(len(s) for s in starts))
        members = torch.zeros(slots, groups, channels, dtype=torch.bool, device=device)
        for g, levels_of_group in enumerate(starts):
            for k, level in enumerate(levels_of_group):
                members[k, g] = include[level] & grouped[g]
        spread = None
        if slots * groups > 1:
            spread = torch.zeros(slots * groups, channels, device=device)
            index = [k * groups + c // size for c, k in home.items()]
            spread[index, list(home)] = 1
        pick: list[Tensor | None] = []
        mine: list[Tensor | None] = []
        for start in range(0, levels, BLOCK):
            rows = [(0, False)] * (BLOCK * groups)
            for level in range(start, min(levels, start + BLOCK)):
                if chosen[level][0] == number:
                    for g, k in enumerate(chosen[level][1]):
                        rows[(level - start) * groups + g] = (k * groups + g, True)
            used = any(flag for _, flag in rows)
            pick.append(torch.tensor([k for k, _ in rows], device=device) if used else None)
            mine.append(torch.tensor([[f] for _, f in rows], device=device) if used else None)
        average = tuple(_averages(m, device, torch.float32) for m in members)
        result.append(_Shift(average, spread, tuple(pick), tuple(mine)))
    return tuple(result)


def _origin(read: set[int], home: dict[int, int], origins: list[set[int]]) -> int | None:
    """Which origin suits a level that reads these channels: its index, or None."""
    found = {home[channel] for channel in read if channel in home}
    if not found:
        return len(origins) if read else 0
    if len(found) > 1:
        return None
    (origin,) = found
    return origin if origins[origin] <= read else None
