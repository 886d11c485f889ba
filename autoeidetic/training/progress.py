"""Progress: the phase of a task in training, and the counters that decide what comes next."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .history import Epoch

TRAIN, PRUNE, RECOVER, SETTLE, DONE = "train", "prune", "recover", "settle", "done"


@dataclass
class Progress:
    """Position of the loop within a task; its field names are keys of stored states.

    ``best`` is the best accuracy so far: measured during the epochs while training, in eval mode
    from then on. ``accuracy`` is that of the network as it is kept. ``since`` counts epochs without
    improvement; ``tries`` counts epochs of recovery in this round, or of settling.
    """

    phase: str = TRAIN
    best: float = float("-inf")
    accuracy: float = float("-inf")
    since: int = 0
    round: int = 0
    tries: int = 0
    reason: str = ""
    epochs: list[Epoch] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Progress:
        return Progress(**{**values, "epochs": [Epoch(**epoch) for epoch in values["epochs"]]})
