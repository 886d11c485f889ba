"""Reductions, scans, softmax, pooling and interpolation: they mix along dimensions.

Nothing happens along a dimension along which tags do not vary: a mean over space or tokens does not
mix channels.
"""

from __future__ import annotations

from typing import Any

from ..algebra import Algebra
from ..values import Value
from .registry import arguments, aten, rule

_OVER_DIMS = """
all amax amin any argmax argmin logsumexp mean nansum prod std sum var count_nonzero norm
linalg_vector_norm
"""
_SCANS = "cumsum cumprod cummax cummin logcumsumexp sort"
_SOFTMAXES = "_softmax _log_softmax _safe_softmax"
_SPACE_1 = "upsample_nearest1d upsample_linear1d _upsample_nearest_exact1d"
_SPACE_2 = """
avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d fractional_max_pool2d
upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d
_upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""
_SPACE_3 = """
avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d
upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d
"""


def _as_dims(dim: Any) -> list[int] | None:
    """A list of dimensions; None for all."""
    if dim is None:
        return None
    return [dim] if isinstance(dim, int) else list(dim)


@rule(*aten(_OVER_DIMS))
def reduce(algebra: Algebra, x: Value, *args: Any, **kwargs: Any) -> Value:
    given = arguments(algebra, args, kwargs)
    return algebra.reduce(x, _as_dims(given.get("dim")), bool(given.get("keepdim", False)))


@rule(*aten("max min median nanmedian mode kthvalue aminmax"))
def select_along(algebra: Algebra, x: Value, *args: Any, **kwargs: Any) -> Any:
    """Over all elements, or along a dimension with the index of the selected element."""
    result = reduce(algebra, x, *args, **kwargs)
    return result if "shape" in algebra.node.meta else [result, result]


@rule(*aten("std_mean var_mean"))
def moments(algebra: Algebra, x: Value, *args: Any, **kwargs: Any) -> list[Value]:
    result = reduce(algebra, x, *args, **kwargs)
    return [result, result]


@rule(*aten(_SCANS))
def scan(algebra: Algebra, x: Value, *args: Any, **kwargs: Any) -> Any:
    dim = kwargs.get("dim", next((a for a in args if type(a) is int), -1))
    mixed = algebra.mix(x, [dim])
    return mixed if "shape" in algebra.node.meta else [mixed, mixed]


@rule(*aten("topk"))
def topk(algebra: Algebra, x: Value, k: int, dim: int = -1, *_: Any, **__: Any) -> list[Value]:
    """Which element is picked depends on all of them, so every result has the mixture's tag."""
    # x (batch, tokens, CHANNELS), dim -1: (batch, tokens, 1) -> (batch, tokens, k), one tag for all
    mixed = algebra.reduce(x, [dim], keepdim=True)
    shape = list(x.shape)
    shape[dim] = k
    result = algebra.move(mixed, lambda t: t.expand(shape))
    return [result, result]


@rule(*aten(_SOFTMAXES))
def softmax(algebra: Algebra, x: Value, dim: int, *_: Any, **__: Any) -> Value:
    return algebra.mix(x, [dim])


def _resample(space: int) -> Any:
    """The rule for pooling and interpolation over the last ``space`` dimensions."""

    def resample(algebra: Algebra, x: Value, *_: Any, **__: Any) -> Any:
        if "shape" in algebra.node.meta:
            return algebra.resample(x, space)
        part = next(iter(algebra.node.users))
        result = algebra.resample(x, space, part.meta["shape"])
        return [result, result]

    return resample


for _space, _names in ((1, _SPACE_1), (2, _SPACE_2), (3, _SPACE_3)):
    rule(*aten(_names))(_resample(_space))


@rule(*aten("grid_sampler_2d grid_sampler_3d"))
def grid_sample(algebra: Algebra, x: Value, grid: Value, *_: Any) -> Value:
    """Samples of x (n, c, h, w) at positions (n, h', w', 2): they require the grid, too."""
    space = len(x.shape) - 2
    # grid (n, h', w', 2) -> (n, h', w') -> (n, 1, h', w'): every channel of x requires it
    sampled = algebra.resample(x, space)
    where = algebra.reduce(grid, [-1])
    return algebra.pointwise(sampled, algebra.move(where, lambda t: t.unsqueeze(1)))


@rule(*aten("_fft_r2c _fft_c2r _fft_c2c"))
def fft(algebra: Algebra, x: Value, dim: list[int], *_: Any) -> Value:
    """Every frequency depends on all positions; r2c and c2r change the last size."""
    # along the last dimension sizes differ (n and n // 2 + 1), so tags cannot stay in place there
    mixed = algebra.mix(x, dim)
    last = dim[-1] % len(x.shape)
    if algebra.shape == x.shape:
        return mixed
    tags = algebra.tags(algebra.reduce(mixed, [last], keepdim=True))
    return algebra.result(tags)


@rule(*aten("view_as_real"))
def view_as_real(algebra: Algebra, x: Value) -> Value:
    return algebra.move(x, lambda t: t.unsqueeze(-1).expand(algebra.shape))


@rule(*aten("view_as_complex"))
def view_as_complex(algebra: Algebra, x: Value) -> Value:
    return algebra.reduce(x, [-1])
