"""Outputs: the task whose head is most confident wins. No training is needed.

Outputs are taken as logits. The positions of dense outputs are averaged.
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
    """A confidence for each head; with data, the heads are made comparable (Platt scaling)."""

    needs_data = False
    reads_outputs = True
    layout = {"scale": (torch.float64, ("tasks",)), "offset": (torch.float64, ("tasks",))}
    scale: Tensor
    offset: Tensor

    def confidence(self, logits: Tensor) -> Tensor:
        """The confidence of a head, from its logits ``[..., classes]``."""
        raise NotImplementedError

    def look(self, seen: Seen) -> Tensor:
        # logits: [inputs, *positions, classes] for each task, with its own number of classes.
        scores = [self.confidence(logits.double()) for logits in seen.logits]
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
    """Minus the entropy of a head's probabilities, as a fraction of the maximum entropy."""

    def fit(
        self, examples: Sequence[Examples], view: View, settings: Settings
    ) -> dict[str, Tensor]:
        if min(view.classes) < 2:
            raise InputError(
                f"the head of task {view.classes.index(1)} has one class, so its entropy is 0",
                remedy='use by="energy" or by="learned"',
            )
        return super().fit(examples, view, settings)

    def confidence(self, logits: Tensor) -> Tensor:
        # sum p log p is minus the entropy: -log(classes) if all are equal, 0 if one is certain.
        logs = logits.log_softmax(-1)
        return (logs.exp() * logs).sum(-1) / math.log(logits.shape[-1])


@router("energy")
class Energy(Outputs):
    """Minus the free energy: the logarithm of the mean of the exponentials of the logits.

    The mean instead of the sum, so that a head does not win by the number of its classes.
    """

    def confidence(self, logits: Tensor) -> Tensor:
        return logits.logsumexp(-1) - math.log(logits.shape[-1])
