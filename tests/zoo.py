"""One tiny model per hazard of channel analysis.

``ZOO[name]()`` returns ``(model, example_inputs)``: an ``nn.Module`` in eval mode and a tensor,
a tuple of tensors or a dict of tensors (batch of two). Models are built from a fixed seed, leave
the global random state alone, and run in a few milliseconds so that brute force stays cheap.

A hazard is always put *between* layers that can be divided, and ends in a head, so that a wrong
answer about it shows in the output.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from timm.layers import (
    EcaModule,
    GlobalContext,
    LayerNorm2d,
    ScaledStdConv2d,
    SelectiveKernel,
    SEModule,
    SplitAttn,
    StdConv2d,
    SwiGLU,
)
from timm.layers.cbam import CbamModule
from timm.layers.grn import GlobalResponseNorm
from timm.models.mlp_mixer import MixerBlock, SpatialGatingBlock
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.xcit import XCA
from torch import Tensor, nn
from torch.nn.utils import parametrizations

ZOO: dict[str, Callable[[], tuple[nn.Module, Any]]] = {}

Inputs = Callable[[], Any]


def image() -> Tensor:
    return torch.randn(2, 3, 6, 6)


def wide_image() -> Tensor:
    return torch.randn(2, 3, 8, 8)


def vector() -> Tensor:
    return torch.randn(2, 6)


def tokens() -> Tensor:
    return torch.randn(2, 5, 6)


def signal() -> Tensor:
    return torch.randn(2, 3, 8)


def volume() -> Tensor:
    return torch.randn(2, 3, 4, 4, 4)


def words() -> Tensor:
    return torch.randint(0, 7, (2, 5))


def two_sequences() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 5, 6), torch.randn(2, 4, 5)


def register(name: str, inputs: Inputs, make: Callable[[], nn.Module]) -> None:
    """Add a model to the zoo; a second registration of a name is an error."""
    if name in ZOO:
        raise ValueError(f"two models are called {name!r}")

    def build() -> tuple[nn.Module, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make().eval(), inputs()

    ZOO[name] = build


def hazard(inputs: Inputs) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a class under its name in snake case."""

    def add(cls: type[nn.Module]) -> type[nn.Module]:
        register(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower(), inputs, cls)
        return cls

    return add


class Tiny(nn.Module):
    """A module whose children, parameters and buffers are listed by ``layers``."""

    def __init__(self) -> None:
        super().__init__()
        for name, layer in self.layers().items():
            setattr(self, name, layer)

    def layers(self) -> dict[str, Any]:
        raise NotImplementedError

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def pooled(channels: int, classes: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def stem(channels: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU())


def between_convs(*body: nn.Module, channels: int = 8, out: int = 8) -> nn.Sequential:
    """Conv, the hazard, conv, pooled head."""
    after = nn.Conv2d(out, 8, 3, padding=1)
    return nn.Sequential(stem(channels), *body, after, nn.ReLU(), pooled(8))


def between_linears(*body: nn.Module, width: int = 8, out: int = 8) -> nn.Sequential:
    """Linear on tokens, the hazard, linear, mean over tokens, head."""
    return nn.Sequential(
        nn.Linear(6, width), *body, nn.Linear(out, 8), nn.GELU(), MeanTokens(), nn.Linear(8, 3)
    )


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-1]))


class MeanTokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class Apply(nn.Module):
    """A function of one tensor as a module (so that it has a module path of its own)."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


# ---------------------------------------------------------------- plain networks

register(
    "mlp",
    vector,
    lambda: nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 3)
    ),
)
register("token_mlp", tokens, lambda: between_linears(nn.ReLU(), nn.Linear(8, 8), nn.SiLU()))
register("conv_bn_relu", image, lambda: between_convs(nn.BatchNorm2d(8), nn.ReLU()))
register("dropout", image, lambda: between_convs(nn.Dropout2d(0.5), nn.Dropout(0.5)))
register("max_pool", image, lambda: between_convs(nn.MaxPool2d(2), nn.AvgPool2d(2, padding=1)))
register("adaptive_pool", image, lambda: between_convs(nn.AdaptiveAvgPool2d(4)))
register("adaptive_max_pool", image, lambda: between_convs(nn.AdaptiveMaxPool2d((2, 3))))
register(
    "flatten_linear",
    image,
    lambda: nn.Sequential(stem(4), nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 3)),
)
register("flatten_head", image, lambda: nn.Sequential(stem(4), nn.Flatten(), nn.Linear(144, 3)))
register(
    "conv_head_pooled",
    image,
    lambda: nn.Sequential(stem(), nn.Conv2d(8, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
)
register(
    "dense_prediction",
    image,
    lambda: nn.Sequential(stem(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)),
)
register(
    "log_softmax_head",
    vector,
    lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.LogSoftmax(dim=-1)),
)


@hazard(image)
class Residual(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(),
            "body": nn.Sequential(
                nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 1)
            ),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(x + self.body(x)))


@hazard(image)
class ResidualProjection(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(4),
            "body": nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)),
            "shortcut": nn.Conv2d(4, 8, 1, stride=2),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(self.body(x) + self.shortcut(x)))


@hazard(image)
class Bottleneck(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(),
            "reduce": nn.Conv2d(8, 4, 1),
            "conv": nn.Conv2d(4, 4, 3, padding=1, groups=2),
            "norm": nn.BatchNorm2d(4),
            "expand": nn.Conv2d(4, 8, 1),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.relu(self.norm(self.conv(F.relu(self.reduce(x)))))
        return self.head(x + self.expand(y))


@hazard(image)
class TwoResidualStreams(Tiny):
    """Two streams joined late: their channels are coupled through a sum, not before."""

    def layers(self) -> dict[str, Any]:
        return {
            "left": stem(6),
            "right": stem(6),
            "left_body": nn.Conv2d(6, 6, 1),
            "right_body": nn.Conv2d(6, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        left = left + self.left_body(right)
        right = right - self.right_body(left)
        return self.head(left.flip(1) * torch.sigmoid(right))


# ---------------------------------------------------------------- concatenation and slices


@hazard(image)
class Concat(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(4),
            "first": nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)),
            "second": nn.Sequential(nn.BatchNorm2d(7), nn.ReLU(), nn.Conv2d(7, 3, 3, padding=1)),
            "norm": nn.BatchNorm2d(10),
            "head": pooled(10),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.first(x)], 1)
        x = torch.cat([x, self.second(x)], 1)
        return self.head(self.norm(x))


@hazard(image)
class ConcatInput(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"stem": stem(5), "conv": nn.Conv2d(8, 6, 3, padding=1), "head": pooled(9)}

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([x, self.stem(x)], 1)
        return self.head(torch.cat((self.conv(y), x), 1))


@hazard(image)
class Slices(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "first": nn.Conv2d(3, 4, 1),
            "second": nn.Conv2d(5, 4, 3, padding=1),
            "strided": nn.Conv2d(4, 4, 1),
            "head": pooled(4),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.first(x[:, :3]) + self.second(x[:, 3:]) + self.strided(x[:, 1::2]))


@hazard(image)
class Chunk(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "branch": nn.Conv2d(4, 4, 3, padding=1),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=1)
        return self.head(self.after(torch.cat([self.branch(left) * right, left], 1)))


@hazard(image)
class Split(Tiny):
    """Inception-next style: some channels pass, others get depthwise convolutions."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "wide": nn.Conv2d(2, 2, (1, 3), padding=(0, 1), groups=2),
            "tall": nn.Conv2d(2, 2, (3, 1), padding=(1, 0), groups=2),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        same, wide, tall = torch.split(x, [4, 2, 2], dim=1)
        return self.head(self.after(torch.cat([same, self.wide(wide), self.tall(tall)], 1) + x))


@hazard(image)
class Hierarchical(Tiny):
    """Res2Net: each slice is added to the output of the one before it."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "convs": nn.ModuleList(nn.Conv2d(2, 2, 3, padding=1) for _ in range(3)),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(self.stem(x), 2, 1)
        out, previous = [parts[0]], parts[0]
        for conv, part in zip(self.convs, parts[1:], strict=True):
            previous = F.relu(conv(part + previous))
            out.append(previous)
        return self.head(self.after(torch.cat(out, 1)))


@hazard(image)
class UnbindSqueeze(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"stem": stem(6), "conv": nn.Conv2d(3, 4, 3, padding=1), "head": pooled(4)}

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stem(x).unflatten(1, (2, 3)).unbind(1)
        first = b.select(1, 0).unsqueeze(1)
        return self.head(self.conv(a - b) * torch.tanh(first))


@hazard(image)
class RepeatInterleave(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"stem": stem(4), "conv": nn.Conv2d(8, 8, 1), "head": pooled(8)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv(x.repeat_interleave(2, dim=1))
        return self.head(y + torch.cat([x, x.flip(1)], 1) + x.repeat(1, 2, 1, 1))


@hazard(image)
class ZeroPaddedChannels(Tiny):
    """PyramidNet's shortcut: the channels that are not there are padded with zeros."""

    def layers(self) -> dict[str, Any]:
        return {"stem": stem(5), "conv": nn.Conv2d(5, 8, 3, padding=1), "head": pooled(8)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(self.conv(x) + F.pad(x, (0, 0, 0, 0, 0, 3))))


