"""Train: the public function ``train_task``, which checks its arguments and runs the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ..common import distributed
from ..common.batches import criterion, divided
from ..common.inputs import check_loader
from ..errors import InputError, TaskError
from ..results.metric import accumulator
from ..tasks.network import Network
from .config import TrainConfig
from .epochs import EpochRunner, StepFunction, step_with
from .history import Epoch, TaskHistory
from .learning_warnings import Targets
from .loop import Loop
from .optimizer import check_optimizer, default_optimizer
from .progress_bar import bar
from .store import Directory, Memory


def train_task(
    net: Network,
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
    """The loop behind :meth:`autoeidetic.EideticNet.train_task`, which describes it."""
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


def _distributed(net: Network) -> nn.Module:
    """The network, wrapped if several processes train it."""
    if distributed.count() == 1:
        return net
    # all processes draw from the seed of the first when they roll back
    net.adopt_tasks([*net.tasks[:-1], distributed.first(net.tasks[-1])])
    return nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
