"""Five small models whose drawings are kept as golden files, and one that must not run.

They have a file of their own, for the golden files hold its line numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Branch(nn.Module):
    """A residual block; the first one of a stage has a shortcut of its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.stage1 = nn.Sequential(Branch(4, 4), Branch(4, 4), Branch(4, 4))
        self.stage2 = nn.Sequential(Branch(4, 6), Branch(6, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage2(self.stage1(self.stem(x))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, 2)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.position = nn.Parameter(torch.randn(1, 5, 8))
        self.blocks = nn.Sequential(*[Layer(8) for _ in range(4)])
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x) + self.position)[:, 0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.bottom = nn.Conv2d(6, 8, 3, padding=1)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 6, 2, 2), nn.ConvTranspose2d(6, 4, 2, 2)
        self.join2, self.join1 = nn.Conv2d(12, 6, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x).relu()
        two = self.down2(F.max_pool2d(one, 2)).relu()
        x = self.bottom(F.max_pool2d(two, 2)).relu()
        x = self.join2(torch.cat([self.up2(x), two], 1)).relu()
        return self.head(self.join1(torch.cat([self.up1(x), one], 1)).relu())


class Words(nn.Module):
    """A module that is called twice, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True)
        self.mix = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, words: Tensor) -> Tensor:
        y = self.lstm(self.embed(words))[0][:, -1]
        return self.head(self.mix(self.mix(y).tanh()))


class Gated(nn.Module):
    """A squeeze-and-excitation gate, a depthwise convolution and a locked part."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 1)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.squeeze, self.excite = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.spatial = nn.Conv2d(6, 1, 1)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.stem(x))
        x = x * self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return self.head((x * self.spatial(x).sigmoid()).mean((2, 3)))


class Broken(nn.Module):
    """Fails in the middle of its second block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.Sequential(Half(True), Half(False), Half(True))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class Half(nn.Module):
    def __init__(self, works: bool) -> None:
        super().__init__()
        self.works = works
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x).relu()
        return self.two(x if self.works else x.reshape(-1, 3))


def small_image() -> Tensor:
    return torch.randn(2, 3, 8, 8)


DRAWN: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "residual": (Residual, small_image),
    "transformer": (Transformer, lambda: torch.randn(2, 5, 3)),
    "unet": (UNet, small_image),
    "words": (Words, lambda: torch.zeros(2, 7, dtype=torch.long)),
    "gated": (Gated, small_image),
}
