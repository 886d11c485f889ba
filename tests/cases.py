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
CHANNEL = Held((4, 1, 1))


def add(
    operator: str,
    variant: str,
    function: Callable[..., Tensor],
    *operands: Made | Held | Given,
    real: bool = False,
) -> None:
    """One case; a second one of the same name is an error."""
    cases = CASES.setdefault(f"aten.{operator}" if operator != "storage_write" else operator, [])
    if any(case.variant == variant for case in cases):
        raise ValueError(f"two cases are called {operator}-{variant}")
    name = operator if operator == "storage_write" else f"aten.{operator}"
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


def each(
    table: dict[str, Callable[..., Tensor]], *shapes: tuple[int, ...], **kwargs: Any
) -> None:
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


def real(z: Tensor) -> Tensor:
    return torch.view_as_real(z)


# ---------------------------------------------------------------- element by element

_UNARY = """
abs angle asinh atan ceil celu cos cosh deg2rad elu erf erfc exp exp2 expm1 floor frac gelu
hardshrink hardsigmoid hardswish hardtanh i0 leaky_relu mish nan_to_num neg reciprocal relu round
sgn sigmoid sign silu sin sinc sinh softplus softshrink tan tanh trunc
"""
for _name in _UNARY.split():
    add(_name, "elements", getattr(aten, _name), Made(IMAGE, None))

_UNARY_ON: dict[Callable[[Tensor], Tensor], str] = {
    positive: "acosh digamma lgamma log log10 log1p log2 rsqrt sqrt",
    inner: "acos asin atanh erfinv",
    lambda x: 0.1 + 0.8 * x.sigmoid(): "logit",
    torch.log: "isnan",
    lambda x: 1 / x.relu(): "isinf",
    torch.relu: "logical_not",
    torch.neg: "signbit",
    whole: "bitwise_not",
}
for _domain, _names in _UNARY_ON.items():
    for _name in _names.split():
        add(
            _name,
            "elements",
            lambda x, f=getattr(aten, _name), g=_domain: f(g(x)).to(x.dtype),
            Made(IMAGE, None),
        )

each(
    {
        "clamp": lambda x: x.clamp(-0.5, 0.5),
        "clamp_max": lambda x: torch.clamp_max(x, 0.3),
        "clamp_min": lambda x: torch.clamp_min(x, 0.3),
        "polygamma": lambda x: torch.polygamma(1, positive(x)),
        "threshold": lambda x: F.threshold(x, 0.1, -1.0),
        "log_sigmoid_forward": F.logsigmoid,
        "native_dropout": lambda x: torch.native_dropout(x, 0.5, False)[0],
        "glu": lambda x: F.glu(x, 1),
        "_to_copy": lambda x: x.to(torch.int32).to(x.dtype),
        "clone": lambda x: x.clone(),
        "detach": lambda x: x.detach(),
        "alias": aten.alias,
        "lift_fresh": aten.lift_fresh,
        "lift_fresh_copy": aten.lift_fresh_copy,
        "zero": lambda x: torch.cat([x, x.clone().zero_()], 1),
    },
    IMAGE,
)
both("clamp", lambda x, y: x.clamp(max=y), IMAGE, IMAGE, variant="tensor")
both("glu", lambda x: F.glu(x, -1), (2, 3, 4), variant="last")


