"""Cache: what a new column reads of finished ones, kept from epoch to epoch.

Finished columns never change, so for an input that comes again they need not run again:

    batch    rows 7 3 9    digests of the rows    known: 7 9    run for: 3    laterals of 7 3 9

Each row of a batch is kept by itself, because batches are shuffled. Only training uses it: the last
bits of a row depend on the batch it was computed in, and answers of finished tasks must not.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..common.archive import as_path
from ..errors import InputError, LearningWarning
from .readers import Laterals

_REMEDY = "train without cache_columns()"
#: How far a row may be from the same row computed alone, relative to the largest value.
_ROUNDING = 1e-2
#: So many times the inputs that it holds may come before one of them must have come again.
_UNKNOWN = 20

Run = Callable[[Any, Mapping[str, Any]], Laterals]


@dataclass(frozen=True)
class _Field:
    """Where the values of one call of a layer lie in a row: ``shape`` has a batch of one."""

    path: str
    shape: tuple[int, ...]
    kind: torch.dtype
    start: int
    stop: int


class ColumnCache:
    """Rows of what columns read, up to a number of bytes, in memory or in a file.

    ``hits`` counts the rows that were known and ``misses`` the others. What comes when it is full
    is not kept: in every epoch the same part of the data is known.
    """

    def __init__(self, size: float, folder: Any = None) -> None:
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not size > 0:
            raise InputError(f"size={size!r} is no number of bytes", remedy="pass 2e9, say")
        self.size = int(size)
        self.hits = self.misses = self.bytes = 0
        self._rows: dict[bytes, Tensor | int] = {}
        self._fields: dict[bytes, list[_Field]] = {}
        self._file: Any = None
        self._told = False
        if folder is not None:
            place = as_path(folder, "folder")
            try:
                place.mkdir(parents=True, exist_ok=True)
                # without a name: it is gone with this process, however that ends
                self._file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115
            except OSError as error:
                raise InputError(
                    f"'{place}' cannot hold the cache: {error}", remedy="pass another folder"
                ) from error

    def close(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        if self._file is not None:
            self._file.close()

    def __reduce__(self) -> Any:  # a copy of the network computes for itself
        return _nothing, ()

    def __str__(self) -> str:
        asked = self.hits + self.misses
        share = f"{self.hits / asked:.0%} of {asked:,} rows were known" if asked else "unused"
        return f"cache of finished columns: {share}, {self.bytes / 1e6:,.1f} MB"

    def laterals(self, run: Run, args: Any, kwargs: Mapping[str, Any]) -> Laterals:
        """What ``run(args, kwargs)`` gives, rows that are known included; one thread at a time.

        Raises:
            InputError: the inputs have no batch in front, or a layer mixes its rows.
        """
        count = _batch(args, kwargs)
        about = _about(args, kwargs)
        keys = _digests(about, args, kwargs, count)
        missing = [row for row, key in enumerate(keys) if key not in self._rows]
        self.hits += count - len(missing)
        self.misses += len(missing)
        if len(missing) == count:
            found = run(args, kwargs)
            self._keep(about, keys, found, run, args, kwargs)
            return found
        new = {}
        if missing:
            some = run(*_rows_of(missing, args, kwargs))
            self._store(about, [keys[row] for row in missing], some)
            new = dict(zip(missing, _packed(some, len(missing)).cpu(), strict=True))
        rows = [new[row] if row in new else self._row(key) for row, key in enumerate(keys)]
        device = next(t.device for t in pytree.tree_leaves((args, kwargs)) if _is_tensor(t))
        return self._unpacked(about, torch.stack(rows), device)

    # -- rows ----------------------------------------------------------------------------------

    def _keep(
        self,
        about: bytes,
        keys: Sequence[bytes],
        found: Laterals,
        run: Run,
        args: Any,
        kwargs: Mapping[str, Any],
    ) -> None:
        """Keep the rows of a batch; the first one of its kind is compared with a row alone."""
        count = len(keys)
        if about not in self._fields:
            alone = run(*_rows_of([count - 1], args, kwargs))
            _check_apart(found, alone, count)
            self._fields[about] = _fields(alone)
        self._store(about, keys, found)
        if self.misses > _UNKNOWN * len(self._rows) and not self.hits and not self._told:
            self._told = True
            warnings.warn(
                f"the cache of finished columns holds {len(self._rows):,} inputs, and none of "
                f"{self.misses:,} has come twice: data that are augmented never do\n"
                f"  remedy: {_REMEDY}, or pass a larger size=",
                LearningWarning,
                stacklevel=2,
            )

    def _store(self, about: bytes, keys: Sequence[bytes], found: Laterals) -> None:
        length = self._fields[about][-1].stop if self._fields[about] else 0
        room = (self.size - self.bytes) // max(length, 1)
        for key, row in zip(keys[:room], _packed(found, len(keys)), strict=False):
            if key in self._rows:  # the same input twice in one batch
                continue
            if self._file is None:
                self._rows[key] = row.cpu().clone()
            else:
                self._file.seek(0, 2)
                place = self._file.tell()
                self._file.write(row.cpu().numpy().tobytes())
                self._rows[key] = place
            self.bytes += length

    def _row(self, key: bytes) -> Tensor:
        found = self._rows[key]
        if isinstance(found, Tensor):
            return found
        length = self._fields[key[: len(key) // 2]][-1].stop
        self._file.seek(found)
        return torch.frombuffer(bytearray(self._file.read(length)), dtype=torch.uint8)

    def _unpacked(self, about: bytes, rows: Tensor, device: torch.device) -> Laterals:
        """The tensors of layers from packed rows."""
        values: dict[str, list[Tensor]] = {}
        for each in self._fields[about]:
            flat = rows[:, each.start : each.stop].contiguous().view(each.kind)
            shape = (len(rows) * each.shape[0], *each.shape[1:])
            values.setdefault(each.path, []).append(flat.view(shape).to(device))
        return {path: tuple(each) for path, each in values.items()}


def _nothing() -> None:
    return None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _batch(args: Any, kwargs: Mapping[str, Any]) -> int:
    """The size of the batch.

    Raises:
        InputError: tensors of the call have different sizes in front.
    """
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    sizes = {int(t.shape[0]) if t.dim() else -1 for t in tensors}
    if len(sizes) != 1 or not sizes - {-1, 0}:
        raise InputError(
            "what a column reads cannot be cached: the inputs have no batch in front",
            remedy=_REMEDY,
        )
    return sizes.pop()


def _about(args: Any, kwargs: Mapping[str, Any]) -> bytes:
    """A digest of everything in a call that is the same for all its rows."""
    leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
    plain = [(t.dtype, tuple(t.shape[1:])) if isinstance(t, Tensor) else t for t in leaves]
    kinds = {t.device.type for t in leaves if isinstance(t, Tensor)}
    casts = [(k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in sorted(kinds)]
    return blake2b(repr((plain, str(structure), casts)).encode(), digest_size=16).digest()


def _digests(about: bytes, args: Any, kwargs: Mapping[str, Any], count: int) -> list[bytes]:
    """A digest for each row of a batch."""
    hashes = [blake2b(digest_size=16) for _ in range(count)]
    for leaf in pytree.tree_leaves((args, dict(kwargs))):
        if isinstance(leaf, Tensor) and leaf.numel():
            rows = leaf.detach().cpu().contiguous().view(count, -1).view(torch.uint8).numpy()
            for each, row in zip(hashes, rows, strict=True):
                each.update(row.data)
    return [about + each.digest() for each in hashes]


def _rows_of(
    rows: Sequence[int], args: Any, kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The same call for some rows of its batch."""
    some: tuple[Any, dict[str, Any]] = pytree.tree_map_only(
        Tensor, lambda t: t[torch.tensor(rows, device=t.device)], (args, dict(kwargs))
    )
    return some


