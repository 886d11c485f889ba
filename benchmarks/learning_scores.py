"""What each score costs at the same capacity: one trained task, pruned step by step.

The same trained network is pruned by every score in rounds of 5 % of the units, with a few
batches of training after each round. After every round the test accuracy and the free share of
the parameters are noted; accuracies are compared at equal free shares, by linear interpolation.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import autoeidetic
from benchmarks.learning_baselines import accuracy
from benchmarks.learning_data import Batches, TaskData

FREE = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True)
class Setup:
    """How the network is trained and pruned."""

    build: Callable[[], nn.Module]
    task: TaskData
    epochs: int
    batch_size: int
    lr: float
    recovery: int  # batches after each round
    step: float = 0.05
    transform: Any = None


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
