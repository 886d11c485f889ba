"""Element by element: each result element depends on the elements at its own position."""

from __future__ import annotations

from typing import Any

from ..algebra import Algebra
from ..values import Value
from .registry import aten, rule

_UNARY = """
abs acos acosh angle asin asinh atan atanh bernoulli bitwise_not celu ceil clamp clamp_max
clamp_min cos cosh deg2rad elu erf erfc erfinv exp exp2 expm1 native_dropout floor frac gelu
hardshrink hardsigmoid hardswish hardtanh i0 isinf isnan leaky_relu lgamma log log10 log1p log2
log_sigmoid_forward logical_not logit mish nan_to_num neg reciprocal relu round rsqrt sgn
sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt tan tanh tanhshrink threshold
trunc digamma polygamma
"""
_SEVERAL = """
add addcdiv addcmul atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift
bitwise_xor copysign div eq floor_divide fmax fmin fmod ge gt hypot le lerp logaddexp
logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul ne nextafter pow
remainder rsub sub where xlogy xlog1py ldexp __lshift__ __rshift__ masked_fill
_prelu_kernel complex polar
"""


#: The names of all operators that compute each element from the elements at its position.
POINTWISE = _UNARY + _SEVERAL


@rule(*aten(POINTWISE))
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
    """The old content is overwritten."""
    return algebra.result(algebra.tags(source))


@rule(*aten("fill zero"))
def fill(algebra: Algebra, into: Value, source: Any = 0) -> Value:
    if isinstance(source, Value):
        return algebra.result(algebra.tags(source))
    return algebra.constant()


@rule(*aten("glu"))
def glu(algebra: Algebra, x: Value, dim: int = -1) -> Value:
    # channel i of the first half is gated by channel i of the second: they are joined
    half = x.shape[dim] // 2
    first = algebra.move(x, lambda t: t.narrow(dim, 0, half))
    second = algebra.move(x, lambda t: t.narrow(dim, half, half))
    return algebra.pointwise(first, second)


@rule(*aten("_to_copy clone detach alias lift_fresh lift_fresh_copy"))
def same(algebra: Algebra, x: Value, *_: Any, **__: Any) -> Value:
    """Another dtype or memory format holds the same values."""
    return x
