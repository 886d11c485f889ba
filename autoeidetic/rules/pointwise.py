"""Element by element: each result element depends on the elements at its own position."""

from __future__ import annotations

from typing import Any

from ..algebra import Algebra
from ..values import Value
from .registry import aten, rule

_UNARY = """
abs acos acosh alias_copy angle asin asinh atan atanh bernoulli bitwise_not celu ceil clamp
clamp_max clamp_min conj conj_physical cos cosh deg2rad dropout elu erf erfc erfinv exp exp2
expm1 feature_dropout alpha_dropout native_dropout floor frac gelu hardshrink hardsigmoid
hardswish hardtanh i0 imag isfinite isinf isnan leaky_relu lgamma log log10 log1p log2
log_sigmoid log_sigmoid_forward logical_not logit mish nan_to_num neg positive real reciprocal
relu relu6 round rrelu rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh softplus
softshrink special_expit sqrt square tan tanh tanhshrink threshold trunc digamma erfcx
fill zero resolve_conj resolve_neg view_as_real_copy polygamma
"""
_SEVERAL = """
add addcdiv addcmul atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift
bitwise_xor copysign div divide eq floor_divide fmax fmin fmod ge gt hypot le lerp logaddexp
logaddexp2 logical_and logical_or logical_xor lt max maximum min minimum mul multiply ne
nextafter pow remainder rsub sub subtract true_divide where xlogy xlog1py ldexp
__and__ __or__ __xor__ __lshift__ __rshift__ masked_fill copy prelu _prelu_kernel
float_power greater greater_equal less less_equal not_equal complex polar
"""
_REDUCTIONS_TOO = {"max", "min"}  # their overloads without a second tensor are reductions
_SPECIAL = {"fill", "zero", "prelu", "copy"}


def _plain(names: str) -> list[Any]:
    skip = _REDUCTIONS_TOO | _SPECIAL
    return aten(" ".join(name for name in names.split() if name not in skip))


@rule(*_plain(_UNARY), *_plain(_SEVERAL))
def pointwise(algebra: Algebra, *args: Any, **kwargs: Any) -> Any:
    """One result, or (value, mask) pairs as of native_dropout: all alike."""
    result = algebra.pointwise(*args, *kwargs.values(), shape=_shape(algebra, args))
    if "shape" in algebra.node.meta:
        return result
    return [result, result]


def _shape(algebra: Algebra, args: tuple[Any, ...]) -> tuple[int, ...]:
    if "shape" in algebra.node.meta:
        return algebra.shape
    return args[0].shape


@rule(*aten("copy"))
def copy(algebra: Algebra, into: Value, source: Value, *_: Any) -> Value:
    """The old content is gone."""
    return algebra.result(algebra.tags(source))


@rule(*aten("fill zero"))
def fill(algebra: Algebra, into: Value, source: Any = 0) -> Value:
    if isinstance(source, Value):
        return algebra.result(algebra.tags(source))
    return algebra.constant()


@rule(*aten("prelu"))
def prelu(algebra: Algebra, x: Value, weight: Value) -> Value:
    if weight.shape in ((), (1,)):
        return algebra.pointwise(x, weight)
    return algebra.scale(x, weight, 1 if len(x.shape) > 1 else 0)


@rule(*aten("glu"))
def glu(algebra: Algebra, x: Value, dim: int = -1) -> Value:
    half = x.shape[dim] // 2
    first = algebra.move(x, lambda t: t.narrow(dim, 0, half))
    second = algebra.move(x, lambda t: t.narrow(dim, half, half))
    return algebra.pointwise(first, second)


@rule(*aten("_to_copy to type_as clone contiguous detach alias lift_fresh lift_fresh_copy"))
def same(algebra: Algebra, x: Value, *_: Any, **__: Any) -> Value:
    """Another dtype or memory format holds the same values."""
    return x
