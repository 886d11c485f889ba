"""Epoch rows: the epochs of a run, as rows of metrics.csv."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from ..common.tables import line
from ..errors import InputError

#: The columns of metrics.csv, before those that a user adds.
COLUMNS = tuple("task phase round epoch loss accuracy pruned free lr seconds".split())

Row = dict[str, Any]


def key(row: Row) -> tuple[Any, ...]:
    """The key of an epoch: a row with the same key replaces it."""
    return row["task"], row["phase"], row["round"], row["epoch"]


def as_row(values: Mapping[str, Any]) -> Row:
    """The values of an epoch converted to their types, without those that are None.

    >>> as_row({"task": 0, "number": 3, "loss": 1, "accuracy": None})
    {'task': 0, 'phase': 'train', 'round': 0, 'epoch': 3, 'loss': 1.0}

    Raises:
        InputError: a value is missing, or is not a number.
    """
    # None is a missing value; names become columns of a CSV file, so they fit on one line.
    left = {line(str(name)): value for name, value in values.items() if value is not None}
    if "number" in left:
        left["epoch"] = left.pop("number")
    for name in ("task", "epoch"):
        if name not in left:
            raise InputError(f"an epoch is recorded without {name}", remedy=f"pass {name}=")
    phase = line(str(left.pop("phase", "train")))
    task, round_, epoch = (_number(n, left.pop(n, 0), int) for n in ("task", "round", "epoch"))
    row = {"task": task, "phase": phase, "round": round_, "epoch": epoch}
    return row | {name: _number(name, value, float) for name, value in left.items()}


def _number(name: str, value: Any, kind: type) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}={value!r} is not a number", remedy="pass one") from error


def parsed(cells: Mapping[str, str]) -> Row:
    """A row read from metrics.csv.

    Raises:
        InputError: it is not the row of an epoch.
    """
    try:
        return as_row({name: cell for name, cell in cells.items() if cell != ""})
    except InputError as error:
        raise InputError(
            f"metrics.csv has a row that is not an epoch: {error.fact}",
            remedy="restore the file, or choose another directory",
        ) from error


def epochs(history: Any) -> list[Row]:
    """The rows of a history: a list, or an object with a list of epochs."""
    if history is None:
        return []
    rows = history if isinstance(history, Iterable) else history.epochs
    return [as_mapping(row) for row in rows]


def as_mapping(values: Any) -> dict[str, Any]:
    """The values of a mapping or a dataclass as a dict; empty for None.

    Raises:
        InputError: it is something else.
    """
    if values is None:
        return {}
    if isinstance(values, Mapping):
        return dict(values)
    if is_dataclass(values) and not isinstance(values, type):
        return asdict(values)
    raise InputError(
        f"the values are a {type(values).__qualname__}, which has no names for them",
        remedy="pass a mapping or a dataclass",
    )
