"""The results of a comparison as plain values; the story and the charts are built from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...results import AccuracyMatrix
from ...tasks.capacity import Share

#: Task -> pairs (epochs so far, accuracy on its test images).
Curves = dict[int, list[tuple[float, float]]]


@dataclass
class Record:
    """Accuracies of a network after every epoch (``curves``) and every task (``rows``).

    ``boundaries[t]`` is the number of epochs at the end of task ``t``.
    """

    curves: Curves = field(default_factory=dict)
    rows: list[list[float]] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)
    epochs: int = 0

    def after_epoch(self, accuracies: Mapping[int, float]) -> None:
        self.epochs += 1
        for task, accuracy in accuracies.items():
            self.curves.setdefault(task, []).append((self.epochs, accuracy))

    def after_task(self, accuracies: Mapping[int, float]) -> None:
        self.rows.append(list(accuracies.values()))
        self.boundaries.append(self.epochs)


@dataclass(frozen=True)
class Moment:
    """Shares of the parameters owned by each task, and free, after ``epoch`` epochs."""

    epoch: int
    tasks: tuple[float, ...]
    free: float


@dataclass(frozen=True)
class Outcome:
    """Two networks that learned the same tasks, side by side.

    ``logits`` is the number of logits compared, ``changed`` the number whose bits differ from those
    when their task was finished. ``confusion[t][s]`` counts test images of ``t`` that the router
    assigns to ``s``; ``agnostic`` is the accuracy when the router predicts the task. ``groups[t]``
    has the owners' shares of each group after task ``t``.
    """

    network: str
    arguments: dict[str, Any]
    parameters: int
    seed: int
    names: tuple[str, ...]
    train_images: int
    test_images: int
    eidetic: Record
    tuned: Record
    capacity: tuple[Moment, ...]
    groups: tuple[tuple[Share, ...], ...]
    logits: int
    changed: int
    scramble_proof: bool
    confusion: tuple[tuple[int, ...], ...]
    agnostic: float
    seconds: float

    @property
    def matrix(self) -> AccuracyMatrix:
        """Accuracies of the network that cannot forget."""
        return AccuracyMatrix(self.eidetic.rows, self.names)

    @property
    def tuned_matrix(self) -> AccuracyMatrix:
        """Accuracies of the fine-tuned network."""
        return AccuracyMatrix(self.tuned.rows, self.names)

    @property
    def free(self) -> float:
        return self.capacity[-1].free

    @property
    def routed(self) -> float:
        """The share of test images whose task the router predicts correctly."""
        # Diagonal over everything.
        right = sum(row[task] for task, row in enumerate(self.confusion))
        return right / max(sum(map(sum, self.confusion)), 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **asdict(self),
            "accuracy": self.matrix.to_dict(),
            "tuned_accuracy": self.tuned_matrix.to_dict(),
            "free": self.free,
            "routed": self.routed,
        }
