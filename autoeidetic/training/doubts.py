"""Doubts: signs that a task has learned less than it seems, each as a warning with a remedy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..common import distributed
from ..results.metric import IGNORED, first_tensor, whole

#: Fewer targets cannot tell a network that has learned something from one that has not.
_ENOUGH = 100
#: What is at least called far, and how many standard errors are no accident.
_FAR, _ERRORS = 0.1, 3.0


class Targets:
    """Counts targets: how many are there, and how good can an answer be that knows no input?"""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._number = 0
        self._classes: Tensor | None = None

    def update(self, output: Any, target: Any) -> None:
        """Count a batch, for which :func:`~autoeidetic.results.metric.accuracy` is defined."""
        output, target = first_tensor(output, "output"), first_tensor(target, "target").detach()
        if not whole(target):
            self._number += int((~target.isnan()).sum())
            return
        target = target[target != IGNORED].flatten().cpu()
        counts = torch.bincount(target, minlength=output.shape[1])
        self._number += len(target)
        self._classes = counts if self._classes is None else self._classes + counts

    def number(self) -> int:
        """How many there are, in all processes."""
        return int(distributed.total(torch.tensor(self._number)))

    def majority(self) -> float:
        """The share of the most frequent class; NaN where there are labels instead of classes.

        Of labels nearly all may be absent: that is no measure of what was learned.
        """
        if self._classes is None:
            return math.nan
        classes = distributed.total(self._classes)
        return int(classes.max()) / max(int(classes.sum()), 1)

    def guessing(self) -> float:
        """One divided by the number of classes; NaN where there are none."""
        return math.nan if self._classes is None else 1 / len(self._classes)


def about_evaluation(task: str, trained: float, seen: float, targets: Targets) -> str:
    """Is accuracy in eval mode far below that of the same epoch in train mode? "": no."""
    number = targets.number()
    if not number or not trained - seen > max(_FAR, _ERRORS * math.sqrt(0.5 / number)):
        return ""
    return (
        f"{task} has an accuracy of {trained:.2%} in train mode and of {seen:.2%} in eval mode, on "
        "the same data in the same epoch; what is frozen is the network in eval mode\n  remedy: if "
        "it has batch norms, mix the classes in every batch, take larger batches, or norms that do "
        "not look at the batch (nn.GroupNorm); otherwise let the learning rate fall towards the "
        "end (scheduler=, settle_epochs=)"
    )


def about_chance(
    task: str, accuracy: float, allowed: float, targets: Targets, *, weighted: bool
) -> str:
    """Is the accuracy no better than without a look at the input? "": it is, or who knows.

    ``allowed`` is what pruning may have cost: with a tolerance of 1 that is everything, as asked.
    ``weighted``: the loss may prefer rare classes, and an accuracy below their share may be right.
    """
    number, chance = targets.number(), targets.majority()
    words = "the same answer to everything has"
    if weighted:
        chance, words = targets.guessing(), "guessing has"
    if number < _ENOUGH or math.isnan(chance) or chance == 1.0:
        return ""
    noise = _ERRORS * math.sqrt(chance * (1 - chance) / number)
    if accuracy + allowed > chance + noise:
        return ""
    return (
        f"{task} has learned next to nothing: its accuracy on {number} targets of its own training "
        f"data is {accuracy:.2%}, and {words} {chance:.2%}\n  remedy: before finish_task(), train "
        "longer or with another learning rate (net.rollback() goes back to the start of the task), "
        "and check that targets belong to inputs"
    )


def about_room(task: str, step: float, tolerance: float) -> str:
    """Nothing could be pruned, so nothing will be left."""
    return (
        f"{task} has given up none of its units, for a round of pruning (step={step:g}) cost more "
        f"than tolerance={tolerance:g}: finish_task() will freeze them all and leave none to later "
        "tasks\n  remedy: pass a smaller step, a higher tolerance or more recovery_epochs, or call "
        "net.prune(0.5), say, before finish_task(); pass prune=False for a last task"
    )
