"""Outputs: the head that is surest of its answer wins. Nothing needs to be trained.

The outputs are taken for logits. In dense outputs the positions are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError
from .base import Examples, Router, Settings, router
from .calibration import calibrate
from .features import Seen, View


class Outputs(Router):
    """Scores of one head at a time; with data, the heads are made comparable (Platt scaling)."""

    needs_data = False
    reads_outputs = True
    layout = {"scale": (torch.float64, ("tasks",)), "offset": (torch.float64, ("tasks",))}
    scale: Tensor
    offset: Tensor

    def sure(self, logits: Tensor) -> Tensor:
        """How sure a head is, from its logits ``[..., classes]``."""
        raise NotImplementedError

    def look(self, seen: Seen) -> Tensor:
        scores = [self.sure(logits.double()) for logits in seen.logits]
        return torch.stack([s.flatten(1).mean(1) if s.dim() > 1 else s for s in scores], 1)

    def fit(
        self, examples: Sequence[Examples], view: View, settings: Settings
    ) -> dict[str, Tensor]:
        if examples:
            rows = torch.cat([each.rows for each in examples])
            tasks = torch.cat([torch.full((len(e.rows),), t) for t, e in enumerate(examples)])
            scale, offset = calibrate(rows, tasks, each=True)
        else:
            scale = torch.ones(view.tasks, dtype=torch.float64)
            offset = torch.zeros(view.tasks, dtype=torch.float64)
        return {"scale": scale.to(settings.device), "offset": offset.to(settings.device)}

    def scores(self, rows: Tensor, view: View) -> Tensor:
        return rows * self.scale + self.offset


@router("entropy")
class Entropy(Outputs):
    """Minus the entropy of a head's probabilities, as a part of the largest there can be."""

    def fit(
        self, examples: Sequence[Examples], view: View, settings: Settings
    ) -> dict[str, Tensor]:
        if min(view.classes) < 2:
            raise InputError(
                f"the head of task {view.classes.index(1)} has one class, and so no entropy",
                remedy='use by="energy" or by="learned"',
            )
        return super().fit(examples, view, settings)

    def sure(self, logits: Tensor) -> Tensor:
        logs = logits.log_softmax(-1)
        return (logs.exp() * logs).sum(-1) / math.log(logits.shape[-1])


@router("energy")
class Energy(Outputs):
    """Minus the free energy: the logarithm of the mean of the exponentials of the logits.

    The mean and not the sum, so that a head does not win by the number of its classes.
    """

    def sure(self, logits: Tensor) -> Tensor:
        return logits.logsumexp(-1) - math.log(logits.shape[-1])
