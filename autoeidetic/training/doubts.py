"""Doubts: signs that a task has learned less than it seems, each as a warning with a remedy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import parallel
from ..results.metric import IGNORED, first_tensor, whole

#: Fewer targets cannot tell a network that has learned something from one that has not.
_ENOUGH = 100
#: What is at least called far, and how many standard errors are no accident.
_FAR, _ERRORS = 0.1, 3.0


class Targets:
    """Counts the targets of a pass over the data: how good can an answer be that is always the same?"""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._counts: Tensor | None = None

    def update(self, output: Any, target: Any) -> None:
        """Count a batch, for which :func:`~autoeidetic.results.metric.accuracy` is defined."""
        output, target = first_tensor(output, "output"), first_tensor(target, "target").detach()
        counts = _of_classes(output, target) if whole(target) else _of_labels(target)
        self._counts = counts if self._counts is None else self._counts + counts

    def constant(self) -> tuple[float, int]:
        """The accuracy of the best constant answer, and the number of targets; all processes."""
        if self._counts is None:
            return math.nan, 0
        counts = parallel.total(self._counts)
        number = int(counts.sum())
        return (int(counts.amax(1).sum()) / number if number else math.nan), number


def _of_classes(output: Tensor, target: Tensor) -> Tensor:
    """One question with as many answers as there are classes."""
    target = target[target != IGNORED].flatten().cpu()
    return torch.bincount(target, minlength=output.shape[1])[None]


def _of_labels(target: Tensor) -> Tensor:
    """A question for every label, with two answers."""
    known, holds = ~target.isnan(), target > 0.5
    over = [dim for dim in range(target.dim()) if dim != 1]
    yes, no = (part.long().sum(over).flatten().cpu() for part in (known & holds, known & ~holds))
    return torch.stack([yes, no], 1)


def about_evaluation(task: str, trained: float, seen: float, targets: Targets) -> str:
    """Is accuracy in eval mode far below that of the same epoch in train mode? "": no."""
    _, number = targets.constant()
    if not number or not trained - seen > max(_FAR, _ERRORS * math.sqrt(0.5 / number)):
        return ""
    return (
        f"{task} has an accuracy of {trained:.2%} in train mode and of {seen:.2%} in eval mode, on "
        "the same data in the same epoch; what is frozen is the network in eval mode\n  remedy: if "
        "it has batch norms, mix the classes in every batch, take larger batches, or norms that do "
        "not look at the batch (nn.GroupNorm); otherwise let the learning rate fall towards the "
        "end (scheduler=, settle_epochs=)"
    )


def about_chance(task: str, accuracy: float, allowed: float, targets: Targets) -> str:
    """Is the accuracy no better than that of a constant answer? "": it is, or who knows.

    ``allowed`` is what pruning may have cost: with a tolerance of 1 that is everything, as asked.
    """
    constant, number = targets.constant()
    if number < _ENOUGH or constant == 1.0:
        return ""
    noise = _ERRORS * math.sqrt(constant * (1 - constant) / number)
    if accuracy + allowed > constant + noise:
        return ""
    return (
        f"{task} has learned next to nothing: its accuracy on {number} targets of its own training "
        f"data is {accuracy:.2%}, and the same answer to everything has {constant:.2%}\n  remedy: "
        "before finish_task(), train longer or with another learning rate (net.rollback() goes "
        "back to the start of the task), and check that targets belong to inputs"
    )


def about_room(task: str, step: float, tolerance: float) -> str:
    """Nothing could be pruned, so nothing will be left."""
    return (
        f"{task} has given up none of its units, for a round of pruning (step={step:g}) cost more "
        f"than tolerance={tolerance:g}: finish_task() will freeze them all and leave none to later "
        "tasks\n  remedy: pass a smaller step, a higher tolerance or more recovery_epochs, or call "
        "net.prune(0.5), say, before finish_task(); pass prune=False for a last task"
    )
