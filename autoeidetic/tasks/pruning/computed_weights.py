"""Computed weights: values for hidden elements of a parameter that a weight is computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...propagate.values import varies

if TYPE_CHECKING:
    from ..network import Network


@torch.no_grad()
def level_computed_weights(network: Network) -> None:
    """Give hidden elements of standardised weights the mean of the visible ones.

        parameter row   [ a  b | h  h ]   a, b visible to the open task, h hidden
        set h           := mean(a, b)     so the mean of the row is that of what it reads

    The zeros themselves go on the computed weight. A weight whose rows depend on each other (a
    spectral norm) has no such means.
    """
    owners = network.owners
    for name, entry in network.call_plan.plan.parameters.items():
        for read in entry.reads if varies(entry.units) else ():
            if not read.transformed or read.columns.shape != entry.units.shape or entry.head:
                continue
            weight = network.backbone.get_parameter(name)
            rows = owners.level_of(read.rows)
            hidden = owners.hidden(rows, read.columns) & (rows == network.open_task)
            hidden = hidden.expand(weight.shape).to(weight.device)
            if not bool(hidden.any()):
                continue
            visible = (~hidden).flatten(1)
            mean = (weight.flatten(1) * visible).sum(1) / visible.sum(1).clamp(min=1)
            shape = [-1] + [1] * (weight.dim() - 1)
            weight.copy_(torch.where(hidden, mean.view(shape), weight))
