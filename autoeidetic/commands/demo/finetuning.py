"""Ordinary fine-tuning: the same network trained on one task after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from ... import Lesson
from .networks import FineTuned
from .outcome import Record


def fine_tune(
    tasks: list[Lesson], rates: Sequence[Sequence[float]], on_epoch: Callable[[int], None]
) -> Record:
    """Train with the other network's budget: ``rates[task]`` has a learning rate per epoch."""
    model, record = FineTuned(len(tasks)), Record()
    for number, task in enumerate(tasks):
        # A new optimizer for each task, as the other network has.
        optimizer = torch.optim.AdamW(model.parameters(), lr=rates[number][0])
        for rate in rates[number]:
            optimizer.param_groups[0]["lr"] = rate
            _train(model, number, task, optimizer)
            record.after_epoch(_accuracies(model, tasks[: number + 1]))
            on_epoch(number)
        record.after_task(_accuracies(model, tasks[: number + 1]))
    return record


def _train(model: FineTuned, number: int, task: Lesson, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for images, labels in task.train:
        optimizer.zero_grad()  # heads of other tasks get no gradient, so they stay the same
        F.cross_entropy(model(images, number), labels).backward()
        optimizer.step()


@torch.no_grad()
def _accuracies(model: FineTuned, tasks: list[Lesson]) -> dict[int, float]:
    model.eval()
    found = {}
    for number, task in enumerate(tasks):
        ((images, labels),) = task.test
        right = model(images, number).argmax(1) == labels
        found[number] = float(right.float().mean())
    return found