def _bernoulli(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return torch.bernoulli(x.sigmoid())


both("bernoulli", _bernoulli, IMAGE)

_BINARY = """
add atan2 copysign div floor_divide fmax fmin fmod ge gt hypot le logaddexp logaddexp2 logical_and
logical_or logical_xor lt maximum minimum mul nextafter remainder rsub sub
"""
_BINARIES: dict[str, Callable[..., Tensor]] = {
    **{_n: lambda x, y, f=getattr(aten, _n): f(x, y).to(x.dtype) for _n in _BINARY.split()},
    "logical_and": lambda x, y: torch.logical_and(x.relu(), y.relu()).to(x.dtype),
    "logical_or": lambda x, y: torch.logical_or(x.relu(), y.relu()).to(x.dtype),
    "logical_xor": lambda x, y: torch.logical_xor(x.relu(), y.relu()).to(x.dtype),
    "nextafter": lambda x, y: (torch.nextafter(x, y) - x) * 1e16,
    "pow": lambda x, y: positive(x) ** y,
    "eq": lambda x, y: (whole(x) == whole(y)).to(x.dtype),
    "ne": lambda x, y: (whole(x) != whole(y)).to(x.dtype),
    "xlogy": lambda x, y: torch.xlogy(x, positive(y)),
    "bitwise_and": lambda x, y: (whole(x) & whole(y)).to(x.dtype),
    "bitwise_or": lambda x, y: (whole(x) | whole(y)).to(x.dtype),
    "bitwise_xor": lambda x, y: (whole(x) ^ whole(y)).to(x.dtype),
    "bitwise_left_shift": lambda x, y: torch.bitwise_left_shift(whole(x), picks(y, 4)).to(x.dtype),
    "bitwise_right_shift": lambda x, y: torch.bitwise_right_shift(
        64 * whole(x), picks(y, 4)
    ).to(x.dtype),
    "__lshift__": lambda x, y: (whole(x) << picks(y, 4)).to(x.dtype),
    "__rshift__": lambda x, y: ((64 * whole(x)) >> picks(y, 4)).to(x.dtype),
    "ldexp": lambda x, y: torch.ldexp(x, whole(y)),
    "where": lambda x, y: torch.where(x > y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.5),
    "complex": lambda x, y: real(torch.complex(x, y)),
    "polar": lambda x, y: real(torch.polar(positive(x), y)),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, positive(y)),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "copy": lambda x, y: x.clone().copy_(y),
}
_ONE = (2, 1, 3, 3)
for _name, _function in _BINARIES.items():
    add(_name, "pair", _function, Made(IMAGE), Made(IMAGE))
    if _name != "copy":
        add(_name, "crossed", _function, Made((2, 4, 1, 3)), Made((2, 1, 3, 3), 2))
        add(_name, "gated", _function, Made(IMAGE, None), Made(_ONE))
        add(_name, "gating", _function, Made(_ONE), Made(IMAGE))
        if _name not in ("complex", "polar"):
            add(_name, "parameter", _function, Made(IMAGE), CHANNEL)
for _name in ("add", "mul", "sub", "where", "maximum"):
    _function = _BINARIES[_name]
    add(_name, "scalar_parameter", _function, Made(IMAGE), Held(()))
    add(_name, "parameter_map", _function, Made(IMAGE), Held((4, 3, 3)))
    add(_name, "parameter_space", _function, Made(IMAGE), Held((3, 3)))
    add(_name, "parameter_larger", _function, Made((2, 4, 1, 1)), Held((4, 3, 3)))
    add(_name, "given", _function, Given(_ONE), Held((4, 3, 3)))

both("lerp", torch.lerp, IMAGE, IMAGE, _ONE, variant="tensor")
both("addcmul", torch.addcmul, IMAGE, _ONE, IMAGE, variant="gated")
both("addcdiv", lambda x, y, z: torch.addcdiv(x, y, positive(z)), IMAGE, IMAGE, _ONE)
both("where", lambda x, y, z: torch.where(x > 0, y, z), IMAGE, _ONE, IMAGE, variant="three")
both(
    "masked_fill",
    lambda x, y, z: x.masked_fill(y > 0, z.mean()),
    IMAGE,
    _ONE,
    (2, 1, 1, 1),
    variant="tensor",
)
add("_prelu_kernel", "channels", F.prelu, Made(IMAGE), Held((4,)))
add("_prelu_kernel", "shared", F.prelu, Made(IMAGE), Held((1,)))
both("fill", lambda x, y: torch.cat([x, x.clone().fill_(y[0, 0])], 1), IMAGE, (2, 3))
both("fill", lambda x: torch.cat([x, x.clone().fill_(2.0)], 1), IMAGE, variant="scalar")

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
        "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([1, 2, 1, 3]), 1),
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
        "_reshape_alias": lambda x: aten._reshape_alias(
            x.contiguous(), (2, 2, 18), (36, 18, 1)
        )[:, 0],
        "as_strided": lambda x: x.contiguous().as_strided((2, 3, 3), (36, 9, 2), 4),
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
add("cat", "class_token", lambda x, p: torch.cat([p.expand(2, -1, -1), x], 1), Made(TOKENS, 2),
    Held((1, 1, 4)))  # fmt: skip
add("cat", "parameter_rows", lambda x, p: torch.cat([x, p], 1), Made(ROWS), Held((2, 3)))
both("stack", lambda x, y: torch.stack([x, y], 1).sum(1), IMAGE, IMAGE, variant="two")
both("view", lambda x: x.double().view(torch.int64).sign().to(x.dtype), IMAGE, variant="bits")
add("select", "parameter", lambda x, p: x * p.select(0, 1), Made(IMAGE), Held((2, 4, 1, 1)))
add("expand", "parameter", lambda x, p: p.expand(2, 4, 3, 3) * x, Made(IMAGE), Held((1, 4, 1, 1)))
add("flip", "parameter", lambda x, p: x * p.flip(0) + p, Made(IMAGE), CHANNEL)
add("tril", "parameter", lambda x, p: x @ p.tril(), Made(ROWS), Held((6, 6)))
add("transpose", "symmetric", lambda x, p: F.linear(x, p + p.mT), Made(ROWS), Held((6, 6)))
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


