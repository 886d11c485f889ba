"""Random small networks for hypothesis.

``architectures()`` draws a :class:`Spec`: plain data that prints and shrinks well. ``build(spec)``
makes the module and an example input, always the same ones for the same spec.

A network is a stream that is either an image ``[batch, channels, height, width]`` or a sequence
``[batch, tokens, channels]``. A block that needs the other kind converts the stream first, so
every list of blocks is a valid network. The two numbers of a block choose among its variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from timm.layers import EcaModule, LayerNorm2d, ScaledStdConv2d, SEModule, StdConv2d
from timm.layers.grn import GlobalResponseNorm
from torch import Tensor, nn

WIDEST = 16


@dataclass(frozen=True)
class Block:
    """One block: its name, two numbers that choose its variant, and the blocks inside it."""

    name: str
    a: int = 0
    b: int = 0
    inner: tuple[Block, ...] = ()

    def __repr__(self) -> str:
        inside = f", {list(self.inner)}" if self.inner else ""
        return f"Block({self.name!r}, {self.a}, {self.b}{inside})"


@dataclass(frozen=True)
class Spec:
    """A whole network."""

    kind: str
    width: int
    blocks: tuple[Block, ...]
    head: str
    seed: int = 0


@dataclass(frozen=True)
class Shape:
    """What flows between two blocks: kind of stream, channels, and side (or root of tokens)."""

    kind: str
    channels: int
    side: int

    @property
    def tokens(self) -> int:
        return self.side * self.side


Built = tuple[nn.Module, Shape]
LEAVES: dict[str, Callable[[Shape, int, int], Built]] = {}
NESTING: dict[str, Callable[[Shape, int, int, tuple[Block, ...]], Built]] = {}
NEEDS: dict[str, str] = {}


def block(kind: str = "") -> Callable[[Callable[..., Built]], Callable[..., Built]]:
    """Register the builder of a block; ``kind`` is the stream that it needs, if any."""

    def add(build: Callable[..., Built]) -> Callable[..., Built]:
        name = build.__name__
        if name in LEAVES or name in NESTING:
            raise ValueError(f"two blocks are called {name!r}")
        takes_blocks = build.__code__.co_argcount == 4
        (NESTING if takes_blocks else LEAVES)[name] = build
        if kind:
            NEEDS[name] = kind
        return build

    return add


def pick(number: int, *choices: int) -> int:
    return choices[number % len(choices)]


def divisor(number: int, channels: int, *choices: int) -> int:
    """One of the choices that divide the number of channels."""
    return pick(number, *[c for c in choices if channels % c == 0])


# ---------------------------------------------------------------- strategies


def architectures(max_blocks: int = 5) -> st.SearchStrategy[Spec]:
    """Random small networks as plain data."""
    small = st.integers(0, 3)
    leaf = st.builds(Block, st.sampled_from(sorted(LEAVES)), small, small)
    blocks = st.recursive(
        leaf,
        lambda inside: st.builds(
            Block,
            st.sampled_from(sorted(NESTING)),
            small,
            small,
            st.lists(inside, min_size=1, max_size=3).map(tuple),
        ),
        max_leaves=6,
    )
    return st.builds(
        Spec,
        st.sampled_from(["image", "sequence"]),
        st.sampled_from([4, 8, 12]),
        st.lists(blocks, min_size=1, max_size=max_blocks).map(tuple),
        st.sampled_from(["pooled", "flattened", "conv"]),
        st.integers(0, 3),
    )


def build(spec: Spec) -> tuple[nn.Module, Tensor]:
    """The network of a spec, in eval mode, and an example input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = Network(spec).eval()
        if spec.kind == "image":
            return model, torch.randn(2, 3, 4, 4)
        return model, torch.randn(2, 4, 5)


