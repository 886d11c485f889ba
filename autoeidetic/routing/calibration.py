"""Calibration: turn scores that rank tasks into scores whose softmax gives probabilities."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

#: Keeps scales finite when the scores separate the tasks without error.
_PENALTY = 1e-3
_STEPS = 100


def calibrate(scores: Tensor, tasks: Tensor, *, each: bool) -> tuple[Tensor, Tensor]:
    """A positive scale and an offset for every task's score, by maximum likelihood of the tasks.

    Without ``each`` there is one scale for all tasks and no offset, so the highest score stays the
    highest (temperature scaling). With it every task has its own, which makes the scores of
    different heads comparable (Platt scaling).

    Example:
        >>> scores, tasks = torch.tensor([[2.0, 1.0], [1.0, 0.0], [9.0, 1.0]]), torch.tensor([0, 1, 0])
        >>> scale, offset = calibrate(scores, tasks, each=True)
        >>> (scores * scale + offset).argmax(1)
        tensor([0, 1, 0])
    """  # noqa: E501
    # softmax(scale * scores + offset) = P(task); all in double, as sums over all examples.
    scores = scores.double()
    number = scores.shape[1]
    spread, centre = torch.std_mean(scores, 0, correction=0)
    # One scale must not change the ranking: no centre, and one spread for all tasks.
    if not each:
        spread, centre = scores.std(correction=0).expand(number), torch.zeros_like(centre)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    # Fitted on standardised scores, where one penalty suits all; undone in the last two lines.
    standard = (scores - centre) / spread
    # The scale is optimised as a logarithm, so it stays positive and never reverses a ranking.
    log_scale = torch.zeros(number if each else 1, dtype=torch.float64, requires_grad=True)
    offset = torch.zeros(number, dtype=torch.float64, requires_grad=each)
    free = [log_scale, offset] if each else [log_scale]
    optimizer = torch.optim.LBFGS(free, max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(standard * log_scale.exp() + offset, tasks)
        value = value + _PENALTY * sum(f.square().sum() for f in free)
        value.backward()
        return value

    optimizer.step(loss)
    # a * (s - c) / d + o  =  (a / d) * s + (o - (a / d) * c)
    scale = log_scale.detach().exp().expand(number) / spread
    return scale.clone(), offset.detach() - scale * centre
