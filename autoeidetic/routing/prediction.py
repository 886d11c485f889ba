"""Prediction: tasks and labels of inputs whose task is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..common.undisturbed import undisturbed
from ..errors import TaskError
from ..tasks.network import Network
from .features import observe, routable_tasks, view
from .fitting import check_finite


@dataclass(frozen=True, eq=False)
class Prediction:
    """Tasks and labels predicted for inputs whose task is unknown.

    ``task`` is the task found for each input, ``label`` the class within that task's head,
    ``confidence`` the router's probability of the task. ``scores`` (``[inputs, tasks]``) has the
    score of each finished task, in order; the highest wins.

    ``label`` is the argmax of the head's first output: ``[inputs]`` for ordinary logits,
    ``[inputs, *positions]`` for a dense output.
    """

    task: Tensor
    label: Tensor
    confidence: Tensor
    scores: Tensor


def predict(net: Network, args: Any, kwargs: Any) -> Prediction:
    """See :meth:`autoeidetic.EideticNet.predict`."""
    check_router(net)
    with undisturbed(net, evaluate=True, gradients=False):
        net.before_pass(args, kwargs)
        return routed(net, args, kwargs, check=True)


def check_router(net: Network) -> None:
    """Check that there is a router that knows all finished tasks.

    Raises:
        TaskError: there is none, or tasks were finished after it was trained.
    """
    router, finished = net.router, len(routable_tasks(net))
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


def routed(net: Network, args: Any, kwargs: Any, *, check: bool = False) -> Prediction:
    """The prediction by one pass of the body, without ``before_pass``.

    With ``check`` features that are not finite raise an error; a pass that is captured cannot look.
    """
    window = view(net, len(routable_tasks(net)))
    seen = observe(net, window, args, kwargs, bare=not check)
    rows = net.router.look(seen)
    if check:
        check_finite(rows)
    # Autocast would round the scores, and near ties could go to another task.
    with torch.autocast(rows.device.type, enabled=False):
        scores = net.router.scores(rows, window)
    best = scores.argmax(1)
    # One pass answers for all tasks: [tasks, inputs, *positions]; each input takes its task's.
    labels = torch.stack([logits.argmax(-1) for logits in seen.logits])
    return Prediction(
        task=torch.tensor(window.numbers, device=best.device)[best],
        label=labels[best, torch.arange(len(best), device=best.device)],
        confidence=scores.softmax(1).amax(1).float(),
        scores=scores,
    )
