"""Later tasks learn: five tasks of two digits each, and nothing is forgotten on the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F

import autoeidetic

TASKS = 5
ROUNDS = 3  # of pruning, each followed by recovery
WITHIN = 0.03  # of the same network trained on the task alone


@dataclass(frozen=True)
class Split:
    """One task: which of its two digits is it?"""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@pytest.fixture(scope="module")
def tasks() -> list[Split]:
    digits = datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    splits = []
    for task in range(TASKS):
        rows = (labels // 2 == task).nonzero()[:, 0]
        train, test = rows[: len(rows) * 3 // 5], rows[len(rows) * 3 // 5 :]
        splits.append(Split(images[train], labels[train] % 2, images[test], labels[test] % 2))
    return splits


# -- four networks --------------------------------------------------------------------------------


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
        nn.Linear(200, 2),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 60, 3, padding=1, bias=False), nn.BatchNorm2d(60), nn.ReLU(),
        nn.MaxPool2d(2), Block(60), Block(60),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(60, 2),
    )  # fmt: skip


def vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=8, patch_size=4, in_chans=1, num_classes=2, embed_dim=80, depth=2, num_heads=20,
        mlp_ratio=2.0,
    )  # fmt: skip


class Rows(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 100, batch_first=True)
        self.head = nn.Linear(100, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[:, 0])[0][:, -1])


@dataclass(frozen=True)
class Setup:
    build: Callable[[], nn.Module]
    rate: float
    epochs: int
    recovery: int


SETUPS = {
    "mlp": Setup(mlp, rate=2e-3, epochs=20, recovery=6),
    "cnn": Setup(cnn, rate=3e-3, epochs=12, recovery=4),
    "vit": Setup(vit, rate=2e-3, epochs=15, recovery=5),
    "lstm": Setup(Rows, rate=5e-3, epochs=25, recovery=8),
}


# -- an ordinary loop -----------------------------------------------------------------------------


def batches(data: Split, size: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(data.train_y))
    for rows in order.split(size):
        x = data.train_x[rows]
        yield x + 0.2 * torch.randn_like(x), data.train_y[rows]


def train(model: nn.Module, data: Split, rate: float, epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    for _ in range(epochs):
        for x, y in batches(data):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()


def learn(net: Any, task: int, data: Split, setup: Setup) -> None:
    """Train, prune in rounds with recovery so that the tasks to come find room, freeze."""
    net.prepare_for_task(task, num_classes=2)
    train(net, data, setup.rate, setup.epochs)
    kept = 1 / (TASKS - task)
    for _ in range(ROUNDS):
        if kept < 1:
            net.prune(1 - kept ** (1 / ROUNDS))
        train(net, data, setup.rate / 2, setup.recovery)
    net.finish_task()


def logits(model: nn.Module, data: Split, **task: int) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model(data.test_x, **task)


def accuracy(output: Tensor, data: Split) -> float:
    return float((output.argmax(1) == data.test_y).float().mean())


def alone(data: Split, setup: Setup) -> float:
    """The accuracy of the same network trained on one task, with the same number of epochs."""
    model = setup.build()
    train(model, data, setup.rate, setup.epochs)
    train(model, data, setup.rate / 2, ROUNDS * setup.recovery)
    return accuracy(logits(model, data), data)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETUPS)
def test_five_tasks_are_learned_and_none_is_forgotten(name: str, tasks: list[Split]) -> None:
    setup = SETUPS[name]
    net = autoeidetic.convert(setup.build(), tasks[0].train_x[:2])
    free, after = [1.0], []
    for number, data in enumerate(tasks):
        learn(net, number, data, setup)
        after.append(logits(net, data, task=number))
        free.append(net.capacity().free)
    reached = [accuracy(output, data) for output, data in zip(after, tasks, strict=True)]
    single = [alone(data, setup) for data in tasks]

    assert all(early > late for early, late in itertools.pairwise(free)), free
    for number, data in enumerate(tasks):
        now = logits(net, data, task=number)
        assert torch.equal(now, after[number]), f"task {number} was forgotten"
        assert accuracy(now, data) == reached[number]
        assert reached[number] >= single[number] - WITHIN, (number, reached, single)
