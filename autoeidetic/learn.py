"""Learn: a sequence of tasks, evaluated and recorded, that can be stopped at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from .checkpoint.earlier_seals import earlier_tasks, keep_seal
from .common import archive, distributed, locks
from .errors import InputError
from .net import EideticNet
from .results import Run, evaluate
from .training import TrainConfig, default_optimizer


@dataclass(frozen=True)
class Lesson:
    """One task of a sequence.

    Args:
        train: batches (inputs, targets) to learn from.
        test: batches to evaluate on, the same ones in the same order every time.
        classes: the number of classes of its head; None keeps the size of the model's own.
        name: the name of the task in reports.
        settings: fields of :class:`~autoeidetic.TrainConfig` for this task only.
    """

    train: Iterable[Any]
    test: Iterable[Any]
    classes: int | dict[str, int] | None = None
    name: str | None = None
    settings: dict[str, Any] | None = None


def learn(
    net: EideticNet,
    lessons: Sequence[Lesson],
    directory: Any,
    *,
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    router: str | None = None,
    metric: Any = None,
    config: TrainConfig | None = None,
    prune_last: bool = False,
    progress: bool = True,
    on_full: str = "raise",
    width: float = 0.25,
    **options: Any,
) -> Run:
    """Learn tasks one after another, evaluate all of them after each, and write a record.

    ``directory`` gets the files of :class:`autoeidetic.Run`, the network after every task
    (``network.safetensors``), and the state of training after every epoch. The same call with the
    same directory continues where it was stopped.

    Args:
        net: a converted network without tasks.
        lessons: the tasks.
        directory: the directory of the run.
        optimizer: a function that makes an optimizer from parameters, called for every task; by
            default AdamW.
        scheduler: a function that makes a scheduler from the optimizer.
        router: the kind of router to train after every task but the first; None for no router.
        metric: see :meth:`autoeidetic.EideticNet.train_task`.
        config: the settings of training.
        prune_last: False: the last task is not pruned.
        progress: show bars.
        on_full: see :meth:`autoeidetic.EideticNet.prepare_for_task`.
        width: of the columns that ``on_full="widen"`` adds.
        options: further arguments of :meth:`autoeidetic.EideticNet.train_task`, or settings.

    Example:
        >>> import tempfile, torch, autoeidetic
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        >>> net = autoeidetic.convert(model, torch.randn(2, 4))
        >>> x = torch.randn(64, 4)
        >>> data = [[(x, (x[:, i] > 0).long())] for i in range(2)]
        >>> lessons = [autoeidetic.Lesson(train=d, test=d, classes=2) for d in data]
        >>> run = autoeidetic.learn(
        ...     net, lessons, tempfile.mkdtemp(), max_epochs=5, tolerance=0.5, progress=False
        ... )
        >>> run.matrix.backward_transfer()
        0.0

    Raises:
        InputError: the network has tasks already, or there is no lesson.
        CheckpointError: the directory holds a network that this run did not learn, or another run
            is in it.
    """
    if net.tasks or not lessons:
        raise InputError(
            f"learn() was called with {len(lessons)} lessons and a network with {len(net.tasks)} "
            "tasks",
            remedy="pass a network that has just been converted, and at least one lesson",
        )
    distributed.start()
    directory = archive.as_path(directory, "directory")
    known = {name: options.pop(name) for name in list(options) if name in _SETTINGS}
    config = (config or TrainConfig()).with_(**known)
    optimizer = optimizer or default_optimizer
    run = Run(directory, config=config.to_dict())
    with locks.alone(directory):
        saved = directory / "network.safetensors"
        earlier = earlier_tasks(saved)
        tests = [lesson.test for lesson in lessons]
        # A resumed run starts with a fresh network and goes through all tasks again. Those that are
        # done come out of their stored states without training, and get their first seals back.
        for task, lesson in enumerate(lessons):
            began = perf_counter()
            net.prepare_for_task(task, lesson.classes, lesson.name, on_full=on_full, width=width)
            made = optimizer(net.parameters())
            # Pruning frees units for later tasks, and after the last one there are none.
            prune = config.prune and (prune_last or task < len(lessons) - 1)
            own = {"prune": prune, **(lesson.settings or {})}
            net.train_task(
                lesson.train,
                optimizer=made,
                scheduler=None if scheduler is None else scheduler(made),
                metric=metric,
                checkpoint=directory / "checkpoints",
                progress=progress,
                on_epoch=run.epoch,
                config=config.with_(**own),
                **options,
            )
            net.finish_task()
            if task < len(earlier):  # the file of an earlier start has this task already
                keep_seal(net, earlier[task], saved)
            last = task == len(lessons) - 1
            # After the last task the network gets its router and is saved in any case: the caller
            # goes on with this network, also when the whole run was recorded before.
            if task in run.tasks and not last:
                continue
            if router is not None and task:
                net.train_router(
                    [each.train for each in lessons[: task + 1]], router, progress=False
                )
            if distributed.rank() == 0:
                net.save(saved)
            if task in run.tasks:
                continue
            evaluation = evaluate(net, tests, metric=metric)
            run.after_task(task, evaluation, net.capacity(), seconds=perf_counter() - began)
    return run


_SETTINGS = frozenset(TrainConfig().to_dict())
