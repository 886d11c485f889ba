"""scikit-learn's handwritten digits, as tasks that distinguish two digits."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ... import Lesson

#: Side of the images in pixels. The originals have 8, too few for a network that halves them five
#: times.
SIZE = 24
BATCH = 32
_TRAIN_SHARE = 0.7


def digit_tasks(count: int = 5, most_images: int | None = None) -> list[Lesson]:
    """Tasks "0 or 1", "2 or 3" and so on, each with at most ``most_images`` training images.

    >>> [task.name for task in digit_tasks(count=3)]
    ['0 or 1', '2 or 3', '4 or 5']
    """
    images, digits = _shuffled()
    return [_task(images, digits, first, most_images) for first in range(0, 2 * count, 2)]


def all_test_images(tasks: list[Lesson]) -> Tensor:
    """The test images of all tasks, in one batch."""
    return torch.cat([images for task in tasks for images, _ in task.test])


def train_images(tasks: list[Lesson]) -> int:
    """The number of training images of all tasks."""
    counts: list[int] = [len(task.train.dataset) for task in tasks]  # type: ignore[attr-defined]
    return sum(counts)


def examples() -> list[list[list[float]]]:
    """One image of each digit as it was scanned: 8 rows of 8 shades between 0 and 1."""
    digits = load_digits()
    firsts = [int((digits.target == digit).argmax()) for digit in range(10)]
    return [(digits.images[first] / 16).tolist() for first in firsts]


def _shuffled() -> tuple[Tensor, Tensor]:
    """Images and labels in a fixed order, so that all runs test on the same images."""
    digits = load_digits()
    # [images, 1, 8, 8], shades 0 to 16 -> -1 to 1
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    larger = F.interpolate(images[order], size=(SIZE, SIZE), mode="bilinear")
    return larger, torch.tensor(digits.target)[order]


def _task(images: Tensor, digits: Tensor, first: int, most_images: int | None) -> Lesson:
    rows = ((digits == first) | (digits == first + 1)).nonzero()[:, 0]
    images, labels = images[rows], digits[rows] - first
    trained = int(_TRAIN_SHARE * len(rows))
    # Limits the training images only; the test images are the same for every limit.
    chosen = slice(trained if most_images is None else min(trained, most_images))
    train = TensorDataset(images[chosen], labels[chosen])
    return Lesson(
        train=DataLoader(train, BATCH, shuffle=True, drop_last=len(train) > BATCH),
        test=[(images[trained:], labels[trained:])],
        classes=2,
        name=f"{first} or {first + 1}",
    )
