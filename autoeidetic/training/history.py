"""History: the record of the training of one task."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..common.tables import notebook_html


@dataclass(frozen=True)
class Epoch:
    """One step of the loop: an epoch of training, or the evaluation after a round of pruning.

    ``loss`` is None for an evaluation. ``pruned`` is the share of the task's initial units that it
    has given up; ``free`` is the share of the backbone's parameters that no task uses.
    """

    task: int
    number: int
    phase: str
    round: int
    loss: float | None
    accuracy: float
    pruned: float
    free: float
    lr: float
    seconds: float


@dataclass(frozen=True)
class TaskHistory:
    """All epochs of a task, the number of pruning rounds that were kept, and why it ended.

    ``accuracy`` is that of the final network on the training data: in eval mode, or, if the task
    was not pruned, during the last epoch.
    """

    task: int
    epochs: tuple[Epoch, ...]
    accuracy: float
    rounds: int
    pruned: float
    free: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        trained = sum(epoch.phase != "prune" for epoch in self.epochs)
        seconds = sum(epoch.seconds for epoch in self.epochs)
        return (
            f"task {self.task}: accuracy {self.accuracy:.2%} on its training data after {trained} "
            f"epochs ({seconds:.0f} s); {self.pruned:.0%} of its units pruned in {self.rounds} "
            f"rounds, {self.free:.1%} of the network free; {self.reason}"
        )

    def _repr_html_(self) -> str:
        return notebook_html(str(self))
