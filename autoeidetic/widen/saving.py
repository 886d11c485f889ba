"""Saving: a widened network in one file, with the contents of every column under its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from ..checkpoint import contents
from ..checkpoint.record import COLUMNS, ROUTER, RouterRecord
from ..common import archive
from ..common.undisturbed import undisturbed
from ..tasks.network import Network


def save(columns: Sequence[Network], router: Any, path: Any) -> None:
    """Write the columns of a network and its router to one file, all or nothing."""
    file = archive.as_path(path)
    with archive.about(path), undisturbed(generators="cpu", trainable=True):
        found: list[dict[str, Any]] = []
        tensors: dict[str, Tensor] = {}
        for number, column in enumerate(columns):
            description, own = contents(column)
            made = getattr(column, "column", None)
            found.append({"network": description, "made": None if made is None else asdict(made)})
            tensors |= {f"{prefix(number)}{name}": value for name, value in own.items()}
        known = None
        if router is not None:
            known = asdict(RouterRecord(router.kind, router.tasks))
            tensors |= {f"{ROUTER}{name}": value for name, value in router.named_buffers()}
        archive.write(file, {"kind": COLUMNS, "columns": found, "router": known}, tensors)


def prefix(column: int) -> str:
    """What the names of a column's tensors begin with."""
    return f"columns.{column}."