# ---------------------------------------------------------------- convolutions

register(
    "grouped_conv", image, lambda: between_convs(nn.Conv2d(8, 12, 3, padding=1, groups=4), out=12)
)
register("depthwise_conv", image, lambda: between_convs(nn.Conv2d(8, 8, 3, padding=1, groups=8)))
register(
    "depthwise_multiplier",
    image,
    lambda: between_convs(nn.Conv2d(8, 16, 3, padding=1, groups=8), nn.BatchNorm2d(16), out=16),
)
register(
    "circular_conv",
    image,
    lambda: between_convs(nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")),
)
register(
    "reflect_conv",
    image,
    lambda: between_convs(
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), nn.ReflectionPad2d(1)
    ),
)
register("same_conv", image, lambda: between_convs(nn.Conv2d(8, 8, 3, padding="same", dilation=2)))
register(
    "transposed_conv",
    image,
    lambda: between_convs(nn.ConvTranspose2d(8, 6, 2, stride=2), nn.BatchNorm2d(6), out=6),
)
register(
    "transposed_grouped",
    image,
    lambda: between_convs(nn.ConvTranspose2d(8, 6, 3, padding=1, groups=2), out=6),
)
register(
    "transposed_depthwise",
    image,
    lambda: between_convs(nn.ConvTranspose2d(8, 8, 2, stride=2, groups=8)),
)
register("std_conv", image, lambda: between_convs(StdConv2d(8, 8, 3, padding=1)))
register("scaled_std_conv", image, lambda: between_convs(ScaledStdConv2d(8, 8, 3, padding=1)))
register(
    "scaled_std_grouped",
    image,
    lambda: between_convs(ScaledStdConv2d(8, 8, 3, padding=1, groups=2)),
)
register(
    "weight_norm_conv",
    image,
    lambda: between_convs(parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1))),
)
register(
    "weight_norm_linear",
    tokens,
    lambda: between_linears(parametrizations.weight_norm(nn.Linear(8, 8))),
)
register(
    "weight_norm_all",
    tokens,
    lambda: between_linears(parametrizations.weight_norm(nn.Linear(8, 8), dim=-1)),
)
register(
    "spectral_norm",
    tokens,
    lambda: between_linears(parametrizations.spectral_norm(nn.Linear(8, 8))),
)
register(
    "conv1d",
    signal,
    lambda: nn.Sequential(
        nn.Conv1d(3, 8, 3, padding=1),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Conv1d(8, 6, 3, groups=2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    ),
)
register(
    "conv1d_transposed",
    signal,
    lambda: nn.Sequential(
        nn.Conv1d(3, 8, 3, padding=1),
        nn.ConvTranspose1d(8, 6, 2, stride=2, groups=2),
        nn.GELU(),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(48, 3),
    ),
)
register(
    "conv3d",
    volume,
    lambda: nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.Conv3d(8, 6, 1),
        nn.ConvTranspose3d(6, 6, 2, groups=3),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    ),
)


@hazard(image)
class FunctionalConv(Tiny):
    """A weight that is a bare parameter, used whole, sliced and expanded."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "kernel": weight(8, 8, 3, 3),
            "shared": weight(1, 1, 3, 3),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.conv2d(x, self.kernel, padding=1)
        y = y + F.conv2d(x[:, :4], self.kernel[:, 4:], padding=1)
        return self.head(F.conv2d(y, self.shared.expand(8, 1, 3, 3), padding=1, groups=8))


@hazard(image)
class Hypernetwork(Tiny):
    """The kernel is computed from pooled activations, one per image."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(4),
            "kernel": nn.Linear(4, 24),
            "after": nn.Conv2d(6, 5, 1),
            "head": pooled(5),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        batch, channels, height, width = x.shape
        kernel = self.kernel(x.mean((2, 3))).reshape(batch * 6, channels, 1, 1)
        y = F.conv2d(x.reshape(1, batch * channels, height, width), kernel, groups=batch)
        return self.head(self.after(F.relu(y.reshape(batch, 6, height, width))))


@hazard(image)
class MixtureOfExperts(Tiny):
    """CondConv: a soft gate over expert kernels held in one parameter."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(4),
            "router": nn.Linear(4, 3),
            "experts": weight(3, 6, 4),
            "after": nn.Conv2d(6, 5, 1),
            "head": pooled(5),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate = torch.softmax(self.router(x.mean((2, 3))), -1)
        kernels = (gate @ self.experts.flatten(1)).reshape(-1, 6, 4)
        y = kernels @ x.flatten(2)
        return self.head(self.after(F.relu(y.unflatten(2, x.shape[2:]))))


@hazard(vector)
class SoftExperts(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": nn.Linear(6, 6),
            "gate": nn.Linear(6, 3),
            "experts": nn.ModuleList(nn.Linear(6, 5) for _ in range(3)),
            "head": nn.Linear(5, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        gate = self.gate(x).softmax(-1)
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        return self.head((gate.unsqueeze(-1) * answers).sum(1))


# ---------------------------------------------------------------- embeddings


@hazard(words)
class Embedding(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "embedding": nn.Embedding(7, 8, padding_idx=0),
            "linear": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.linear(self.embedding(x))).mean(1))


@hazard(words)
class EmbeddingBag(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "bag": nn.EmbeddingBag(7, 8, mode="mean"),
            "linear": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.linear(self.bag(x))))


@hazard(words)
class TiedEmbeddingOutput(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"embedding": nn.Embedding(7, 8), "linear": nn.Linear(8, 8)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        x = x + F.gelu(self.linear(x))
        return F.linear(x, self.embedding.weight)


@hazard(words)
class PositionEmbedding(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "words": nn.Embedding(7, 8),
            "positions": nn.Embedding(6, 8),
            "order": nn.Buffer(torch.arange(6)),
            "linear": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) * 2.0 + self.positions(self.order[: x.shape[1]])
        return self.head(torch.tanh(self.linear(x)).amax(1))


# ---------------------------------------------------------------- norms

register(
    "batch_norm_1d",
    vector,
    lambda: nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, 3),
    ),
)
register("batch_norm_no_affine", image, lambda: between_convs(nn.BatchNorm2d(8, affine=False)))
register(
    "batch_norm_no_stats",
    image,
    lambda: between_convs(nn.BatchNorm2d(8, track_running_stats=False)),
)
register("layer_norm", tokens, lambda: between_linears(nn.LayerNorm(8)))
register("layer_norm_no_bias", tokens, lambda: between_linears(nn.LayerNorm(8, bias=False)))
register(
    "layer_norm_no_affine",
    tokens,
    lambda: between_linears(nn.LayerNorm(8, elementwise_affine=False)),
)
register("layer_norm_2d", image, lambda: between_convs(LayerNorm2d(8)))
register("layer_norm_all", image, lambda: between_convs(nn.LayerNorm((8, 6, 6))))
register("layer_norm_space", image, lambda: between_convs(nn.LayerNorm((6, 6))))
register("rms_norm", tokens, lambda: between_linears(nn.RMSNorm(8)))
register("group_norm", image, lambda: between_convs(nn.GroupNorm(2, 8)))
register("group_norm_one", image, lambda: between_convs(nn.GroupNorm(1, 8)))
register("instance_norm", image, lambda: between_convs(nn.InstanceNorm2d(8, affine=True)))
register(
    "instance_norm_stats",
    image,
    lambda: between_convs(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
)
register("local_response_norm", image, lambda: between_convs(nn.LocalResponseNorm(3)))
register(
    "global_response_norm", image, lambda: between_convs(GlobalResponseNorm(8, channels_last=False))
)
register("softmax_channels", image, lambda: between_convs(nn.Softmax(dim=1)))
register("log_softmax_channels", tokens, lambda: between_linears(nn.LogSoftmax(dim=-1)))
register(
    "normalize_channels", tokens, lambda: between_linears(Apply(lambda x: F.normalize(x, dim=-1)))
)
register(
    "softmax_space",
    image,
    lambda: between_convs(Apply(lambda x: x * x.flatten(2).softmax(-1).reshape(x.shape))),
)


class FunctionalNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias)


register("functional_layer_norm", tokens, lambda: between_linears(FunctionalNorm(8)))


@hazard(tokens)
class FunctionalLayerNormRoot(Tiny):
    """No submodule around the norm: it cannot be evaluated apart from the whole model."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "scale": weight(8),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(self.linear(x), (8,), self.scale)
        return self.head(F.relu(self.after(x)).mean(1))


