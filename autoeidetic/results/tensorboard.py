"""TensorBoard: curves of a run, if tensorboard is installed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Board:
    """Writes events to a directory; the writer is opened with the first number."""

    def __init__(self, directory: Path, wanted: bool) -> None:
        self._directory = directory
        self._wanted = wanted
        self._writer: Any = None

    def epoch(self, row: Mapping[str, Any], step: int) -> None:
        """The numbers of an epoch; ``step`` counts epochs over all tasks."""
        writer = self._open(step)
        if writer is None:
            return
        for name, value in row.items():
            if isinstance(value, float) and math.isfinite(value):
                writer.add_scalar(f"epoch/{name}", value, step)

    def task(self, record: Mapping[str, Any]) -> None:
        """The numbers of a finished task."""
        writer = self._open(None)
        if writer is None:
            return
        for result in record["evaluation"]["tasks"]:
            if result["accuracy"] is not None:
                tag = f"accuracy/task {result['task']}"
                writer.add_scalar(tag, result["accuracy"], record["task"])
        writer.add_scalar("capacity/free", record["capacity"]["free"], record["task"])
        writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, step: int | None) -> Any:
        if self._wanted and self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except Exception:  # a missing or broken installation must not stop training
                self._wanted = False
                return None
            # TensorBoard hides events from this step on that were written before a crash.
            self._writer = SummaryWriter(str(self._directory), purge_step=step)
        return self._writer
