"""Loading: a network out of its file, as it went in.

Pins and guards are derived from what the file holds, so they are made anew. The model itself comes
from its library by name or from the caller; an analysis that gives other classes than the saved
network had is refused, for owners are numbers of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..common import archive
from ..common.inputs import CallInputs
from ..common.undisturbed import undisturbed
from ..convert import convert
from ..enforce.derive import slots
from ..errors import AutoeideticError, CheckpointError, InputError
from ..net import EideticNet, Task
from ..routing import restore, to_be_found, view
from . import rebuild
from .example import decode_calls, dtype_of
from .fill import FRESH, check_places, distinct, filled
from .record import EXAMPLE, OWNERS, PRUNED, ROUTER, Record, fingerprint, versions

_AGAIN = "save the network again"


def load(path: Any, model: nn.Module | None = None) -> EideticNet:
    """Open a network that was saved, on the CPU and in the precision it had.

    From here on it does what the saved one would have done, bit for bit. No code in the file is
    run. Only the start of a task that was open is forgotten, if no seed gives it again: then
    ``rollback()`` raises.

    Args:
        path: a file that ``net.save`` wrote.
        model: a new model built as the saved one was, with any values, on any device (``meta``
            too). It is copied without its values and stays as it is. May be left out for
            models that timm or torchvision build by name.

    Example:
        >>> import tempfile, torch, autoeidetic
        >>> from torch import nn
        >>> def build():
        ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> net = autoeidetic.convert(build(), torch.randn(2, 4))
        >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save(f"{folder}/net.safetensors")
        ...     again = autoeidetic.load(f"{folder}/net.safetensors", model=build())
        >>> x = torch.randn(5, 4)
        >>> torch.equal(again(x, task=0), net(x, task=0))
        True

    Raises:
        CheckpointError: the file is missing, damaged or something else; it does not tell how to
            build the model; the model is not the one that was saved.
    """
    check_model(model)
    file = archive.as_path(path)
    with archive.about(path), undisturbed(generators="cpu", trainable=True):
        description, tensors = archive.read(file)
        record = Record.parse(description)
        net = blank(record, tensors, model)
        resume(net, record, tensors)
        return net


def blank(record: Record, tensors: Mapping[str, Tensor], model: nn.Module | None) -> EideticNet:
    """The network of a file as it was before its first task, but with its last values.

    Raises:
        CheckpointError: there is no model for it, or another one.
    """
    _check_kinds(tensors)
    examples = decode_calls(record.example, tensors)
    if model is None:
        model = rebuild.build(record.recipe)
    # values come before the analysis, for it looks at buffers (tables of indices)
    dtypes = {name: dtype_of(kind) for name, kind in record.analysed_as.items()}
    net = _converted(filled(model, tensors, dtypes), record, examples)
    _check_same(net, record)
    return net


def resume(net: EideticNet, record: Record, tensors: Mapping[str, Tensor]) -> None:
    """Put a network without any task where the saved one was.

    Raises:
        CheckpointError: the file has something that no network has.
    """
    _take_over_tasks(net, record, tensors)
    check_places(net.heads, "heads", tensors)
    values = distinct(net._slots | slots(net.heads, "heads"))
    for name, tensor in values.items():
        if name in tensors:
            tensor.data = tensors[name]
    net._settle(freeze=True)
    _take_over_router(net, record, tensors)
    net.train(record.training)
    for name, module in net.named_modules():
        if name in record.other_mode:
            module.training = not record.training
    # only now: pins look after gradients where one is wanted at the time they are made
    without = set(record.without_gradient)
    for name, tensor in values.items():
        if isinstance(tensor, nn.Parameter) and (tensor.is_floating_point() or tensor.is_complex()):
            tensor.requires_grad_(name not in without)


def _check_kinds(tensors: Mapping[str, Tensor]) -> None:
    prefixes = ("backbone.", "heads.", EXAMPLE, ROUTER)
    for name in tensors:
        if name not in (OWNERS, PRUNED) and not name.startswith(prefixes):
            raise CheckpointError(f"the file has a tensor {name!r} of no known kind", remedy=_AGAIN)


def _converted(model: nn.Module, record: Record, examples: list[CallInputs]) -> EideticNet:
    try:
        return convert(model, examples, inplace=True, rehearse=False, **record.options)
    except AutoeideticError as error:
        raise CheckpointError(
            f"the file does not fit the model: {error.fact}", place=error.place, remedy=FRESH
        ) from error


def _check_same(net: EideticNet, record: Record) -> None:
    found = fingerprint(net.blueprint)
    different = [name for name in found if found[name] != record.fingerprint.get(name)]
    if different:
        then, now = (", ".join(map(" ".join, v.items())) for v in (record.versions, versions()))
        raise CheckpointError(
            f"the file is of another model: {', '.join(different)} differ "
            f"(it was saved with {then}; here are {now})",
            remedy=FRESH,
        )


def _take_over_tasks(net: EideticNet, record: Record, tensors: Mapping[str, Tensor]) -> None:
    layers = {head.layer for head in net.blueprint.heads}
    for number, task in enumerate(record.tasks):
        last = number == len(record.tasks) - 1
        if (
            task.index != number
            or not (task.finished or last)
            or task.classes.keys() != layers
            or min(task.classes.values()) < 1
            or not _second_goes_fit(task, record.tasks)
        ):
            raise CheckpointError(
                f"the file has a task '{task.name}' that does not follow from the ones before or "
                "does not fit the output layers",
                remedy=_AGAIN,
            )
    open_task = next((task.index for task in record.tasks if not task.finished), None)
    owner, pruned = (_vector(tensors, name, net.owners.task.shape) for name in (OWNERS, PRUNED))
    finished = len(record.tasks) - (open_task is not None)
    if owner.dtype != net.owners.task.dtype or owner.min() < -1 or owner.max() >= finished:
        raise CheckpointError("the file has owners that are no tasks", remedy=_AGAIN)
    net.owners = replace(
        net.owners,
        task=owner,
        pruned=pruned.astype(bool),
        finished_tasks=finished,
        open_task=open_task,
    )
    if record.spreads.keys() != net._spreads.keys():
        raise CheckpointError("the file has no spread of every parameter", remedy=_AGAIN)
    net._tasks = list(record.tasks)
    net._spreads = dict(record.spreads)
    try:
        for task in record.tasks:
            net.heads[str(task.index)] = net._new_heads(task)
    except AutoeideticError as error:
        raise CheckpointError(
            f"the file has a head that cannot be made: {error.fact}",
            place=error.place,
            remedy=FRESH,
        ) from error


def _take_over_router(net: EideticNet, record: Record, tensors: Mapping[str, Tensor]) -> None:
    own = {n.removeprefix(ROUTER): t for n, t in tensors.items() if n.startswith(ROUTER)}
    if record.router is None:
        if own:
            fact = "the file has the tensors of a router, but no router"
            raise CheckpointError(fact, remedy=_AGAIN)
        return
    kind, tasks = record.router.kind, record.router.tasks
    if not 0 < tasks <= len(to_be_found(net)):
        raise CheckpointError(f"the file has a router for {tasks} finished tasks", remedy=_AGAIN)
    try:
        net.router = restore(kind, own, view(net, tasks))
    except AutoeideticError as error:
        raise CheckpointError(
            f"the file has a router {kind!r} that cannot be made: {error.fact}",
            remedy=f"{error.remedy}; a kind of your own is registered with @autoeidetic.router "
            "before the network is loaded",
        ) from error


def _second_goes_fit(task: Task, tasks: tuple[Task, ...]) -> bool:
    """Are the tasks that it revisits, and that answers in its place, such tasks?"""
    if task.revisits is not None and not 0 <= task.revisits < task.index:
        return False
    if task.answered_by is None:
        return True
    return 0 <= task.answered_by < len(tasks) and (
        tasks[task.answered_by].revisits == task.index and tasks[task.answered_by].finished
    )


def _vector(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in tensors or tuple(tensors[name].shape) != shape:
        raise CheckpointError(f"the file has no {name} for every class", remedy=_AGAIN)
    return tensors[name].numpy()


def check_model(model: Any) -> None:
    """Is it a model, if there is one?

    Raises:
        InputError: it is something else.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise InputError(
            f"model is a {type(model).__qualname__}, not a torch.nn.Module", remedy=FRESH
        )