@hazard(image)
class WrittenOutNorm(Tiny):
    """ConvNeXt's channels-first norm, with operators."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "scale": weight(8, 1, 1),
            "shift": weight(8, 1, 1),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.head(F.gelu(self.after(self.scale * x + self.shift)))


@hazard(tokens)
class PostNormResidual(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "body": nn.Sequential(nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8)),
            "norm": nn.LayerNorm(8),
            "second": nn.RMSNorm(8),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        x = self.norm(x + self.body(x))
        return self.head(self.second(x - self.body(x)).mean(1))


@hazard(tokens)
class NormCalledTwice(Tiny):
    """One norm on two different streams: its elements follow both."""

    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 8),
            "right": nn.Linear(6, 8),
            "norm": nn.LayerNorm(8),
            "after": nn.Linear(16, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.norm(self.left(x)), self.norm(self.right(x))], -1)
        return self.head(F.relu(self.after(both)).mean(1))


@hazard(tokens)
class NormOfConcat(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 5),
            "right": nn.Linear(6, 3),
            "norm": nn.LayerNorm(8),
            "after": nn.Linear(4, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        both = self.norm(torch.cat([self.left(x), self.right(x)], -1))
        return self.head(F.relu(self.after(both[..., 2:6])).mean(1))


# ---------------------------------------------------------------- mixing without weights


class MixChannels(nn.Module):
    """Conv, one function of the channels, conv, head."""

    def __init__(self, function: Callable[[Tensor], Tensor], out: int = 8) -> None:
        super().__init__()
        self.stem = stem(8)
        self.function = function
        self.after = nn.Conv2d(out, 6, 1)
        self.head = pooled(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.after(self.function(self.stem(x)))))


for _name, _function, _out in [
    ("cumsum_channels", lambda x: x.cumsum(1), 8),
    ("sort_channels", lambda x: x.sort(dim=1).values, 8),
    ("max_channels", lambda x: x - x.max(dim=1, keepdim=True).values, 8),
    ("amax_channels", lambda x: x.amax(1, keepdim=True), 1),
    ("top_channels", lambda x: x.topk(3, dim=1).values, 3),
    ("top_channels_gathered", lambda x: x.gather(1, x.topk(3, dim=1).indices), 3),
    ("argmax_channels", lambda x: x * x.argmax(1, keepdim=True), 8),
    ("mean_channels", lambda x: x.mean(1, keepdim=True), 1),
    ("std_channels", lambda x: x / (x.std(1, keepdim=True) + 1), 8),
    ("prod_channels", lambda x: x + x.prod(1, keepdim=True), 8),
    ("logsumexp_channels", lambda x: x - x.logsumexp(1, keepdim=True), 8),
    ("norm_channels", lambda x: x / (x.norm(dim=1, keepdim=True) + 1), 8),
    ("pairwise_sum", lambda x: x.unflatten(1, (4, 2)).sum(2), 4),
    ("pairwise_max", lambda x: x.unflatten(1, (2, 4)).amax(1), 4),
    ("diff_channels", lambda x: x[:, 1:] - x[:, :-1], 7),
    ("gram_matrix", lambda x: torch.einsum("bchw,bdhw->bcd", x, x).sum(-1)[..., None, None] * x, 8),
    ("whole_tensor_max", lambda x: x / (x.abs().max() + 1), 8),
    ("fft_space", lambda x: torch.fft.fft2(x, norm="ortho").real, 8),
    ("fft_channels", lambda x: torch.fft.fft(x, dim=1).real, 8),
    ("roll_channels", lambda x: x + 0.5 * x.roll(1, 1), 8),
    ("flip_channels", lambda x: torch.cat([x[:, :4], x[:, 4:].flip(1)], 1), 8),
    ("pool_channels", lambda x: F.avg_pool1d(x.flatten(2).mT, 2).mT.unflatten(2, (6, 6)), 4),
    ("unfold", lambda x: F.unfold(x, 3, padding=1).unflatten(2, (6, 6)), 72),
    ("fold", lambda x: F.fold(F.unfold(x, 2), (6, 6), 2), 8),
    ("max_pool_channels", lambda x: F.max_pool3d(x[:, None], (3, 1, 1), 1, (1, 0, 0))[:, 0], 8),
    (
        "upsample_channels",
        lambda x: F.interpolate(x.flatten(2).mT, 12, mode="linear").mT[..., None],
        12,
    ),
    ("batch_mean", lambda x: x - x.mean(0, keepdim=True), 8),
    ("glu", lambda x: F.glu(x, 1), 4),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), 2),
    ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), 32),
    ("channel_shuffle", lambda x: F.channel_shuffle(x, 4), 8),
    ("channel_shuffle_views", lambda x: x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2), 8),
    ("upsample", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 8),
    ("space_to_channels", lambda x: torch.cat([x[..., ::2, ::2], x[..., 1::2, 1::2]], 1), 16),
]:
    register(
        _name,
        image,
        lambda function=_function, out=_out: MixChannels(function, out),  # type: ignore[misc]
    )


@hazard(image)
class MeanChannelsLinear(Tiny):
    """The mean over channels leaves space, which a Linear then reads."""

    def layers(self) -> dict[str, Any]:
        return {"stem": stem(8), "linear": nn.Linear(36, 6), "head": nn.Linear(6, 3)}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.linear(self.stem(x).mean(1).flatten(1))))


# ---------------------------------------------------------------- attention


@hazard(tokens)
class AttentionWritten(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "qkv": nn.Linear(8, 24),
            "proj": nn.Linear(8, 8),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        batch, length, channels = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, 2, channels // 2).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attention = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
        y = (attention @ v).transpose(1, 2).reshape(batch, length, channels)
        return self.head((x + self.proj(y)).mean(1))


@hazard(tokens)
class AttentionKernel(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "q": nn.Linear(6, 8),
            "k": nn.Linear(6, 8, bias=False),
            "v": nn.Linear(6, 12),
            "proj": nn.Linear(12, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.head(F.relu(self.proj(y.transpose(1, 2).flatten(2))).mean(1))


@hazard(tokens)
class AttentionKernelMask(Tiny):
    """Grouped queries, and an additive mask that is learned per head."""

    def layers(self) -> dict[str, Any]:
        return {
            "q": nn.Linear(6, 8),
            "kv": nn.Linear(6, 8),
            "bias": weight(1, 4, 5, 5),
            "proj": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 2)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 2, 2)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias, enable_gqa=True)
        return self.head(F.relu(self.proj(y.transpose(1, 2).flatten(2))).mean(1))


@hazard(tokens)
class CausalAttention(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "qkv": nn.Linear(6, 24),
            "mask": nn.Buffer(torch.ones(5, 5).triu(1).bool()),
            "proj": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)) for part in self.qkv(x).split(8, -1))
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k).masked_fill(self.mask, float("-inf"))
        y = torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v).flatten(2)
        return self.head(F.relu(self.proj(y))[:, -1])


@hazard(tokens)
class RotaryAttention(Tiny):
    """Rotary embedding couples pairs of channels inside q and k."""

    def layers(self) -> dict[str, Any]:
        angle = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1])
        return {
            "qkv": nn.Linear(6, 24),
            "cos": nn.Buffer(torch.cat([angle.cos()] * 2, -1)),
            "sin": nn.Buffer(torch.cat([angle.sin()] * 2, -1)),
            "proj": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def rotate(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return x * self.cos + torch.cat([-right, left], -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)
        return self.head(F.relu(self.proj(y.transpose(1, 2).flatten(2))).mean(1))


@hazard(tokens)
class TalkingHeads(Tiny):
    """CaiT: a Linear over the heads, before and after the softmax."""

    def layers(self) -> dict[str, Any]:
        return {
            "qkv": nn.Linear(6, 24),
            "before": nn.Linear(4, 4),
            "after": nn.Linear(4, 4),
            "proj": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 2)).permute(2, 0, 3, 1, 4)
        scores = self.before((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        scores = self.after(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(F.relu(self.proj((scores @ v).transpose(1, 2).flatten(2))).mean(1))


@hazard(tokens)
class MultiheadSelf(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "attention": nn.MultiheadAttention(8, 2, batch_first=True),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.head((x + y).mean(1))


@hazard(two_sequences)
class MultiheadCross(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 8),
            "right": nn.Linear(5, 4),
            "attention": nn.MultiheadAttention(8, 4, kdim=4, vdim=4, batch_first=True),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        x, context = self.left(x), F.relu(self.right(context))
        y, weights = self.attention(x, context, context)
        return self.head((x + y).mean(1)), weights


@hazard(tokens)
class MultiheadExtraTokens(Tiny):
    """Learned extra key and value, and a zero token."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "attention": nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).transpose(0, 1)
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.head(y.mean(0))


