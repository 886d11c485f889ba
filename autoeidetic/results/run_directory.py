"""Run directory: the files of a run, written whole and read back.

``results.json`` is the record that counts: it is written after the tables, so a task counts as
recorded if and only if it is in there. ``tasks.csv`` and the plots are derived and never read.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from pathlib import Path

from ..common import environment, files
from ..common.tables import line
from ..errors import InputError
from . import figures, plots
from .accuracy_matrix import AccuracyMatrix
from .epoch_rows import COLUMNS, Row, parsed

#: Increased when an older version can no longer read the files.
FORMAT = 1
METRICS, TASKS, RESULTS, PLOTS = "metrics.csv", "tasks.csv", "results.json", "plots"
_TASK_COLUMNS = ("task", "name", "accuracy", "average", "free", "seconds")
_TRIAL = ".autoeidetic-trial"


class RunDirectory:
    """Writes and reads the files of a run.

    ``draw``: True to insist on plots, False for none, None for plots if matplotlib is installed.
    ``writes`` is False in all processes but the first.

    Raises:
        InputError: the directory cannot be written to, or has files of something else.
    """

    def __init__(self, path: Path, *, draw: bool | None, writes: bool) -> None:
        self.path, self.writes = path, writes
        if draw:
            figures.need_matplotlib()
        self._draw = importlib.util.find_spec("matplotlib") is not None if draw is None else draw
        if writes:
            self._check()

    @property
    def has_run(self) -> bool:
        """Is there a run already?"""
        return (self.path / RESULTS).exists()

    def _check(self) -> None:
        """Try to write, to fail now instead of after hours of training."""
        try:
            self.write(_TRIAL, b"")
            (self.path / _TRIAL).unlink()
        except (InputError, OSError) as error:
            raise InputError(
                f"a run cannot be recorded in '{self.path}': {error.__cause__ or error}",
                remedy="choose a directory that may be written to and has room",
            ) from error
        # Every run begins with a results.json, so tables without one belong to something else.
        old = [name for name in (METRICS, TASKS) if (self.path / name).exists()]
        if old and not self.has_run:
            raise InputError(
                f"'{self.path}' has a {old[0]} of something else",
                remedy="choose another directory",
            )

    # -- writing -------------------------------------------------------------------------------

    def write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole."""
        if self.writes:
            files.write(self.path / name, data)

    def write_rows(self, rows: Iterable[Row]) -> None:
        """Write metrics.csv."""
        rows = list(rows)
        # The whole table each time: a new column changes the header.
        added = dict.fromkeys(name for row in rows for name in row)
        columns = [*COLUMNS, *(name for name in added if name not in COLUMNS)]
        self.write(METRICS, files.to_csv(columns, rows))

    def write_results(self, results: Row) -> None:
        """Write results.json."""
        self.write(RESULTS, files.to_json(results))

    def write_tasks(self, tasks: Iterable[Row], matrix: AccuracyMatrix) -> None:
        """Write tasks.csv."""
        rows = [
            {
                "task": record["task"],
                "name": line(record["name"]),
                "accuracy": matrix.diagonal[record["task"]],
                "average": as_number(record["evaluation"]["average"]),
                "free": record["capacity"]["free"],
                "seconds": record["seconds"],
            }
            for record in tasks
        ]
        self.write(TASKS, files.to_csv(list(_TASK_COLUMNS), rows))

    def write_plots(self, capacity: Row, matrix: AccuracyMatrix) -> None:
        """Draw the plots, if they are wanted."""
        if not self._draw or not self.writes:
            return
        names = matrix.names
        drawn = {
            "accuracy": plots.accuracy_over_time(matrix),
            "matrix": plots.accuracy_matrix(matrix),
            "capacity": plots.capacity_by_group(capacity, names=names),
            "reuse": plots.reuse(capacity, names=names),
        }
        for name, figure in drawn.items():
            self.write(f"{PLOTS}/{name}.png", figures.rendered(figure, "png"))

    # -- reading -------------------------------------------------------------------------------

    def read_results(self, config: Row | None) -> Row:
        """Read results.json; a given ``config`` must be the one that is recorded.

        Raises:
            InputError: it is something else, of a newer version, or of another configuration.
        """
        stored = files.from_json(self.path / RESULTS)
        if not isinstance(stored, dict) or not isinstance(stored.get("format"), int):
            raise InputError(
                f"'{self.path / RESULTS}' is not the record of a run",
                remedy="choose another directory",
            )
        if stored["format"] > FORMAT:
            raise InputError(
                f"'{self.path / RESULTS}' has format {stored['format']}, and this autoeidetic "
                f"reads up to {FORMAT}",
                remedy="upgrade autoeidetic",
            )
        if config is not None and stored["config"] != config:
            raise InputError(
                f"'{self.path}' holds a run with another configuration: "
                f"{environment.difference(stored['config'], config)}",
                remedy="choose another directory, or the configuration it was begun with",
            )
        return stored

    def read_rows(self) -> list[Row]:
        """Read metrics.csv; no rows if there is no such file yet."""
        if not (self.path / METRICS).exists():
            return []
        return [parsed(cells) for cells in files.from_csv(self.path / METRICS)]


def as_number(value: float | None) -> float:
    """A number of a JSON file, where NaN is stored as null."""
    return math.nan if value is None else float(value)
