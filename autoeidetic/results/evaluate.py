"""Evaluate: measure every task of a network, and take digests of the outputs of finished ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..common import distributed
from ..common.tables import line
from ..common.undisturbed import undisturbed
from ..errors import InputError, TaskError
from ..routing import routable_tasks
from ..tasks.network import Network
from ..tasks.task import Task
from .evaluation import Evaluation, TaskResult
from .metric import accumulator, sums
from .task_measurement import TaskMeasurement

Loaders = Sequence[Iterable[Any]] | Mapping[int, Iterable[Any]]


def evaluate(
    net: Network,
    loaders: Loaders,
    *,
    metric: Any = None,
    tasks: Iterable[int] | None = None,
    reference: Any = None,
    together: bool = True,
    progress: bool = False,
) -> Evaluation:
    """Measure every task on its own data, without changing the network.

    A router that knows all finished tasks is measured as well, on inputs without their task.

    Args:
        net: the network.
        loaders: one for each task, in order or by task number; loaders of later tasks may be
            included. Batches are (inputs, targets), inputs a tensor, a tuple of positional or a
            dict of keyword arguments.
        metric: see :func:`autoeidetic.results.accumulator`; accuracy by default. A dict gives
            every task its own metric.
        tasks: evaluate only these tasks.
        reference: inputs of one batch that the digests are taken over. By default digests are over
            the loader of each task, which must then give the same batches every time.
        together: with several processes, each with its part of the data, all must call this, and
            all get the result over all data. False: each process evaluates on its own.
        progress: print a line for each task to stderr.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(10, 4), torch.randint(2, (10,))
        >>> net = autoeidetic.convert(model, x)
        >>> net.prepare_for_task(0, num_classes=2, name="coin")
        >>> evaluation = autoeidetic.evaluate(net, [[(x, y)]])
        >>> evaluation.tasks[0].samples
        10
        >>> evaluation.average == evaluation.accuracy[0]
        True

    Raises:
        InputError: a task has no loader, a loader has no batch, or targets do not fit outputs.
        TaskError: there is no such task.
    """
    chosen = _chosen(net, loaders, tasks)
    device = next(net.parameters()).device
    note = _router_note(net)
    routed = set(routable_tasks(net)) if net.router is not None and not note else set()
    # [true task, task found]; rows of tasks that are not routed stay 0.
    confusion = torch.zeros(len(net.tasks), len(net.tasks), dtype=torch.int64)
    results, names = [], []
    with _looking(net):
        for task in chosen:
            began = time.perf_counter()
            own = metric[task.index] if isinstance(metric, Mapping) else metric
            measure = accumulator(own, device=device, together=together)
            measure.reset()  # a metric object may have been used before
            measurement = TaskMeasurement(
                net,
                task,
                measure,
                is_accuracy=own is None,
                confusion=confusion[task.index] if task.index in routed else None,
                reference=reference,
                device=device,
            )
            results.append(measurement.run(loaders[task.index], together))
            names.append(measure.name)
            if progress and distributed.rank() == 0:
                _print(results[-1], measure.name, time.perf_counter() - began)
    counts = sums(confusion, together).tolist()
    return Evaluation(
        ", ".join(dict.fromkeys(names)),
        tuple(results),
        tuple(tuple(row) for row in counts) if net.router is not None and not note else None,
        note,
    )


def _router_note(net: Network) -> str:
    """Why the router is not measured; "" if it is, or if there is none."""
    finished = len(routable_tasks(net))
    if net.router is None or net.router.tasks == finished:
        return ""
    return f"the router knows {net.router.tasks} of {finished} finished tasks: not measured"


def _chosen(net: Network, loaders: Loaders, tasks: Iterable[int] | None) -> list[Task]:
    """The tasks to evaluate, each of which must have a loader."""
    if not net.tasks:
        raise TaskError(
            "the network has no task yet", remedy="call prepare_for_task(0, num_classes=...) first"
        )
    asked = range(len(net.tasks)) if tasks is None else sorted(set(tasks))
    held = set(loaders) if isinstance(loaders, Mapping) else set(range(len(loaders)))
    for task in asked:
        if task not in range(len(net.tasks)):
            raise TaskError(
                f"there is no task {task!r}", remedy=f"there are tasks 0 to {len(net.tasks) - 1}"
            )
        if task not in held:
            raise InputError(
                f"there is no loader for task {task}",
                remedy="pass one for each task, or tasks= to evaluate only some",
            )
    return [net.tasks[task] for task in asked]


@contextmanager
def _looking(net: Network) -> Iterator[None]:
    """Eval mode without gradients; restores modes, and the generator that loaders draw from."""
    before = net.training
    with undisturbed(net, evaluate=True, generators="cpu", gradients=False):
        try:
            yield
        finally:
            net.train(before)  # puts pinned values back, unlike setting the mode


def _print(result: TaskResult, metric: str, seconds: float) -> None:
    routed = "" if result.agnostic is None else f", task unknown {result.agnostic:.4f}"
    print(
        f"{line(result.name)}: {metric} {result.accuracy:.4f}{routed} "
        f"({result.samples} samples, {seconds:.1f} s)",
        file=sys.stderr,
    )
