"""Run: the record of a run in a directory of plain files, which can be continued after a crash."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common import distributed, environment, files
from ..common.tables import line, notebook_html, number, table
from ..errors import InputError
from .accuracy_matrix import AccuracyMatrix
from .bitwise import Bitwise
from .epoch_rows import Row, as_mapping, as_row, epochs, key
from .run_directory import FORMAT, RESULTS, RunDirectory, as_number
from .tensorboard import Board

if TYPE_CHECKING:
    from ..tasks.capacity import Capacity
    from .evaluation import Evaluation


class Run:
    """The record of a run in a directory: begun, or continued if there is one already.

    - ``metrics.csv``: a row for every epoch
    - ``tasks.csv``: a row for every finished task
    - ``results.json``: everything that is not per epoch: accuracies and their means, per class,
      confusions of the router, capacity, digests, configuration, versions, seeds, date
    - ``plots/``: drawings, if matplotlib is installed
    - ``tensorboard/``: the same curves, if tensorboard is installed

    Every file is replaced as a whole, so a crash leaves the old one or the new one. An epoch or a
    task that is repeated after a crash replaces its earlier record. With several processes only the
    first one writes.

    Args:
        directory: the directory; it is created if it does not exist.
        config: settings to record: a mapping or a dataclass of plain values.
        seeds: a dict, or one number; by default torch's seed.
        date: when the run began; by default now.
        draw: False for no plots, True to insist on them.
        tensorboard: False for no events.

    Example:
        >>> import tempfile, torch, autoeidetic
        >>> from torch import nn
        >>> directory = tempfile.mkdtemp()
        >>> run = autoeidetic.Run(directory, config={"lr": 0.1}, draw=False)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(10, 4), torch.randint(2, (10,))
        >>> net = autoeidetic.convert(model, x)
        >>> for task in range(2):
        ...     net.prepare_for_task(task, num_classes=2)
        ...     run.epoch(task=task, epoch=0, loss=0.7)  # train here
        ...     net.prune(0.5)
        ...     net.finish_task()
        ...     run.after_task(task, autoeidetic.evaluate(net, [[(x, y)]] * 2), net.capacity())
        >>> run.matrix.backward_transfer(), run.bitwise.ok
        (0.0, True)
        >>> autoeidetic.Run.resume(directory).tasks
        (0, 1)

    Raises:
        InputError: the directory cannot be written to, or holds something else.
    """

    def __init__(
        self,
        directory: Any,
        *,
        config: Any = None,
        seeds: Mapping[str, int] | int | None = None,
        date: datetime | str | None = None,
        draw: bool | None = None,
        tensorboard: bool = True,
    ) -> None:
        self.directory = Path(directory)
        writes = distributed.rank() == 0
        self._files = RunDirectory(self.directory, draw=draw, writes=writes)
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._fresh: set[tuple[Any, ...]] = set()  # keys of rows recorded since this run was opened
        self._tasks: dict[int, Row] = {}
        self._alone: dict[int, float] = {}
        self._about: Row = {
            "date": environment.date(date),
            "seeds": environment.seeds(seeds),
            "config": files.as_stored(as_mapping(config)),
        }
        self._board = Board(self.directory / "tensorboard", tensorboard and writes)
        # results.json is there from the first moment, so an empty run can be continued, too.
        if self._files.has_run:
            self._load(None if config is None else self._about["config"])
        else:
            self._files.write_results(self.to_dict())

    @classmethod
    def resume(cls, directory: Any, **options: Any) -> Run:
        """Continue the run in a directory.

        Example:
            >>> import tempfile
            >>> directory = tempfile.mkdtemp()
            >>> _ = Run(directory, config={"lr": 0.1})
            >>> Run.resume(directory).config
            {'lr': 0.1}

        Raises:
            InputError: there is no run in it.
        """
        if not (Path(directory) / RESULTS).exists():
            raise InputError(
                f"there is no run in '{directory}'", remedy="Run(directory) begins a new one"
            )
        return cls(directory, **options)

    # -- what is recorded ----------------------------------------------------------------------

    @property
    def config(self) -> Row:
        """The recorded settings."""
        return dict(self._about["config"])

    @property
    def tasks(self) -> tuple[int, ...]:
        """The tasks that are recorded as finished."""
        return tuple(self._tasks)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The recorded epochs."""
        return tuple(dict(row) for row in self._rows.values())

    @property
    def matrix(self) -> AccuracyMatrix:
        """Accuracy on every task after every task."""
        count = max(self._tasks, default=-1) + 1
        # Tasks that were never recorded leave NaN, which no mean passes over in silence.
        rows = [[math.nan] * (after + 1) for after in range(count)]
        names = [f"task {task}" for task in range(count)]
        for after, record in self._tasks.items():
            names[after] = record["name"]
            for result in record["evaluation"]["tasks"]:
                if result["task"] <= after:
                    rows[after][result["task"]] = as_number(result["accuracy"])
        return AccuracyMatrix(rows, names)

    @property
    def bitwise(self) -> Bitwise:
        """The comparison of finished tasks' outputs over time, bit for bit."""
        return Bitwise.of({t: r["evaluation"]["tasks"] for t, r in self._tasks.items()})

    # -- recording -----------------------------------------------------------------------------

    def epoch(self, row: Any = None, /, **values: Any) -> None:
        """Record an epoch.

        Args:
            row: a mapping or a dataclass, such as :meth:`autoeidetic.EideticNet.train_task`
                gives to its ``on_epoch``.
            values: the values as keywords: ``task`` and ``epoch`` (or ``number``), ``phase``
                ("train"), ``round`` of pruning (0), ``loss``, ``accuracy``, ``pruned`` (share of
                units), ``free`` (share of the network), ``lr``, ``seconds``; others become
                additional columns.

        Example:
            >>> import tempfile
            >>> run = Run(tempfile.mkdtemp())
            >>> run.epoch(task=0, epoch=0, loss=0.7, accuracy=0.5, norm=3.0)
            >>> run.epoch(task=0, epoch=0, loss=0.6)  # repeated after a crash
            >>> len(run.rows), run.rows[0]["loss"]
            (1, 0.6)

        Raises:
            InputError: ``task`` or ``epoch`` is missing, a value is not a number, or later tasks
                are recorded already; or the file cannot be written.
        """
        self._add(as_row({**as_mapping(row), **values}))
        self._files.write_rows(self._rows.values())

    def after_task(
        self,
        task: int,
        evaluation: Evaluation,
        capacity: Capacity,
        history: Any = None,
        seconds: float | None = None,
    ) -> None:
        """Record a finished task.

        Args:
            task: its number.
            evaluation: the evaluation of all tasks so far.
            capacity: the capacity of the network now.
            history: the epochs, if they were not recorded one by one: the return value of
                :meth:`autoeidetic.EideticNet.train_task`, or rows as for :meth:`epoch`.
            seconds: the duration of the task.

        Raises:
            InputError: the task was not evaluated, or later tasks are recorded already; or a file
                cannot be written.
        """
        self._check_last(task)
        if task not in evaluation.accuracy:
            raise InputError(
                f"the evaluation has tasks {sorted(evaluation.accuracy)}, and not {task}",
                remedy="evaluate the task before it is recorded",
            )
        for row in epochs(history):
            self._add(as_row(row))
        self._drop_old_rows(task)
        whole = capacity.to_dict()  # recorded per task and group, not per layer: those are many
        parts = ("free", "used", "tasks", "groups", "reuse")
        record = {
            "task": task,
            "name": next(r.name for r in evaluation.tasks if r.task == task),
            "seconds": seconds,
            "evaluation": evaluation.to_dict(),
            "capacity": {part: whole[part] for part in parts},
            "versions": environment.versions(),
        }
        # As a JSON file gives it back, so that a continued run and this one report the same.
        self._tasks[task] = files.as_stored(record)
        self._files.write_rows(self._rows.values())
        self._write_all()
        self._board.task(self._tasks[task])

    def alone(self, task: int, accuracy: float) -> None:
        """Record the accuracy of the same network when it is trained on a task alone.

        Once every task has one, forward transfer is recorded.

        Example:
            >>> import tempfile
            >>> run = Run(tempfile.mkdtemp())
            >>> run.alone(0, 0.98)
            >>> run.to_dict()["alone"]
            {0: 0.98}
        """
        self._alone[int(task)] = float(accuracy)
        self._files.write_results(self.to_dict())

    def rewind(self, task: int) -> None:
        """Delete the records of a task and of all later ones, to train them differently.

        Example:
            >>> import tempfile
            >>> run = Run(tempfile.mkdtemp())
            >>> run.epoch(task=0, epoch=0)
            >>> run.epoch(task=1, epoch=0)
            >>> run.rewind(1)
            >>> [row["task"] for row in run.rows]
            [0]
        """
        self._rows = {own: row for own, row in self._rows.items() if row["task"] < task}
        self._tasks = {index: record for index, record in self._tasks.items() if index < task}
        self._files.write_rows(self._rows.values())
        self._write_all()

    def _add(self, row: Row) -> None:
        self._check_last(row["task"])
        self._rows[key(row)] = row
        self._fresh.add(key(row))
        # The position in the table is the step: a repeated epoch gets the same one again.
        self._board.epoch(row, list(self._rows).index(key(row)))

    def _check_last(self, task: int) -> None:
        later = [recorded for recorded in self._tasks if recorded > task]
        if later:
            raise InputError(
                f"task {task} is recorded after task {later[-1]}, in '{self.directory}'",
                remedy=f"run.rewind({task}) deletes the tasks from {task} on; or choose another "
                "directory",
            )

    def _drop_old_rows(self, task: int) -> None:
        """Drop epochs from before a crash that the repeated training did not have.

        Rows keep the order of their first record, so everything after the first repeated epoch that
        was not repeated as well is left over from before the crash.
        """
        keys = [own for own, row in self._rows.items() if row["task"] == task]
        again = next((n for n, own in enumerate(keys) if own in self._fresh), len(keys))
        for own in keys[again:]:
            if own not in self._fresh:
                del self._rows[own]

    # -- reports -------------------------------------------------------------------------------

    def to_dict(self) -> Row:
        """Everything in results.json."""
        matrix = self.matrix
        # Forward transfer needs the accuracy alone of every finished task.
        complete = len(matrix) > 0 and set(self._alone) >= set(range(len(matrix)))
        alone = {task: self._alone[task] for task in range(len(matrix)) if complete}
        metrics = [record["evaluation"]["metric"] for record in self._tasks.values()]
        return {
            "format": FORMAT,
            **self._about,
            "versions": environment.versions(),
            "metric": ", ".join(dict.fromkeys(metrics)),
            "accuracy": matrix.to_dict(),
            "alone": dict(sorted(self._alone.items())),
            "forward_transfer": matrix.forward_transfer(alone) if complete else None,
            "bitwise": self.bitwise.to_dict(),
            "tasks": [dict(record) for record in self._tasks.values()],
        }

    def __str__(self) -> str:
        rows = [["task", "accuracy", "now", "free", "seconds"]]
        matrix = self.matrix
        for task, record in self._tasks.items():
            seconds = record["seconds"]
            now = number(matrix.rows[-1][task]), number(record["capacity"]["free"], ".1%")
            then = number(matrix.diagonal[task])
            rows.append(
                [line(record["name"]), then, *now, "" if seconds is None else f"{seconds:.1f}"]
            )
        if not self._tasks:
            return f"{len(self._rows)} epochs, no finished task, in {self.directory}"
        return f"{table(rows)}\n{str(matrix).splitlines()[-1]}\n{self.bitwise}"

    def _repr_html_(self) -> str:
        return notebook_html(str(self))

    # -- files ---------------------------------------------------------------------------------

    def _write_all(self) -> None:
        matrix = self.matrix
        # results.json after the tables, as it decides what counts; plots can be drawn again.
        self._files.write_tasks(self._tasks.values(), matrix)
        self._files.write_results(self.to_dict())
        if self._tasks:
            self._files.write_plots(list(self._tasks.values())[-1]["capacity"], matrix)

    def _load(self, config: Row | None) -> None:
        stored = self._files.read_results(config)
        self._about = {name: stored[name] for name in ("date", "seeds", "config")}
        self._alone = {int(task): as_number(value) for task, value in stored["alone"].items()}
        self._tasks = {record["task"]: record for record in stored["tasks"]}
        # A dict keeps the order of first insertion: a repeated epoch stays in its place.
        self._rows = {key(row): row for row in self._files.read_rows()}

    def close(self) -> None:
        """Close the event file of TensorBoard; all other files are complete."""
        self._board.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