register(
    "transformer_encoder",
    tokens,
    lambda: between_linears(nn.TransformerEncoderLayer(8, 2, 10, batch_first=True)),
)
register(
    "transformer_encoder_pre_norm",
    tokens,
    lambda: between_linears(
        nn.TransformerEncoderLayer(8, 2, 10, batch_first=True, norm_first=True, activation="gelu")
    ),
)


@hazard(two_sequences)
class TransformerDecoder(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 8),
            "right": nn.Linear(5, 8),
            "decoder": nn.TransformerDecoderLayer(8, 2, 10, batch_first=True),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.head(self.decoder(self.left(x), self.right(memory)).mean(1))


@hazard(tokens)
class LinearAttention(Tiny):
    """k^T v first: a matrix of channels by channels."""

    def layers(self) -> dict[str, Any]:
        return {
            "qkv": nn.Linear(6, 24),
            "proj": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        y = q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT + 1)
        return self.head(F.relu(self.proj(y.transpose(1, 2).flatten(2))).mean(1))


@hazard(tokens)
class ChannelAttention(Tiny):
    """XCiT: the attention pattern is between the channels of a head."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "attention": XCA(8, num_heads=2, qkv_bias=True),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.head((x + self.attention(x)).mean(1))


@hazard(tokens)
class RelativePositionBias(Tiny):
    def layers(self) -> dict[str, Any]:
        position = torch.arange(5)
        return {
            "table": weight(9, 2),
            "index": nn.Buffer(position[:, None] - position[None, :] + 4),
            "qkv": nn.Linear(6, 24),
            "proj": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(5, 5, 2).permute(2, 0, 1)
        y = (q @ k.mT + bias.unsqueeze(0)).softmax(-1) @ v
        return self.head(F.relu(self.proj(y.transpose(1, 2).flatten(2))).mean(1))


@hazard(tokens)
class CosineAttention(Tiny):
    """Swin v2: normalised q and k, a learned temperature per head."""

    def layers(self) -> dict[str, Any]:
        return {
            "qkv": nn.Linear(6, 24),
            "logit_scale": nn.Parameter(torch.rand(2, 1, 1)),
            "proj": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        scores = scores * torch.clamp(self.logit_scale, max=4.0).exp()
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.head(F.relu(self.proj(y)).mean(1))


@hazard(tokens)
class QueryKeyNorm(Tiny):
    """A LayerNorm over each head's channels, its weight shared by all heads."""

    def layers(self) -> dict[str, Any]:
        return {
            "qkv": nn.Linear(6, 24),
            "q_norm": nn.LayerNorm(4),
            "k_norm": nn.RMSNorm(4),
            "proj": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.head(F.relu(self.proj(y.transpose(1, 2).flatten(2))).mean(1))


@hazard(tokens)
class ConcatenatedBias(Tiny):
    """BEiT: the bias of qkv is put together from two parameters and zeros."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "qkv": nn.Linear(8, 24, bias=False),
            "q_bias": weight(8),
            "v_bias": weight(8),
            "k_bias": nn.Buffer(torch.zeros(8)),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
        qkv = F.linear(self.linear(x), self.qkv.weight, bias)
        q, k, v = qkv.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(F.relu(y).mean(1))


@hazard(wide_image)
class ClassToken(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "patch": nn.Conv2d(3, 8, 4, stride=4),
            "cls_token": weight(1, 1, 8),
            "pos_embed": weight(1, 5, 8),
            "norm": nn.LayerNorm(8),
            "qkv": nn.Linear(8, 24),
            "proj": nn.Linear(8, 8),
            "gamma": weight(8),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.gamma * self.proj(y)
        return self.head(x[:, 0])


@hazard(tokens)
class AttentionPool(Tiny):
    """A learned query token reads the sequence."""

    def layers(self) -> dict[str, Any]:
        return {
            "kv": nn.Linear(6, 16),
            "query": weight(1, 2, 1, 4),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).unflatten(-1, (2, 2, 4)).permute(2, 0, 3, 1, 4)
        query = self.query.expand(x.shape[0], -1, -1, -1)
        return self.head(F.scaled_dot_product_attention(query, k, v).flatten(1))


@hazard(image)
class WindowAttention(Tiny):
    """Swin: roll, partition into windows, attention, back again."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": nn.Conv2d(3, 8, 1),
            "norm": nn.LayerNorm(8),
            "qkv": nn.Linear(8, 24),
            "proj": nn.Linear(8, 8),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        y = torch.roll(self.norm(x), shifts=(-1, -1), dims=(1, 2))
        y = y.view(2, 2, 3, 2, 3, 8).transpose(2, 3).reshape(-1, 9, 8)
        q, k, v = self.qkv(y).reshape(-1, 9, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(-1, 9, 8)
        y = self.proj(y).view(2, 2, 2, 3, 3, 8).transpose(2, 3).reshape(2, 6, 6, 8)
        return self.head((x + y.roll((1, 1), (1, 2))).mean((1, 2)))


@hazard(wide_image)
class SwinBlock(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": nn.Conv2d(3, 8, 2, stride=2),
            "block": SwinTransformerBlock(8, (4, 4), num_heads=2, window_size=2, shift_size=1),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x).permute(0, 2, 3, 1)).mean((1, 2)))


# ---------------------------------------------------------------- scales and gates


@hazard(tokens)
class LayerScale(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "body": nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 8)),
            "gamma": weight(8),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.head((x + self.gamma * self.body(x)).mean(1))


@hazard(image)
class SharedScalar(Tiny):
    """One learned number for all channels (frozen with the first task)."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "alpha": nn.Parameter(torch.tensor(0.7)),
            "beta": weight(1),
            "conv": nn.Conv2d(8, 8, 1),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x * self.alpha + F.relu(self.conv(x)) * self.beta)


register("squeeze_excite", image, lambda: between_convs(SEModule(8, rd_channels=4)))
register("eca", image, lambda: between_convs(EcaModule(8)))
register("cbam", image, lambda: between_convs(CbamModule(8, rd_channels=4)))
register(
    "selective_kernel", image, lambda: between_convs(SelectiveKernel(8, 8, rd_channels=4, groups=2))
)
register(
    "selective_kernel_split",
    image,
    lambda: between_convs(SelectiveKernel(8, 8, rd_channels=4, split_input=True)),
)
register(
    "split_attention",
    image,
    lambda: between_convs(SplitAttn(8, 8, 3, rd_channels=4, radix=2, groups=1)),
)
register(
    "split_attention_grouped",
    image,
    lambda: between_convs(SplitAttn(8, 8, 3, rd_channels=4, radix=2, groups=2)),
)
register("global_context", image, lambda: between_convs(GlobalContext(8, rd_channels=4)))
register("gated_mlp", tokens, lambda: between_linears(SwiGLU(8, 12)))
register("prelu_one", image, lambda: between_convs(nn.BatchNorm2d(8), nn.PReLU()))
register("prelu_channels", image, lambda: between_convs(nn.BatchNorm2d(8), nn.PReLU(8)))
register("mixer_block", tokens, lambda: between_linears(MixerBlock(8, 5, (0.5, 1.5))))
register(
    "spatial_gating_block", tokens, lambda: between_linears(SpatialGatingBlock(8, 5, mlp_ratio=2))
)


@hazard(image)
class SpatialGate(Tiny):
    """One channel gates all others."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "gate": nn.Conv2d(8, 1, 3, padding=1),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(self.after(x * torch.sigmoid(self.gate(x)))))


@hazard(image)
class ChannelGatesSpace(Tiny):
    """One of the stream's own channels gates the rest."""

    def layers(self) -> dict[str, Any]:
        return {"stem": stem(8), "after": nn.Conv2d(7, 6, 1), "head": pooled(6)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(self.after(x[:, 1:] * x[:, :1].sigmoid())))


@hazard(tokens)
class GatedUnits(Tiny):
    """GLU over channels, after a Linear of twice the width."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 16),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.after(F.glu(self.linear(x), -1))).mean(1))


@hazard(tokens)
class TokenMixing(Tiny):
    """MLP-Mixer: a Linear whose rows are tokens, shared by all channels."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "tokens": nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 5)),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.head((x + self.tokens(x.transpose(1, 2)).transpose(1, 2)).amax(1))


