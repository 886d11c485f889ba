"""Digest: a summary of a saved network that a user keeps elsewhere, to check the file against.

Seals alone do not protect from somebody who edits a task and seals it again; a digest kept
elsewhere does. It has two halves of 64 digits:

    first     the seals of the finished tasks
    second    everything else that decides an answer: which task answers for which, the router, the
              options, the example inputs, the analysis

Both are over the tasks that were sealed at the time. Later tasks add seals, so the digest of a
prefix of the tasks is compared. Earlier versions had only the first half.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from torch import Tensor

from ..errors import InputError
from ..tasks import reference
from ..tasks.task import Task
from .record import EXAMPLE, ROUTER, Record

_HALF = 64
#: Fields of the record that may change without changing an answer in eval mode. All others are in
#: the digest, including any that a later version adds. Tasks enter one by one.
_NOT_SEALED = ("versions", "spreads", "training", "other_mode", "without_gradient", "tasks")


def digest_of(record: Record, tensors: Mapping[str, Tensor]) -> str:
    """The digest of a saved network; empty if no task has a seal."""
    sealed = _sealed(record)
    return _seals(sealed) + _answers(sealed, record, tensors) if sealed else ""


def noted_in(
    digest: str | None, record: Record, tensors: Mapping[str, Tensor]
) -> tuple[bool | None, bool | None]:
    """Compare a noted digest: are the seals of that time present, and is the rest the same?

    None where the digest does not tell.
    """
    if digest is None:
        return None, None
    sealed, seals, answers = _sealed(record), digest[:_HALF], digest[_HALF:]
    # Tasks may have been added since: the digest is that of the first 1, 2, ... sealed tasks.
    prefixes = [sealed[: count + 1] for count in range(len(sealed))]
    fitting = [tasks for tasks in prefixes if _seals(tasks) == seals]
    if not fitting:
        return False, None
    if not answers:
        return True, None
    return True, any(_answers(tasks, record, tensors) == answers for tasks in fitting)


def checked(digest: Any) -> str:
    """A digest as the user typed it, in lower case without spaces around it.

    Raises:
        InputError: it is not a digest.
    """
    text = digest.strip().lower() if isinstance(digest, str) else ""
    if len(text) not in (_HALF, 2 * _HALF) or set(text) - set("0123456789abcdef"):
        raise InputError(
            f"{digest!r:.80} is not a digest of seals",
            remedy=f"pass the {2 * _HALF} digits that an earlier check of the file printed (or the "
            f"{_HALF} digits that an earlier version printed)",
        )
    return text


def _sealed(record: Record) -> list[Task]:
    return [task for task in record.tasks if task.seal is not None]


def _seals(tasks: list[Task]) -> str:
    return _hash([task.seal.to_dict() for task in tasks if task.seal is not None])


def _answers(tasks: list[Task], record: Record, tensors: Mapping[str, Tensor]) -> str:
    """The hash of everything besides the seals that decides an answer of these tasks."""
    fields = record.to_dict()
    if "why_not" in fields["recipe"]:  # an explanation, which may change between versions
        fields["recipe"] = None
    values = {
        name: reference.digest(tensor)
        for name, tensor in tensors.items()
        if name.startswith((ROUTER, EXAMPLE))
    }
    return _hash(
        {
            # Names and classes are here, too: the seals of earlier versions do not have them.
            "tasks": [[t.index, t.name, t.classes, t.revisits, t.answered_by] for t in tasks],
            "record": {name: v for name, v in fields.items() if name not in _NOT_SEALED},
            "values": values,
        }
    )


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)  # one text for equal values, in every version
    return blake2b(text.encode(), digest_size=_HALF // 2).hexdigest()
