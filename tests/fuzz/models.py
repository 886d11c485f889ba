"""Networks that do more than one example can show: branches, flags, lengths, sizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 8


class Branch(nn.Module):
    """A layer that is reached only where a mask says so, if it says so anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, WIDTH)
        self.b = nn.Linear(6, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        y = self.a(x)
        if m.any():
            y = torch.where(m[:, None], self.b(x), y)
        return self.head(F.relu(y))


class OptionalMask(nn.Module):
    """Self attention with an optional mask, a learned token in the place of what is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(WIDTH))
        self.stem = nn.Linear(6, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.stem(x)
        if mask is not None:
            y = torch.where(mask[..., None], self.token, y)
        q, k, v = self.qkv(y).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = y + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(self.norm(y).mean(1))


class LongInputs(nn.Module):
    """A layer for long inputs only, and positions cut to the length."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, WIDTH)
        self.position = nn.Parameter(torch.randn(12, WIDTH))
        self.long = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x) + self.position[: x.shape[1]]
        if x.shape[1] > 6:
            y = y + F.gelu(self.long(y))
        return self.head(self.norm(y).mean(1))


class Experts(nn.Module):
    """A mixture of experts, of which each token gets one."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(6, WIDTH)
        self.register_buffer("direction", torch.randn(6, experts))
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, chosen = self.stem(x), (x @ self.direction).argmax(-1)
        out = torch.zeros_like(y)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                out = out + torch.where(mine[..., None], expert(y), torch.zeros_like(y))
        return self.head(F.relu(y + out).mean(1))


class HiddenStates(nn.Module):
    """Returns more when it is asked for more."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, output_hidden_states: bool = False) -> Any:
        y = self.stem(x)
        states = [y]
        for block in self.blocks:
            y = y + torch.tanh(block(y))
            states.append(y)
        logits = self.head(self.norm(y).mean(1))
        return {"logits": logits, "states": tuple(states)} if output_hidden_states else logits


class TwoStreams(nn.Module):
    """Two streams side by side in a layer norm, and apart before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, WIDTH)
        self.right = nn.Linear(5, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)  # affine, it would join them
        self.after_left = nn.Linear(WIDTH, WIDTH)
        self.after_right = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(2 * WIDTH, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        y = self.norm(torch.cat([self.left(a), self.right(b)], 1))
        left, right = y.split([a.shape[1], b.shape[1]], 1)
        parts = [F.relu(self.after_left(left)).mean(1), F.relu(self.after_right(right)).mean(1)]
        return self.head(torch.cat(parts, 1))


class ViewedAsImage(nn.Module):
    """Tokens [HW, C] viewed as [C, H, W] without a transpose: channels depend on the size.

    With fewer pixels than channels some channels meet, and at another size others do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.after = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv(x))
        tokens = self.mix(y.flatten(2).transpose(1, 2))
        image = y + tokens.reshape(y.shape)
        return self.head(F.relu(self.after(image)).mean((2, 3)))


class Words(nn.Module):
    """An embedding and torch's own transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, words: Tensor, padding: Tensor | None = None) -> Tensor:
        y = self.layer(self.words(words), src_key_padding_mask=padding)
        return self.head(y.mean(1))


class Recurrent(nn.Module):
    """An LSTM whose last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Auxiliary(nn.Module):
    """One more output in training, from a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.bn = nn.BatchNorm2d(WIDTH)
        self.extra = nn.Linear(WIDTH, 2)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Any:
        y = F.relu(self.bn(self.stem(x))).mean((2, 3))
        return (self.head(y), self.extra(y)) if self.training else self.head(y)


def perceptron(depth: int, norm: str) -> nn.Sequential:
    """Linear layers with a norm after the first."""
    norms = {"none": nn.Identity, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
    first = norms[norm](WIDTH) if norm != "none" else nn.Identity()
    layers: list[nn.Module] = [nn.Linear(6, WIDTH), first, nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.3)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3))


def convolutional(norm: str) -> nn.Sequential:
    norms = {"batch": nn.BatchNorm2d(WIDTH), "group": nn.GroupNorm(2, WIDTH)}
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1),
        norms[norm],
        nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=2),
        nn.Dropout(0.2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTH, 3),
    )


def features() -> nn.Sequential:
    """A model without an output layer."""
    return nn.Sequential(nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())
