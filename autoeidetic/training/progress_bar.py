"""Progress bar: shows the phase, the accuracy and the capacity while a task is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

from ..common import distributed


class Bar:
    """Counts the batches of one pass after another; shown in the first process only."""

    def __init__(self, task: str, show: bool) -> None:
        self._task = task
        self._bar = tqdm(
            unit="batch", disable=not show or distributed.rank() > 0, dynamic_ncols=True, leave=True
        )

    def begin(self, phase: str, total: int | None) -> None:
        """Start a new pass over the data."""
        self._bar.reset(total)
        self._bar.set_description(f"{self._task}: {phase}", refresh=False)

    def advance(self) -> None:
        self._bar.update()

    def show(self, **facts: Any) -> None:
        """Show facts at the end of the bar."""
        self._bar.set_postfix(facts, refresh=True)

    def close(self) -> None:
        self._bar.close()


@contextmanager
def bar(task: str, show: bool) -> Iterator[Bar]:
    """A bar that is closed on exit, also after an error."""
    made = Bar(task, show)
    try:
        yield made
    finally:
        made.close()
