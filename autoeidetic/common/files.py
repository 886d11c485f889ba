"""Files: written whole or not at all; CSV and JSON of plain values."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ..errors import InputError
from .locks import Temporary

#: Spreadsheets take text that begins with one of these for a formula.
_FORMULA = tuple("=+-@'")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; after the block, the file replaces ``path``.

    Whatever happens, the old file or the new one is there. A link keeps its target, the new file
    has the permissions of the old one, and temporary files of killed processes are removed from
    the directory.

    Raises:
        OSError: the file cannot be written; the old one is as it was.
    """
    # in the directory of the target: a rename is atomic within one file system only
    target = Path(os.path.realpath(path))
    with closing(Temporary(target.parent, ".tmp")) as temporary:
        yield temporary.path
        if target.exists():
            shutil.copymode(target, temporary.path)
        # content first, then its name: after a power cut no name leads to half a file
        to_disk(temporary.path)
        os.replace(temporary.path, target)
        if os.name == "posix":  # elsewhere a directory cannot be opened
            to_disk(target.parent)


def to_disk(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file; a device or a FIFO takes the bytes itself.

    Raises:
        OSError: it cannot be written; the old file is as it was.
    """
    # a rename would put a file in the place of /dev/stdout
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write(path: Path, data: bytes) -> None:
    """Replace a file, in a directory that is made if there is none.

    Raises:
        InputError: it cannot be written; the old file is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be written: {error}",
            remedy="choose a directory that may be written to and has room; what was recorded "
            "before is intact, and the next call writes everything",
        ) from error


# -- JSON -----------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """Strict JSON: NaN and infinity become null, values unknown to JSON become their text.

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
        # Python would write NaN and Infinity, which other readers of JSON refuse
        return value if math.isfinite(value) else None
    return str(value)


def as_stored(value: Any) -> Any:
    """A value as it comes back from a JSON file.

    >>> as_stored({0: (1.5, float("nan"))})
    {'0': [1.5, None]}
    """
    return json.loads(to_json(value))


def from_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        InputError: the file cannot be read.
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
    """Text that begins like a formula gets a quotation mark in front."""
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