class Network(nn.Module):
    """Stem, blocks, head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        if spec.kind == "image":
            self.stem: nn.Module = nn.Conv2d(3, spec.width, 3, padding=1)
            shape = Shape("image", spec.width, 4)
        else:
            self.stem = nn.Linear(5, spec.width)
            shape = Shape("sequence", spec.width, 2)
        self.body, shape = chain(shape, spec.blocks)
        self.head = head(shape, spec.head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))


def head(shape: Shape, kind: str) -> nn.Module:
    if kind == "conv":
        before, shape = converted(shape, "image")
        conv = nn.Conv2d(shape.channels, 3, 1)
        return nn.Sequential(before, conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if kind == "flattened":
        return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.tokens, 3))
    mean = Mean((2, 3) if shape.kind == "image" else (1,))
    return nn.Sequential(mean, nn.Linear(shape.channels, 3))


def chain(shape: Shape, blocks: tuple[Block, ...]) -> Built:
    """The blocks one after another, with a conversion wherever one is needed."""
    layers: list[nn.Module] = []
    for item in blocks:
        if shape.channels > WIDEST:
            layer, shape = narrowed(shape)
            layers.append(layer)
        if NEEDS.get(item.name, shape.kind) != shape.kind:
            layer, shape = converted(shape, NEEDS[item.name])
            layers.append(layer)
        if item.name in NESTING:
            layer, shape = NESTING[item.name](shape, item.a, item.b, item.inner)
        else:
            layer, shape = LEAVES[item.name](shape, item.a, item.b)
        layers.append(layer)
    return nn.Sequential(*layers), shape


# ---------------------------------------------------------------- conversions


class Mean(nn.Module):
    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims)


class ToSequence(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


class ToImage(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        side = math.isqrt(x.shape[1])
        return x.permute(0, 2, 1).reshape(x.shape[0], x.shape[2], side, side)


class Resize(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] > self.side:
            return F.adaptive_avg_pool2d(x, self.side)
        return F.interpolate(x, size=(self.side, self.side), mode="nearest")


def converted(shape: Shape, kind: str) -> Built:
    if kind == shape.kind:
        return nn.Identity(), shape
    layer = ToSequence() if kind == "sequence" else ToImage()
    return layer, Shape(kind, shape.channels, shape.side)


def projection(shape: Shape, channels: int) -> nn.Module:
    if shape.kind == "image":
        return nn.Conv2d(shape.channels, channels, 1)
    return nn.Linear(shape.channels, channels)


def narrowed(shape: Shape) -> Built:
    return projection(shape, 8), Shape(shape.kind, 8, shape.side)


def fitted(body: nn.Module, shape: Shape, target: Shape) -> nn.Module:
    """The body, followed by whatever makes its output the target's shape."""
    layers = [body]
    if shape.side != target.side:
        layer, shape = converted(shape, "image")
        layers += [layer, Resize(target.side)]
        shape = Shape("image", shape.channels, target.side)
    layer, shape = converted(shape, target.kind)
    layers.append(layer)
    if shape.channels != target.channels:
        layers.append(projection(shape, target.channels))
    return nn.Sequential(*layers)


# ---------------------------------------------------------------- blocks of blocks


class Residual(nn.Module):
    def __init__(self, body: nn.Module, variant: int) -> None:
        super().__init__()
        self.body = body
        self.variant = variant

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.variant == 1:
            return F.relu(y + x)
        if self.variant == 2:
            return y.add_(x) if y is not x else y + x
        if self.variant == 3:
            return x - y
        return x + y


@block()
def residual(shape: Shape, a: int, b: int, inner: tuple[Block, ...]) -> Built:
    body, after = chain(shape, inner)
    if b % 2:
        last = projection(after, after.channels)
        body = nn.Sequential(body, last)
    return Residual(fitted(body, after, shape), a), shape


