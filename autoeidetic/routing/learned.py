"""Learned: a task classifier on the penultimate features, as in the paper.

Its data set is that of the paper's meta-task: the inputs of all tasks with the task as the label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm

from ..errors import InputError
from .base import Examples, Router, Settings, router
from .features import View

#: A feature is constant if its spread is at most this fraction of its mean.
_CONSTANT = 1e-6


@router("learned")
class Learned(Router):
    """A network with one hidden layer on standardised features, trained by AdamW.

    Args:
        hidden: the number of hidden units.
        batch_size: the batch size of its training.
        weight_decay: the weight decay of AdamW.
    """

    layout = {
        "mean": (torch.float32, ("width",)),
        "scale": (torch.float32, ("width",)),
        "weight_in": (torch.float32, ("hidden", "width")),
        "bias_in": (torch.float32, ("hidden",)),
        "weight_out": (torch.float32, ("tasks", "hidden")),
        "bias_out": (torch.float32, ("tasks",)),
    }
    mean: Tensor
    scale: Tensor
    weight_in: Tensor
    bias_in: Tensor
    weight_out: Tensor
    bias_out: Tensor

    def __init__(
        self, hidden: int = 128, batch_size: int = 128, weight_decay: float = 0.01
    ) -> None:
        super().__init__()
        self.hidden, self.batch_size, self.weight_decay = hidden, batch_size, weight_decay
        for name, value in (("hidden", hidden), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    f"{name}={value!r} is not a positive whole number",
                    remedy="pass a positive whole number",
                )

    def fit(
        self, examples: Sequence[Examples], view: View, settings: Settings
    ) -> dict[str, Tensor]:
        rows = torch.cat([each.rows for each in examples])
        tasks = torch.cat([torch.full((len(e.rows),), t) for t, e in enumerate(examples)])
        mean, scale = _standard(rows)
        rows = (rows - mean).mul_(scale).float()  # [examples of all tasks, width]
        weights = self._train(rows, tasks, view, settings)
        return {"mean": mean.float(), "scale": scale.float(), **weights}

    def _train(
        self, rows: Tensor, tasks: Tensor, view: View, settings: Settings
    ) -> dict[str, Tensor]:
        # Plain tensors instead of modules: the result is a dictionary of buffers.
        generator = torch.Generator().manual_seed(settings.seed)
        weights = {
            "weight_in": _uniform((self.hidden, view.width), view.width, generator),
            "bias_in": _uniform((self.hidden,), view.width, generator),
            "weight_out": _uniform((view.tasks, self.hidden), self.hidden, generator),
            "bias_out": _uniform((view.tasks,), self.hidden, generator),
        }
        weights = {n: w.to(settings.device).requires_grad_() for n, w in weights.items()}
        optimizer = torch.optim.AdamW(
            list(weights.values()), lr=settings.lr, weight_decay=self.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
        for _ in _bar(range(settings.epochs), settings):
            # A generator of its own: training a router draws nothing from the global one.
            for chosen in torch.randperm(len(rows), generator=generator).split(self.batch_size):
                optimizer.zero_grad()
                scores = _classify(rows[chosen].to(settings.device), **weights)
                F.cross_entropy(scores, tasks[chosen].to(settings.device)).backward()
                optimizer.step()
            schedule.step()
        return weights

    def scores(self, rows: Tensor, view: View) -> Tensor:
        standard = (rows - self.mean) * self.scale
        return _classify(
            standard.float(), self.weight_in, self.bias_in, self.weight_out, self.bias_out
        )


def _classify(
    rows: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor
) -> Tensor:
    return F.linear(F.relu(F.linear(rows, weight_in, bias_in)), weight_out, bias_out)


def _standard(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and scale that standardise each feature; constant features get the scale 0."""
    spread, mean = torch.std_mean(rows.double(), 0, correction=0)
    # A tiny spread is rounding; 1 / spread would turn it into the largest feature.
    constant = spread <= _CONSTANT * mean.abs()
    return mean.to(rows), torch.where(constant, torch.zeros_like(spread), 1 / spread).to(rows)


def _uniform(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    """Initial values as in torch.nn.Linear."""
    bound = 1 / math.sqrt(max(inputs, 1))
    values = torch.rand(shape, generator=generator, dtype=torch.float32)
    return (values * 2 - 1) * bound


def _bar(epochs: Any, settings: Settings) -> Any:
    return tqdm(
        epochs, desc="router", unit="epoch", delay=1, leave=False, disable=not settings.progress
    )
