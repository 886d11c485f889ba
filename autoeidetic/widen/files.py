"""Files of widened networks: one file, with the contents of every column under its number.

The model of a later column is not in the file: it is made again from that of the first one, as when
the network was widened, and its analysis must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from torch import Tensor, nn

from ..checkpoint import Audit, Record, audited, blank, resume
from ..checkpoint.digest import checked
from ..checkpoint.record import COLUMNS, ROUTER
from ..common import archive
from ..common.undisturbed import undisturbed
from ..errors import AutoeideticError, CheckpointError, InputError
from ..routing import restore, view
from ..tasks import reference
from ..tasks.network import Network
from .column import ColumnRecord
from .laterals import Finished, finished
from .saving import prefix
from .wide import assembled
from .widen import column_model, converted, join

_AGAIN = "save the network again"
#: The number of digits in the digest of one column.
_DIGITS = 128

Convert = Callable[..., Any]


def is_wide(path: Any) -> bool:
    """Does a file hold a widened network?"""
    return archive.kind(archive.as_path(path)) == COLUMNS


def load(path: Any, model: Any, convert: Convert) -> Any:
    """The widened network in a file.

    Raises:
        CheckpointError: the file is missing, damaged or something else, or the model does not fit.
    """
    file = archive.as_path(path)
    with archive.about(path), undisturbed(generators="cpu", trainable=True):
        description, tensors = archive.read(file)
        columns: list[Finished] = []
        mode = False
        for part in _parts(description, tensors, model):
            record = Record.parse(part.description)
            net = blank(record, part.tensors, part.model(columns), part.convert(columns, convert))
            resume(net, record, part.tensors)
            part.complete(net, columns)
            columns.append(finished(net, columns))
            mode = record.training
        network = assembled([column.network for column in columns])
        network.router = _router(description, tensors, network)
        return network.train(mode)


def audit(path: Any, model: Any, convert: Convert, *, digest: str | None) -> Audit:
    """Audit the columns in a file one by one; see :func:`autoeidetic.audit`."""
    file = archive.as_path(path)
    noted = [] if digest is None else _split(digest)
    with archive.about(path), undisturbed(generators="cpu", trainable=True):
        description, tensors, damage = archive.examine(file)
        unread = Audit(str(path), "" if damage is None else damage.fact, (), "")
        if description is None:
            return replace(unread, noted=False if noted else None)
        columns: list[Finished] = []
        whole = unread
        for part in _parts(description, tensors, model):
            mine = noted[part.number] if part.number < len(noted) else None
            mine = None if mine is None or len(mine) < _DIGITS else mine
            made, convert_part = part.model(columns), part.convert(columns, convert)
            found, net = audited(unread, part.description, part.tensors, made, convert_part, mine)
            whole = _joined(whole, found)
            if net is None:
                return whole
            part.complete(net, columns)
            columns.append(finished(net, columns))
        about, values = _router_record(description), _router_tensors(tensors)
        router = _hash([about, sorted((n, reference.digest(t)) for n, t in values.items())])
        if len(noted) and len(noted[-1]) == len(router) and noted[-1] != router:
            whole = replace(whole, answers=False)
        name = "" if about is None else f"'{about['kind']}', for {about['tasks']} tasks"
        return replace(whole, digest=whole.digest + router, router=name)


def _joined(whole: Audit, part: Audit) -> Audit:
    """The audit of one more column added to that of those before."""
    start = len(whole.tasks)
    tasks = tuple(replace(task, task=start + task.task) for task in part.tasks)
    return replace(
        whole,
        damage=whole.damage or part.damage,
        tasks=whole.tasks + tasks,
        digest=whole.digest + part.digest,
        noted=_both(whole.noted, part.noted),
        answers=_both(whole.answers, part.answers),
    )


def _both(one: bool | None, other: bool | None) -> bool | None:
    known = [each for each in (one, other) if each is not None]
    return all(known) if known else None


def _split(digest: Any) -> list[str]:
    """The digests of the columns, and that of the router behind them.

    One that was noted before the network was widened is that of its first column.
    """
    text = digest.strip().lower() if isinstance(digest, str) else ""
    parts = [text[start : start + _DIGITS] for start in range(0, len(text), _DIGITS)]
    if not parts or len(parts[-1]) not in (_DIGITS, _DIGITS // 2):
        raise InputError(
            f"{digest!r:.80} is not a digest of seals",
            remedy="pass the digits that an earlier check of the file printed",
        )
    return [*(checked(part) for part in parts)]


def _hash(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=_DIGITS // 4).hexdigest()


def _router_record(description: Any) -> Any:
    """What the file says about the router, as plain values of the right types."""
    known = description.get("router")
    fits = isinstance(known, dict) and set(known) == {"kind", "tasks"}
    if known is not None and not (
        fits and type(known["kind"]) is str and type(known["tasks"]) is int
    ):
        raise CheckpointError("the file has a router that no network writes", remedy=_AGAIN)
    return known


def _router_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(ROUTER): t for n, t in tensors.items() if n.startswith(ROUTER)}


def _router(description: Any, tensors: Mapping[str, Tensor], network: Any) -> Any:
    known = _router_record(description)
    if known is None:
        return None
    try:
        return restore(known["kind"], _router_tensors(tensors), view(network, known["tasks"]))
    except AutoeideticError as error:
        raise CheckpointError(
            f"the file has a router {known['kind']!r} that cannot be made: {error.fact}",
            remedy=f"{error.remedy}; a custom router must be registered with @autoeidetic.router "
            "before the network is loaded",
        ) from error


# -- columns in a file ---------------------------------------------------------------------------


class _Part:
    """One column in a file."""

    def __init__(
        self, number: int, entry: Any, tensors: Mapping[str, Tensor], given: nn.Module | None
    ) -> None:
        inside = prefix(number)
        self.number = number
        self.description: Any = entry["network"]
        self.made = _record(entry["made"]) if number else None
        self.tensors = {
            name.removeprefix(inside): value
            for name, value in tensors.items()
            if name.startswith(inside)
        }
        self._given = given

    def model(self, columns: list[Finished]) -> nn.Module | None:
        """The model to fill with values; None for a first column that is built by name.

        In ``columns`` stays what the model reads.
        """
        if self.made is None:
            return self._given
        if self.made.like and self._given is None:
            raise CheckpointError(
                f"the file does not tell how to build column {self.number}, which was made with "
                "like=",
                remedy="pass model= as a list: the model, and the module of each later column",
            )
        try:
            built = column_model(tuple(columns), self.made.width, self._given)
        except AutoeideticError as error:
            raise CheckpointError(
                f"the file does not fit the model: {error.fact}",
                place=error.place,
                remedy=error.remedy,
            ) from error
        columns[:] = built.columns
        return built.backbone

    def convert(self, columns: Sequence[Finished], convert: Convert) -> Convert:
        """What makes a network of the model."""
        if self.made is None:
            return convert
        kind = type(columns[0].network)

        def convert_column(model: Any, examples: Any, **options: Any) -> Network:
            return converted(model, list(examples), kind, options["forward_transfer"])

        return convert_column

    def complete(self, net: Any, columns: Sequence[Finished]) -> None:
        """Connect a column with those before it."""
        if self.made is not None:
            join(net, tuple(columns), self.made)


def _parts(description: Any, tensors: Mapping[str, Tensor], model: Any) -> Iterator[_Part]:
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    try:
        entries = description["columns"]
        if type(entries) is not list or len(entries) < 2:
            raise ValueError("no columns")
        for number, entry in enumerate(entries):
            given = models[number] if number < len(models) else None
            yield _Part(number, entry, tensors, given)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the file has a description that is not that of a widened network ({error!r})",
            remedy=_AGAIN,
        ) from error


def _record(data: Any) -> ColumnRecord:
    width, like = data["width"], data["like"]
    if type(width) is not float or type(like) is not bool:
        raise ValueError(f"{data!r:.80} about a column")
    return ColumnRecord(width, like)