@hazard(tokens)
class SpatialGatingUnit(Tiny):
    """gMLP: half of the channels, mixed over tokens, gate the other half."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 16),
            "norm": nn.LayerNorm(8),
            "tokens": nn.Linear(5, 5),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.linear(x)).chunk(2, -1)
        v = self.tokens(self.norm(v).transpose(-1, -2)).transpose(-1, -2)
        return self.head(F.relu(self.after(u * v)).mean(1))


@hazard(image)
class ConvNextBlock(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": nn.Conv2d(3, 8, 1),
            "depthwise": nn.Conv2d(8, 8, 3, padding=1, groups=8),
            "norm": nn.LayerNorm(8),
            "expand": nn.Linear(8, 12),
            "grn": GlobalResponseNorm(12),
            "reduce": nn.Linear(12, 8),
            "gamma": weight(8),
            "norm_out": LayerNorm2d(8),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.reduce(self.grn(F.gelu(self.expand(self.norm(y))))) * self.gamma
        return self.head(self.norm_out(x + y.permute(0, 3, 1, 2)))


@hazard(image)
class InvertedResidual(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(6),
            "expand": nn.Sequential(nn.Conv2d(6, 12, 1, bias=False), nn.BatchNorm2d(12)),
            "depthwise": nn.Conv2d(12, 12, 3, padding=1, groups=12),
            "gate": SEModule(12, rd_channels=4, act_layer=nn.SiLU),
            "project": nn.Sequential(nn.Conv2d(12, 6, 1, bias=False), nn.BatchNorm2d(6)),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.gate(F.silu(self.depthwise(F.silu(self.expand(x)))))
        return self.head(x + self.project(y))


# ---------------------------------------------------------------- bare parameters


@hazard(tokens)
class EinsumParameter(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "mix": weight(2, 4, 3),
            "after": nn.Linear(6, 5),
            "head": nn.Linear(5, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).unflatten(-1, (2, 4))
        y = torch.einsum("bnhi,hio->bnho", x, self.mix).flatten(2)
        return self.head(F.relu(self.after(y)).mean(1))


@hazard(tokens)
class MatmulParameter(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "w": weight(8, 6),
            "bias": weight(6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.linear(x) @ self.w + self.bias).mean(1))


@hazard(vector)
class MatmulTransposed(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "w": weight(6, 8),
            "v": weight(5, 6),
            "head": nn.Linear(5, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(torch.matmul(self.linear(x), self.w.t()))
        return self.head(torch.mm(self.v, x.t()).t())


@hazard(vector)
class FactoredWeight(Tiny):
    """A weight that is the product of two parameters (low rank)."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "left": weight(6, 2),
            "right": weight(2, 8),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(F.linear(self.linear(x), self.left @ self.right)))


@hazard(vector)
class CosineHead(Tiny):
    """Normalised features against normalised class vectors."""

    def layers(self) -> dict[str, Any]:
        return {"linear": nn.Linear(6, 8), "classes": weight(3, 10)}

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.normalize(self.linear(x), dim=-1), x[:, :2]], -1)
        return F.linear(x, F.normalize(self.classes, dim=-1)) * 4.0


@hazard(vector)
class BilinearLayer(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 4),
            "right": nn.Linear(6, 5),
            "bilinear": nn.Bilinear(4, 5, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.bilinear(self.left(x), self.right(x))))


@hazard(vector)
class OuterProduct(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 4),
            "right": nn.Linear(6, 5),
            "after": nn.Linear(20, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        outer = self.left(x).unsqueeze(2) * self.right(x).unsqueeze(1)
        return self.head(F.relu(self.after(outer.flatten(1))))


@hazard(vector)
class DistanceToPrototypes(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "prototypes": weight(4, 8),
            "head": nn.Linear(4, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        distance = (self.linear(x).unsqueeze(1) - self.prototypes).square().sum(-1)
        return self.head(torch.exp(-distance / 8))


@hazard(vector)
class UnusedParameter(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "spare": nn.Linear(8, 4),
            "lost": weight(3, 2),
            "scratch": nn.Linear(8, 2),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.linear(x))
        self.scratch(x)
        return self.head(x)


@hazard(image)
class BufferMask(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "mask": nn.Buffer(torch.tensor([1.0, 0, 1, 1, 0, 1, 1, 0.5]).view(1, 8, 1, 1)),
            "order": nn.Buffer(torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) * self.mask
        return self.head(F.relu(self.after(x[:, self.order])))


# ---------------------------------------------------------------- sharing


@hazard(image)
class CalledTwice(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "conv": nn.Conv2d(8, 8, 3, padding=1),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(self.stem(x)))
        return self.head(F.relu(self.conv(x)))


@hazard(image)
class CalledOnTwoStreams(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "left": stem(4),
            "right": nn.Conv2d(3, 4, 1),
            "shared": nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)),
            "after": nn.Conv2d(12, 5, 1),
            "head": pooled(5),
        }

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.shared(self.left(x)), self.shared(self.right(x))], 1)
        return self.head(self.after(F.relu(both)))


@hazard(vector)
class StatisticsOfInputAndHidden(Tiny):
    """One batch norm on the input and on a hidden value."""

    def layers(self) -> dict[str, Any]:
        return {
            "norm": nn.BatchNorm1d(6, affine=False),
            "first": nn.Linear(6, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(self.norm(x))).relu())


@hazard(vector)
class StatisticsBesideTheInput(Tiny):
    """A batch norm over channels of the input and of a layer."""

    def layers(self) -> dict[str, Any]:
        return {
            "first": nn.Linear(6, 8),
            "norm": nn.BatchNorm1d(14, affine=False),
            "head": nn.Linear(14, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.cat([x, self.first(x)], 1)).relu())


class SharedStatistics(Tiny):
    """A batch norm on two values whose channels do not correspond one to one."""

    def __init__(self, affine: bool, order: int) -> None:
        self.affine, self.order = affine, order
        super().__init__()

    def layers(self) -> dict[str, Any]:
        return {
            "many": nn.Linear(6, 8),
            "one": nn.Linear(6, 1),
            "four": nn.Linear(6, 4),
            "other": nn.Linear(6, 4),
            "norm": nn.BatchNorm1d(8, affine=self.affine),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.many(x), self.one(x).expand(-1, 8)
        if self.order == 1:
            first, second = second, first
        if self.order == 2:
            first, second = self.four(x).repeat(1, 2), self.other(x).repeat_interleave(2, 1)
        return self.head(self.norm(first).relu() + self.norm(second).sigmoid().flip(1))


for _affine, _order in itertools.product((False, True), range(3)):
    register(
        f"shared_statistics_{_order}{'_affine' if _affine else ''}",
        vector,
        functools.partial(SharedStatistics, _affine, _order),
    )


@hazard(vector)
class StatisticsReadElsewhere(Tiny):
    """The model computes with running statistics itself."""

    def layers(self) -> dict[str, Any]:
        return {
            "first": nn.Linear(6, 8),
            "norm": nn.BatchNorm1d(8),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(x)).relu() + self.norm.running_mean.flip(0))


@hazard(vector)
class TiedLinear(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": nn.Linear(6, 8),
            "first": nn.Linear(8, 8),
            "second": nn.Linear(8, 8),
            "head": nn.Linear(8, 3),
        }

    def __init__(self) -> None:
        super().__init__()
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(F.relu(self.stem(x))))
        return self.head(F.relu(self.second(x)))