for _name in ("reshape", "storage_write"):
    both(_name, _write_view, IMAGE)
    both(_name, _write_twice, IMAGE, IMAGE, variant="two")

# ---------------------------------------------------------------- reductions


def _parts(*tensors: Tensor) -> Tensor:
    """Several results as one float tensor."""
    return torch.cat([t.to(torch.promote_types(t.dtype, torch.float32)).flatten() for t in tensors])


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in "amax amin logsumexp mean nansum std sum var count_nonzero norm".split()
    },
    "all": lambda x, dim, **kw: (x > -1).all(dim, **kw).to(x.dtype),
    "any": lambda x, dim, **kw: (x > 1).any(dim, **kw).to(x.dtype),
    "count_nonzero": lambda x, dim, **kw: torch.count_nonzero(x.relu(), dim).to(x.dtype),
    "norm": lambda x, dim, **kw: aten.norm(x, 2, [dim] if type(dim) is int else dim, False),
    "linalg_vector_norm": lambda x, dim, **kw: torch.linalg.vector_norm(x, 3, dim, **kw),
}
for _name, _function in _REDUCTIONS.items():
    both(_name, lambda x, f=_function: f(x, 1), IMAGE)
    both(_name, lambda x, f=_function: f(x, (2, 3)), IMAGE, variant="space")
    if _name not in ("norm", "count_nonzero"):
        add(_name, "keepdim", lambda x, f=_function: x * f(x, 1, keepdim=True), Made(IMAGE))
    add(_name, "branches", lambda x, y, f=_function: f(torch.stack([x, y], 1), 1), Made(IMAGE),
        Made(IMAGE))  # fmt: skip
_ALONG: dict[str, Callable[..., Tensor]] = {
    "prod": lambda x, dim: x.prod(dim),
    "argmax": lambda x, dim: x.argmax(dim).to(x.dtype),
    "argmin": lambda x, dim: x.argmin(dim).to(x.dtype),
    "nanmedian": lambda x, dim: _parts(*x.nanmedian(dim)),
    "max": lambda x, dim: _parts(*x.max(dim)),
    "min": lambda x, dim: _parts(*x.min(dim, keepdim=True)),
    "median": lambda x, dim: _parts(*x.median(dim)),
    "mode": lambda x, dim: _parts(*x.round().mode(dim)),
    "kthvalue": lambda x, dim: _parts(*x.kthvalue(2, dim)),
    "aminmax": lambda x, dim: _parts(*x.aminmax(dim=dim)),
    "std_mean": lambda x, dim: _parts(*torch.std_mean(x, dim)),
    "var_mean": lambda x, dim: _parts(*torch.var_mean(x, dim, keepdim=True)),
    "topk": lambda x, dim: _parts(*x.topk(2, dim)),
    "sort": lambda x, dim: _parts(*x.sort(dim)),
    "cumsum": lambda x, dim: x.cumsum(dim),
    "cumprod": lambda x, dim: x.cumprod(dim),
    "cummax": lambda x, dim: _parts(*x.cummax(dim)),
    "cummin": lambda x, dim: _parts(*x.cummin(dim)),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
    "_softmax": lambda x, dim: x.softmax(dim),
    "_log_softmax": lambda x, dim: x.log_softmax(dim),
    "_safe_softmax": lambda x, dim: aten._safe_softmax(x, dim),
}
for _name, _function in _ALONG.items():
    both(_name, lambda x, f=_function: f(x, 1), IMAGE)
    both(_name, lambda x, f=_function: f(x, -1), IMAGE, variant="space")
    add(_name, "branches", lambda x, y, f=_function: f(torch.stack([x, y], 2), 2), Made(IMAGE),
        Made(IMAGE))  # fmt: skip
for _name in "all any amax amin argmax argmin max mean median min nanmedian prod std sum var".split():
    both(_name, lambda x, f=getattr(torch, _name): f(
        {torch.all: x > -1.5, torch.any: x > 1.5}.get(f, x)).to(x.dtype), IMAGE, variant="whole")  # fmt: skip
for _name in "kthvalue mode sort topk".split():
    _function = getattr(torch, _name)
    both(
        _name,
        lambda x, f=_function: _parts(*(f(x, 2) if f in (torch.kthvalue, torch.topk) else f(x))),
        (2, 3, 4),
        variant="default_dim",
    )
