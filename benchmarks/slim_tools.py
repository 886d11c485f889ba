"""The two tools of ``benchmarks/slim.py``: each makes a trained network smaller in three ways."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoeidetic.commands.benchmark.models import multiply_adds
from autoeidetic.commands.benchmark.with_torch_pruning import pruned_to
from autoeidetic.common.inputs import CallInputs
from benchmarks.slim_networks import OURS, THEIRS, batch_norms

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Way:
    """A tool with one of its scores.

    ``smaller(model, share, x, batches)`` makes a copy with a share of the multiply-adds.
    autoeidetic is asked for it; Torch-Pruning is asked for a share of the channels, so ratios are
    tried until it is next to the share of the multiply-adds.
    """

    tool: str
    score: str
    smaller: Callable[[nn.Module, float, Tensor, Sequence[Batch]], nn.Module]


def _slim(score: str, by: str, **options: Any) -> Way:
    def smaller(model: nn.Module, share: float, x: Tensor, batches: Sequence[Batch]) -> nn.Module:
        import autoeidetic

        return autoeidetic.slim(
            model, share, x, of="multiply-adds", by=by, loader=batches, **options
        )

    return Way(OURS, score, smaller)


def _torch_pruning(score: str, importance: str, **options: Any) -> Way:
    def smaller(model: nn.Module, share: float, x: Tensor, batches: Sequence[Batch]) -> nn.Module:
        import torch_pruning

        measured = copy.deepcopy(model).eval()
        goal = share * work_of(measured, x)
        if "Taylor" in importance:
            for inputs, labels in batches:  # gradients add up, as in its examples
                F.cross_entropy(measured(inputs), labels).backward()
        kind = getattr(torch_pruning.importance, importance)()
        found = pruned_to(measured, CallInputs((x,), {}), goal, importance=kind, **options)
        return estimated_again(found, batches)

    return Way(THEIRS, score, smaller)


WAYS = (
    _slim("l2", "l2"),
    _slim("taylor", "taylor"),
    _slim("taylor, half of it ranked", "taylor", over_network=0.5),
    _torch_pruning("magnitude", "GroupMagnitudeImportance"),
    _torch_pruning("Taylor", "GroupTaylorImportance"),
    _torch_pruning("Taylor, global", "GroupTaylorImportance", global_pruning=True),
)


@torch.no_grad()
def estimated_again(model: nn.Module, batches: Sequence[Batch]) -> nn.Module:
    """Replace the statistics of batch norms by their mean over batches, as ``slim`` does."""
    usual = {layer: layer.momentum for layer in batch_norms(model)}
    for layer in usual:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
        layer.train()
    for inputs, _ in batches:
        model(inputs)
    for layer, momentum in usual.items():
        layer.momentum = momentum
    return model.eval()


def work_of(model: nn.Module, x: Tensor) -> int:
    """The multiply-adds for one image."""
    model.eval()
    return multiply_adds(model, CallInputs((x,), {}))


def score_batches(loader: Any, number: int) -> list[Batch]:
    """The same batches for every score that needs data."""
    found = []
    for batch, _ in zip(loader, range(number), strict=False):
        found.append(batch)
    return found
