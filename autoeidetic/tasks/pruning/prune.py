"""Prune: score the units of the open task, choose the least important, give them up."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch

from ...errors import InputError
from ..network import Network
from .choose import choose
from .scores import ScoreData, named, unit_scores


@torch.inference_mode(mode=False)
def prune(
    network: Network, fraction: Any, by: str, data: ScoreData | None, *, since_start: bool
) -> None:
    """Give up a fraction of each group's units in training.

    ``since_start``: the fraction is of the units that the task began with.

    Raises:
        InputError: the fraction is no such number, or there is no such score.
    """
    if not isinstance(fraction, Real) or not 0 <= fraction <= 1:  # type: ignore[operator]
        fact = f"fraction={fraction!r} is not a number between 0 and 1"
        raise InputError(fact, remedy="pass 0.5, say")
    scores = unit_scores(network, by, data)
    chosen = choose(
        network.call_plan,
        network.owners,
        scores,
        fraction,  # type: ignore[arg-type]
        over_network=named(by).over_network,
        since_start=since_start,
    )
    network.give_up(chosen)