@hazard(vector)
class TiedTransposed(Tiny):
    """An autoencoder that decodes with the encoder's weight."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": nn.Linear(6, 8),
            "encoder": nn.Linear(8, 4),
            "bias": weight(8),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        code = torch.tanh(self.encoder(F.relu(self.stem(x))))
        return self.head(F.relu(F.linear(code, self.encoder.weight.t(), self.bias)))


@hazard(vector)
class SharedBias(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "first": nn.Linear(6, 8, bias=False),
            "second": nn.Linear(8, 8, bias=False),
            "bias": weight(8),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x) + self.bias)
        return self.head(F.relu(self.second(x) - self.bias.flip(0)))


# ---------------------------------------------------------------- inputs and outputs


@hazard(image)
class TwoHeads(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"stem": stem(8), "conv": nn.Conv2d(8, 6, 1), "left": pooled(6), "right": pooled(8)}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        return self.left(F.relu(self.conv(x))), self.right(x)


@hazard(image)
class DictOutput(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"stem": stem(8), "conv": nn.Conv2d(8, 6, 1), "head": pooled(6)}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = F.relu(self.conv(self.stem(x)))
        return {"features": features, "logits": self.head(features)}


def question() -> dict[str, Tensor]:
    return {"ids": words(), "mask": torch.tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 1]])}


@hazard(question)
class DictInput(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"words": nn.Embedding(7, 8), "linear": nn.Linear(8, 6), "head": nn.Linear(6, 3)}

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = F.relu(self.linear(self.words(ids))) * mask.unsqueeze(-1)
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


@hazard(lambda: (torch.randn(2, 6), torch.randn(2, 3, 6, 6)))
class TwoInputs(Tiny):
    """FiLM: a vector scales and shifts the channels of an image."""

    def layers(self) -> dict[str, Any]:
        return {
            "film": nn.Linear(6, 16),
            "stem": stem(8),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, condition: Tensor, x: Tensor) -> Tensor:
        scale, shift = self.film(condition)[..., None, None].chunk(2, 1)
        return self.head(F.relu(self.after(self.stem(x) * (1 + scale) + shift)))


# ---------------------------------------------------------------- recurrence


class Recurrent(nn.Module):
    """A recurrence between two Linear layers."""

    def __init__(self, recurrence: nn.RNNBase, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.recurrence = recurrence
        self.after = nn.Linear(width, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if not self.recurrence.batch_first:
            x = x.transpose(0, 1)
        out, _ = self.recurrence(x)
        return self.head(F.relu(self.after(out)).mean(int(self.recurrence.batch_first)))


register("rnn", tokens, lambda: Recurrent(nn.RNN(5, 6, 2, batch_first=True), 6))
register("rnn_relu", tokens, lambda: Recurrent(nn.RNN(5, 6, nonlinearity="relu"), 6))
register("lstm", tokens, lambda: Recurrent(nn.LSTM(5, 6), 6))
register(
    "lstm_two_layers",
    tokens,
    lambda: Recurrent(nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True), 8),
)
register(
    "lstm_projected", tokens, lambda: Recurrent(nn.LSTM(5, 6, 2, proj_size=4, batch_first=True), 4)
)
register("gru", tokens, lambda: Recurrent(nn.GRU(5, 6, batch_first=True, bias=False), 6))
register("gru_two_layers", tokens, lambda: Recurrent(nn.GRU(5, 4, 2, bidirectional=True), 8))


@hazard(tokens)
class LstmStates(Tiny):
    """The first state comes from a Linear, the last state is read."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 5),
            "start": nn.Linear(6, 8),
            "lstm": nn.LSTM(5, 4, 2, batch_first=True),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.start(x[:, 0])).unflatten(-1, (2, 4)).transpose(0, 1).contiguous()
        out, (last, cell) = self.lstm(self.linear(x), (hidden, 0.5 * hidden))
        return self.head(torch.cat([last[-1] + out[:, 0], cell[0]], -1))