both("std_mean", lambda x: _parts(*torch.std_mean(x)), IMAGE, variant="whole")
both("aminmax", lambda x: _parts(*x.aminmax()), IMAGE, variant="whole")
both("max", torch.max, IMAGE, _ONE, variant="two")
both("min", torch.min, IMAGE, _ONE, variant="two")
both("sort", lambda x: _parts(*x.sort(dim=1, stable=True)), IMAGE, variant="stable")
add("_softmax", "parameter", lambda x, p: x * p.softmax(0), Made(IMAGE), CHANNEL)
add("sum", "parameter", lambda x, p: x * p.sum(0), Made(IMAGE), Held((2, 4, 1, 1)))
add("mean", "parameter_whole", lambda x, p: x * p.mean(), Made(IMAGE), CHANNEL)
both("_fft_r2c", lambda x: real(torch.fft.rfft(x, dim=1)), IMAGE)
both("_fft_r2c", lambda x: real(torch.fft.rfft2(x)), IMAGE, variant="space")
both("_fft_c2r", lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(3, 3)), IMAGE)
both("_fft_c2r", lambda x: torch.fft.irfft(torch.complex(x, x.tanh()), dim=1), IMAGE, variant="c")
both("_fft_c2c", lambda x: real(torch.fft.fft2(torch.complex(x, x.tanh()))), IMAGE)
both("_fft_c2c", lambda x: real(torch.fft.ifft(torch.complex(x, x.tanh()), dim=1)), IMAGE,
     variant="along")  # fmt: skip
both("view_as_real", lambda x, y: torch.view_as_real(torch.complex(x, y))[..., 1], IMAGE, _ONE)
both("view_as_complex", lambda x: torch.view_as_complex(x).abs(), (2, 3, 2), along=2)

# ---------------------------------------------------------------- pooling and resizing

