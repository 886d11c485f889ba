"""Small models with a hazard each, and networks with finished tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lives
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autoeidetic
from autoeidetic import EideticNet

CLASSES = (3, 2, 4)


def grown(
    model: nn.Module,
    inputs: Any,
    classes: Sequence[Any] = CLASSES,
    *,
    fraction: float = 0.5,
    names: Sequence[str | None] | None = None,
    **options: Any,
) -> EideticNet:
    """A network in eval mode that has finished a task for each number of classes."""
    net: EideticNet = autoeidetic.convert(lives.randomise(model), inputs, **options)
    for task, count in enumerate(classes):
        name = None if names is None else names[task]
        net.prepare_for_task(task, num_classes=count, name=name)
        disturb(net)
        net.prune(fraction)
        net.finish_task()
    return net.eval()


def disturb(net: EideticNet) -> None:
    """Move all values that are not frozen, as training does."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    net.pins.impose()


def far(one: Any, other: Any) -> float:
    """The largest difference of two outputs of the same structure, relative to the largest."""
    first, structure = pytree.tree_flatten(one)
    second, also = pytree.tree_flatten(other)
    assert structure == also
    worst = 0.0
    for a, b in zip(first, second, strict=True):
        if not isinstance(a, Tensor):
            assert a == b
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = a.detach().to(torch.complex128), b.detach().to(torch.complex128)
        assert b.isfinite().all()
        worst = max(worst, float((a - b).abs().max() / a.abs().max().clamp(min=1e-12)))
    return worst


def called(module: nn.Module, inputs: Any, **options: Any) -> Any:
    with torch.no_grad():
        return lives.call(module, inputs, **options)


# -- models ---------------------------------------------------------------------------------------


def convolutional() -> nn.Module:
    """Batch norm, group norm, a stride."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2), nn.GroupNorm(3, 12), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


def body() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
    )  # fmt: skip


def image(batch: int = 2, side: int = 9) -> Tensor:
    return torch.randn(batch, 3, side, side)


class Heads(nn.Module):
    """Two output layers, in one of several structures."""

    def __init__(self, structure: str) -> None:
        super().__init__()
        self.body = body()
        self.first, self.second = nn.Linear(12, 5), nn.Linear(12, 5)
        self.structure = structure

    def forward(self, x: Tensor) -> Any:
        h = self.body(x).mean((2, 3))
        a, b = self.first(h), self.second(h)
        if self.structure == "features":
            return a, h, b
        if self.structure == "rows":
            return a, len(x)
        return {"a": a, "b": [b, None], "number": 3, "word": "five"}


class Segmentation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.up, self.head = nn.ConvTranspose2d(12, 6, 2, 2), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.head(self.up(self.body(x))), x.shape[-2:], mode="bilinear")


class ParameterHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.weight, self.shift = nn.Parameter(torch.randn(12, 5)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean((2, 3)) @ self.weight + self.shift


class Streams(nn.Module):
    """Several inputs, some of them by keyword, and containers of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(
        self, left: Tensor, right: Tensor, *, scale: float = 2.0, extra: Any = None
    ) -> Tensor:
        h = (self.a(left) + self.b(right)).relu() * scale
        if extra is not None:
            h = h + extra[0] * extra[1]
        return self.head(h)


class Tied(nn.Module):
    """One layer under two names, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.again = self.layer

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        h = h + self.layer(h).tanh()
        return self.head(h + self.again(h).relu())


class Masked(nn.Module):
    """Attention whose masks have the lowest number of the type, in several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(11, 8)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        limits = torch.finfo(x.dtype)
        scores = self.q(x) @ self.k(x).mT / 8**0.5
        hidden = mask[:, None] == 0
        if self.how == "fill":
            scores = scores.masked_fill(hidden, limits.min)
        elif self.how == "add":
            scores = scores + hidden.to(x.dtype) * limits.min / 2
        else:
            low = torch.full(scores.shape[-2:], limits.min, dtype=x.dtype)
            scores = torch.where(hidden, low, scores)
        y = scores.softmax(-1) @ self.v(x)
        return self.head((y / (y.norm(dim=-1, keepdim=True) + limits.eps)).mean(1))


class Casting(nn.Module):
    """Computes in a type of its own: in double precision its norm raises an error."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.a(x).float()).to(x.dtype))


class Mixed(nn.Module):
    """A buffer of another type than all others."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = body(), nn.Linear(12, 5)
        self.register_buffer("scale", torch.rand(1, 12, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.body(x).mean((2, 3)) * self.scale).to(x.dtype))


class Looking(nn.Module):
    """Python code that depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        return self.head(self.a(x).relu())


class Noisy(Looking):
    """Random numbers in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return self.head(h + 0.1 * torch.randn(len(x), 8))


class Writing(nn.Module):
    """Writes into parts of a tensor through views, in several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.a, self.b, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.how == "channels last":
            h = h.contiguous(memory_format=torch.channels_last)
        y = self.b(h)
        h = h.tanh()
        if self.how == "every other":
            h[:, 1::2] = y
        elif self.how == "transposed":
            h.transpose(1, 3)[:, 1:3, :, 2:6] = y.transpose(1, 3)[:, 1:3]
        elif self.how == "block":
            h[:, 2:6, 1:, :-1] += y[:, :, 1:, :-1]
        elif self.how == "flat":
            h.view(len(x), -1)[:, 5:37] = y.flatten(1)[:, :32]
        elif self.how == "selected":
            h[:, 3] = y[:, 0]
            h[:, 5, 2] *= y[:, 1, 0]
        elif self.how == "cast":
            h[:, 2:6] = (y * 4).int()
        elif self.how == "circular":
            h = F.pad(h, (1, 2, 2, 1), mode="circular")
        elif self.how == "strided":
            rows = h.as_strided((len(x), 3, 8), (h.stride(0), 16, 2), 1)
            return self.head(rows.unflatten(2, (8, 1)).transpose(1, 2)).mean((2, 3))
        else:
            h[:, :4].copy_(y[:, :1])
        return self.head(h.relu()).mean((2, 3))


WRITING = (
    "every other", "transposed", "block", "flat", "selected", "cast", "circular", "strided",
    "broadcast", "channels last",
)  # fmt: skip
