"""Accuracy matrix: accuracies after every task, and the metrics of continual learning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.tables import line, notebook_html, number, table
from ..errors import InputError


@dataclass(frozen=True)
class AccuracyMatrix:
    """``rows[i][j]``: accuracy on task ``j`` after finishing task ``i``; NaN for ``j > i``.

    A missing accuracy is NaN, and so is every mean that needs it.

    Args:
        rows: one for each task; row ``i`` needs only its first ``i + 1`` values.
        names: the names of the tasks.

    Example:
        >>> matrix = AccuracyMatrix([[0.9], [0.9, 0.8], [0.9, 0.8, 0.7]])
        >>> round(matrix.average(), 4)
        0.8
        >>> matrix.backward_transfer(), matrix.forgetting()
        (0.0, 0.0)
        >>> print(matrix)
        after   task 0  task 1  task 2
        task 0  0.9000
        task 1  0.9000  0.8000
        task 2  0.9000  0.8000  0.7000
        average 0.8, backward transfer 0, forgetting 0
    """

    #   after \ task   0  1  2
    #   0              a  -  -      the diagonal: accuracy when each task was finished
    #   1              a  b  -
    #   2              a  b  c      the last row: accuracy now
    rows: tuple[tuple[float, ...], ...]
    names: tuple[str, ...] = ()

    def __init__(self, rows: Sequence[Sequence[float]], names: Sequence[str] = ()) -> None:
        object.__setattr__(self, "rows", _square(rows))
        names = tuple(names) or tuple(f"task {task}" for task in range(len(rows)))
        if len(names) != len(rows):
            raise InputError(
                f"{len(names)} names for {len(rows)} tasks", remedy="pass one for each task"
            )
        object.__setattr__(self, "names", names)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def diagonal(self) -> tuple[float, ...]:
        """The accuracy on each task when it was finished."""
        return tuple(row[task] for task, row in enumerate(self.rows))

    def average(self) -> float:
        """Mean accuracy on all tasks after the last one.

        >>> AccuracyMatrix([[0.5], [0.5, 1.0]]).average()
        0.75
        """
        return _mean(self.rows[-1] if self.rows else ())

    def backward_transfer(self) -> float:
        """Mean change of the accuracy on earlier tasks since each was finished.

        Negative values are forgetting; networks that cannot forget have exactly 0.0. NaN for fewer
        than two tasks.

        >>> AccuracyMatrix([[1.0], [0.75, 1.0]]).backward_transfer()
        -0.25
        """
        # Without the last task: nothing was learned after it.
        last = self.rows[-1] if self.rows else ()
        return _mean([now - then for now, then in zip(last, self.diagonal, strict=True)][:-1])

    def forgetting(self) -> float:
        """Mean over earlier tasks of the best accuracy so far minus the accuracy now.

        As in Chaudhry et al. (2018): the best one before the last task was learned.

        >>> AccuracyMatrix([[0.5], [0.75, 1.0], [0.25, 1.0, 1.0]]).forgetting()
        0.25
        """
        lost = []
        for task in range(len(self) - 1):
            # max() with NaN depends on the order, so NaN is looked for first.
            before = [row[task] for row in self.rows[task:-1]]
            best = math.nan if any(map(math.isnan, before)) else max(before)
            lost.append(best - self.rows[-1][task])
        return _mean(lost)

    def forward_transfer(self, alone: Sequence[float] | Mapping[int, float]) -> float:
        """Mean gain of each task, when it was finished, from the tasks before it.

        Args:
            alone: the accuracy of the same network when trained on each task alone.

        Example:
            >>> AccuracyMatrix([[0.75], [0.75, 1.0]]).forward_transfer([0.75, 0.5])
            0.25

        Raises:
            InputError: there is not one accuracy for each task.
        """
        pairs = alone if isinstance(alone, Mapping) else dict(enumerate(alone))
        if set(pairs) != set(range(len(self))):
            raise InputError(
                f"accuracies alone are given for tasks {sorted(pairs)}, and there are {len(self)} "
                "tasks",
                remedy="pass one for each task",
            )
        return _mean([own - pairs[task] for task, own in enumerate(self.diagonal)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values.

        >>> AccuracyMatrix([[0.5]]).to_dict()["average"]
        0.5
        """
        return {
            "names": list(self.names),
            "rows": [list(row) for row in self.rows],
            "average": self.average(),
            "backward_transfer": self.backward_transfer(),
            "forgetting": self.forgetting(),
        }

    def __str__(self) -> str:
        names = [line(name) for name in self.names]
        rows = [["after", *names]]
        rows += [[n, *map(number, row)] for n, row in zip(names, self.rows, strict=True)]
        facts = [f"average {self.average():.4g}"]
        if len(self) > 1:
            facts.append(f"backward transfer {self.backward_transfer():.4g}")
            facts.append(f"forgetting {self.forgetting():.4g}")
        return f"{table(rows)}\n{', '.join(facts)}"

    def _repr_html_(self) -> str:
        return notebook_html(str(self))


def _square(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """Rows padded with NaN to a square matrix."""
    whole = []
    for task, row in enumerate(rows):
        values = [float(value) for value in row]
        if len(values) <= task or any(not math.isnan(value) for value in values[task + 1 :]):
            raise InputError(
                f"row {task} has {len(values)} accuracies",
                remedy=f"after task {task} there is one for each of the tasks 0 to {task} "
                "(NaN where it is not known)",
            )
        whole.append((*values[: task + 1], *[math.nan] * (len(rows) - task - 1)))
    return tuple(whole)


def _mean(values: Sequence[float]) -> float:
    if not values:
        return math.nan
    # fsum rounds once, so differences that cancel give exactly 0; it raises on infinities.
    exact = math.fsum if all(map(math.isfinite, values)) else sum
    return float(exact(values)) / len(values)
