"""Digest: what a user keeps elsewhere of a saved network, and finds again in the file.

It has two halves of 64 digits. The first is over the seals of the finished tasks; the second over
everything else that decides about an answer: which task answers for which, the router, the options,
the example inputs, the analysis. Earlier versions had the first half only.
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
#: What may change without changing an answer in eval mode. All other fields are in the digest, so
#: that one that is added later is sealed, too. Tasks are counted one by one.
_NOT_SEALED = ("versions", "spreads", "training", "other_mode", "without_gradient", "tasks")


def digest_of(record: Record, tensors: Mapping[str, Tensor]) -> str:
    """The digest of a file; empty if no task has a seal."""
    sealed = _sealed(record)
    return _seals(sealed) + _answers(sealed, record, tensors) if sealed else ""


def noted_in(
    digest: str | None, record: Record, tensors: Mapping[str, Tensor]
) -> tuple[bool | None, bool | None]:
    """Are the seals of that time there, of any number of first tasks; and is the rest the same?

    None is for what the digest does not tell.
    """
    if digest is None:
        return None, None
    sealed, seals, answers = _sealed(record), digest[:_HALF], digest[_HALF:]
    first = [sealed[: count + 1] for count in range(len(sealed))]
    fitting = [tasks for tasks in first if _seals(tasks) == seals]
    if not fitting:
        return False, None
    if not answers:
        return True, None
    return True, any(_answers(tasks, record, tensors) == answers for tasks in fitting)


def checked(digest: Any) -> str:
    """A digest as it was typed.

    Raises:
        InputError: it is none.
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
    """Of all that decides about an answer of these tasks besides their seals."""
    fields = record.to_dict()
    if "why_not" in fields["recipe"]:  # a reason in words
        fields["recipe"] = None
    values = {
        name: reference.digest(tensor)
        for name, tensor in tensors.items()
        if name.startswith((ROUTER, EXAMPLE))
    }
    return _hash(
        {
            # an earlier version's seal has no names and classes in it
            "tasks": [[t.index, t.name, t.classes, t.revisits, t.answered_by] for t in tasks],
            "record": {name: v for name, v in fields.items() if name not in _NOT_SEALED},
            "values": values,
        }
    )


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return blake2b(text.encode(), digest_size=_HALF // 2).hexdigest()
