"""Prediction: inputs of unknown tasks in, tasks and labels out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..common.undisturbed import undisturbed
from ..errors import TaskError
from .features import observe, to_be_found, view
from .fitting import check_finite

if TYPE_CHECKING:
    from ..net import EideticNet


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a network makes of inputs of which nobody has told the task.

    ``task`` is the task found for each input, ``label`` the class within that task's head,
    ``confidence`` the router's probability of the task, ``scores`` what speaks for each of the
    finished tasks, in their order (``[inputs, tasks]``); the highest won.

    ``label`` is the largest of the first output that a head makes: ``[inputs]`` for ordinary
    logits, with the positions after it for a dense output.
    """

    task: Tensor
    label: Tensor
    confidence: Tensor
    scores: Tensor


def predict(net: EideticNet, args: Any, kwargs: Any) -> Prediction:
    """See :meth:`autoeidetic.EideticNet.predict`."""
    router, finished = net.router, len(to_be_found(net))
    if router is None:
        raise TaskError(
            "the network has no router to predict() with",
            remedy="call train_router(loaders) first; "
            'train_router(by="entropy") needs no data, but is less accurate',
        )
    if router.tasks != finished:
        raise TaskError(
            f"the router knows {router.tasks} tasks, and {finished} are finished",
            remedy="call train_router again, with the data of every finished task",
        )
    window = view(net, finished)
    with undisturbed(net, evaluate=True, gradients=False):
        seen = observe(net, window, args, kwargs)
        rows = router.look(seen)
        check_finite(rows)
        with torch.autocast(rows.device.type, enabled=False):
            scores = router.scores(rows, window)
        best = scores.argmax(1)
        labels = torch.stack([logits.argmax(-1) for logits in seen.logits])
        return Prediction(
            task=torch.tensor(window.numbers, device=best.device)[best],
            label=labels[best, torch.arange(len(best), device=best.device)],
            confidence=scores.softmax(1).amax(1).float(),
            scores=scores,
        )