_SAMPLES = torch.full((2, 4, 2), 0.3, dtype=torch.float64)
each(
    {
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "max_pool2d_with_indices": lambda x: F.max_pool2d(x, 2, 1),
        "_adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
        "adaptive_max_pool2d": lambda x: _parts(*F.adaptive_max_pool2d(x, 2, True)),
        "fractional_max_pool2d": lambda x: aten.fractional_max_pool2d(
            x, (2, 2), (2, 2), _SAMPLES.to(x.dtype)
        )[0],
        "upsample_nearest2d": lambda x: F.interpolate(x, (5, 2)),
        "_upsample_nearest_exact2d": lambda x: F.interpolate(x, (5, 2), mode="nearest-exact"),
        "upsample_bilinear2d": lambda x: F.interpolate(x, (5, 2), mode="bilinear"),
        "upsample_bicubic2d": lambda x: F.interpolate(x, (5, 2), mode="bicubic"),
        "_upsample_bilinear2d_aa": lambda x: F.interpolate(
            x, (5, 2), mode="bilinear", antialias=True
        ),
        "_upsample_bicubic2d_aa": lambda x: F.interpolate(
            x, (5, 2), mode="bicubic", antialias=True
        ),
    },
    PLANE,
)
both("max_pool2d_with_indices", lambda x: F.max_pool2d(x, 3, 1, 1) * x, PLANE, variant="gate")
each(
    {
        "upsample_nearest1d": lambda x: F.interpolate(x, 4),
        "upsample_linear1d": lambda x: F.interpolate(x, 4, mode="linear"),
        "_upsample_nearest_exact1d": lambda x: F.interpolate(x, 4, mode="nearest-exact"),
    },
    SIGNAL,
)
each(
    {
        "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
        "max_pool3d_with_indices": lambda x: F.max_pool3d(x, 2),
        "_adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)),
        "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 2),
        "upsample_nearest3d": lambda x: F.interpolate(x, (2, 3, 2)),
        "_upsample_nearest_exact3d": lambda x: F.interpolate(x, (2, 3, 2), mode="nearest-exact"),
        "upsample_trilinear3d": lambda x: F.interpolate(x, (2, 3, 2), mode="trilinear"),
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
for _name, _function in {
    "mm": lambda x, p: torch.mm(x[0], p),
    "matmul": lambda x, p: x @ p,
    "mv": lambda x, p: torch.mv(p, x[0, 0]),
    "linear": F.linear,
    "addmm": lambda x, p: torch.addmm(x[0], x[1], p),
    "addmv": lambda x, p: torch.addmv(x[0, 0], p, x[1, 2]),
}.items():
    for _along in (1, 2, None):
        add(_name, f"parameter_along_{_along}", _function, Made(SQUARE, _along), Held((3, 3)))
for _name, _function in {
    "bmm": torch.bmm,
    "baddbmm": lambda x, p: torch.baddbmm(x, x, p),
    "addbmm": lambda x, p: torch.addbmm(x[0], x, p),
    "matmul": lambda x, p: p @ x,
}.items():
    for _along in (1, 2, None):
        add(_name, f"batched_along_{_along}", _function, Made(SQUARE, _along), Held(SQUARE))
add("addmm", "bias", lambda x, p, b: torch.addmm(b, x, p), Made(ROWS), Held((6, 4)), Held((4,)))
add("baddbmm", "bias", lambda x, p: torch.baddbmm(p, x, x), Made(SQUARE), Held((1, 3)))
add("linear", "bias", F.linear, Made(ROWS), Held((4, 6)), Held((4,)))
add("linear", "computed_bias", lambda x, p, b: F.linear(x, p, b[0]), Made(ROWS), Held((4, 6)),
    Made((2, 4)))  # fmt: skip
add("_trilinear", "channels", F.bilinear, Made(ROWS), Made((2, 4)), Held((3, 6, 4)))
add("_trilinear", "gated", F.bilinear, Made(ROWS), Given((2, 4)), Held((3, 6, 4)), Held((3,)))
add("_trilinear", "computed", lambda x, y, z: F.bilinear(x, y, z[0]), Made((2, 2)), Made((2, 3)),
    Made((1, 2, 2, 3), None))  # fmt: skip

_SPACE = {1: (6,), 2: (4, 4), 3: (3, 3, 3)}
for _dims, _space in _SPACE.items():
    _plain, _turned = getattr(F, f"conv{_dims}d"), getattr(F, f"conv_transpose{_dims}d")
    _kernel = (2,) * _dims
    for _name, _function, _weights in (
        (f"conv{_dims}d", _plain, {"dense": (3, 4), "grouped": (6, 2), "depthwise": (8, 1)}),
        (
            f"conv_transpose{_dims}d",
            _turned,
            {"dense": (4, 3), "grouped": (4, 3), "depthwise": (4, 2)},
        ),
    ):
        for _kind, _groups in (("dense", 1), ("grouped", 2), ("depthwise", 4)):
            _weight = Held((*_weights[_kind], *_kernel))
            for _along in (1, 2, None):
                add(
                    _name,
                    f"{_kind}_along_{_along}",
                    lambda x, p, f=_function, g=_groups: f(x, p, groups=g),
                    Made((2, 4, *_space), _along),
                    _weight,
                )
            if _dims == 2:
                add(
                    _name,
                    f"{_kind}_computed",
                    lambda x, w, f=_function, g=_groups, s=_weight.shape: f(
                        x, w[0].reshape(s), groups=g
                    ),
                    Made((2, 4, *_space)),
                    Made((2, *_weight.shape), None),
                )


def _convolution(x: Tensor, weight: Tensor, transposed: bool = False) -> Tensor:
    return aten.convolution(x, weight, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], 1)


add("convolution", "dense", _convolution, Made(PLANE), Held((3, 4, 2, 2)))
add("convolution", "transposed", lambda x, p: _convolution(x, p, True), Made(PLANE),
    Held((4, 3, 2, 2)))  # fmt: skip
add("convolution", "elements", _convolution, Made(PLANE, None), Held((3, 4, 2, 2)))
add("conv2d", "over_channels", lambda x, p: F.conv2d(x.mean((2, 3))[:, None, :, None], p),
    Made(PLANE), Held((1, 1, 2, 1)))  # fmt: skip
add("conv1d", "shifted", lambda x, p: F.conv1d(x, p, stride=2, padding=2), Made((2, 3, 5), 2),
    Held((2, 3, 1)))  # fmt: skip

# ---------------------------------------------------------------- attention

HEADS = (2, 2, 3, 4)
_FLASH: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "_scaled_dot_product_flash_attention_for_cpu": (
        lambda q, k, v, mask=None: aten._scaled_dot_product_flash_attention_for_cpu(
            q.contiguous(), k.contiguous(), v.contiguous(), attn_mask=mask
        )
    ),
}
for _variant, _along in (("channels", 3), ("heads", 1), ("elements", None)):
    _three = [Made(HEADS, _along)] * 3
    add("scaled_dot_product_attention", _variant, F.scaled_dot_product_attention, *_three)
    for _name, _fused in _FLASH.items():
        add(_name, _variant, lambda q, k, v, f=_fused: f(q, k, v)[0], *_three, real=True)
        add(_name, f"{_variant}_statistics", lambda q, k, v, f=_fused: f(q, k, v)[1], *_three,
            real=True)  # fmt: skip
