"""Evaluation: the results of measuring every task of a network."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..common.digests import Digest
from ..common.tables import line, notebook_html, number, table


@dataclass(frozen=True)
class TaskResult:
    """Evaluation of one task.

    ``accuracy`` is the metric's value when the task is known. ``per_class`` is the share of correct
    answers for each class (NaN without samples of it); empty if targets are not classes.
    ``agnostic`` and ``agnostic_per_class`` are the same when the router finds the task: task and
    class must both be correct; None without a router. ``digest`` is None while the task is open.
    ``answered_by`` is the revisit that answers in the task's place, if any.
    """

    task: int
    name: str
    finished: bool
    samples: int
    accuracy: float
    per_class: tuple[float, ...]
    agnostic: float | None
    agnostic_per_class: tuple[float, ...] | None
    digest: Digest | None
    answered_by: int | None = None


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of all tasks.

    ``confusion[t][s]`` counts samples of task ``t`` that the router assigns to task ``s``. It is
    None without a router, or if the router does not know all finished tasks (``note`` says so).
    """

    metric: str
    tasks: tuple[TaskResult, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    note: str = ""

    @property
    def accuracy(self) -> dict[int, float]:
        """The accuracy on every task when the task is known."""
        return {result.task: result.accuracy for result in self.tasks}

    @property
    def average(self) -> float:
        """The mean accuracy over tasks."""
        return _mean(self.accuracy.values())

    @property
    def agnostic(self) -> float | None:
        """The mean accuracy when the router finds the task; None without a router."""
        known = [result.agnostic for result in self.tasks if result.agnostic is not None]
        return _mean(known) if known else None

    @property
    def digests(self) -> dict[int, Digest]:
        """The digests of all finished tasks."""
        return {r.task: r.digest for r in self.tasks if r.digest is not None}

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "average": self.average, "agnostic": self.agnostic}

    def __str__(self) -> str:
        routed = self.confusion is not None
        rows = [["task", "samples", self.metric, "worst class"]]
        rows[0] += ["task unknown"] if routed else []
        for result in self.tasks:
            # NaN would win or lose a minimum by its position.
            classes = [share for share in result.per_class if not math.isnan(share)]
            row = [line(result.name), str(result.samples), number(result.accuracy)]
            row.append(number(min(classes)) if classes else "")
            if routed:
                row.append("" if result.agnostic is None else number(result.agnostic))
            rows.append(row)
        last = ["average", "", number(self.average), ""]
        if routed:
            last.append("" if self.agnostic is None else number(self.agnostic))
        text = table([*rows, last])
        return f"{text}\n{self.note}" if self.note else text

    def _repr_html_(self) -> str:
        return notebook_html(str(self))


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    # fsum: exact, so the mean does not depend on the order of tasks.
    return math.fsum(values) / len(values)
