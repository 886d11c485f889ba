"""Learning warnings: texts, with a remedy, about signs that a task learned less than it seems.

Each function returns the text of a warning, or "" if there is nothing to warn about.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..common import distributed
from ..results.metric import IGNORED, first_tensor, holds_class_numbers

#: With fewer targets, chance and learning cannot be told apart.
_ENOUGH = 100
#: The least gap in accuracy to warn about, and the number of standard errors it must exceed.
_GAP, _ERRORS = 0.1, 3.0


class Targets:
    """Counts targets and classes, for the accuracy that is possible without looking at inputs."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._number = 0
        self._classes: Tensor | None = None

    def update(self, output: Any, target: Any) -> None:
        """Count a batch for which :func:`~autoeidetic.results.metric.accuracy` is defined."""
        output, target = first_tensor(output, "output"), first_tensor(target, "target").detach()
        if not holds_class_numbers(target):
            self._number += int((~target.isnan()).sum())
            return
        target = target[target != IGNORED].flatten().cpu()
        counts = torch.bincount(target, minlength=output.shape[1])
        self._number += len(target)
        self._classes = counts if self._classes is None else self._classes + counts

    def number(self) -> int:
        """The number of targets in all processes."""
        return int(distributed.total(torch.tensor(self._number)))

    def majority(self) -> float:
        """The share of the most frequent class; NaN for multi-label targets.

        Nearly all labels of a multi-label target may be absent, so the share says nothing there.
        """
        if self._classes is None:
            return math.nan
        classes = distributed.total(self._classes)
        return int(classes.max()) / max(int(classes.sum()), 1)

    def guessing(self) -> float:
        """One divided by the number of classes; NaN for multi-label targets."""
        return math.nan if self._classes is None else 1 / len(self._classes)


def about_evaluation(task: str, trained: float, evaluated: float, targets: Targets) -> str:
    """Warns if accuracy in eval mode is far below that of the same epoch in train mode."""
    number = targets.number()
    # Both accuracies have a variance of at most 1/4 per target, their difference one of 1/2.
    if not number or not trained - evaluated > max(_GAP, _ERRORS * math.sqrt(0.5 / number)):
        return ""
    return (
        f"{task} has an accuracy of {trained:.2%} in train mode and of {evaluated:.2%} in eval "
        "mode, on the same data in the same epoch; finish_task() freezes the network as it is in "
        "eval mode\n  remedy: if it has batch norms, mix the classes in every batch, take larger "
        "batches, or use norms that do not depend on the batch (nn.GroupNorm); otherwise let the "
        "learning rate fall towards the end (scheduler=, settle_epochs=)"
    )


def about_chance(
    task: str, accuracy: float, allowed: float, targets: Targets, *, weighted: bool
) -> str:
    """Warns if the accuracy is no better than that of answers that ignore the input.

    ``allowed`` is the accuracy that pruning may have cost: with a tolerance of 1 that is all of it,
    as the caller asked. ``weighted``: the loss may prefer rare classes, and then an accuracy below
    the share of the most frequent class may be right.
    """
    number, chance = targets.number(), targets.majority()
    words = "the same answer to everything has"
    if weighted:
        chance, words = targets.guessing(), "guessing has"
    if number < _ENOUGH or math.isnan(chance) or chance == 1.0:
        return ""
    # Standard error of an accuracy of ``chance`` on this number of independent targets.
    noise = _ERRORS * math.sqrt(chance * (1 - chance) / number)
    if accuracy + allowed > chance + noise:
        return ""
    return (
        f"{task} has learned next to nothing: its accuracy on {number} targets of its own training "
        f"data is {accuracy:.2%}, and {words} {chance:.2%}\n  remedy: before finish_task(), train "
        "longer or with another learning rate (net.rollback() goes back to the start of the task), "
        "and check that the targets belong to the inputs"
    )


def about_room(task: str, step: float, tolerance: float) -> str:
    """Warns that no unit could be pruned, so that later tasks get none."""
    return (
        f"{task} has given up none of its units, because a round of pruning (step={step:g}) cost "
        f"more than tolerance={tolerance:g}: finish_task() will freeze them all and leave none to "
        "later tasks\n  remedy: pass a smaller step, a higher tolerance or more recovery_epochs, "
        "or call net.prune(0.5) before finish_task(); pass prune=False if this is the last task"
    )