for _mask in (Held((2, 3, 3)), Held((3, 3)), Made((2, 2, 3, 3))):
    _kind = type(_mask).__name__.lower() + str(len(_mask.shape))
    add("scaled_dot_product_attention", f"mask_{_kind}", F.scaled_dot_product_attention,
        *_three, _mask)  # fmt: skip
    for _name, _fused in _FLASH.items():
        for _part, _what in ((0, "result"), (1, "statistics")):
            add(
                _name,
                f"mask_{_kind}_{_what}",
                lambda q, k, v, m, f=_fused, i=_part: f(q, k, v, m.expand(2, 2, 3, 3))[i],
                *_three,
                _mask,
                real=True,
            )

# ---------------------------------------------------------------- norms

_AFFINE = (Held((4,)), Held((4,)))


class _Buffers:
    """Running statistics that are constants here."""

    mean = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
    var = torch.tensor([0.5, 1.5, 1.0, 2.0], dtype=torch.float64)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return _Buffers.mean.to(x.dtype), _Buffers.var.to(x.dtype)


for _along in (1, 2, None):
    _x = Made(IMAGE, _along)
    _v = f"along_{_along}"
    add("batch_norm", _v, lambda x, w, b: F.batch_norm(x, *_statistics(x), w, b), _x, *_AFFINE)
    add("batch_norm", f"{_v}_batch", lambda x, w, b: F.batch_norm(x, None, None, w, b, True), _x,
        *_AFFINE)  # fmt: skip
    add("instance_norm", _v, lambda x, w, b: F.instance_norm(x, None, None, w, b), _x, *_AFFINE)
    add("group_norm", _v, lambda x, w, b: F.group_norm(x, 2, w, b), _x, *_AFFINE)
    add("native_batch_norm", _v, lambda x, w, b: _parts(
        *aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)), _x, *_AFFINE)  # fmt: skip
    add("_native_batch_norm_legit", _v, lambda x, w, b: _parts(
        *aten._native_batch_norm_legit(x, w, b, True, 0.1, 1e-5)), _x, *_AFFINE)  # fmt: skip
    add("_native_batch_norm_legit_no_training", _v, lambda x, w, b: _parts(
        aten._native_batch_norm_legit_no_training(x, w, b, *_statistics(x), 0.1, 1e-5)[0]),
        _x, *_AFFINE)  # fmt: skip
    add("native_group_norm", _v, lambda x, w, b: _parts(
        *aten.native_group_norm(x, w, b, 2, 4, 9, 2, 1e-5)), _x, *_AFFINE)  # fmt: skip
for _along in (1, 2, None):
    _x = Made(TOKENS, _along)
    _v = f"along_{_along}"
    add("layer_norm", _v, lambda x, w, b: F.layer_norm(x, (4,), w, b), _x, *_AFFINE)
    add("layer_norm", f"{_v}_two", lambda x, w: F.layer_norm(x, (5, 4), w), _x, Held((5, 4)))
    add("rms_norm", _v, lambda x, w: F.rms_norm(x, (4,), w), _x, Held((4,)))
    add("native_layer_norm", _v, lambda x, w, b: _parts(
        *aten.native_layer_norm(x, (4,), w, b, 1e-5)), _x, *_AFFINE)  # fmt: skip
add("batch_norm", "held_statistics", lambda x, m, v: F.batch_norm(x, m, v.abs()), Made(IMAGE),
    *_AFFINE)  # fmt: skip
add("batch_norm", "made_statistics", lambda x, m: F.batch_norm(x, m[0], positive(m[1])),
    Made(IMAGE), Made((2, 4)))  # fmt: skip
add("layer_norm", "made_affine", lambda x, w: F.layer_norm(x, (4,), w[0], w[1]), Made(TOKENS, 2),
    Made((2, 4)))  # fmt: skip

# ---------------------------------------------------------------- indices

_FIXED = torch.tensor([2, 0, 2])
_MASK = torch.tensor([True, False, True, True])


