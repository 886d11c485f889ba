"""One or more tiny models per operator that has a rule.

``CASES[operator]`` lists what to run: a function of a few tensors that calls the operator, and
how these tensors come about. ``build(case)`` puts the function into a module of its own, between
the layers that make its operands and a Linear head that reads every element of its result.

An operand is *made* by a Linear, with units along one dimension or a unit for each element (the
sharpest test of data movement); *held* by the module as a parameter; or *given* by the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

aten = torch.ops.aten
BATCH = 2
INPUTS = 6


@dataclass(frozen=True)
class Made:
    """An activation with units along dimension ``along``, or one per element (None)."""

    shape: tuple[int, ...]
    along: int | None = 1


@dataclass(frozen=True)
class Held:
    """A parameter."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Given:
    """A tensor that depends on the input and on no parameter."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One use of one operator; ``real``: the forward looks at data, so it runs on real tensors."""

    operator: str
    variant: str
    function: Callable[..., Tensor]
    operands: tuple[Made | Held | Given, ...]
    real: bool = False

    def __str__(self) -> str:
        return f"{self.operator}-{self.variant}"


CASES: dict[str, list[Case]] = {}


# ---------------------------------------------------------------- the model around a case


class Spread(nn.Module):
    """The input, spread to any shape by a fixed matrix."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("matrix", torch.randn(BATCH * INPUTS, math.prod(shape)))

    def forward(self, z: Tensor) -> Tensor:
        return (z.flatten() @ self.matrix).reshape(self.shape)


class Producer(nn.Module):
    """A layer that makes an operand."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.shape, self.along = made.shape, made.along
        if self.along is None:
            self.layer = nn.Linear(INPUTS, math.prod(self.shape) // self.shape[0])
            return
        others = [n for d, n in enumerate(self.shape) if d != self.along]
        self.spread = Spread((*others, 3))
        self.layer = nn.Linear(3, self.shape[self.along])

    def forward(self, z: Tensor) -> Tensor:
        if self.along is None:
            return self.layer(z[: self.shape[0]]).reshape(self.shape)
        return self.layer(self.spread(z)).movedim(-1, self.along)


class Body(nn.Module):
    """The operator under test, with the parameters among its operands."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.held = nn.ParameterList(
            torch.randn(o.shape) for o in case.operands if isinstance(o, Held)
        )

    def forward(self, *tensors: Tensor) -> Tensor:
        held, others = iter(self.held), iter(tensors)
        operands = [next(held if isinstance(o, Held) else others) for o in self.case.operands]
        return self.case.function(*operands)


class Around(nn.Module):
    """Operands, the operator, a head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.real = case.real
        self.producers = nn.ModuleList(
            Producer(o) if isinstance(o, Made) else Spread(o.shape)
            for o in case.operands
            if not isinstance(o, Held)
        )
        self.body = Body(case)
        with torch.no_grad():
            width = self.body(*self.made(torch.randn(BATCH, INPUTS))).numel()
        self.head = nn.Linear(width, 3)

    def made(self, z: Tensor) -> list[Tensor]:
        return [producer(z) for producer in self.producers]

    def forward(self, z: Tensor) -> Tensor:
        if self.real:
            assert float(z.sum()) > -1e9
        return self.head(self.body(*self.made(z)).reshape(1, -1))


def build(case: Case) -> tuple[nn.Module, Tensor]:
    """The model of a case and its input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Around(case).eval(), torch.randn(BATCH, INPUTS)


# ---------------------------------------------------------------- ways to register

IMAGE = (2, 4, 3, 3)
PLANE = (2, 4, 4, 4)
TOKENS = (2, 5, 4)
SIGNAL = (2, 4, 6)
VOLUME = (2, 2, 4, 4, 4)
ROWS = (2, 6)


def add(
    operator: str,
    variant: str,
    function: Callable[..., Tensor],
    *operands: Made | Held | Given,
    real: bool = False,
) -> None:
    """One case; a second one of the same name is an error."""
    name = operator if operator == "storage_write" else f"aten.{operator}"
    cases = CASES.setdefault(name, [])
    if any(case.variant == variant for case in cases):
        raise ValueError(f"two cases are called {name}-{variant}")
    cases.append(Case(name, variant, function, operands, real))


def both(
    operator: str,
    function: Callable[..., Tensor],
    *shapes: tuple[int, ...],
    variant: str = "",
    along: int = 1,
    real: bool = False,
) -> None:
    """Two cases: units along one dimension of each operand, and a unit for each element."""
    start = f"{variant}_" if variant else ""
    for name, dim in (("channels", along), ("elements", None)):
        made = [Made(shape, dim) for shape in shapes]
        add(operator, start + name, function, *made, real=real)


def each(table: dict[str, Callable[..., Tensor]], *shapes: tuple[int, ...], **kwargs: Any) -> None:
    """``both`` for a table of operators."""
    for operator, function in table.items():
        both(operator, function, *shapes, **kwargs)


def positive(x: Tensor) -> Tensor:
    return x.abs() + 1


def inner(x: Tensor) -> Tensor:
    return 0.9 * x.tanh()


def whole(x: Tensor) -> Tensor:
    """Small integers computed from a tensor."""
    return (x * 2).round().long()


def picks(x: Tensor, n: int) -> Tensor:
    """Indices below ``n`` computed from a tensor."""
    return (x.abs() * 7).long().remainder(n)


def as_real(z: Tensor) -> Tensor:
    return torch.view_as_real(z)


# ---------------------------------------------------------------- element by element

_UNARY = """
abs angle asinh atan ceil celu cos cosh deg2rad elu erf erfc exp exp2 expm1 floor frac gelu
hardshrink hardsigmoid hardswish hardtanh i0 leaky_relu mish nan_to_num neg reciprocal relu round
sgn sigmoid sign silu sin sinc sinh softplus softshrink tan tanh trunc
"""
for _name in _UNARY.split():
    add(_name, "elements", getattr(aten, _name), Made(IMAGE, None))

_UNARY_OF: dict[str, Callable[[Tensor], Tensor]] = {
    "acosh digamma lgamma log log10 log1p log2 rsqrt sqrt": positive,
    "acos asin atanh erfinv": inner,
    "logit": lambda x: 0.1 + 0.8 * x.sigmoid(),
    "isnan": torch.log,
    "isinf": lambda x: 1 / x.relu(),
    "logical_not": torch.relu,
    "signbit": torch.neg,
    "bitwise_not": whole,
}
for _names, _domain in _UNARY_OF.items():
    for _name in _names.split():
        _function = getattr(aten, _name)
        _call = lambda x, f=_function, g=_domain: f(g(x)).to(x.dtype)  # noqa: E731
        add(_name, "elements", _call, Made(IMAGE, None))


def _bernoulli(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return torch.bernoulli(x.sigmoid())


_UNARY_CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_max": lambda x: torch.clamp_max(x, 0.3),
    "clamp_min": lambda x: torch.clamp_min(x, 0.3),
    "polygamma": lambda x: torch.polygamma(1, positive(x)),
    "threshold": lambda x: F.threshold(x, 0.1, -1.0),
    "log_sigmoid_forward": F.logsigmoid,
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, False)[0],
    "bernoulli": _bernoulli,
    "glu": lambda x: F.glu(x, 1),
    "_to_copy": lambda x: x.to(torch.int32).to(x.dtype),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "alias": aten.alias,
    "lift_fresh": aten.lift_fresh,
    "lift_fresh_copy": aten.lift_fresh_copy,
    "zero": lambda x: torch.cat([x, x.clone().zero_()], 1),
    "fill": lambda x: torch.cat([x, x.clone().fill_(2.0)], 1),
}
for _name, _function in _UNARY_CALLS.items():
    add(_name, "elements", _function, Made(IMAGE, None))
both("glu", lambda x: F.glu(x, -1), (2, 3, 4), variant="last")
both("clamp", lambda x, y: x.clamp(max=y), IMAGE, IMAGE, variant="tensor")
both("fill", lambda x, y: torch.cat([x, x.clone().fill_(y[0, 0])], 1), IMAGE, ROWS, variant="value")


def _binary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, y: function(x, y).to(x.dtype)


_BINARY = """
add atan2 copysign div floor_divide fmax fmin fmod ge gt hypot le logaddexp logaddexp2 lt maximum
minimum mul remainder rsub sub
"""
_BINARIES: dict[str, Callable[..., Tensor]] = {
    **{_n: _binary(getattr(aten, _n)) for _n in _BINARY.split()},
    "logical_and": lambda x, y: torch.logical_and(x.relu(), y.relu()).to(x.dtype),
    "logical_or": lambda x, y: torch.logical_or(x.relu(), y.relu()).to(x.dtype),
    "logical_xor": lambda x, y: torch.logical_xor(x.relu(), y.relu()).to(x.dtype),
    "nextafter": lambda x, y: (torch.nextafter(x, y) - x) * 1e16,
    "pow": lambda x, y: positive(x) ** y.tanh(),
    "eq": lambda x, y: (whole(x) == whole(y)).to(x.dtype),
    "ne": lambda x, y: (whole(x) != whole(y)).to(x.dtype),
    "xlogy": lambda x, y: torch.xlogy(x, positive(y)),
    "bitwise_and": lambda x, y: (whole(x) & whole(y)).to(x.dtype),
    "bitwise_or": lambda x, y: (whole(x) | whole(y)).to(x.dtype),
    "bitwise_xor": lambda x, y: (whole(x) ^ whole(y)).to(x.dtype),
    "bitwise_left_shift": lambda x, y: whole(x).bitwise_left_shift(picks(y, 4)).to(x.dtype),
    "bitwise_right_shift": lambda x, y: whole(64 * x).bitwise_right_shift(picks(y, 4)).to(x.dtype),
    "__lshift__": lambda x, y: (whole(x) << picks(y, 4)).to(x.dtype),
    "__rshift__": lambda x, y: (whole(64 * x) >> picks(y, 4)).to(x.dtype),
    "ldexp": lambda x, y: torch.ldexp(x, whole(y)),
    "where": lambda x, y: torch.where(x > y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.5),
    "complex": lambda x, y: as_real(torch.complex(x, y.expand_as(x))),
    "polar": lambda x, y: as_real(torch.polar(positive(x), y.expand_as(x))),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, positive(y)),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "copy": lambda x, y: torch.cat([x, x.clone().copy_(y)], 1),
    "_prelu_kernel": lambda x, y: aten._prelu_kernel(x, y),
}
_ONE = (2, 1, 3, 3)
for _name, _function in _BINARIES.items():
    add(_name, "gated", _function, Made(IMAGE, None), Made(_ONE))
for _name in ("add", "mul", "where", "lerp"):
    _function = _BINARIES[_name]
    add(_name, "pair", _function, Made(IMAGE), Made(IMAGE))
    add(_name, "gating", _function, Made(_ONE), Made(IMAGE))
    add(_name, "crossed", _function, Made((2, 4, 1, 3)), Made((2, 1, 3, 3), 2))
    add(_name, "parameter", _function, Made(IMAGE), Held((4, 1, 1)))
    add(_name, "parameter_one", _function, Made(IMAGE), Held(()))
    add(_name, "parameter_map", _function, Made(IMAGE), Held((4, 3, 3)))
    add(_name, "parameter_space", _function, Made(IMAGE), Held((3, 3)))
    add(_name, "parameter_larger", _function, Made((2, 4, 1, 1)), Held((4, 3, 3)))
    add(_name, "parameter_alone", _function, Given(_ONE), Held((4, 3, 3)))
for _name in ("_prelu_kernel", "masked_fill", "div"):
    add(_name, "parameter", _BINARIES[_name], Made(IMAGE), Held((4, 1, 1)))
    add(_name, "parameter_one", _BINARIES[_name], Made(IMAGE), Held((1, 1, 1)))
both("lerp", torch.lerp, IMAGE, IMAGE, _ONE, variant="three")
both("addcmul", torch.addcmul, IMAGE, _ONE, IMAGE, variant="three")
both("where", lambda x, y, z: torch.where(x > 0, y, z), IMAGE, _ONE, IMAGE, variant="three")
both("masked_fill", lambda x, y: x.masked_fill(y > 0, y.mean()), IMAGE, _ONE, variant="tensor")

# Parameters among themselves, before they meet an activation.
_WEIGHT, _SCALE = Held((4, 6)), Held((6,))
add("mul", "parts_of_one", lambda x, p: x * (p[0] * p[1]), Made(ROWS), Held((2, 6)))
add("mul", "own_row", lambda x, p: F.linear(x, p * p[:1]), Made(ROWS), _WEIGHT)
add("add", "symmetric", lambda x, p: F.linear(x, p + p.mT), Made(ROWS), Held((6, 6)))
add("add", "two_weights", lambda x, p, q: F.linear(x, p + q), Made(ROWS), _WEIGHT, _WEIGHT)
add("mul", "scaled_rows", lambda x, p, s: F.linear(x, p * s), Made(ROWS), _WEIGHT, Held((4, 1)))
add("mul", "scaled_columns", lambda x, p, s: F.linear(x, p * s), Made(ROWS), _WEIGHT, _SCALE)
add("mul", "scaled_twice", lambda x, p, s: F.linear(x * s, p * s), Made(ROWS), _WEIGHT, _SCALE)
add("mul", "outer", lambda x, p, q: F.linear(x, p * q), Made(ROWS), Held((4, 1)), _SCALE)

# ---------------------------------------------------------------- data movement

each(
    {
        "transpose": lambda x: x.transpose(1, 2).cumsum(1),
        "permute": lambda x: x.permute(0, 2, 3, 1)[:, 1:],
        "expand": lambda x: x[:, :, :1].expand(2, 4, 5, 3),
        "select": lambda x: x.select(1, 2),
        "slice": lambda x: x[:, 1::2],
        "squeeze": lambda x: x[:, :1].squeeze(1),
        "unsqueeze": lambda x: x.unsqueeze(2) * x.unsqueeze(3)[..., :1],
        "flip": lambda x: x.flip(1, 3),
        "roll": lambda x: x.roll((1, 2), (1, 3)),
        "repeat": lambda x: x.repeat(1, 2, 1, 2),
        "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
        "unfold": lambda x: x.unfold(1, 3, 1),
        "diagonal": lambda x: x.diagonal(0, 1, 2),
        "tril": lambda x: x.tril(),
        "triu": lambda x: x.movedim(1, 3).triu(1),
        "rot90": lambda x: x.rot90(1, (1, 2)),
        "diag_embed": lambda x: x[:, :, 0].diag_embed(1),
        "constant_pad_nd": lambda x: F.pad(x, (1, 1, 0, 0, 1, 2)),
        "cat": lambda x: torch.cat([x, x.flip(1)], 1),
        "stack": lambda x: torch.stack([x, x.roll(1, 1)], 2),
        "split": lambda x: torch.cat([p * p for p in reversed(x.split(3, 1))], 1),
        "split_with_sizes": lambda x: x.split((1, 3), 1)[1],
        "unsafe_split": lambda x: x.unsafe_split(2, 1)[1],
        "unsafe_split_with_sizes": lambda x: x.unsafe_split_with_sizes((1, 3), 1)[1],
        "unbind": lambda x: x.unbind(1)[2] + x.unbind(1)[0],
        "view": lambda x: x.contiguous().view(2, 2, 18)[:, 1],
        "_unsafe_view": lambda x: aten._unsafe_view(x.contiguous(), (2, 2, 18))[:, 0],
        "_reshape_alias": lambda x: aten._reshape_alias(x.contiguous(), (2, 36), (36, 1))[:, 5:],
        "as_strided": lambda x: x.as_strided((2, 3, 3), (36, 9, 2), 4),
        "select_scatter": lambda x: x.select_scatter(x[:, 0].tanh(), 1, 2),
        "slice_scatter": lambda x: x.slice_scatter(x[:, 2:].tanh(), 1, 0, 2),
        "diagonal_scatter": lambda x: x.diagonal_scatter(x[..., 1].tanh(), 0, 2, 3),
    },
    IMAGE,
)
both("t", lambda x: x.t()[1:4], ROWS)
both("slice", lambda x: x[:, :, :2], TOKENS, variant="last", along=2)
both("constant_pad_nd", lambda x: F.pad(x, (1, 1, 1, 1)), IMAGE, variant="space")
both("constant_pad_nd", lambda x: F.pad(x, (-1, 1, 0, 0, -1, 0)), IMAGE, variant="crop")
both("cat", lambda x, y: torch.cat([x, y], 1), IMAGE, IMAGE, variant="two")
both("cat", lambda x, y: torch.cat([x, y], 2), IMAGE, IMAGE, variant="two_space")
both("stack", lambda x, y: torch.stack([x, y], 1).sum(1), IMAGE, IMAGE, variant="two")
both("view", lambda x: x.double().view(torch.int64).sign().to(x.dtype), IMAGE, variant="bits")
both(
    "view",
    lambda x: x.double().contiguous().view(torch.int32).sign().to(x.dtype),
    IMAGE,
    variant="halves",
)


def _class_token(x: Tensor, p: Tensor) -> Tensor:
    return torch.cat([p.expand(2, -1, -1), x], 1)


add("cat", "class_token", _class_token, Made(TOKENS, 2), Held((1, 1, 4)))
add("cat", "parameter_rows", lambda x, p: torch.cat([x, p], 1), Made(ROWS), Held((2, 3)))
add("select", "parameter", lambda x, p: x * p.select(0, 1), Made(IMAGE), Held((2, 4, 1, 1)))
add("expand", "parameter", lambda x, p: p.expand(2, 4, 3, 3) * x, Made(IMAGE), Held((1, 4, 1, 1)))
add("flip", "parameter", lambda x, p: x * p.flip(0) + p, Made(IMAGE), Held((4, 1, 1)))
add("flip", "weight_rows", lambda x, p: F.linear(x, p.flip(0)), Made(ROWS), _WEIGHT)
add("flip", "weight_columns", lambda x, p: F.linear(x, p.flip(1)), Made(ROWS), _WEIGHT)
add("tril", "parameter", lambda x, p: x @ p.tril(), Made(ROWS), Held((6, 6)))
add("permute", "parameter", lambda x, p: x + p.permute(2, 0, 1), Made(IMAGE), Held((3, 3, 4)))
each(
    {
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
        "im2col": lambda x: F.unfold(x, 2),
        "reflection_pad2d": lambda x: F.pad(x, (1, 0, 2, 1), "reflect"),
        "replication_pad2d": lambda x: F.pad(x, (1, 0, 2, 1), "replicate"),
    },
    PLANE,
)
for _mode, _name in (("reflect", "reflection"), ("replicate", "replication")):
    both(f"{_name}_pad1d", lambda x, m=_mode: F.pad(x, (2, 1), m), SIGNAL)
    both(f"{_name}_pad3d", lambda x, m=_mode: F.pad(x, (1, 0, 0, 1, 1, 1), m), VOLUME)
both("col2im", lambda x: F.fold(x, (3, 3), 2), (2, 8, 4))


def _write_view(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1:3].mul_(x[:, :1])
    return x


def _write_twice(x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0].copy_(y[:, 1])
    x.permute(0, 2, 3, 1)[..., 2:].add_(y.permute(0, 2, 3, 1)[..., :2])
    return x


def _masked_weight(x: Tensor, p: Tensor) -> Tensor:
    p = p.clone()
    p[:, 2:] = 0
    return F.linear(x, p)


for _name in ("reshape", "storage_write"):
    both(_name, _write_view, IMAGE)
    both(_name, _write_twice, IMAGE, IMAGE, variant="two")
add("storage_write", "weight", _masked_weight, Made(ROWS), _WEIGHT)

# ---------------------------------------------------------------- reductions


def _parts(*tensors: Tensor) -> Tensor:
    """Several results as one float tensor."""
    return torch.cat([t.to(torch.promote_types(t.dtype, torch.float32)).flatten() for t in tensors])


_OVER_DIMS = "amax amin logsumexp mean nansum std sum var"
_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    **{_n: getattr(torch, _n) for _n in _OVER_DIMS.split()},
    "all": lambda x, dim, **kw: (x > -0.5).all(dim, **kw).to(x.dtype),
    "any": lambda x, dim, **kw: (x > 1.5).any(dim, **kw).to(x.dtype),
    "count_nonzero": lambda x, dim: torch.count_nonzero(x.relu(), dim).to(x.dtype),
    "norm": lambda x, dim: aten.norm(x, 2, [dim] if type(dim) is int else dim, False),
    "linalg_vector_norm": lambda x, dim, **kw: torch.linalg.vector_norm(x, 3, dim, **kw),
}
for _name, _function in _REDUCTIONS.items():
    both(_name, lambda x, f=_function: f(x, 1), IMAGE)
    add(_name, "space", lambda x, f=_function: f(x, (2, 3)), Made(IMAGE, None))
    if _name not in ("norm", "count_nonzero"):
        add(_name, "keepdim", lambda x, f=_function: x * f(x, 1, keepdim=True), Made(IMAGE))
_ALONG: dict[str, Callable[..., Tensor]] = {
    "prod": lambda x, *dim: x.prod(*dim),
    "argmax": lambda x, *dim: x.argmax(*dim).to(x.dtype),
    "argmin": lambda x, *dim: x.argmin(*dim).to(x.dtype),
    "nanmedian": lambda x, *dim: _parts(*x.nanmedian(*dim)) if dim else x.nanmedian(),
    "max": lambda x, *dim: _parts(*x.max(*dim)) if dim else x.max(),
    "min": lambda x, *dim: _parts(*x.min(*dim, True)) if dim else x.min(),
    "median": lambda x, *dim: _parts(*x.median(*dim)) if dim else x.median(),
    "mode": lambda x, *dim: _parts(*x.round().mode(*dim)),
    "kthvalue": lambda x, *dim: _parts(*x.kthvalue(2, *dim)),
    "aminmax": lambda x, dim=None: _parts(*x.aminmax(dim=dim)),
    "std_mean": lambda x, dim=None: _parts(*torch.std_mean(x, dim)),
    "var_mean": lambda x, dim=None: _parts(*torch.var_mean(x, dim, keepdim=True)),
    "topk": lambda x, *dim: _parts(*x.topk(2, *dim)),
    "sort": lambda x, *dim: _parts(*x.sort(*dim)),
    "cumsum": lambda x, dim=0: x.cumsum(dim),
    "cumprod": lambda x, dim=0: x.cumprod(dim),
    "cummax": lambda x, dim=0: _parts(*x.cummax(dim)),
    "cummin": lambda x, dim=0: _parts(*x.cummin(dim)),
    "logcumsumexp": lambda x, dim=0: x.logcumsumexp(dim),
    "_softmax": lambda x, dim=0: x.softmax(dim),
    "_log_softmax": lambda x, dim=0: x.log_softmax(dim),
    "_safe_softmax": lambda x, dim=0: aten._safe_softmax(x, dim),
}
for _name, _function in _ALONG.items():
    both(_name, lambda x, f=_function: f(x, 1), IMAGE)
    add(_name, "default", _function, Made(IMAGE, None))
    add(_name, "last", lambda x, f=_function: f(x, -1), Made(IMAGE, None))


def _stacked(x: Tensor, y: Tensor, function: Callable[..., Tensor]) -> Tensor:
    return function(torch.stack([x, y], 1), 1)


for _name in ("sum", "amax", "max", "_softmax", "cumsum", "topk"):
    _function = {**_REDUCTIONS, **_ALONG}[_name]
    both(_name, lambda x, y, f=_function: _stacked(x, y, f), IMAGE, IMAGE, variant="branches")
each(
    {
        "sum": torch.sum,
        "mean": torch.mean,
        "amax": torch.amax,
        "std": torch.std,
        "logsumexp": lambda x: x.logsumexp((0, 1, 2, 3)),
        "all": lambda x: (x[0, :, 0, 0] < 0.5).all().to(x.dtype),
        "any": lambda x: (x[0, :, 0, 0] > 0).any().to(x.dtype),
    },
    (2, 2, 2, 1),
    variant="whole",
)
both("sort", lambda x: _parts(*x.sort(dim=1, stable=True)), IMAGE, variant="stable")
add("_softmax", "parameter", lambda x, p: x * p.softmax(0), Made(IMAGE), Held((4, 1, 1)))
add("sum", "parameter", lambda x, p: x * p.sum(0), Made(IMAGE), Held((2, 4, 1, 1)))
add("mean", "parameter", lambda x, p: x * p.mean(), Made(IMAGE), Held((4, 1, 1)))
both("_fft_r2c", lambda x: as_real(torch.fft.rfft(x, dim=1)), IMAGE)
both("_fft_r2c", lambda x: as_real(torch.fft.rfft2(x)), IMAGE, variant="space")
both("_fft_c2r", lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(3, 3)), IMAGE)
both("_fft_c2r", lambda x: torch.fft.irfft(torch.complex(x, -x), dim=1), IMAGE, variant="along")
both("_fft_c2c", lambda x: as_real(torch.fft.fft2(torch.complex(x, -x))), IMAGE)
both("_fft_c2c", lambda x: as_real(torch.fft.ifft(torch.complex(x, -x), dim=1)), IMAGE, variant="c")
both("view_as_real", lambda x: as_real(torch.complex(x, -x))[..., 1], IMAGE)
both("view_as_complex", lambda x: torch.view_as_complex(x).abs(), (2, 3, 2), along=2)


def _filter(x: Tensor, p: Tensor) -> Tensor:
    return as_real(torch.fft.rfft2(x) * torch.view_as_complex(p))


add("view_as_complex", "filter", _filter, Made(IMAGE), Held((4, 3, 2, 2)))
add("view_as_complex", "shared_filter", _filter, Made(IMAGE), Held((3, 2, 2)))

# ---------------------------------------------------------------- pooling and resizing


def _fractional(x: Tensor) -> Tensor:
    return aten.fractional_max_pool2d(x, (2, 2), (2, 2), x.new_full((2, 4, 2), 0.3))[0]


_RESIZED: dict[str, tuple[tuple[int, ...], dict[str, dict[str, Any]]]] = {
    "1d": (SIGNAL, {"linear": {"mode": "linear"}}),
    "2d": (
        PLANE,
        {
            "bilinear": {"mode": "bilinear"},
            "bicubic": {"mode": "bicubic"},
            "bilinear_aa": {"mode": "bilinear", "antialias": True},
            "bicubic_aa": {"mode": "bicubic", "antialias": True},
        },
    ),
    "3d": (VOLUME, {"trilinear": {"mode": "trilinear"}}),
}
for _rank, (_shape, _modes) in _RESIZED.items():
    _modes |= {"nearest": {}, "nearest_exact": {"mode": "nearest-exact"}}
    for _name, _settings in _modes.items():
        _start, _, _end = _name.partition("_aa")[0], "", "_aa" if "_aa" in _name else ""
        _operator = f"upsample_{_start}{_rank}{_end}"
        if _end or _name == "nearest_exact":
            _operator = f"_{_operator}"
        _size = [5, 2, 3][: len(_shape) - 2]
        both(_operator, lambda x, s=_settings, n=_size: F.interpolate(x, n, **s), _shape)
each(
    {
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "max_pool2d_with_indices": lambda x: F.max_pool2d(x, 3, 1, 1) * x,
        "_adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
        "adaptive_max_pool2d": lambda x: _parts(*F.adaptive_max_pool2d(x, 2, True)),
        "fractional_max_pool2d": _fractional,
    },
    PLANE,
)
each(
    {
        "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
        "max_pool3d_with_indices": lambda x: F.max_pool3d(x, 2),
        "_adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)),
        "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 2),
    },
    VOLUME,
)


def _sample(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid.tanh(), align_corners=False)


both("grid_sampler_2d", _sample, IMAGE, (2, 2, 3, 2))
add("grid_sampler_2d", "given", _sample, Made(IMAGE, None), Given((2, 2, 3, 2)))
add("grid_sampler_2d", "offsets", _sample, Made(IMAGE), Made((2, 2, 3, 2), 3))
both("grid_sampler_3d", _sample, (2, 2, 2, 3, 3), (2, 2, 1, 2, 3))

# ---------------------------------------------------------------- products and convolutions

SQUARE = (2, 3, 3)
each(
    {
        "mm": lambda x, y: torch.mm(x[0], y[0]),
        "bmm": torch.bmm,
        "matmul": lambda x, y: x @ y,
        "mv": lambda x, y: torch.mv(x[0], y[0, 1]),
        "dot": lambda x, y: torch.dot(x[0, 0], y[0, 1]),
        "vdot": lambda x, y: torch.vdot(x[0, 0], y[0, 1]),
        "linear": lambda x, y: F.linear(x, y[0]),
        "addmm": lambda x, y: torch.addmm(x[0], x[1], y[0]),
        "addmv": lambda x, y: torch.addmv(x[0, 0], x[1], y[0, 0]),
        "baddbmm": lambda x, y: torch.baddbmm(x, y, x),
        "addbmm": lambda x, y: torch.addbmm(x[0], x, y),
    },
    SQUARE,
    SQUARE,
)
_WITH_MATRIX: dict[str, Callable[..., Tensor]] = {
    "mm": lambda x, p: torch.mm(x[0], p),
    "matmul": lambda x, p: x @ p,
    "mv": lambda x, p: torch.mv(p, x[0, 0]),
    "linear": F.linear,
    "addmm": lambda x, p: torch.addmm(x[0], x[1], p),
    "addmv": lambda x, p: torch.addmv(x[0, 0], p, x[1, 2]),
}
_WITH_MATRICES: dict[str, Callable[..., Tensor]] = {
    "bmm": torch.bmm,
    "baddbmm": lambda x, p: torch.baddbmm(x, x, p),
    "addbmm": lambda x, p: torch.addbmm(x[0], x, p),
    "matmul": lambda x, p: p @ x,
}
for _along in (1, 2, None):
    for _name, _function in _WITH_MATRIX.items():
        add(_name, f"parameter_along_{_along}", _function, Made(SQUARE, _along), Held((3, 3)))
    for _name, _function in _WITH_MATRICES.items():
        add(_name, f"parameters_along_{_along}", _function, Made(SQUARE, _along), Held(SQUARE))
    add("matmul", f"vector_along_{_along}", lambda x, p: x @ p, Made(SQUARE, _along), Held((3,)))
    add("linear", f"vector_along_{_along}", F.linear, Made(SQUARE, _along), Held((3,)))
add("addmm", "bias", lambda x, p, b: torch.addmm(b, x, p), Made(ROWS), Held((6, 4)), Held((4,)))
add("baddbmm", "bias", lambda x, p: torch.baddbmm(p, x, x), Made(SQUARE), Held((1, 3)))
add("linear", "bias", F.linear, Made(ROWS), _WEIGHT, Held((4,)))
add("linear", "made_bias", lambda x, p, b: F.linear(x, p, b[0]), Made(ROWS), _WEIGHT, Made((1, 4)))
add("linear", "tied", lambda x, p: F.linear(F.linear(x, p), p.mT), Made(ROWS), _WEIGHT)
add(
    "matmul", "low_rank", lambda x, p, q: F.linear(x, p @ q), Made(ROWS), Held((4, 2)), Held((2, 6))
)
add("_trilinear", "two", F.bilinear, Made(ROWS), Made((2, 4)), Held((3, 6, 4)))
add("_trilinear", "square", lambda x, p: F.bilinear(x, x, p), Made(ROWS), Held((3, 6, 6)))
add("_trilinear", "given", F.bilinear, Made(ROWS), Given((2, 4)), Held((3, 6, 4)), Held((3,)))

_CONVOLUTIONS = {  # weights of a convolution and of a transposed one, by the number of groups
    1: ((3, 4), (4, 3)),
    2: ((6, 2), (4, 3)),
    4: ((8, 1), (4, 2)),
}
for _dims, _space in {1: (6,), 2: (4, 4), 3: (3, 3, 3)}.items():
    for _groups, _weights in _CONVOLUTIONS.items():
        for _name, _sizes in zip(("conv", "conv_transpose"), _weights, strict=True):
            _function = getattr(F, f"{_name}{_dims}d")
            _call = lambda x, p, f=_function, g=_groups: f(x, p, groups=g)  # noqa: E731
            _kernel = (*_sizes, *[2] * _dims)
            for _along in (1, 2, None):
                add(
                    f"{_name}{_dims}d",
                    f"{_groups}_groups_along_{_along}",
                    _call,
                    Made((2, 4, *_space), _along),
                    Held(_kernel),
                )
            if _dims == 2:
                add(
                    f"{_name}{_dims}d",
                    f"{_groups}_groups_made",
                    lambda x, w, f=_call: f(x, w[0]),
                    Made((2, 4, *_space)),
                    Made((1, *_kernel), None),
                )


def _convolution(x: Tensor, weight: Tensor, transposed: bool = False) -> Tensor:
    return aten.convolution(x, weight, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], 1)


def _turned(x: Tensor, weight: Tensor) -> Tensor:
    return _convolution(x, weight, True)


def _over_channels(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x.mean((2, 3))[:, None, :, None], weight)


def _shifted(x: Tensor, weight: Tensor) -> Tensor:
    """A kernel of one that still moves positions: output i reads position 2i - 2."""
    return F.conv1d(x, weight, stride=2, padding=2)


for _along in (1, None):
    add("convolution", f"along_{_along}", _convolution, Made(PLANE, _along), Held((3, 4, 2, 2)))
    add("convolution", f"turned_{_along}", _turned, Made(PLANE, _along), Held((4, 3, 2, 2)))
add("conv2d", "over_channels", _over_channels, Made(PLANE), Held((1, 1, 2, 1)))
add("conv1d", "shifted", _shifted, Made((2, 3, 5), 2), Held((2, 3, 1)))

# ---------------------------------------------------------------- attention

HEADS = (2, 2, 3, 4)
FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def _flash(part: int) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        mask = mask if mask is None else mask.expand(2, 2, 3, 3)
        return getattr(aten, FLASH)(q, k, v, attn_mask=mask)[part]

    return attend


for _variant, _mask in {
    "no_mask": (),
    "mask_of_heads": (Held((2, 3, 3)),),
    "mask_for_all": (Held((3, 3)),),
    "made_mask": (Made((2, 2, 3, 3)),),
}.items():
    for _along in (1, 2, 3, None):
        _v = f"{_variant}_along_{_along}"
        _operands = [*[Made(HEADS, _along)] * 3, *_mask]
        add("scaled_dot_product_attention", _v, F.scaled_dot_product_attention, *_operands)
        if _along in (1, None):
            add(FLASH, _v, _flash(0), *_operands, real=True)
    add(FLASH, f"{_variant}_statistics", _flash(1), *_operands, real=True)

# ---------------------------------------------------------------- norms

_AFFINE = (Held((4,)), Held((4,)))


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_tensor([0.1, -0.2, 0.3, 0.0]), x.new_tensor([0.5, 1.5, 1.0, 2.0])


_NORMS: dict[str, Callable[..., Tensor]] = {
    "batch_norm": lambda x, w, b: F.batch_norm(x, *_statistics(x), w, b),
    "instance_norm": lambda x, w, b: F.instance_norm(x, None, None, w, b),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "native_batch_norm": lambda x, w, b: _parts(
        *aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
    ),
    "_native_batch_norm_legit": lambda x, w, b: _parts(
        *aten._native_batch_norm_legit(x, w, b, True, 0.1, 1e-5)
    ),
    "_native_batch_norm_legit_no_training": lambda x, w, b: (
        aten._native_batch_norm_legit_no_training(x, w, b, *_statistics(x), 0.1, 1e-5)[0]
    ),
    "native_group_norm": lambda x, w, b: _parts(
        *aten.native_group_norm(x.contiguous(), w, b, 2, 4, 9, 2, 1e-5)
    ),
}
_TOKEN_NORMS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (4,), w, b),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (4,), w) + b,
    "native_layer_norm": lambda x, w, b: _parts(*aten.native_layer_norm(x, (4,), w, b, 1e-5)),
}
for _along in (1, 2, None):
    for _name, _function in _NORMS.items():
        add(_name, f"along_{_along}", _function, Made(IMAGE, _along), *_AFFINE)
    for _name, _function in _TOKEN_NORMS.items():
        add(_name, f"along_{_along}", _function, Made(TOKENS, _along), *_AFFINE)
    add(
        "layer_norm",
        f"two_dims_along_{_along}",
        lambda x, w: F.layer_norm(x, (5, 4), w),
        Made(TOKENS, _along),
        Held((5, 4)),
    )
    add(
        "batch_norm",
        f"batch_along_{_along}",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        Made(IMAGE, _along),
        *_AFFINE,
    )


def _normed_by(x: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return F.batch_norm(x, m.reshape(4), positive(v.reshape(4)))


def _instance_normed_by(x: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return F.instance_norm(x, m, positive(v), use_input_stats=False)


def _made_affine(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (4,), w[0], w[1])


add("batch_norm", "held_statistics", _normed_by, Made(IMAGE), *_AFFINE)
add("batch_norm", "made_statistics", _normed_by, Made(IMAGE), Made((1, 4)), Made((1, 4)))
add("instance_norm", "held_statistics", _instance_normed_by, Made(IMAGE), *_AFFINE)
add("layer_norm", "made_affine", _made_affine, Made(TOKENS, 2), Made((2, 4)))

# ---------------------------------------------------------------- indices

_FIXED = torch.tensor([2, 0, 2])
_MASK = torch.tensor([True, False, True, True])


def _rows(i: Tensor) -> Tensor:
    return i.view(1, -1, 1, 1).expand(2, -1, 3, 3)


_INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda x, i: x[:, i],
    "_unsafe_index": lambda x, i: aten._unsafe_index(x, [None, i]),
    "index_select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(1, _rows(i)),
    "scatter": lambda x, i: x.scatter(1, _rows(i), x[:, :3].tanh()),
    "scatter_add": lambda x, i: x.scatter_add(1, _rows(i), x[:, 1:].tanh()),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, _rows(i), x[:, 1:].tanh(), "amax"),
    "index_add": lambda x, i: x.index_add(1, i, x[:, 1:].tanh()),
    "index_copy": lambda x, i: x.index_copy(1, i, x[:, 1:].tanh()),
    "index_fill": lambda x, i: x.index_fill(1, i, 0.5),
    "index_reduce": lambda x, i: x.index_reduce(1, i, x[:, 1:].tanh(), "amax"),
    "index_put": lambda x, i: x.index_put((torch.tensor([[0], [1]]), i), x[:, :3].tanh()),
    "_unsafe_index_put": lambda x, i: aten._unsafe_index_put(x, [None, i], x[:, 1:].tanh()),
    "put": lambda x, i: x.put(i, x[0, 0, 0]),
}
for _name, _function in _INDEXED.items():
    _call = lambda x, i, f=_function: f(x, picks(i[0], 4))  # noqa: E731
    both(_name, lambda x, f=_function: f(x, _FIXED), IMAGE, variant="fixed")
    add(_name, "given", _call, Made(IMAGE, None), Given((1, 3)))
    add(_name, "computed", _call, Made(IMAGE), Made((1, 3)))
    add(_name, "of_input_computed", _call, Given(IMAGE), Made((1, 3)))
    add(_name, "of_parameter_computed", _call, Held(IMAGE), Made((1, 3)))


def _assigned(x: Tensor, y: Tensor, where: Any) -> Tensor:
    x = x.clone()
    x[where] = y[0, 0].mean()
    return x


_TABLE = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
both("index", lambda x: x[:, _FIXED, :, _FIXED[:, None]], IMAGE, variant="two")
both("index", lambda x: x[torch.tensor([[0], [1]]), _FIXED], IMAGE, variant="batch")
both("index", lambda x: x[:, _MASK], IMAGE, variant="mask")
both("index", lambda x: x[x[:, :, 0, 0] > 0].sum(0), IMAGE, variant="made_mask", real=True)
add("index", "table", lambda x, p: x + p[_TABLE], Made(IMAGE), Held((3,)))
add("index", "table_of_heads", lambda x, p: x + p[_TABLE].movedim(2, 0), Made(IMAGE), Held((3, 4)))
both("index_fill", lambda x, y: x.index_fill(1, _FIXED, y.mean()), IMAGE, ROWS, variant="value")
both("index_put", lambda x: aten.index_put(x, [None, _FIXED], x[:, :1], True), IMAGE, variant="sum")
both("index_put", lambda x, y: _assigned(x, y, x < 0), IMAGE, IMAGE, variant="mask")
both("index_put", lambda x, y: _assigned(x, y, y[..., 0, 0] < 0), IMAGE, IMAGE, variant="mask_two")
both("masked_scatter", lambda x, y: x.masked_scatter(y > 0, x.tanh()), IMAGE, IMAGE)
both("masked_scatter", lambda x: x.masked_scatter(_MASK.view(4, 1, 1), -x), IMAGE, variant="fixed")


def _bag(i: Tensor, p: Tensor, **settings: Any) -> Tensor:
    return F.embedding_bag(picks(i, 5), p, **settings)


def _bag_parts(i: Tensor, p: Tensor) -> Tensor:
    return _parts(*aten._embedding_bag(p, picks(i[0], 5), torch.tensor([0, 2]), False, 2))


def _bag_offsets(i: Tensor, p: Tensor, offset: Tensor) -> Tensor:
    start = torch.cat([torch.tensor([0]), 1 + picks(offset[0], 5)])
    return F.embedding_bag(picks(i[0], 5), p, start)


for _v, _index in {"given": Given((2, 3)), "made": Made((2, 3))}.items():
    _table = Made((1, 5, 4), None)
    add("embedding", _v, lambda i, p: F.embedding(picks(i, 5), p), _index, Held((5, 4)))
    add("embedding", f"{_v}_table", lambda i, x: F.embedding(picks(i, 5), x[0]), _index, _table)
    add("_embedding_bag", _v, _bag, _index, Held((5, 4)))
    add("_embedding_bag", f"{_v}_parts", _bag_parts, _index, Held((5, 4)))
    add("_embedding_bag_forward_only", _v, lambda i, x: _bag(i, x[0]), _index, _table)
add("_embedding_bag", "offsets", _bag_offsets, Given((2, 6)), Held((5, 4)), Made((1, 1)))
add(
    "_embedding_bag",
    "scales",
    lambda i, p, s: _bag(i, p, per_sample_weights=s, mode="sum"),
    Given((2, 3)),
    Held((5, 4)),
    Made((2, 3)),
)

# ---------------------------------------------------------------- shapes that depend on data

each(
    {
        "masked_select": lambda x: torch.stack([x.masked_select(x > 0).sum(), x[0, 1, 0, 0]]),
        "nonzero": lambda x: x.relu().nonzero().to(x.dtype).sum(0),
        "nonzero_static": lambda x: x.relu().nonzero_static(size=5).to(x.dtype),
        "_unique2": lambda x: torch.unique(x.round()).sum(),
        "unique_consecutive": lambda x: torch.unique_consecutive(x[:, 1, 0].round()).sum(),
        "unique_dim": lambda x: torch.unique(x.round(), dim=1).sum((0, 1)),
        "bincount": lambda x: torch.bincount(picks(x.flatten(), 3), minlength=3).to(x.dtype),
        "histc": lambda x: torch.histc(x, 4, -1, 1),
        "_local_scalar_dense": lambda x: x * x[0, 1, 1, 1].item(),
        "equal": lambda x: x if torch.equal(x[0, 0, 0] > 0, x[0, 1, 0] > 0) else -x,
        "repeat_interleave": lambda x: x.repeat_interleave(picks(x[0, :, 0, 0], 3), 1).sum(1),
    },
    IMAGE,
    real=True,
)
add(
    "repeat_interleave",
    "given",
    lambda x, i: x.repeat_interleave(1 + picks(i[0], 3), 1).sum(1),
    Made(IMAGE),
    Given((1, 4)),
    real=True,
)
add(
    "bincount",
    "weights",
    lambda x, y: torch.bincount(picks(x[0], 3), y[0], 3),
    Given(ROWS),
    Made(ROWS),
    real=True,
)

# ---------------------------------------------------------------- recurrences


def _cells(kind: str, layers: int, both_ways: bool) -> list[Held]:
    rows = 3 * {"lstm": 4, "gru": 3}.get(kind, 1)
    shapes: list[Held] = []
    for cell in range(layers * (1 + both_ways)):
        width = 4 if cell <= both_ways else 3 * (1 + both_ways)
        shapes += [Held((rows, width)), Held((rows, 3)), Held((rows,)), Held((rows,))]
    return shapes


def _packed(x: Tensor) -> PackedSequence:
    return pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)


def _recurrent(kind: str, packed: bool, settings: tuple[Any, ...]) -> Callable[..., Tensor]:
    def run(x: Tensor, hidden: Tensor, *weights: Tensor) -> Tensor:
        state: Any = (hidden, hidden.tanh()) if kind == "lstm" else hidden
        function = getattr(torch._VF, kind)
        if packed:
            data, sizes, *_ = _packed(x)
            return _parts(*function(data, sizes, state, list(weights), *settings))
        return _parts(*function(x, state, list(weights), *settings, True))

    return run


for _kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    for _layers, _both_ways in ((1, False), (2, True)):
        _settings = (True, _layers, 0.0, False, _both_ways)
        _size = (_layers * (1 + _both_ways), 2, 3)
        for _v, _start in {"": Given(_size), "_started": Made(_size, 2)}.items():
            for _packs in (False, True):
                add(
                    f"{_kind}.data" if _packs else f"{_kind}.input",
                    f"{_layers}_layers{_v}",
                    _recurrent(_kind, _packs, _settings),
                    Made(TOKENS, 2 if _packs else None),
                    _start,
                    *_cells(_kind, _layers, _both_ways),
                    real=_packs,
                )
both("_pack_padded_sequence", lambda x: _packed(x).data, TOKENS, along=2, real=True)