@hazard(tokens)
class GruStates(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "start": nn.Linear(6, 8),
            "gru": nn.GRU(6, 4, bidirectional=True, batch_first=True),
            "head": nn.Linear(8, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.start(x[:, 0]).unflatten(-1, (2, 4)).transpose(0, 1).contiguous()
        _, last = self.gru(x, hidden)
        return self.head(last.transpose(0, 1).flatten(1))


@hazard(tokens)
class LstmCellUnrolled(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"linear": nn.Linear(6, 5), "cell": nn.LSTMCell(5, 6), "head": nn.Linear(6, 3)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        hidden = cell = x.new_zeros(x.shape[0], 6)
        for step in range(x.shape[1]):
            hidden, cell = self.cell(x[:, step], (hidden, cell))
        return self.head(hidden + cell)


@hazard(tokens)
class GruCellUnrolled(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 5),
            "start": nn.Linear(6, 6),
            "cell": nn.GRUCell(5, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.start(x[:, 0]))
        for part in self.linear(x).unbind(1):
            hidden = self.cell(part, hidden)
        return self.head(hidden)


@hazard(tokens)
class RnnCellUnrolled(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"cell": nn.RNNCell(6, 8), "after": nn.Linear(8, 6), "head": nn.Linear(6, 3)}

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.cell(x[:, 0])
        for step in range(1, 4):
            hidden = self.cell(x[:, step], hidden)
        return self.head(F.relu(self.after(hidden)))


@hazard(tokens)
class LinearRecurrence(Tiny):
    """A state-space layer with a decay per channel, unrolled by hand."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "decay": weight(8),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        decay, state, states = torch.sigmoid(self.decay), torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = decay * state + x[:, step]
            states.append(state)
        return self.head(F.relu(self.after(torch.stack(states, 1))).mean(1))


# ---------------------------------------------------------------- in-place operations


@hazard(image)
class InPlaceActivation(Tiny):
    """A shortcut taken before an in-place activation sees the activated values."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": nn.Conv2d(3, 8, 1),
            "act": nn.ReLU(inplace=True),
            "conv": nn.Conv2d(8, 8, 3, padding=1),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv(self.act(x))
        return self.head(y.relu_() + x)


@hazard(image)
class InPlaceAdd(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": nn.Conv2d(3, 8, 1),
            "conv": nn.Conv2d(8, 8, 3, padding=1),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv(x)
        y += x.flip(1)
        y.mul_(torch.sigmoid(x)).add_(1.0)
        return self.head(F.relu(self.after(y)))


@hazard(image)
class SetSlice(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "part": nn.Conv2d(8, 3, 1),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x[:, :3] = self.part(x)
        return self.head(F.relu(self.after(x)))


@hazard(image)
class PartialConv(Tiny):
    """FasterNet: some channels are replaced by a convolution of themselves."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "part": nn.Conv2d(3, 3, 3, padding=1),
            "after": nn.Conv2d(8, 8, 1),
            "head": pooled(8),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = x.clone()
        y[:, :3, :, :] = self.part(y[:, :3, :, :])
        return self.head(x + self.after(y))


@hazard(tokens)
class AddToColumn(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"linear": nn.Linear(6, 8), "after": nn.Linear(8, 6), "head": nn.Linear(6, 3)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        x[..., 0] += x[..., 5]
        x[:, 0] += 1.0
        return self.head(F.relu(self.after(x)).mean(1))


@hazard(image)
class MutatedView(Tiny):
    """Writing through a view changes the tensor it was taken from."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "part": nn.Conv2d(3, 4, 1),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        view = y.unflatten(1, (2, 4))[:, 1]
        view.mul_(torch.sigmoid(self.part(x)))
        view[:, 2:].copy_(y[:, :2])
        return self.head(F.relu(self.after(y)))


@hazard(tokens)
class FilledTensor(Tiny):
    """A tensor of zeros that is filled piece by piece."""

    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 4),
            "right": nn.Linear(6, 3),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_zeros(2, 5, 8)
        out[..., :4] = self.left(x)
        out[..., 5:] = self.right(x)
        out.index_add_(2, torch.tensor([4, 0], device=x.device), self.left(x)[..., 2:])
        return self.head(F.relu(self.after(out)).mean(1))


# ---------------------------------------------------------------- conditions and indices


@hazard(tokens)
class LearnedCondition(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 8),
            "right": nn.Linear(6, 8),
            "condition": nn.Linear(6, 8),
            "one": nn.Linear(6, 1),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        y = torch.where(self.condition(x) > 0, self.left(x), self.right(x))
        y = y.masked_fill(self.one(x) < -0.5, 0.25)
        return self.head(F.relu(self.after(y)).mean(1))


@hazard(tokens)
class GatherTokens(Tiny):
    """Keep the tokens with the highest learned score."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "score": nn.Linear(6, 1),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        best = self.score(x).squeeze(-1).topk(3, dim=1).indices
        y = self.linear(x).gather(1, best.unsqueeze(-1).expand(-1, -1, 8))
        return self.head(F.relu(self.after(y)).mean(1))


@hazard(vector)
class IndexedTable(Tiny):
    """Vector quantisation: the nearest entry of a table, by computed index."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 4),
            "table": weight(4, 8),
            "spare": nn.Linear(6, 8),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        index = self.linear(x).argmax(-1)
        return self.head(F.relu(self.after(self.table[index] + self.spare(x))))


@hazard(tokens)
class ScatterAdd(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "bins": nn.Buffer(torch.tensor([0, 0, 1, 2, 2])),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        index = self.bins.view(1, 5, 1).expand(2, 5, 8)
        y = torch.zeros(2, 3, 8, dtype=y.dtype, device=y.device).scatter_add(1, index, y)
        return self.head(F.relu(self.after(y)).amax(1))


@hazard(image)
class SampledGrid(Tiny):
    """Deformable sampling: where to look is computed from one branch."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "offset": nn.Conv2d(3, 2, 3, padding=1),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        grid = torch.tanh(self.offset(x)).permute(0, 2, 3, 1)
        y = F.grid_sample(self.stem(x), grid, align_corners=False)
        return self.head(F.relu(self.after(y)))


# ---------------------------------------------------------------- regions and several scales


@hazard(tokens)
class AutocastRegion(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "norm": nn.LayerNorm(8),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        with torch.autocast(
            device_type=x.device.type if x.device.type != "meta" else "cpu", enabled=False
        ):
            x = self.norm(x)
            x = F.relu(self.after(x))
        return self.head(x.mean(1))


@hazard(tokens)
class AutocastEnabled(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "qkv": nn.Linear(8, 24),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            y = ((q @ k.mT).softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)
            y = self.after(y)
        return self.head(F.relu(y.to(x.dtype)).mean(1))


@hazard(tokens)
class NoGradRegion(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "gate": nn.Linear(6, 8),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = torch.sigmoid(self.gate(x))
        y = self.linear(x) * gate.detach()
        return self.head(F.relu(self.after(y)).mean(1))


@hazard(wide_image)
class UNet(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "outer": stem(4),
            "inner": nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()),
            "deep": nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(6, 8, 1), nn.ReLU()),
            "up": nn.Conv2d(14, 6, 1),
            "last": nn.Conv2d(10, 4, 3, padding=1),
            "head": nn.Conv2d(4, 2, 1),
        }

    def forward(self, x: Tensor) -> Tensor:
        outer = self.outer(x)
        inner = self.inner(outer)
        deep = F.interpolate(self.deep(inner), size=inner.shape[2:], mode="bilinear")
        y = F.relu(self.up(torch.cat([deep, inner], 1)))
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.head(F.relu(self.last(torch.cat([y, outer], 1))))


@hazard(wide_image)
class MultiScale(Tiny):
    """HRNet: branches of different resolution are added after upsampling."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(6),
            "fine": nn.Conv2d(6, 4, 3, padding=1),
            "coarse": nn.Conv2d(6, 8, 3, stride=2, padding=1),
            "up": nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.Upsample(scale_factor=2)),
            "down": nn.Conv2d(4, 8, 3, stride=2, padding=1),
            "head": nn.Linear(12, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        fine, coarse = self.fine(x), self.coarse(x)
        fine, coarse = F.relu(fine + self.up(coarse)), F.relu(coarse + self.down(fine))
        return self.head(torch.cat([fine.mean((2, 3)), coarse.amax((2, 3))], 1))


@hazard(image)
class StackedBranches(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(6),
            "branches": nn.ModuleList(nn.Conv2d(6, 5, k, padding=k // 2) for k in (1, 3)),
            "after": nn.Conv2d(5, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = torch.stack([branch(x) for branch in self.branches], dim=1).sum(1)
        return self.head(F.relu(self.after(y)))


@hazard(image)
class BranchSoftmax(Tiny):
    """Softmax over stacked branches: one-to-one between their channels."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(6),
            "branches": nn.ModuleList(nn.Conv2d(6, 5, 1) for _ in range(3)),
            "after": nn.Conv2d(5, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = torch.stack([branch(x) for branch in self.branches])
        return self.head(F.relu(self.after((y.softmax(0) * y).sum(0))))


@hazard(image)
class ImageToSequence(Tiny):
    """Conv, then tokens from positions, attention with a norm, and back to an image."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "norm": nn.LayerNorm(8),
            "attention": nn.MultiheadAttention(8, 2, batch_first=True),
            "after": nn.Conv2d(16, 6, 3, padding=1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(x.flatten(2).transpose(1, 2))
        y, _ = self.attention(y, y, y, need_weights=False)
        y = y.transpose(1, 2).reshape(x.shape)
        return self.head(F.relu(self.after(torch.cat([x, y], 1))))


# ---------------------------------------------------------------- computed weights


class ComputedWeight(nn.Module):
    """Linear, a product with a weight that is computed from a parameter, head."""

    def __init__(self, compute: Callable[[Tensor], Tensor], rows: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.w = weight(rows, 8)
        self.compute = compute
        self.head = nn.Linear(rows, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(F.linear(self.linear(x), self.compute(self.w))))


def rounded(w: Tensor) -> Tensor:
    """Quantisation with one scale for the whole tensor."""
    step = w.abs().max() / 7
    return torch.round(w / step) * step


for _name, _compute, _rows in [
    ("softmax_weight", lambda w: w.softmax(-1), 6),
    ("softmax_weight_over_rows", lambda w: w.softmax(0), 6),
    ("exp_weight", torch.exp, 6),
    ("weight_plus_identity", lambda w: w + torch.eye(8, dtype=w.dtype, device=w.device), 8),
    ("symmetric_weight", lambda w: w + w.t(), 8),
    ("antisymmetric_weight", lambda w: w.triu(1) - w.triu(1).t(), 8),
    ("quantised_weight", rounded, 6),
    ("masked_weight", lambda w: w * w.new_ones(6, 8).tril(), 6),
    ("rolled_weight", lambda w: w + w.roll(1, 0), 6),
    ("squared_weight", lambda w: w @ w, 8),
]:
    register(
        _name,
        vector,
        lambda compute=_compute, rows=_rows: ComputedWeight(compute, rows),  # type: ignore[misc]
    )

register(
    "orthogonal_weight",
    vector,
    lambda: nn.Sequential(
        nn.Linear(6, 8), parametrizations.orthogonal(nn.Linear(8, 6)), nn.ReLU(), nn.Linear(6, 3)
    ),
)


class SoftmaxAndLayers(nn.Module):
    """A softmax over channels and two layers in one module, which is run level by level."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x.softmax(-1)
        return x + self.second(F.relu(self.first(x)))


register(  # hidden rows are zeros in the run of a level, and a weight norm of zeros is NaN
    "weight_norm_by_level",
    vector,
    lambda: nn.Sequential(
        nn.Linear(6, 8),
        SoftmaxAndLayers(parametrizations.weight_norm(nn.Linear(8, 8))),
        nn.Linear(8, 3),
    ),
)


@hazard(vector)
class ExpWeightTransposed(Tiny):
    def layers(self) -> dict[str, Any]:
        return {"linear": nn.Linear(6, 8), "w": weight(6, 8), "head": nn.Linear(6, 3)}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.linear(x) @ torch.exp(self.w).t()))


@hazard(vector)
class ScaledWeight(Tiny):
    """Row scales are the rows' own; a scale per column is read by all rows."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "w": weight(6, 8),
            "rows": weight(6, 1),
            "columns": weight(8),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(F.linear(self.linear(x), self.w * self.rows * self.columns)))


@hazard(vector)
class LowRankUpdate(Tiny):
    """LoRA: a layer's weight plus a product of two factors."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "base": nn.Linear(8, 6),
            "left": weight(6, 2),
            "right": weight(2, 8),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        w = self.base.weight + self.left @ self.right
        return self.head(F.relu(F.linear(self.linear(x), w, self.base.bias)))


@hazard(vector)
class WeightAsGate(Tiny):
    """The size of a weight scales the output of another layer."""

    def layers(self) -> dict[str, Any]:
        return {"first": nn.Linear(6, 8), "second": nn.Linear(8, 6), "head": nn.Linear(6, 3)}

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.second(F.relu(self.first(x))))
        return self.head(y * torch.sigmoid(self.first.weight.abs().mean()))


@hazard(vector)
class WeightAsValues(Tiny):
    """A memory: the rows of a weight are also the values that are read out."""

    def layers(self) -> dict[str, Any]:
        return {"keys": nn.Linear(6, 8), "after": nn.Linear(6, 5), "head": nn.Linear(5, 3)}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.after(self.keys(x).softmax(-1) @ self.keys.weight)))


@hazard(vector)
class ComputedBias(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "w": weight(6, 8),
            "bias": nn.Linear(6, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(F.linear(self.linear(x), self.w, self.bias(x).mean(0))))


@hazard(image)
class RotatedKernel(Tiny):
    """Four orientations of one kernel."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(4),
            "kernel": weight(2, 4, 3, 3),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        kernel = torch.cat([self.kernel.rot90(turn, (2, 3)) for turn in range(4)])
        return self.head(F.relu(self.after(F.conv2d(self.stem(x), kernel, padding=1))))


@hazard(image)
class BlurPool(Tiny):
    """A fixed depthwise kernel in a buffer."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "kernel": nn.Buffer(torch.ones(1, 1, 3, 3) / 9),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(self.stem(x), (1, 1, 1, 1), mode="reflect")
        x = F.conv2d(x, self.kernel.expand(8, -1, -1, -1), stride=2, groups=8)
        return self.head(F.relu(self.after(x)))


@hazard(image)
class FixedMixture(Tiny):
    """A Hadamard matrix in a buffer mixes channels."""

    def layers(self) -> dict[str, Any]:
        matrix = torch.ones(1, 1)
        for _ in range(3):
            matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
        return {
            "stem": stem(8),
            "matrix": nn.Buffer(matrix),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = torch.einsum("oc,bchw->bohw", self.matrix, self.stem(x))
        return self.head(F.relu(self.after(x)))


@hazard(vector)
class BlockDiagonal(Tiny):
    """A batched product with a weight per block."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "w": weight(4, 2, 3),
            "bias": weight(4, 1, 3),
            "after": nn.Linear(12, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).view(2, 4, 2).transpose(0, 1)
        x = torch.baddbmm(self.bias, x, self.w).transpose(0, 1).flatten(1)
        return self.head(F.relu(self.after(x)))


@hazard(tokens)
class TensorProduct(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "q": nn.Linear(6, 4),
            "k": nn.Linear(6, 4),
            "v": nn.Linear(6, 8),
            "w": weight(8, 3, 5),
            "head": nn.Linear(15, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.bmm(self.q(x), self.k(x).transpose(1, 2)).softmax(-1)
        y = torch.tensordot(torch.bmm(scores, self.v(x)), self.w, dims=([2], [0]))
        return self.head(y.mean(1).flatten(1))


@hazard(tokens)
class ComplexFilter(Tiny):
    """GFNet: a learned complex filter over the frequencies of the tokens."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "filter": weight(3, 8, 2),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.rfft(self.linear(x), dim=1, norm="ortho")
        y = torch.fft.irfft(y * torch.view_as_complex(self.filter), n=5, dim=1, norm="ortho")
        return self.head(F.relu(self.after(y)).mean(1))


@hazard(tokens)
class SelectiveScan(Tiny):
    """Mamba: a decay that depends on the input; two vectors shared by all channels."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "step": nn.Linear(8, 8),
            "shared": nn.Linear(8, 6),
            "decay": weight(8, 3),
            "skip": weight(8),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.linear(x))
        step = F.softplus(self.step(x)).unsqueeze(-1)
        write, read = self.shared(x).unsqueeze(2).chunk(2, -1)
        state, out = x.new_zeros(2, 8, 3), []
        for t in range(5):
            keep = torch.exp(-step[:, t] * self.decay.exp())
            state = keep * state + step[:, t] * write[:, t] * x[:, t, :, None]
            out.append((state * read[:, t]).sum(-1) + self.skip * x[:, t])
        return self.head(F.relu(self.after(torch.stack(out, 1))).mean(1))


# ---------------------------------------------------------------- channels in other places


@hazard(tokens)
class RolledTwice(Tiny):
    """One Linear on the stream and on the stream rolled by a channel."""

    def layers(self) -> dict[str, Any]:
        return {"linear": nn.Linear(6, 8), "shared": nn.Linear(8, 8), "head": nn.Linear(8, 3)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.head((self.shared(x) * self.shared(x.roll(1, -1))).mean(1))


@hazard(tokens)
class BroadcastChannel(Tiny):
    """One channel is added to all channels of another stream."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "one": nn.Linear(6, 1),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.after(self.linear(x) + self.one(x))).mean(1))


@hazard(tokens)
class OuterDifference(Tiny):
    """All pairs of two streams, reduced again over either of them."""

    def layers(self) -> dict[str, Any]:
        return {
            "left": nn.Linear(6, 4),
            "right": nn.Linear(6, 3),
            "after": nn.Linear(7, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        pairs = (self.left(x).unsqueeze(-1) - self.right(x).unsqueeze(-2)).square()
        return self.head(F.relu(self.after(torch.cat([pairs.sum(-1), pairs.amax(-2)], -1))).mean(1))


@hazard(tokens)
class ChannelsInBatch(Tiny):
    """Channels are folded into the batch; a recurrence runs on each of them."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 4),
            "gru": nn.GRU(1, 3, batch_first=True),
            "after": nn.Linear(12, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.gru(self.linear(x).transpose(1, 2).reshape(8, 5, 1))
        return self.head(F.relu(self.after(y[:, -1].reshape(2, 12))))


@hazard(tokens)
class ChannelsInTime(Tiny):
    """Channels are the time axis of a recurrence."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 4),
            "lstm": nn.LSTM(5, 3, batch_first=True),
            "after": nn.Linear(12, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(self.linear(x).transpose(1, 2))
        return self.head(F.relu(self.after(y.flatten(1))))


@hazard(tokens)
class ChannelsAsTokens(Tiny):
    """Channels are the tokens of an attention."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "attention": nn.MultiheadAttention(5, 1, batch_first=True),
            "after": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(F.relu(self.after(x.transpose(1, 2))).mean(1))


@hazard(image)
class ChannelsInSpace(Tiny):
    """Channels are the spatial axis of a convolution."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "conv": nn.Conv1d(1, 2, 3, padding=1),
            "after": nn.Linear(16, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.stem(x).mean((2, 3)).unsqueeze(1))
        return self.head(F.relu(self.after(x.flatten(1))))


@hazard(vector)
class ChainOfChannels(Tiny):
    """Each channel is gated by the one before it."""

    def layers(self) -> dict[str, Any]:
        return {"linear": nn.Linear(6, 8), "after": nn.Linear(8, 6), "head": nn.Linear(6, 3)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        parts = [x[:, 0]]
        for channel in range(1, 8):
            parts.append(x[:, channel] * torch.tanh(parts[-1]))
        return self.head(F.relu(self.after(torch.stack(parts, 1))))


@hazard(vector)
class ConstantsFromConditions(Tiny):
    """Zeros and ones that are placed by activations carry information too."""

    def layers(self) -> dict[str, Any]:
        return {"linear": nn.Linear(6, 8), "after": nn.Linear(8, 6), "head": nn.Linear(6, 3)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        signs = torch.where(x > 0, torch.ones_like(x), torch.zeros_like(x))
        return self.head(F.relu(self.after(signs) + self.after(x.sign() * (x > 0.5))))


@hazard(vector)
class OneHot(Tiny):
    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "table": nn.Embedding(8, 5),
            "other": nn.Linear(6, 5),
            "head": nn.Linear(5, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        scores = self.linear(x)
        hot = F.one_hot(scores.argmin(-1), 8)[:, :5]
        return self.head(F.relu(self.table(scores.argmax(-1)) + self.other(x)) + hot)


# ---------------------------------------------------------------- nested evaluation


class NormInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.div_(1 + x.norm(dim=1, keepdim=True))


@hazard(image)
class NormChangesInput(Tiny):
    """A submodule normalises channels in place, and the stream is read afterwards."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "norm": NormInPlace(),
            "after": nn.Conv2d(8, 6, 1),
            "other": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(x)
        return self.head(F.relu(self.after(y)) + self.other(x))


@hazard(image)
class NormResultDropped(Tiny):
    """As above, and what the submodule returns is not used."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "norm": NormInPlace(),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        self.norm(x)
        return self.head(F.relu(self.after(x)))


class Statistics(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean(1, keepdim=True), x.std(1, keepdim=True)


@hazard(image)
class StatisticsLeave(Tiny):
    """A submodule returns statistics over channels, which the caller uses."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "statistics": Statistics(),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        mean, std = self.statistics(x)
        return self.head(F.relu(self.after((x - mean) / (std + 1))))


class Remember(nn.Module):
    saved: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.saved = x.mean(1, keepdim=True)
        return x * 2


@hazard(image)
class ValueOverAttribute(Tiny):
    """A value leaves a module over an attribute instead of its result."""

    def layers(self) -> dict[str, Any]:
        return {
            "stem": stem(8),
            "remember": Remember(),
            "after": nn.Conv2d(8, 6, 1),
            "head": pooled(6),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.remember(self.stem(x))
        return self.head(F.relu(self.after(x + self.remember.saved)))


class NormThenRoll(nn.Module):
    """The channels that go in do not come out in their places."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = weight(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,), self.weight).roll(3, -1) + x


class SoftmaxThenLinear(nn.Module):
    """The mixture is used up inside; the module's outputs are new units."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.gate(x).softmax(-1))


class NormInNorm(nn.Module):
    """A mixing module inside a mixing module."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * torch.sigmoid(x.mean(-1, keepdim=True))


class SoftmaxWeight(nn.Module):
    """Rows of a weight that is computed from a parameter, without zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = weight(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.softmax(1))


class GateOf(nn.Module):
    """What a module inside makes of all channels is mixed once more."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        y = self.inside(x + 1)  # also what is hidden is not zero
        return x + y * torch.sigmoid(3 * y.mean(-1, keepdim=True))


register("norm_then_roll", tokens, lambda: between_linears(NormThenRoll()))
register("softmax_then_linear", tokens, lambda: between_linears(SoftmaxThenLinear()))
register("norm_in_norm", tokens, lambda: between_linears(NormInNorm()))
register("gate_of_norm", tokens, lambda: between_linears(GateOf(nn.LayerNorm(8, 1e-5, False))))
register("gate_of_mixture", tokens, lambda: between_linears(GateOf(SoftmaxThenLinear())))
register("gate_of_computed_weight", tokens, lambda: between_linears(GateOf(SoftmaxWeight())))


@hazard(tokens)
class SumToOneChannel(Tiny):
    """A submodule sums all channels into one, which a Linear reads."""

    def layers(self) -> dict[str, Any]:
        return {
            "linear": nn.Linear(6, 8),
            "sum": Apply(lambda x: x.sum(-1, keepdim=True)),
            "narrow": nn.Linear(1, 6),
            "wide": nn.Linear(8, 6),
            "head": nn.Linear(6, 3),
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return self.head(F.relu(self.narrow(self.sum(x)) + self.wide(x)).mean(1))
