"""Audit: a saved network against the seals of its tasks.

The file is taken as it is, edited or not. No code in it is run.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import archive, reference, seal
from ..errors import CheckpointError
from ..net import EideticNet, Task
from ..reference import Output, Reference
from ..results.about import difference
from ..seal import Frozen, Seal
from .context import about, generator_untouched
from .example import dtype_of
from .loading import blank, check_model, resume
from .record import Record
from .report import CHANGED, CONVERTED, HELD, OUTPUTS, UNSEALED, Audit, OutputAudit, TaskAudit

_MOST_THREADS = 256


def audit(path: Any, model: nn.Module | None = None) -> Audit:
    """Compare the finished tasks in a file with what they were when they were finished.

    Every task has a seal: a digest of each tensor's values that it froze, one of the units it
    owns, and what it answered to reference inputs. All three are looked at, and the tasks and
    tensors that are not as sealed are named. Random numbers and the file stay as they are.

    Args:
        path: a file that ``net.save`` wrote, and that somebody may have edited.
        model: as for :func:`autoeidetic.load`.

    Example:
        >>> import tempfile, torch, autoeidetic
        >>> from torch import nn
        >>> def build():
        ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> net = autoeidetic.convert(build(), torch.randn(2, 4))
        >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
        >>> path = f"{tempfile.mkdtemp()}/net.safetensors"
        >>> net.save(path)
        >>> autoeidetic.audit(path, build()).ok
        True

    Raises:
        CheckpointError: there is no such file, it is something else, or no model fits it.
    """
    check_model(model)
    with about(path), generator_untouched():
        description, tensors, damage = archive.examine(Path(path))
        if damage is not None and description is None:
            return Audit(str(path), damage.fact, (), "")
        try:
            record = Record.parse(description)
            net = blank(record, tensors, model)
        except CheckpointError as error:
            if damage is None:
                raise
            return Audit(str(path), f"{damage.fact}; it {error.fact}", (), "")
        try:
            resume(net, record, tensors)
        except CheckpointError as error:  # what no network has ever written
            return Audit(str(path), f"was edited: it {error.fact}", (), _digest(record.tasks))
        net.eval()
        wrong = "" if damage is None else damage.fact
        return Audit(str(path), wrong, _audited(net), _digest(net.tasks))


def _digest(tasks: tuple[Task, ...]) -> str:
    seals = [asdict(task.seal) for task in tasks if task.seal is not None]
    text = json.dumps(seals, sort_keys=True)
    return blake2b(text.encode(), digest_size=32).hexdigest() if seals else ""


def _audited(net: EideticNet) -> tuple[TaskAudit, ...]:
    found: list[TaskAudit] = []
    for task in net.tasks:
        if task.finished:
            found.append(_task(net, task, [each.name for each in found if each.verdict == CHANGED]))
    return tuple(found)


def _task(net: EideticNet, task: Task, changed_before: list[str]) -> TaskAudit:
    """``changed_before``: earlier tasks that were tampered with, on which this one may build."""
    now = seal.frozen(net, task.index)
    then = task.seal
    if then is None:
        reason = OutputAudit(None)
        return TaskAudit(task.index, task.name, UNSEALED, now.values, {}, True, reason, ())
    owners = now.owned == then.frozen.owned
    changed = _changed(then.frozen, now, owners)
    kind = _converted(then, now) if changed else ""
    if kind and owners:
        note = f"converted to {kind} after it was finished, so its seal no longer applies"
        outputs, verdict, notes, changed = OutputAudit(None, reason=note), CONVERTED, [note], {}
    else:
        outputs, notes = _outputs(net, task.index, then, bool(changed) or not owners)
        verdict = CHANGED if changed or not owners else OUTPUTS if outputs.same is False else HELD
        if verdict == OUTPUTS and changed_before:
            notes = [f"its own values are as sealed; it may build on {', '.join(changed_before)}"]
    return TaskAudit(
        task.index, task.name, verdict, now.values, changed, owners, outputs, tuple(notes)
    )


def _changed(then: Frozen, now: Frozen, owners: bool) -> dict[str, int]:
    """Tensors that are not as sealed, and how many values of the task were in them.

    With other owners a task has other elements of the backbone, which cannot be compared.
    """
    names = dict.fromkeys([*then.tensors, *now.tensors])
    return {
        name: then.tensors[name].values if name in then.tensors else 0
        for name in names
        if then.tensors.get(name) != now.tensors.get(name) and (owners or name.startswith("heads."))
    }


def _converted(then: Seal, now: Frozen) -> str:
    """The type that a network was brought to after a task was sealed, if any."""
    for name, tensor in now.tensors.items():
        if name in then.frozen.tensors and then.frozen.tensors[name].type != tensor.type:
            return tensor.type.removeprefix("torch.")
    return then.converted.removeprefix("torch.")


# -- outputs -----------------------------------------------------------------------------------


def _outputs(
    net: EideticNet, task: int, sealed: Seal, changed: bool
) -> tuple[OutputAudit, list[str]]:
    """Ask again, and say what the difference may come from."""
    then = sealed.reference
    if then is None:
        why = f"its outputs were not recorded when it was finished ({sealed.why_not})"
        return OutputAudit(None, reason=why), [why]
    place = then.environment.get("device", "cpu").split()[0]
    if place != "cpu" and not (place == "cuda" and torch.cuda.is_available()):
        why = f"its outputs were recorded on {place}, which is not here"
        return OutputAudit(None, reason=why), [why]
    if next(net.parameters()).device.type != place:
        net.to(place)
    try:
        with _threads(then.environment.get("threads", "")):
            now = reference.ask(net, task, then.batch)
    except Exception as error:  # whatever an edited file makes a model do
        why = f"its outputs cannot be computed any more: {' '.join(str(error).split())}"
        return OutputAudit(False, reason=why), [why]
    found = _compared(then, now)
    return found, [] if found.same and not changed else [_explained(then, now, found, changed)]


def _explained(then: Reference, now: Reference, found: OutputAudit, changed: bool) -> str:
    if found.same:
        return "its outputs are the same: what changed plays no part in them, or is the seal itself"
    if then.inputs != now.inputs:
        return "the example inputs are not those that it was sealed with"
    other = difference(then.environment, now.environment)
    if other:
        return f"bits are the same on the same machine only, and here {other}"
    if changed:
        return "its outputs differ with them"
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
    except (binascii.Error, CheckpointError, ValueError):
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