def _three_ways(
    operator: str, function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], count: int
) -> None:
    """An index that is constant, given by the input, or computed from activations."""
    both(operator, lambda x: function(x, _FIXED), shape, variant="fixed")
    for along in (1, None):
        name = "channels" if along else "elements"
        add(operator, f"given_{name}", lambda x, i: function(x, picks(i[0], count)),
            Made(shape, along), Given((2, 3)))  # fmt: skip
        add(operator, f"computed_{name}", lambda x, i: function(x, picks(i[0], count)),
            Made(shape, along), Made((2, 3)))  # fmt: skip
    add(operator, "into_given", lambda x, i: function(x, picks(i[0], count)), Given(shape),
        Made((2, 3)))  # fmt: skip
    add(operator, "into_parameter", lambda p, i: function(p, picks(i[0], count)), Held(shape),
        Made((2, 3)))  # fmt: skip


def _along_rows(x: Tensor, i: Tensor) -> Tensor:
    return i.view(1, -1, 1, 1).expand(2, -1, 3, 3)


_three_ways("index", lambda x, i: x[:, i], IMAGE, 4)
_three_ways("_unsafe_index", lambda x, i: aten._unsafe_index(x, [None, i]), IMAGE, 4)
_three_ways("index_select", lambda x, i: x.index_select(1, i), IMAGE, 4)
_three_ways("gather", lambda x, i: x.gather(1, _along_rows(x, i)), IMAGE, 4)
_three_ways("scatter", lambda x, i: x.scatter(1, _along_rows(x, i), x[:, :3].tanh()), IMAGE, 4)
_three_ways("scatter_add", lambda x, i: x.scatter_add(1, _along_rows(x, i), x[:, 1:].tanh()),
            IMAGE, 4)  # fmt: skip
_three_ways("scatter_reduce", lambda x, i: x.scatter_reduce(1, _along_rows(x, i), x[:, 1:].tanh(),
            "amax"), IMAGE, 4)  # fmt: skip
_three_ways("index_add", lambda x, i: x.index_add(1, i, x[:, 1:].tanh()), IMAGE, 4)
_three_ways("index_copy", lambda x, i: x.index_copy(1, i, x[:, 1:].tanh()), IMAGE, 4)
_three_ways("index_fill", lambda x, i: x.index_fill(1, i, 0.5), IMAGE, 4)
_three_ways("index_reduce", lambda x, i: x.index_reduce(1, i, x[:, 1:].tanh(), "amax"), IMAGE, 4)
_three_ways("index_put", lambda x, i: x.index_put((torch.tensor([[0], [1]]), i), x[:, :3].tanh()),
            IMAGE, 4)  # fmt: skip
_three_ways("_unsafe_index_put", lambda x, i: aten._unsafe_index_put(x, [None, i], x[:, 1:].tanh()),
            IMAGE, 4)  # fmt: skip
_three_ways("put", lambda x, i: x.put(i, x[0, 0, 0]), IMAGE, 72)
both("index", lambda x: x[:, _FIXED, :, _FIXED[:, None].clamp(max=2)], IMAGE, variant="two")
both("index", lambda x: x[:, _MASK], IMAGE, variant="mask")
both("index", lambda x: x[torch.tensor([[0], [1]]), _FIXED], IMAGE, variant="batch")
add("index", "table", lambda x, p: x + p[torch.tensor([0, 1, 1, 0])][:, None, None], Made(IMAGE),
    Held((2,)))  # fmt: skip
add("index", "table_heads", lambda x, p: x + p[torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]])]
    .permute(2, 0, 1), Made(IMAGE), Held((3, 4)))  # fmt: skip
both("index_fill", lambda x, y: x.index_fill(1, _FIXED, y.mean()), IMAGE, (2, 2), variant="value")
both("index_put", lambda x: aten.index_put(x, [None, _FIXED], x[:, :1], True), IMAGE, variant="adding")
both("index_put", lambda x: x.index_put((torch.tensor([0]), _MASK.nonzero()[:, 0]), x[1, 1:]),
     IMAGE, variant="mask")  # fmt: skip
both("scatter", lambda x: x.scatter(2, torch.zeros(2, 4, 1, 3, dtype=torch.long), 1.0), IMAGE,
     variant="value")  # fmt: skip
both("masked_scatter", lambda x, y: x.masked_scatter(y > 0, x.tanh()), IMAGE, IMAGE)
both("masked_scatter", lambda x: x.masked_scatter(_MASK.view(4, 1, 1), x.tanh()), IMAGE,
     variant="fixed")  # fmt: skip
for _name, _function in {
    "embedding": lambda i, p: F.embedding(picks(i, 5), p),
    "_embedding_bag": lambda i, p: aten._embedding_bag(p, picks(i[0], 5), torch.tensor([0, 2]))[0],
    "_embedding_bag_forward_only": lambda i, p: F.embedding_bag(picks(i, 5), p),
}.items():
    for _index in (Given((2, 3)), Made((2, 3))):
        _kind = type(_index).__name__.lower()
        add(_name, f"{_kind}_parameter", _function, _index, Held((5, 4)))
        add(_name, f"{_kind}_table", lambda i, x, f=_function: f(i, x[0]), _index,
            Made((1, 5, 4), None))  # fmt: skip
