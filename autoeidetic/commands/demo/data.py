"""Data: scikit-learn's handwritten digits, as tasks that tell two digits apart."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ... import Lesson

#: Pixels to each side. The images have 8, which a network that halves them five times cannot use.
SIZE = 24
BATCH = 32
_TRAINED = 0.7


def digit_tasks(count: int = 5, most_images: int | None = None) -> list[Lesson]:
    """The first is 0 or 1, the second 2 or 3, and so on; ``most_images`` to learn from in each.

    >>> [task.name for task in digit_tasks(count=3)]
    ['0 or 1', '2 or 3', '4 or 5']
    """
    images, digits = _shuffled()
    return [_task(images, digits, first, most_images) for first in range(0, 2 * count, 2)]


def all_test_images(tasks: list[Lesson]) -> Tensor:
    """Those of every task, in one batch."""
    return torch.cat([images for task in tasks for images, _ in task.test])


def train_images(tasks: list[Lesson]) -> int:
    """How many there are to learn from."""
    counts: list[int] = [len(task.train.dataset) for task in tasks]  # type: ignore[attr-defined]
    return sum(counts)


def examples() -> list[list[list[float]]]:
    """One image of each digit as it was scanned: 8 rows of 8 shades between 0 and 1."""
    digits = load_digits()
    firsts = [int((digits.target == digit).argmax()) for digit in range(10)]
    return [(digits.images[first] / 16).tolist() for first in firsts]


def _shuffled() -> tuple[Tensor, Tensor]:
    """The same order whatever the seed, so that all runs are tested on the same images."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    larger = F.interpolate(images[order], size=(SIZE, SIZE), mode="bilinear")
    return larger, torch.tensor(digits.target)[order]


def _task(images: Tensor, digits: Tensor, first: int, most_images: int | None) -> Lesson:
    rows = ((digits == first) | (digits == first + 1)).nonzero()[:, 0]
    images, labels = images[rows], digits[rows] - first
    trained = int(_TRAINED * len(rows))
    chosen = slice(trained if most_images is None else min(trained, most_images))
    train = TensorDataset(images[chosen], labels[chosen])
    return Lesson(
        train=DataLoader(train, BATCH, shuffle=True, drop_last=len(train) > BATCH),
        test=[(images[trained:], labels[trained:])],
        classes=2,
        name=f"{first} or {first + 1}",
    )