class Gated(nn.Module):
    """The stream times a gate computed from it, channel by channel."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.body(x))


@block()
def gated(shape: Shape, a: int, b: int, inner: tuple[Block, ...]) -> Built:
    body, after = chain(shape, inner)
    target = Shape(shape.kind, 1, shape.side) if a % 2 else shape
    return Gated(fitted(body, after, target)), shape


class Branches(nn.Module):
    """Several branches of the same stream: concatenated, stacked and summed, or maximum."""

    def __init__(self, branches: list[nn.Module], how: str, dim: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.how = how
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        parts = [branch(x) for branch in self.branches]
        if self.how == "concat":
            return torch.cat([x, *parts], self.dim)
        stacked = torch.stack([x, *parts], 1)
        return stacked.sum(1) if self.how == "sum" else stacked.amax(1)


@block()
def branches(shape: Shape, a: int, b: int, inner: tuple[Block, ...]) -> Built:
    how = ("concat", "concat", "sum", "max")[a]
    channels = pick(b, 4, 3, 8, 2) if how == "concat" else shape.channels
    target = Shape(shape.kind, channels, shape.side)
    built = []
    for item in inner:
        body, after = chain(shape, (item,))
        built.append(fitted(body, after, target))
    dim = 1 if shape.kind == "image" else 2
    layer = Branches(built, how, dim)
    if how != "concat":
        return layer, shape
    total = shape.channels + channels * len(inner)
    return nn.Sequential(layer, projection(Shape(shape.kind, total, shape.side), 8)), Shape(
        shape.kind, 8, shape.side
    )


class SplitBody(nn.Module):
    """Some channels go through a body, the others pass."""

    def __init__(self, body: nn.Module, first: int, dim: int, variant: int) -> None:
        super().__init__()
        self.body = body
        self.first = first
        self.dim = dim
        self.variant = variant

    def forward(self, x: Tensor) -> Tensor:
        rest = x.shape[self.dim] - self.first
        if self.variant == 0:
            left, right = x.split([self.first, rest], self.dim)
            return torch.cat([self.body(F.gelu(left)), right], self.dim)
        # views: a body that works in place changes the stream itself
        left, right = x.narrow(self.dim, 0, self.first), x.narrow(self.dim, self.first, rest)
        if self.variant == 1:
            return torch.cat([right, self.body(left)], self.dim)
        if self.variant == 2:
            y = x.clone()
            y.narrow(self.dim, 0, self.first).copy_(self.body(left))
            return y
        return torch.cat([self.body(left), right], self.dim) + x


@block()
def split(shape: Shape, a: int, b: int, inner: tuple[Block, ...]) -> Built:
    if shape.channels == 1:
        return chain(shape, inner)
    first = pick(b, shape.channels // 2, 4, 1, 3)
    if first >= shape.channels:
        first = shape.channels // 2
    part = Shape(shape.kind, first, shape.side)
    body, after = chain(part, inner)
    dim = 1 if shape.kind == "image" else 2
    return SplitBody(fitted(body, after, part), first, dim, a), shape


class Twice(nn.Module):
    """One body called twice, in a row or on two parts of the stream."""

    def __init__(self, body: nn.Module, variant: int) -> None:
        super().__init__()
        self.body = body
        self.variant = variant

    def forward(self, x: Tensor) -> Tensor:
        if self.variant == 1:
            return self.body(x) + self.body(torch.tanh(x))
        if self.variant == 2:
            return self.body(x) * self.body(x.flip(-1))
        if self.variant == 3:
            return x + self.body(F.relu(self.body(x)))
        return self.body(F.relu(self.body(x)))


@block()
def twice(shape: Shape, a: int, b: int, inner: tuple[Block, ...]) -> Built:
    body, after = chain(shape, inner)
    return Twice(fitted(body, after, shape), a), shape


# ---------------------------------------------------------------- layers of both streams


@block()
def act(shape: Shape, a: int, b: int) -> Built:
    layer = (nn.ReLU(inplace=True), nn.GELU(), nn.Tanh(), nn.PReLU(1))[a]
    if a == 3 and b % 2 and shape.kind == "image":
        layer = nn.PReLU(shape.channels)
    return layer, shape


class Scale(nn.Module):
    """Layer scale, or one number for all channels, or a position embedding."""

    def __init__(self, shape: Shape, variant: int) -> None:
        super().__init__()
        image = shape.kind == "image"
        channels = (shape.channels, 1, 1) if image else (shape.channels,)
        place = (1, shape.side, shape.side) if image else (shape.tokens, 1)
        sizes: tuple[int, ...] = (channels, (), place, torch.broadcast_shapes(channels, place))[
            variant
        ]
        self.gamma = nn.Parameter(torch.rand(sizes) + 0.5)
        self.variant = variant

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma if self.variant == 3 else x * self.gamma


@block()
def scale(shape: Shape, a: int, b: int) -> Built:
    return Scale(shape, a), shape


class Mixing(nn.Module):
    """An operator that mixes channels without a weight."""

    def __init__(self, dim: int, variant: int, second: int) -> None:
        super().__init__()
        self.dim = dim
        self.variant = variant
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        if self.variant == 0:
            return x.softmax(self.dim) if self.second % 2 else F.normalize(x, dim=self.dim)
        if self.variant == 1:
            return x - x.mean(self.dim, keepdim=True)
        if self.variant == 2:
            return x.cumsum(self.dim) if self.second % 2 else x + x.roll(1, self.dim)
        return x * x.amax(self.dim, keepdim=True).sigmoid()


@block()
def mixing(shape: Shape, a: int, b: int) -> Built:
    return Mixing(1 if shape.kind == "image" else 2, a, b), shape


class InPlace(nn.Module):
    """Writes into its own copy of the stream."""

    def __init__(self, shape: Shape, variant: int) -> None:
        super().__init__()
        self.dim = 1 if shape.kind == "image" else 2
        self.first = shape.channels // 2
        self.part = projection(shape, min(2, shape.channels - self.first))
        self.variant = variant

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        x = x.clone()
        view = x.narrow(self.dim, self.first, y.shape[self.dim])
        if self.variant == 0:
            view.copy_(y)
        elif self.variant == 1:
            view.add_(y)
        elif self.variant == 2:
            view.mul_(y.sigmoid_())
        else:
            x.select(self.dim, 0).add_(x.select(self.dim, -1))
            x.relu_()
        return x


@block()
def in_place(shape: Shape, a: int, b: int) -> Built:
    return InPlace(shape, a), shape


class Shuffle(nn.Module):
    def __init__(self, shape: Shape, groups: int) -> None:
        super().__init__()
        self.image = shape.kind == "image"
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        if self.image:
            return F.channel_shuffle(x, self.groups)
        return x.unflatten(-1, (self.groups, -1)).transpose(-1, -2).flatten(-2)


@block()
def shuffle(shape: Shape, a: int, b: int) -> Built:
    return Shuffle(shape, divisor(a, shape.channels, 1, 2, 3, 4)), shape


class GatedLinear(nn.Module):
    def __init__(self, shape: Shape, channels: int) -> None:
        super().__init__()
        self.dim = 1 if shape.kind == "image" else 2
        self.linear = projection(shape, 2 * channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.linear(x), self.dim)


@block()
def glu(shape: Shape, a: int, b: int) -> Built:
    channels = pick(a, 4, 8, shape.channels)
    return GatedLinear(shape, channels), Shape(shape.kind, channels, shape.side)


# ---------------------------------------------------------------- layers of images


@block("image")
def conv(shape: Shape, a: int, b: int) -> Built:
    channels = pick(a, 4, 8, 12)
    size = pick(b, 1, 3)
    mode: Literal["circular", "zeros"] = "circular" if b == 3 else "zeros"
    layer = nn.Conv2d(shape.channels, channels, size, padding=size // 2, padding_mode=mode)
    return layer, Shape("image", channels, shape.side)


@block("image")
def grouped_conv(shape: Shape, a: int, b: int) -> Built:
    groups = divisor(a, shape.channels, 1, 2, 3, 4)
    if b == 3:
        transposed = nn.ConvTranspose2d(shape.channels, 2 * groups, 1, groups=groups)
        return transposed, Shape("image", 2 * groups, shape.side)
    channels = groups * pick(b, 2, 3)
    layer = nn.Conv2d(shape.channels, channels, 3, padding=1, groups=groups)
    return layer, Shape("image", channels, shape.side)


@block("image")
def depthwise_conv(shape: Shape, a: int, b: int) -> Built:
    multiplier = 2 if a == 3 and shape.channels <= 8 else 1
    channels = shape.channels * multiplier
    layer = nn.Conv2d(shape.channels, channels, 3, padding=1, groups=shape.channels)
    return layer, Shape("image", channels, shape.side)


@block("image")
def standardised_conv(shape: Shape, a: int, b: int) -> Built:
    channels = pick(a, 4, 8)
    layer = (StdConv2d if b % 2 else ScaledStdConv2d)(shape.channels, channels, 3, padding=1)
    return layer, Shape("image", channels, shape.side)


@block("image")
def image_norm(shape: Shape, a: int, b: int) -> Built:
    if a == 0:
        return nn.BatchNorm2d(shape.channels, affine=b != 3), shape
    if a == 1:
        return LayerNorm2d(shape.channels), shape
    if a == 2:
        return nn.GroupNorm(divisor(b, shape.channels, 1, 2, 4), shape.channels), shape
    if b % 2:
        return nn.InstanceNorm2d(shape.channels, affine=True), shape
    return GlobalResponseNorm(shape.channels, channels_last=False), shape


class SpatialGate(nn.Module):
    """One channel gates all others."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.gate(x))