add("_embedding_bag_forward_only", "scales", lambda i, p, s: F.embedding_bag(
    picks(i, 5), p, per_sample_weights=s, mode="sum"), Given((2, 3)), Held((5, 4)),
    Made((2, 3)))  # fmt: skip
add("_embedding_bag_forward_only", "max", lambda i, p: F.embedding_bag(picks(i, 5), p, mode="max"),
    Given((2, 3)), Held((5, 4)))  # fmt: skip
add("_embedding_bag_forward_only", "offsets", lambda i, p, o: F.embedding_bag(
    picks(i[0], 5), p, picks(o[0], 6).new_tensor([0, 3]) + picks(o[0], 3)), Given((2, 6)), Held((5, 4)),
    Made((2, 1)))  # fmt: skip

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
    },
    IMAGE,
    real=True,
)
both("bincount", lambda x, y: torch.bincount(picks(x[0], 3), y[0], 3), ROWS, ROWS, variant="weights",
     real=True)  # fmt: skip
both("index", lambda x: x[x[:, :, 0, 0] > 0].sum(0), IMAGE, variant="computed_mask", real=True)
both("index", lambda x, y: x.flatten()[(y.flatten() > 0).nonzero()[:, 0]].sum(), IMAGE, IMAGE,
     variant="computed_positions", real=True)  # fmt: skip
both("repeat_interleave", lambda x, y: x.repeat_interleave(picks(y[0], 3), 1).sum(1), IMAGE,
     (2, 4), variant="computed", real=True)  # fmt: skip
both("masked_select", lambda x: torch.masked_select(x, _MASK.view(4, 1, 1)), IMAGE, variant="fixed",
     real=True)  # fmt: skip

# ---------------------------------------------------------------- recurrences


def _cells(kind: str, *, layers: int = 1, both_ways: bool = False) -> list[Held]:
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    shapes: list[Held] = []
    for layer in range(layers):
        for _ in range(1 + both_ways):
            width = 4 if not layer else 3 * (1 + both_ways)
            rows = 3 * gates
            shapes += [Held((rows, width)), Held((rows, 3)), Held((rows,)), Held((rows,))]
    return shapes


def _recurrent(
    kind: str, given: Any, start: Tensor | None, weights: Any, layers: int, both_ways: bool
) -> Tensor:
    packed = isinstance(given, PackedSequence)
    data = given.data if packed else given
    hidden = data.new_zeros(layers * (1 + both_ways), 2, 3) if start is None else start
    state: Any = (hidden, hidden.tanh()) if kind == "lstm" else hidden
    settings = (True, layers, 0.0, False, both_ways)
    function = getattr(torch._VF, kind)
    if packed:
        results = function(data, given.batch_sizes, state, list(weights), *settings)
    else:
        results = function(data, state, list(weights), *settings, True)
    return _parts(*results)


for _kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    for _layers, _both_ways in ((1, False), (2, True)):
        _weights = _cells(_kind, layers=_layers, both_ways=_both_ways)
        _run = lambda x, start, w, k=_kind, n=_layers, b=_both_ways: _recurrent(  # noqa: E731
            k, x, start, w, n, b
        )
        _v = f"{_layers}_layers"
        add(f"{_kind}.input", _v, lambda x, *w, f=_run: f(x, None, w), Made(TOKENS, 2), *_weights)
        add(
            f"{_kind}.input",
            f"{_v}_started",
            lambda x, h, *w, f=_run: f(x, h, w),
            Made(TOKENS, None),
            Made((_layers * (1 + _both_ways), 2, 3), 2),
            *_weights,
        )
        add(
            f"{_kind}.data",
            _v,
            lambda x, *w, f=_run: f(
                pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True), None, w
            ),
            Made(TOKENS, 2),
            *_weights,
            real=True,
        )
    add(
        f"{_kind}.data",
        "started",
        lambda x, h, *w, k=_kind: _recurrent(
            k, pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True), h, w, 1, False
        ),
        Made(TOKENS, 2),
        Made((1, 2, 3), 2),
        *_cells(_kind),
        real=True,
    )
both("_pack_padded_sequence", lambda x: pack_padded_sequence(x, torch.tensor([5, 3]),
     batch_first=True).data, TOKENS, along=2, real=True)  # fmt: skip
