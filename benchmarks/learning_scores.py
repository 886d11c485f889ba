"""Compare pruning scores at the same capacity: one trained task, pruned step by step.

The same trained network is pruned by every score in rounds of 5 or 10 % of the units, with twenty
batches of training after each round. After every round the test accuracy and the free share of
the parameters are recorded; accuracies are compared at equal free shares by linear interpolation.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import autoeidetic
from benchmarks.learning_baselines import accuracy
from benchmarks.learning_data import (
    Batches,
    Directory,
    Examples,
    TaskData,
    crop_and_flip,
    permuted_mnist,
    split_cifar100,
)
from benchmarks.learning_models import resnet18_slim, small_mlp

FREE = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9)


@dataclass(frozen=True)
class Setup:
    """How the network is trained and pruned."""

    build: Callable[[], nn.Module]
    task: TaskData
    epochs: int
    batch_size: int
    lr: float
    recovery: int  # training batches after each round
    step: float = 0.05
    transform: Any = None


def setup(name: str, directory: Directory) -> Setup:
    """``mnist``: a small perceptron on 10,000 digits. ``cifar``: a slim ResNet-18 on 20 classes."""
    if name == "mnist":
        digits = permuted_mnist(1, directory=directory)[0]
        some = Examples(digits.train.x[:10_000], digits.train.y[:10_000])
        task = replace(digits, train=some)
        return Setup(lambda: small_mlp(10, width=300), task, 6, 128, 1e-3, recovery=20)
    task = split_cifar100(directory=directory)[0]
    return Setup(resnet18_slim, task, 6, 64, 1e-3, recovery=20, step=0.1, transform=crop_and_flip)


def compared(setup: Setup, scores: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of the accuracy at each of :data:`FREE`.

    None where a score does not reach the free share.
    """
    found: dict[str, list[list[float]]] = {by: [] for by in scores}
    for seed in seeds:
        for by, points in curves(setup, scores, seed).items():
            found[by].append([at(points, free) for free in FREE])
    return {
        by: {"mean": _known(np.mean(each, 0)), "std": _known(np.std(each, 0))}
        for by, each in found.items()
    }


def _known(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def lead(found: dict[str, Any], of: str, over: Sequence[str]) -> float:
    """The mean lead of a score over the best of others, where all of them are known."""
    columns = zip(found[of]["mean"], *(found[by]["mean"] for by in over), strict=True)
    return float(np.mean([own - max(rest) for own, *rest in columns if None not in (own, *rest)]))


def curves(setup: Setup, scores: Sequence[str], seed: int) -> dict[str, list[tuple[float, float]]]:
    """(free share, test accuracy) after every round, for every score."""
    torch.manual_seed(seed)
    net = autoeidetic.convert(setup.build(), setup.task.train.x[:2])
    net.prepare_for_task(0, num_classes=setup.task.classes)
    batches = Batches(*setup.task.train, setup.batch_size, transform=setup.transform)
    _train(net, setup, itertools.chain.from_iterable(batches for _ in range(setup.epochs)))
    result = {}
    for by in scores:
        torch.manual_seed(seed + 1)
        one = copy.deepcopy(net)
        points = [(0.0, accuracy(one, *setup.task.test, task=0))]
        for number in range(1, round(1 / setup.step)):
            share = number * setup.step
            data = itertools.islice(iter(batches), 10)
            one.prune(share, by=by, loader=list(data), since_start=True)
            _train(one, setup, itertools.islice(iter(batches), setup.recovery), factor=0.5)
            points.append((one.capacity().free, accuracy(one, *setup.task.test, task=0)))
        result[by] = points
    return result


def _train(
    net: autoeidetic.EideticNet, setup: Setup, batches: Iterator[Any], factor: float = 1.0
) -> None:
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=factor * setup.lr)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def at(points: Sequence[tuple[float, float]], free: float) -> float:
    """The accuracy at a free share; NaN where the curve does not reach."""
    shares, values = zip(*sorted(points), strict=True)
    return float(np.interp(free, shares, values)) if free <= shares[-1] else float("nan")