def _fields(alone: Laterals) -> list[_Field]:
    found: list[_Field] = []
    start = 0
    for path, values in alone.items():
        for value in values:
            stop = start + value.numel() * value.element_size()
            found.append(_Field(path, tuple(value.shape), value.dtype, start, stop))
            start = stop
    return found


def _packed(found: Laterals, count: int) -> Tensor:
    """The bytes of each row."""
    values = [value for each in found.values() for value in each]
    flat = [v.detach().contiguous().view(count, -1).view(torch.uint8) for v in values]
    return torch.cat(flat, 1) if flat else torch.empty(count, 0, dtype=torch.uint8)


def _check_apart(found: Laterals, alone: Laterals, count: int) -> None:
    """Raises InputError unless the last row of a batch is what it is without the others."""
    for path, values in found.items():
        for value, row in zip(values, alone[path], strict=True):
            last = value[len(value) - len(row) :] if value.dim() else value
            fits = value.dim() and value.shape == (count * len(row), *row.shape[1:])
            size = float(row.abs().max()) if row.numel() else 0.0
            if not fits or float((last - row).abs().max()) > _ROUNDING * max(size, 1e-6):
                raise InputError(
                    f"what layer '{path}' reads cannot be cached: it depends on the other inputs "
                    "of the batch",
                    remedy=_REMEDY,
                )
