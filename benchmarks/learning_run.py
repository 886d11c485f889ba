"""A sequence of tasks, learned and recorded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autoeidetic
from autoeidetic.commands.benchmark.runner import Record
from benchmarks import learning_data as data


def learned(
    options: argparse.Namespace,
    name: str,
    build: Callable[[], nn.Module],
    tasks: Sequence[data.TaskData],
    batch_size: int,
    optimizer: Callable[[autoeidetic.EideticNet], torch.optim.Optimizer],
    *,
    transform: Any = None,
    convert: dict[str, Any] | None = None,
    task_settings: Callable[[int], dict[str, Any]] = lambda task: {},
    **settings: Any,
) -> tuple[autoeidetic.EideticNet, autoeidetic.Run, Record]:
    """Run ``autoeidetic.learn`` and record the results.

    ``task_settings`` returns the settings of a task that differ from the common ones.
    """
    torch.manual_seed(options.seed)
    net = autoeidetic.convert(build(), tasks[0].train.x[:2], **(convert or {}))
    lessons = [
        autoeidetic.Lesson(
            train=task.batches(batch_size, transform),
            test=task.test_batches(),
            classes=task.classes,
            name=task.name,
            settings=task_settings(number),
        )
        for number, task in enumerate(tasks)
    ]
    run = autoeidetic.learn(
        net,
        lessons,
        options.into / f"{name}-seed{options.seed}",
        optimizer=lambda _: optimizer(net),
        progress=not options.quiet,
        **settings,
    )
    return net, run, recorded(net, run, next(iter(lessons[0].test))[0][:64])


def recorded(net: autoeidetic.EideticNet, run: autoeidetic.Run, x: torch.Tensor) -> Record:
    """The results of a run; ``x`` are inputs to verify with."""
    matrix = run.matrix
    return {
        "accuracy": [list(row) for row in matrix.rows],
        "average": matrix.average(),
        "backward transfer": matrix.backward_transfer() if len(net.tasks) > 1 else 0.0,
        "bitwise": run.bitwise.to_dict(),
        "verified": net.verify(x).ok,
        "capacity": list(net.capacity().tasks),
        "free": net.capacity().free,
        "seconds": sum(row["seconds"] for row in run.rows),
        "epochs": len(run.rows),
        "config": run.config,
    }


def stored(file: Path, make: Callable[[], Record]) -> Record:
    """A result, read from a file if an earlier call has stored it."""
    if not file.exists():
        made = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(made))
    found: Record = json.loads(file.read_text())
    return found
