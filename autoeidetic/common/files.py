"""Files: CSV and JSON of plain values, each file written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import InputError

#: A spreadsheet takes text that begins so for a formula.
_FORMULA = tuple("=+-@'")


def write(path: Path, data: bytes) -> None:
    """Replace a file; whatever happens, the old one or the new one is there.

    Raises:
        InputError: it cannot be written; the old file is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise InputError(
            f"'{path}' cannot be written: {error}",
            remedy="choose a directory that may be written to and has room; what was recorded "
            "before is intact, and the next call writes everything",
        ) from error


# -- JSON -----------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """Strict JSON: NaN and infinity are null, what JSON does not know is its text.

    >>> to_json({"a": float("nan"), "b": (1, 2)})
    b'{\\n  "a": null,\\n  "b": [\\n    1,\\n    2\\n  ]\\n}\\n'
    """
    return (json.dumps(_plain(value), indent=2, allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def as_stored(value: Any) -> Any:
    """A value as it comes back from a JSON file.

    >>> as_stored({0: (1.5, float("nan"))})
    {'0': [1.5, None]}
    """
    return json.loads(to_json(value))


def from_json(path: Path) -> Any:
    """What is in a JSON file.

    Raises:
        InputError: it is something else.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"'{path}' cannot be read: {error}", remedy="restore it, or choose another directory"
        ) from error


# -- CSV ------------------------------------------------------------------------------------------


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """A table; a cell that is missing or None is empty.

    >>> to_csv(["name", "loss"], [{"name": "=1+1", "loss": 0.5}, {"name": "a,b"}])
    b'name,loss\\n\\'=1+1,0.5\\n"a,b",\\n'
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Text that begins like a formula gets a quotation mark before it."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def from_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table, cells as text.

    Raises:
        InputError: it cannot be read, or its rows have different lengths.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        return [dict(zip(header, map(_text, row), strict=True)) for row in rows]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"'{path}' cannot be read: {error}", remedy="restore it, or choose another directory"
        ) from error


def _text(cell: str) -> str:
    return cell[1:] if cell.startswith("'") else cell
