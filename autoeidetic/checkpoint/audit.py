"""Audit: a saved network against the seals of its tasks.

The file is taken as it is, edited or not. No code in it is run.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..common import archive
from ..common.environment import difference
from ..common.undisturbed import undisturbed
from ..errors import CheckpointError
from ..net import EideticNet, Task
from ..proof import seals
from ..proof.seals import Frozen, Seal
from ..tasks import reference
from ..tasks.reference import Output, Reference
from .digest import checked, digest_of, noted_in
from .example import dtype_of
from .loading import blank, check_model, resume
from .record import Record
from .report import (
    CHANGED,
    CONVERTED,
    HELD,
    NOT_ASKED,
    OUTPUTS,
    UNSEALED,
    Audit,
    OutputAudit,
    TaskAudit,
)

_MOST_THREADS = 256
_EARLIER = (
    "its seal is that of an earlier version, which did not cover its name, its classes and the "
    "options of the network"
)


def audit(path: Any, model: nn.Module | None = None, *, digest: str | None = None) -> Audit:
    """Compare the finished tasks in a file with what they were when they were finished.

    Every task has a seal: a digest of each tensor's values that it froze, one of the units it
    owns, what it answered to reference inputs, and its name, classes and options. All are looked
    at, and the tasks and tensors that are not as sealed are named. Random numbers and the file stay
    as they are.

    Args:
        path: a file that ``net.save`` wrote, and that somebody may have edited.
        model: as for :func:`autoeidetic.load`.
        digest: ``audit(path).digest`` of some time ago, noted down elsewhere: the seals of that
            time must be there still, the same tasks must answer, and the router and all else that
            decides about an answer must be the same. Tasks finished since then do not matter.

    Example:
        >>> import tempfile, torch, autoeidetic
        >>> from torch import nn
        >>> def build():
        ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> net = autoeidetic.convert(build(), torch.randn(2, 4))
        >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
        >>> path = f"{tempfile.mkdtemp()}/net.safetensors"
        >>> net.save(path)
        >>> report = autoeidetic.audit(path, build())
        >>> report.ok
        True
        >>> autoeidetic.audit(path, build(), digest=report.digest).ok
        True

    Raises:
        CheckpointError: there is no such file, it is something else, or no model fits it.
        InputError: what was noted down is no digest.
    """
    check_model(model)
    noted, file = None if digest is None else checked(digest), archive.as_path(path)
    with archive.about(path), undisturbed(generators="cpu", trainable=True):
        description, tensors, damage = archive.examine(file)
        unread = Audit(str(path), "" if damage is None else damage.fact, (), "")
        if noted is not None:
            unread = replace(unread, noted=False)
        if damage is not None and description is None:
            return unread
        try:
            record = Record.parse(description)
            net = blank(record, tensors, model)
        except CheckpointError as error:
            if damage is None:
                raise
            return replace(unread, damage=f"{damage.fact}; {error.fact}")
        seals, answers = noted_in(noted, record, tensors)
        found = replace(
            unread,
            digest=digest_of(record, tensors),
            noted=seals,
            answers=answers,
            router="" if record.router is None else _router(record),
        )
        try:
            resume(net, record, tensors)
        except CheckpointError as error:  # what no network has ever written
            return replace(found, damage=f"the file was edited; {error.fact}")
        net.eval()
        return replace(found, tasks=_audited(net))


def _router(record: Record) -> str:
    assert record.router is not None
    number = record.router.tasks
    return f"'{record.router.kind}', for {number} {'task' if number == 1 else 'tasks'}"


def _audited(net: EideticNet) -> tuple[TaskAudit, ...]:
    found: list[TaskAudit] = []
    for task in net.tasks:
        if task.finished:
            found.append(_task(net, task, [each.name for each in found if each.verdict == CHANGED]))
    return tuple(found)


def _task(net: EideticNet, task: Task, changed_before: list[str]) -> TaskAudit:
    """``changed_before``: earlier tasks that were tampered with, on which this one may build."""
    now, then = seals.frozen(net, task.index), task.seal
    other = task.answered_by
    audited = partial(
        TaskAudit,
        task=task.index,
        name=task.name,
        values=now.values,
        answered_by=None if other is None else net.tasks[other].name,
    )
    if then is None:
        return audited(verdict=UNSEALED)
    terms = _other_terms(then, net, task.index)
    owners = now.owned == then.frozen.owned
    different = _different(then.frozen, now, owners)
    rounded = {name for name in different if _rounded(then, now, name)}
    changed = {name: number for name, number in different.items() if name not in rounded}
    if rounded and owners and not changed and not terms:
        return audited(verdict=CONVERTED, note=_converted(then, now, rounded))
    tampered = bool(changed or terms) or not owners
    outputs, note = _outputs(net, task.index, then, tampered)
    if then.terms is None:
        note = f"{note}; {_EARLIER}" if note else _EARLIER
    verdict = CHANGED if tampered else OUTPUTS if outputs.same is False else HELD
    if verdict == OUTPUTS and changed_before:
        note = f"its own values are as sealed; it may build on {', '.join(changed_before)}"
    return audited(
        verdict=verdict, changed=changed, owners=owners, outputs=outputs, note=note, terms=terms
    )


def _other_terms(then: Seal, net: EideticNet, task: int) -> dict[str, tuple[str, str]]:
    """Terms that are not as sealed: what each was, and what it is."""
    if then.terms is None:
        return {}
    now = seals.terms(net, task)
    names = dict.fromkeys([*then.terms, *now])
    pairs = {name: (then.terms.get(name, "not sealed"), now.get(name, "none")) for name in names}
    return {name: (before, after) for name, (before, after) in pairs.items() if before != after}


def _different(then: Frozen, now: Frozen, owners: bool) -> dict[str, int]:
    """Tensors that are not as sealed, and how many values of the task were in them.

    With other owners a task has other elements of the backbone, which cannot be compared.
    """
    names = dict.fromkeys([*then.tensors, *now.tensors])
    return {
        name: then.tensors[name].values if name in then.tensors else 0
        for name in names
        if then.tensors.get(name) != now.tensors.get(name) and (owners or name.startswith("heads."))
    }


def _rounded(then: Seal, now: Frozen, name: str) -> bool:
    """May a change of type be why a tensor is not as sealed?"""
    if name not in then.frozen.tensors or name not in now.tensors:
        return False
    return bool(then.converted) or then.frozen.tensors[name].type != now.tensors[name].type


def _converted(then: Seal, now: Frozen, rounded: set[str]) -> str:
    kind = then.converted or now.tensors[min(rounded)].type
    name = kind.removeprefix("torch.")
    return f"converted to {name} after it was finished, so its seal no longer applies"


# -- outputs -----------------------------------------------------------------------------------


def _outputs(net: EideticNet, task: int, sealed: Seal, tampered: bool) -> tuple[OutputAudit, str]:
    """Ask again, and say what the difference may come from."""
    then = sealed.reference
    if then is None:
        return NOT_ASKED, f"its outputs were not recorded when it was finished ({sealed.why_not})"
    place = then.environment.get("device", "").partition(" ")[0]
    if place != "cpu" and not (place == "cuda" and torch.cuda.is_available()):
        return NOT_ASKED, f"its outputs were recorded on {place!r}, which is not here"
    if next(net.parameters()).device.type != place:
        net.to(place)
    try:
        with _threads(then.environment.get("threads", "")):
            now = reference.ask(net, task, then.batch)
    except Exception as error:  # whatever an edited file makes a model do
        why = f"its outputs cannot be computed any more: {' '.join(str(error).split())}"
        return OutputAudit(False), why
    found = _compared(then, now)
    return found, "" if found.same and not tampered else _explained(then, now, found, tampered)


def _explained(then: Reference, now: Reference, found: OutputAudit, tampered: bool) -> str:
    if found.same:
        return "its outputs are the same: what changed plays no part in them, or is the seal itself"
    if then.inputs != now.inputs:
        return "the example inputs are not those that it was sealed with"
    if tampered:
        return "its outputs differ with them"
    other = difference(then.environment, now.environment)
    if other:
        return f"bits are the same on the same machine only, and here {other}"
    return (
        "its values are as sealed, on the same kind of machine: the recorded outputs or something "
        "that is not sealed (a cache, the code of the model) was changed"
    )


def _compared(then: Reference, now: Reference) -> OutputAudit:
    values = sum(_size(output) for output in now.outputs)
    same = then.outputs == now.outputs and then.inputs == now.inputs
    compared = changed = 0
    largest = 0.0
    for before, after in zip(then.outputs, now.outputs, strict=False):
        one, other = _values(before), _values(after)
        if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
            continue
        different = (one != other) & ~(one.isnan() & other.isnan())
        compared += one.numel()
        changed += int(different.sum())
        if bool(different.any()):
            distance = (one - other).abs()[different].double().nan_to_num(nan=float("inf"))
            largest = max(largest, float(distance.max()))
    return OutputAudit(same, values, compared, changed, largest)


def _values(output: Output) -> Tensor | None:
    """The values in a file; None when they are no such values."""
    try:
        data = bytearray(base64.b64decode(output.sample, validate=True))
        values = torch.frombuffer(data, dtype=dtype_of(output.type))
    except (CheckpointError, RuntimeError, TypeError, ValueError):
        return None
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def _size(output: Output) -> int:
    return int(torch.Size(output.shape).numel())


@contextmanager
def _threads(number: str) -> Iterator[None]:
    """As many as when the outputs were recorded, for they decide about the last bits."""
    before = torch.get_num_threads()
    if number.isdecimal() and 0 < int(number) <= _MOST_THREADS:
        torch.set_num_threads(int(number))
    try:
        yield
    finally:
        torch.set_num_threads(before)
