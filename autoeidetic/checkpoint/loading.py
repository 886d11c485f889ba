"""Loading: rebuild a network from its file, bit for bit.

    model (built by name, or given) -> fill values -> convert -> check fingerprint
    -> tasks, owners, heads -> pins and guards -> router -> modes and requires_grad

The file holds no code and no analysis: the model is analysed again, and pins and guards are derived
from the owners in the file. Owners are stored by unit number, so they are valid only if the
analysis gives the same units; the fingerprint checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from ..common import archive
from ..common.inputs import CallInputs
from ..common.undisturbed import undisturbed
from ..enforce.slots import tensor_slots
from ..errors import AutoeideticError, CheckpointError, InputError
from ..routing import restore, routable_tasks, view
from ..tasks.network import Network
from ..tasks.opening import new_heads
from ..tasks.task import Task
from . import rebuild
from .example import decode_calls, dtype_of
from .fill import FRESH, check_places, distinct, filled
from .record import (
    EXAMPLE,
    FINGERPRINT_WORDS,
    OWNERS,
    PRUNED,
    ROUTER,
    Record,
    fingerprint,
    is_fingerprint,
    versions,
)

Net = TypeVar("Net", bound=Network)
_AGAIN = "save the network again"


def load(path: Any, model: nn.Module | None, convert: Callable[..., Net]) -> Net:
    """The network in a file, made by ``convert``; see :func:`autoeidetic.load`."""
    check_model(model)
    file = archive.as_path(path)
    with archive.about(path), undisturbed(generators="cpu", trainable=True):
        description, tensors = archive.read(file)
        record = Record.parse(description)
        net = blank(record, tensors, model, convert)
        resume(net, record, tensors)
        return net


def blank(
    record: Record,
    tensors: Mapping[str, Tensor],
    model: nn.Module | None,
    convert: Callable[..., Net],
) -> Net:
    """The network of a file without its tasks, but with its last values.

    Raises:
        CheckpointError: the model cannot be built, or is another one.
    """
    _check_kinds(tensors)
    examples = decode_calls(record.example, tensors)
    if model is None:
        model = rebuild.build(record.recipe)
    # Values are filled in first: the analysis reads buffers (tables of indices).
    dtypes = {name: dtype_of(kind) for name, kind in record.analysed_as.items()}
    net = _converted(convert, filled(model, tensors, dtypes), record, examples)
    _check_same(net, record)
    return net


def resume(net: Network, record: Record, tensors: Mapping[str, Tensor]) -> None:
    """Give a network without tasks the tasks, heads, router and modes of the saved one.

    Raises:
        CheckpointError: the file has something that no network writes.
    """
    _take_over_tasks(net, record, tensors)
    check_places(net.heads, "heads", tensors)
    values = distinct(net.slots | tensor_slots(net.heads, "heads"))
    # Values are exchanged within the same Parameter objects, so ties between modules stay.
    for name, tensor in values.items():
        if name in tensors:
            tensor.data = tensors[name]
    # Now pins and guards: owners and values must both be those of the file.
    net.settle(freeze=True)
    _take_over_router(net, record, tensors)
    # net.train() sets every module; those that were in the other mode are set one by one.
    net.train(record.training)
    for name, module in net.named_modules():
        if name in record.other_mode:
            module.training = not record.training
    # Last: a pin guards gradients only if requires_grad was set when the pin was made.
    without = set(record.without_gradient)
    for name, tensor in values.items():
        if isinstance(tensor, nn.Parameter) and (tensor.is_floating_point() or tensor.is_complex()):
            tensor.requires_grad_(name not in without)


def _check_kinds(tensors: Mapping[str, Tensor]) -> None:
    prefixes = ("backbone.", "heads.", EXAMPLE, ROUTER)
    for name in tensors:
        if name not in (OWNERS, PRUNED) and not name.startswith(prefixes):
            raise CheckpointError(
                f"the file has a tensor {name!r} of an unknown kind", remedy=_AGAIN
            )


def _converted(
    convert: Callable[..., Net], model: nn.Module, record: Record, examples: list[CallInputs]
) -> Net:
    try:
        # inplace: the model is already a copy. No rehearsal: the first conversion had it.
        return convert(model, examples, inplace=True, rehearse=False, **record.options)
    except AutoeideticError as error:
        raise CheckpointError(
            f"the file does not fit the model: {error.fact}", place=error.place, remedy=FRESH
        ) from error


def _check_same(net: Network, record: Record) -> None:
    found = fingerprint(net.call_plan)
    different = [
        FINGERPRINT_WORDS.get(name, name)
        for name in found
        if found[name] != record.fingerprint.get(name)
    ]
    plan = net.call_plan.plan
    if different and not is_fingerprint(found, record.fingerprint, plan):
        then, now = (", ".join(map(" ".join, v.items())) for v in (record.versions, versions()))
        raise CheckpointError(
            f"the file is of another model: {', '.join(different)} differ "
            f"(it was saved with {then}; here are {now})",
            remedy=FRESH,
        )


def _take_over_tasks(net: Network, record: Record, tensors: Mapping[str, Tensor]) -> None:
    layers = {head.layer for head in net.call_plan.heads}
    for number, task in enumerate(record.tasks):
        last = number == len(record.tasks) - 1
        if (
            # numbered from 0 without gaps; only the last may be open; a class for every head
            task.index != number
            or not (task.finished or last)
            or task.classes.keys() != layers
            or min(task.classes.values()) < 1
            or not _revisits_fit(task, record.tasks)
        ):
            raise CheckpointError(
                f"the file has a task '{task.name}' that does not follow from the ones before or "
                "does not fit the output layers",
                remedy=_AGAIN,
            )
    # Every unit is owned by a finished task or by none (-1); the open task owns nothing yet.
    open_task = next((task.index for task in record.tasks if not task.finished), None)
    owner, pruned = (_vector(tensors, name, net.owners.task.shape) for name in (OWNERS, PRUNED))
    finished = len(record.tasks) - (open_task is not None)
    if owner.dtype != net.owners.task.dtype or owner.min() < -1 or owner.max() >= finished:
        raise CheckpointError("the file has owners that are not finished tasks", remedy=_AGAIN)
    net.owners = replace(
        net.owners,
        task=owner,
        pruned=pruned.astype(bool),
        finished_tasks=finished,
        open_task=open_task,
    )
    if record.spreads.keys() != net.spreads.keys():
        raise CheckpointError("the file has no spread of every parameter", remedy=_AGAIN)
    net.adopt_tasks(record.tasks)
    net.spreads = dict(record.spreads)
    try:
        for task in record.tasks:
            net.heads[str(task.index)] = new_heads(net, task)
    except AutoeideticError as error:
        raise CheckpointError(
            f"the file has a head that cannot be made: {error.fact}",
            place=error.place,
            remedy=FRESH,
        ) from error


def _take_over_router(net: Network, record: Record, tensors: Mapping[str, Tensor]) -> None:
    own = {n.removeprefix(ROUTER): t for n, t in tensors.items() if n.startswith(ROUTER)}
    if record.router is None:
        if own:
            fact = "the file has the tensors of a router, but no router"
            raise CheckpointError(fact, remedy=_AGAIN)
        return
    kind, tasks = record.router.kind, record.router.tasks
    if not 0 < tasks <= len(routable_tasks(net)):
        raise CheckpointError(f"the file has a router for {tasks} finished tasks", remedy=_AGAIN)
    try:
        net.router = restore(kind, own, view(net, tasks))
    except AutoeideticError as error:
        raise CheckpointError(
            f"the file has a router {kind!r} that cannot be made: {error.fact}",
            remedy=f"{error.remedy}; a custom router must be registered with @autoeidetic.router "
            "before the network is loaded",
        ) from error


def _revisits_fit(task: Task, tasks: tuple[Task, ...]) -> bool:
    """Does a task revisit an earlier one, if any, and is it answered by a finished revisit?"""
    if task.revisits is not None and not 0 <= task.revisits < task.index:
        return False
    if task.answered_by is None:
        return True
    return 0 <= task.answered_by < len(tasks) and (
        tasks[task.answered_by].revisits == task.index and tasks[task.answered_by].finished
    )


def _vector(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in tensors or tuple(tensors[name].shape) != shape:
        raise CheckpointError(f"the file does not have {name} for every unit", remedy=_AGAIN)
    return tensors[name].numpy()


def check_model(model: Any) -> None:
    """Check the type of a model that the caller passed, if any.

    Raises:
        InputError: it is not a module.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise InputError(
            f"model is a {type(model).__qualname__}, not a torch.nn.Module", remedy=FRESH
        )