@block("image")
def image_gate(shape: Shape, a: int, b: int) -> Built:
    if a == 0:
        return SEModule(shape.channels, rd_channels=4), shape
    return (EcaModule(kernel_size=3) if a == 1 else SpatialGate(shape.channels)), shape


class Shuffled(nn.Module):
    """Pixels into channels, a conv, channels into pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4 * channels, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.conv(F.pixel_unshuffle(x, 2)), 2)


@block("image")
def pixel_shuffle(shape: Shape, a: int, b: int) -> Built:
    if shape.side % 2 == 0:
        return Shuffled(shape.channels), Shape("image", 2, shape.side)
    return nn.Identity(), shape


@block("image")
def pool(shape: Shape, a: int, b: int) -> Built:
    if shape.side < 4:
        return nn.Upsample(scale_factor=2, mode="nearest"), Shape("image", shape.channels, 4)
    layer = nn.MaxPool2d(2) if a % 2 else nn.AvgPool2d(2)
    return layer, Shape("image", shape.channels, shape.side // 2)


# ---------------------------------------------------------------- layers of sequences


@block("sequence")
def linear(shape: Shape, a: int, b: int) -> Built:
    channels = pick(a, 4, 8, 12)
    layer: nn.Module = nn.Linear(shape.channels, channels, bias=b % 2 == 0)
    if b == 3:
        layer = nn.utils.parametrizations.weight_norm(layer)
    return layer, Shape("sequence", channels, shape.side)


@block("sequence")
def sequence_norm(shape: Shape, a: int, b: int) -> Built:
    if a % 2:
        return nn.RMSNorm(shape.channels), shape
    return nn.LayerNorm(shape.channels, elementwise_affine=b != 3), shape


class Attention(nn.Module):
    """Self attention with 1 to 4 heads, written out or with the fused operator."""

    def __init__(self, channels: int, heads: int, variant: int) -> None:
        super().__init__()
        self.heads = heads
        self.variant = variant
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.variant == 0:
            y = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v
        elif self.variant == 1:
            y = F.scaled_dot_product_attention(q, k, v)
        elif self.variant == 2:
            y = torch.sigmoid(q) @ (k.softmax(-2).mT @ v)
        else:
            scores = F.normalize(q, dim=-2).mT @ F.normalize(k, dim=-2)
            y = (scores.softmax(-1) @ v.mT).mT
        return self.proj(y.transpose(1, 2).flatten(2))


@block("sequence")
def attention(shape: Shape, a: int, b: int) -> Built:
    return Attention(shape.channels, divisor(b, shape.channels, 1, 2, 3, 4), a), shape


class MultiHead(nn.Module):
    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


@block("sequence")
def multi_head(shape: Shape, a: int, b: int) -> Built:
    return MultiHead(shape.channels, divisor(a, shape.channels, 1, 2, 4)), shape


class Recurrence(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


@block("sequence")
def recurrence(shape: Shape, a: int, b: int) -> Built:
    kind = (nn.GRU, nn.LSTM, nn.RNN, nn.LSTM)[a]
    both = b % 2 == 1
    layer = kind(shape.channels, 4, num_layers=1 + b // 2, bidirectional=both, batch_first=True)
    return Recurrence(layer), Shape("sequence", 8 if both else 4, shape.side)


class TokenMixing(nn.Module):
    def __init__(self, tokens: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(tokens, hidden)
        self.second = nn.Linear(hidden, tokens)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x.transpose(1, 2)))).transpose(1, 2)


@block("sequence")
def token_mixing(shape: Shape, a: int, b: int) -> Built:
    return TokenMixing(shape.tokens, pick(a, 2, 4)), shape
