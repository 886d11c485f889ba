"""Train: the public function ``train_task``, which checks its arguments and runs the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..common import distributed
from ..common.batches import criterion, divided
from ..common.inputs import check_loader
from ..errors import InputError, TaskError
from ..results.metric import accumulator
from .config import TrainConfig
from .epochs import EpochRunner, StepFunction, step_with
from .history import Epoch, TaskHistory
from .learning_warnings import Targets
from .loop import Loop
from .optimizer import check_optimizer, default_optimizer
from .progress_bar import bar
from .store import Directory, Memory

if TYPE_CHECKING:
    from ..net import EideticNet


def train_task(
    net: EideticNet,
    loader: Iterable[Any],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    metric: Any = None,
    scheduler: Any = None,
    scheduler_every: str = "epoch",
    step_function: StepFunction | None = None,
    checkpoint: Any = None,
    progress: bool = True,
    on_epoch: Callable[[Epoch], None] | None = None,
    config: TrainConfig | None = None,
    **settings: Any,
) -> TaskHistory:
    """Train the open task, prune it as far as it goes, and leave it ready to be finished.

    Train until the training accuracy has not risen for ``patience`` epochs. Then prune in
    rounds: a round gives up ``step`` of each group's units. If the accuracy on the training data
    falls more than ``tolerance`` below the best, train for at most ``recovery_epochs``; if that
    does not bring it back, undo the round and stop.

    Args:
        loader: batches (inputs, targets); inputs are a tensor, a tuple or a dict.
        optimizer: an optimizer of ``net.parameters()``, made after ``prepare_for_task``; by default
            AdamW with a rate of 0.001.
        loss: a function of (output, target); by default cross entropy, or binary cross entropy for
            targets that are real numbers.
        metric: what counts as accuracy, higher is better: a function of (output, target) or
            an object with ``update``, ``compute`` and ``reset`` (torchmetrics).
        scheduler: a scheduler of the learning rates, stepped ``scheduler_every`` "epoch" or
            "batch" while training; not while pruning.
        step_function: (network, batch) -> (loss, output, target), instead of ``loss``.
        checkpoint: a directory where the state is stored after every epoch. After the program was
            killed, the same call continues from there, with the same result.
        progress: show a bar.
        on_epoch: called with a record of each epoch.
        config: settings in one object.
        settings: fields of :class:`~autoeidetic.TrainConfig`, instead of or on top of ``config``:
            pruning, step, most, tolerance, patience, recovery_epochs, settle_epochs,
            max_epochs, lr_factor, prune, clip, autocast, score_batches.

    Running statistics of batch norms lag behind the weights. They are re-estimated before accuracy
    is measured in eval mode and before this returns (:meth:`refresh_statistics`). A
    :class:`~autoeidetic.LearningWarning` tells when that accuracy is far below the one in train
    mode, when a task ends at chance, and when no round of pruning could be kept.

    Several processes launched by ``torchrun`` train the task together.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        >>> net = autoeidetic.convert(model, torch.randn(2, 4))
        >>> net.prepare_for_task(0, num_classes=2)
        >>> x = torch.randn(64, 4)
        >>> history = net.train_task([(x, (x[:, 0] > 0).long())], max_epochs=20, progress=False)
        >>> net.finish_task()
        >>> history.task
        0

    Raises:
        TaskError: no task is open.
        InputError: the loader gives no batches, or empty ones; the optimizer does not have the
            parameters of the task's head.
        NonFiniteError: the loss or a value became infinite or NaN; the network is back where
            it was after the last good epoch.
        CheckpointError: the directory cannot be written to, is of another network, or is in use
            by another run.
    """
    if net.open_task is None:
        raise TaskError(
            "train_task() was called, but no task is open",
            remedy=f"call prepare_for_task({len(net.tasks)}) first",
        )
    if scheduler_every not in ("epoch", "batch"):
        raise InputError(
            f"scheduler_every={scheduler_every!r} is unknown", remedy='use "epoch" or "batch"'
        )
    config = (config or TrainConfig()).with_(**settings)
    check_loader(loader, "loader")
    if optimizer is not None:
        check_optimizer(net, optimizer)
    distributed.start()
    store = Memory() if checkpoint is None else Directory(checkpoint, net.open_task)
    if optimizer is None:
        optimizer = default_optimizer(net.parameters())
    loader = divided(loader)
    device = next(net.parameters()).device
    with store, bar(net.tasks[-1].name, progress) as shown:
        runner = EpochRunner(
            net=net,
            model=_distributed(net),
            loader=loader,
            step_function=step_function or step_with(loss or criterion),
            optimizer=optimizer,
            after_batch=scheduler.step if scheduler and scheduler_every == "batch" else None,
            metric=accumulator(metric, device=device),
            targets=Targets() if metric is None else None,
            clip=config.clip,
            autocast=config.autocast,
            scaler=torch.amp.GradScaler(device.type, enabled=config.autocast == "float16"),
            bar=shown,
        )
        # A custom loss may weigh classes, which changes what accuracy at chance is.
        own_loss = loss is not None or step_function is not None
        return Loop(
            runner, scheduler, scheduler_every, config, store, on_epoch, own_loss=own_loss
        ).run()


def _distributed(net: EideticNet) -> nn.Module:
    """The network, wrapped if several processes train it."""
    if distributed.count() == 1:
        return net
    net._tasks[-1] = distributed.first(net.tasks[-1])  # the seed that rollback() draws from again
    return nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
