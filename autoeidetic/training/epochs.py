"""Epochs: single passes over the data, in train mode, in eval mode, and for statistics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..common import distributed
from ..common.batches import call, length, split, to_device
from ..errors import InputError, NonFiniteError
from ..results.metric import Accumulator
from ..tasks.network import Network
from ..tasks.pruning.scores import ScoreData
from .learning_warnings import Targets
from .progress import TRAIN
from .progress_bar import Bar
from .running_statistics import estimate, no_batches

#: (network, batch) -> (loss, output, target): what one step computes.
StepFunction = Callable[[nn.Module, Any], tuple[Tensor, Any, Any]]


class EmptyBatchError(InputError):
    """A batch has no samples, and therefore no loss."""


@dataclass
class EpochRunner:
    """Runs passes over the data of one task.

    ``model`` is the network, or its wrapper that distributes it over processes. ``targets``, if the
    metric is accuracy, counts the targets in the first pass; ``counted`` tells that this is done.
    """

    net: Network
    model: nn.Module
    loader: Iterable[Any]
    step_function: StepFunction
    optimizer: torch.optim.Optimizer
    after_batch: Callable[[], None] | None
    metric: Accumulator
    targets: Targets | None
    clip: float | None
    autocast: str | None
    scaler: Any
    bar: Bar
    counted: bool = False

    # -- training ------------------------------------------------------------------------------

    def train(self, phase: str, epoch: int) -> tuple[float, float]:
        """One epoch of training: the mean loss, and the accuracy of the outputs on the way.

        Raises:
            NonFiniteError: the loss is infinite or NaN.
            InputError: the loader is empty, or gives an empty batch.
        """
        self.net.train()
        self._new_order(epoch)
        self._reset()
        self.bar.begin(phase, length(self.loader))
        # In double: a float32 sum over many batches would lose the last ones.
        losses, batches = torch.zeros((), dtype=torch.float64), 0
        for batch in self._batches():
            loss = self._step(batch, phase, batches)
            if phase == TRAIN and self.after_batch is not None:
                self.after_batch()
            losses += loss.cpu()
            batches += 1
            self.bar.advance()
        # Processes may have different numbers of batches: average over all of them.
        sums = distributed.total(torch.stack([losses, torch.tensor(float(batches)).double()]))
        self._ended(batches)
        # Each process has normalised its own batches; all go on with the statistics of the first.
        distributed.same(self.net.backbone.buffers())
        return float(sums[0] / sums[1]), self.metric.compute()

    def _step(self, batch: Any, phase: str, number: int) -> Tensor:
        # None, not 0: an optimizer skips parameters without a gradient.
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss, output, target = self.step_function(self.model, batch)
        # Looked at before backward: NaN in a gradient would reach the moments of the optimizer.
        bad = ~torch.isfinite(loss.detach())
        # A bad loss in one process stops all of them: the others would wait for it in backward.
        if bool(distributed.total(bad.long())):
            raise self._loss_error(batch, f"batch {number} of a {phase} epoch")
        # The scaler does nothing unless autocast is float16. Clipping needs unscaled gradients; the
        # gradients of frozen elements are zero and do not count in the norm.
        self.scaler.scale(loss).backward()
        if self.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            self._measure(output, target)
        return loss.detach().double()

    def _loss_error(self, batch: Any, where: str) -> NonFiniteError | EmptyBatchError:
        task = self.net.open_task
        if _is_empty(batch):
            return EmptyBatchError(
                f"{where} of task {task} is empty, so it has no loss",
                remedy="let the loader give batches that have samples",
            )
        return NonFiniteError(
            f"the loss is infinite or NaN at {where} of task {task}",
            remedy="train with a lower learning rate, or pass clip=1.0",
        )

    def _new_order(self, epoch: int) -> None:
        """Make a sampler that divides the data between processes shuffle again."""
        sampler = getattr(self.loader, "sampler", None)
        if isinstance(sampler, torch.utils.data.DistributedSampler):
            sampler.set_epoch(epoch)

    # -- measuring -----------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, phase: str) -> float:
        """The accuracy in eval mode, with the running statistics as they are."""
        training = self.net.training
        self.net.eval()
        self._reset()
        self.bar.begin(phase, length(self.loader))
        batches = 0
        try:
            for batch in self._batches():
                batches += 1
                # self.net instead of self.model: without gradients there is nothing to synchronise.
                with self._precision():
                    _, output, target = self.step_function(self.net, batch)
                self._measure(output, target)
                self.bar.advance()
        finally:
            self.net.train(training)
        self._ended(batches)
        return self.metric.compute()

    def _reset(self) -> None:
        self.metric.reset()
        # All passes have the same data, so targets are counted once, in the first complete pass.
        if self.targets is not None and not self.counted:
            self.targets.reset()

    def _measure(self, output: Any, target: Any) -> None:
        self.metric.update(output, target)
        if self.targets is not None and not self.counted:
            self.targets.update(output, target)

    def refresh_statistics(self) -> None:
        """Re-estimate the running statistics for the current weights."""
        device = self._device()

        def forward(batch: Any) -> None:
            with self._precision():
                self.step_function(self.net, to_device(batch, device))

        estimate(self.net, self.loader, forward)

    def _ended(self, batches: int) -> None:
        if not batches:
            raise no_batches()
        self.counted = True

    def score_data(self, batches: int) -> ScoreData:
        """The first batches, for scores that need data."""

        def loss(net: Network, batch: Any) -> Tensor:
            with self._precision():
                return self.step_function(net, batch)[0]

        return ScoreData(itertools.islice(self._batches(), batches), loss)

    def _batches(self) -> Iterator[Any]:
        device = self._device()
        for batch in self.loader:
            yield to_device(batch, device)

    def _device(self) -> torch.device:
        return next(self.net.parameters()).device

    def _precision(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self._device().type, dtype=getattr(torch, self.autocast))


def _is_empty(batch: Any) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    return bool(tensors) and not any(tensor.numel() for tensor in tensors)


def step_with(loss: Callable[[Any, Any], Tensor]) -> StepFunction:
    """The default step function: a loss of (output, target) on pairs (inputs, targets)."""

    def step(model: nn.Module, batch: Any) -> tuple[Tensor, Any, Any]:
        inputs, target = split(batch)
        output = call(model, inputs)
        return loss(output, target), output, target

    return step
