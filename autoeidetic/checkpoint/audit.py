"""Audit: compare a saved network with the seals of its finished tasks.

The file may have been edited. It is read as far as it can be, and no code in it is run.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
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
from ..proof import seals
from ..tasks import reference
from ..tasks.network import Network
from ..tasks.task import Frozen, Output, Reference, Seal, Task
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

#: A thread count in an edited file is not trusted beyond this.
_MOST_THREADS = 256
_EARLIER = (
    "its seal is that of an earlier version, which did not cover its name, its classes and the "
    "options of the network"
)


def audit(
    path: Any, model: nn.Module | None, convert: Callable[..., Network], *, digest: str | None
) -> Audit:
    """Audit the tasks in a file; see :func:`autoeidetic.audit`."""
    check_model(model)
    noted, file = None if digest is None else checked(digest), archive.as_path(path)
    with archive.about(path), undisturbed(generators="cpu", trainable=True):
        description, tensors, damage = archive.examine(file)
        unread = Audit(str(path), "" if damage is None else damage.fact, (), "")
        return audited(unread, description, tensors, model, convert, noted)[0]


def audited(
    unread: Audit,
    description: Any,
    tensors: Mapping[str, Tensor],
    model: nn.Module | None,
    convert: Callable[..., Network],
    noted: str | None,
) -> tuple[Audit, Network | None]:
    """Audit what a file holds of one network, and that network if it can be restored.

    ``unread`` is the audit before anything was read: the path, and damage of the file as a whole.
    """
    if noted is not None:
        unread = replace(unread, noted=False)
    # Damage is reported, not raised, and the audit goes on as far as the file can be read.
    if unread.damage and description is None:
        return unread, None
    try:
        record = Record.parse(description)
        net = blank(record, tensors, model, convert)
    except CheckpointError as error:
        if not unread.damage:
            raise
        return replace(unread, damage=f"{unread.damage}; {error.fact}"), None
    # Taken before the tasks are restored: a file that no network could be restored from still
    # has a digest.
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
    except CheckpointError as error:  # no network writes such a file
        return replace(found, damage=f"the file was edited; {error.fact}"), None
    net.eval()
    return replace(found, tasks=_audited(net)), net


def _router(record: Record) -> str:
    assert record.router is not None
    number = record.router.tasks
    return f"'{record.router.kind}', for {number} {'task' if number == 1 else 'tasks'}"


def _audited(net: Network) -> tuple[TaskAudit, ...]:
    found: list[TaskAudit] = []
    for task in net.tasks:
        if task.finished:
            found.append(_task(net, task, [each.name for each in found if each.verdict == CHANGED]))
    return tuple(found)


def _task(net: Network, task: Task, changed_before: list[str]) -> TaskAudit:
    """Audit one task; ``changed_before`` names changed earlier tasks, which it may build on."""
    now, then = seals.frozen(net, task.index), task.seal
    other = task.answered_by
    audited = partial(
        TaskAudit,
        task=task.index,
        name=task.name,
        values=now.values,
        answered_by=None if other is None else net.tasks[other].name,
    )
    # What is sealed, and what each part proves:
    #   terms     name, classes and options        differ: edited
    #   owners    which elements are the task's    differ: edited
    #   values    digest of every frozen tensor    differ: edited, or rounded by a conversion
    #   outputs   answers to the example inputs    differ: one of the above, or another machine
    if then is None:
        return audited(verdict=UNSEALED)
    terms = _other_terms(then, net, task.index)
    owners = now.owned == then.frozen.owned
    different = _different(then.frozen, now, owners)
    # A conversion (net.half()) rounds frozen values: that voids a seal, but is no tampering.
    rounded = {name for name in different if _rounded(then, now, name)}
    changed = {name: number for name, number in different.items() if name not in rounded}
    if rounded and owners and not changed and not terms:
        return audited(verdict=CONVERTED, note=_converted(then, now, rounded))
    # Different outputs alone are no proof of tampering: another machine computes other last bits.
    tampered = bool(changed or terms) or not owners
    outputs, note = _outputs(net, task.index, then, tampered)
    if then.terms is None:
        note = f"{note}; {_EARLIER}" if note else _EARLIER
    # Outputs that were not checked (None) do not count against a task.
    verdict = CHANGED if tampered else OUTPUTS if outputs.same is False else HELD
    if verdict == OUTPUTS and changed_before:
        note = f"its own values are as sealed; it may build on {', '.join(changed_before)}"
    return audited(
        verdict=verdict, changed=changed, owners=owners, outputs=outputs, note=note, terms=terms
    )


def _other_terms(then: Seal, net: Network, task: int) -> dict[str, tuple[str, str]]:
    """Terms that are not as sealed: name -> (sealed, now)."""
    if then.terms is None:
        return {}
    now = seals.terms(net, task)
    names = dict.fromkeys([*then.terms, *now])
    pairs = {name: (then.terms.get(name, "not sealed"), now.get(name, "none")) for name in names}
    return {name: (before, after) for name, (before, after) in pairs.items() if before != after}


def _different(then: Frozen, now: Frozen, owners: bool) -> dict[str, int]:
    """Tensors that are not as sealed, and the number of values that the task froze in each.

    If the owners differ, the task owns other elements of the backbone, and only its heads can be
    compared.
    """
    names = dict.fromkeys([*then.tensors, *now.tensors])
    return {
        name: then.tensors[name].values if name in then.tensors else 0
        for name in names
        if then.tensors.get(name) != now.tensors.get(name) and (owners or name.startswith("heads."))
    }


def _rounded(then: Seal, now: Frozen, name: str) -> bool:
    """Can a change of type explain that a tensor is not as sealed?"""
    if name not in then.frozen.tensors or name not in now.tensors:
        return False
    return bool(then.converted) or then.frozen.tensors[name].type != now.tensors[name].type


def _converted(then: Seal, now: Frozen, rounded: set[str]) -> str:
    kind = then.converted or now.tensors[min(rounded)].type
    name = kind.removeprefix("torch.")
    return f"converted to {name} after it was finished, so its seal no longer applies"


# -- outputs -----------------------------------------------------------------------------------


def _outputs(net: Network, task: int, sealed: Seal, tampered: bool) -> tuple[OutputAudit, str]:
    """Compute the reference outputs again; the comparison, and a note on causes of a difference."""
    then = sealed.reference
    if then is None:
        return NOT_ASKED, f"its outputs were not recorded when it was finished ({sealed.why_not})"
    place = then.environment.get("device", "").partition(" ")[0]
    if place != "cpu" and not (place == "cuda" and torch.cuda.is_available()):
        return NOT_ASKED, f"its outputs were recorded on {place!r}, which is not here"
    # Bits are comparable on the kind of device that computed them, and nowhere else.
    if next(net.parameters()).device.type != place:
        net.to(place)
    try:
        with _threads(then.environment.get("threads", "")):
            now = reference.ask(net, task, then.batch)
    except Exception as error:  # an edited file may make a model raise anything
        why = f"its outputs cannot be computed any more: {' '.join(str(error).split())}"
        return OutputAudit(False), why
    found = _compared(then, now)
    return found, "" if found.same and not tampered else _explained(then, now, found, tampered)


def _explained(then: Reference, now: Reference, found: OutputAudit, tampered: bool) -> str:
    """The most likely cause of what was found, the certain ones first."""
    if found.same:
        return "its outputs are the same: the change does not affect them, or is in the seal itself"
    if then.inputs != now.inputs:
        return "the example inputs are not those that it was sealed with"
    if tampered:
        return "its outputs differ with them"
    other = difference(then.environment, now.environment)
    if other:
        return f"bits are the same only on the same machine, and here {other}"
    return (
        "its values are as sealed, on the same kind of machine: the recorded outputs or something "
        "that is not sealed (a cache, the code of the model) was changed"
    )


def _compared(then: Reference, now: Reference) -> OutputAudit:
    """Digests decide whether outputs are the same; the stored samples show how far they differ."""
    values = sum(_size(output) for output in now.outputs)
    same = then.outputs == now.outputs and then.inputs == now.inputs
    compared = changed = 0
    largest = 0.0
    # strict=False: an edited file may list another number of outputs.
    for before, after in zip(then.outputs, now.outputs, strict=False):
        one, other = _values(before), _values(after)
        if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
            continue
        # NaN equals NaN here: the outputs may have contained it when they were recorded.
        different = (one != other) & ~(one.isnan() & other.isnan())
        compared += one.numel()
        changed += int(different.sum())
        if bool(different.any()):
            distance = (one - other).abs()[different].double().nan_to_num(nan=float("inf"))
            largest = max(largest, float(distance.max()))
    return OutputAudit(same, values, compared, changed, largest)


def _values(output: Output) -> Tensor | None:
    """The sample of an output, in double precision; None if the file has no valid one."""
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
    """Use the thread count of the recording: sums over threads decide the last bits."""
    before = torch.get_num_threads()
    if number.isdecimal() and 0 < int(number) <= _MOST_THREADS:
        torch.set_num_threads(int(number))
    try:
        yield
    finally:
        torch.set_num_threads(before)
