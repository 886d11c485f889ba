"""Widen: a new column beside a network whose tasks are finished.

    finished columns     owners, values and answers stay as they are, bit for bit
    new column           a narrower copy of the model, whose layers also read the finished columns

The old network is not enlarged: the last bits of almost every operator depend on the shapes of its
tensors, so no bit would survive that. The first widening turns the network itself into a
:class:`~.wide.Wide` one, and what it was becomes its first column.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..analyze import analyze
from ..common.inputs import CallInputs
from ..common.undisturbed import undisturbed
from ..enforce.guard import Guarded, original_class
from ..errors import AutoeideticError, InputError, TaskError
from ..plan.call_plan import ATTACHED, call_plans
from ..proof.rehearse import rehearse
from ..tasks.network import Network
from .column import ColumnRecord, column_class
from .laterals import KEYWORD, Finished, example_values, input_shapes, laterals
from .narrow import NarrowCopy, narrow_copy
from .readers import Column, channel_dim


@dataclass(frozen=True)
class Widened:
    """What a widening has added.

    ``width`` is the share of the model's units that the new column has, which may be another one
    than was asked for: whole attention heads, convolution groups. ``reason``: why the column has
    the full width, if it has. With ``like=`` the width is an estimate from the numbers of
    parameters. ``parameters``: its own, those that read earlier columns included,
    output layers not.
    """

    column: int
    width: float
    reason: str
    parameters: int

    def __str__(self) -> str:
        size = f"{self.width:.0%} of the width, {self.parameters:,} parameters"
        return f"column {self.column}: {size}" + (f" ({self.reason})" if self.reason else "")


def check_finished(network: Network) -> None:
    """Raises TaskError unless a column has finished tasks and none open."""
    if network.open_task is not None or not network.tasks:
        raise TaskError(
            "the network cannot be widened: "
            + ("a task is open" if network.tasks else "it has no task yet"),
            remedy="widen it between two tasks: call finish_task() first",
        )


def new_column(
    columns: tuple[Finished, ...], width: float, like: nn.Module | None
) -> tuple[Network, Widened]:
    """A column beside others. Nothing in those changes.

    Args:
        columns: the finished columns.
        width: the part of the model's units that the column gets.
        like: a module to use as the column, of the same structure.

    Raises:
        InputError: the width is no positive number, or ``like`` has another structure.
    """
    first = columns[0].network
    built = column_model(columns, width, like)
    built.backbone.train(first.backbone.training)
    transfer = first.owners.forward_transfer
    try:
        network = converted(built.backbone, built.calls, type(first), transfer, first.check_calls)
        rehearse(network)  # alone: its examples have what it reads of the others
    except AutoeideticError as error:
        raise type(error)(
            f"the network cannot be widened: {error.fact}", place=error.place, remedy=error.remedy
        ) from error
    join(network, built.columns, ColumnRecord(width, like is not None))
    plan = network.call_plan.plan
    size = int(plan.elements[~network.owners.outside].sum())
    return network, Widened(len(columns), built.width, built.reason, size)


def join(network: Any, columns: tuple[Finished, ...], made: ColumnRecord) -> None:
    """Connect a column with those before it.

    All columns have one lock: two threads that took two of them in different order would wait for
    each other.
    """
    network.earlier, network.column = columns, made
    network.pass_lock = network.pins.lock = columns[0].network.pass_lock


@dataclass(frozen=True)
class ColumnModel:
    """The model of a new column with fresh values, and what it reads.

    ``calls`` are the examples of the network with what the column reads of the others.
    """

    backbone: Column
    columns: tuple[Finished, ...]
    calls: list[CallInputs]
    width: float
    reason: str


def column_model(
    columns: tuple[Finished, ...], width: float, like: nn.Module | None
) -> ColumnModel:
    """The model of a new column beside others."""
    first = columns[0].network
    if KEYWORD in inspect.signature(original_class(first.backbone).forward).parameters:  # type: ignore
        raise InputError(
            f"the model has an argument '{KEYWORD}', under which columns get what they read",
            remedy="give the argument of forward() another name",
        )
    made = _narrow(first, checked_width(width)) if like is None else _given(like, first)
    outputs = [head.layer for head in first.call_plan.heads if head.layer != ATTACHED]
    _check_layers(columns, made.model)
    calls = [_with_laterals(columns, first, example) for example in first.examples]
    columns, calls = _fitting(columns, calls, made.model)
    try:
        with undisturbed(generators="torch"):
            backbone = Column(made.model, _channels(columns), outputs)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise InputError(
            f"a layer of the new column cannot read earlier ones: {error}",
            remedy="pass like=, a model of the same structure with layers of torch",
        ) from error
    return ColumnModel(backbone, columns, calls, made.width, made.reason)


def converted(
    backbone: Column,
    calls: list[CallInputs],
    kind: type[Network],
    forward_transfer: bool,
    check_calls: bool = True,
) -> Network:
    """The network of a column, without tasks; ``kind`` is the class of the first column."""
    deps = analyze(backbone, calls)
    network = column_class(kind)(
        backbone,
        call_plans(backbone, deps.analysis),
        tuple(calls),
        forward_transfer=forward_transfer,
        keep_head=False,
        recycle="reinit",
    )
    network.check_calls = check_calls
    return network


def checked_width(width: Any) -> float:
    """The width that a user asks for.

    Raises:
        InputError: it is not a number above 0, up to 1.
    """
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0 < width <= 1:
        raise InputError(
            f"width={width!r} is not a number above 0, up to 1", remedy="pass 0.25, say"
        )
    return float(width)


def _narrow(first: Network, width: float) -> NarrowCopy:
    with first.unguarded():
        return narrow_copy(first.backbone, first.examples, width)


def _given(like: Any, first: Network) -> NarrowCopy:
    """A copy of a module that the user passed, on the device and in the type of the network."""
    remedy = "pass a model of the same structure with other sizes"
    if not isinstance(like, nn.Module):
        kind = type(like).__qualname__
        raise InputError(f"like is a {kind}, not a torch.nn.Module", remedy=remedy)
    if any(isinstance(module, (Guarded, Network)) for module in like.modules()):
        raise InputError("like is a part of a network", remedy=remedy)
    if any(parameter.is_meta for parameter in like.parameters()):
        raise InputError("like is on the meta device", remedy="build it on the CPU")
    own = next(p for p in first.backbone.parameters() if p.is_floating_point())
    size = sum(p.numel() for p in like.parameters())
    whole = sum(p.numel() for p in first.backbone.parameters())
    share = (size / max(whole, 1)) ** 0.5
    return NarrowCopy(copy.deepcopy(like).to(own.device, own.dtype), share, "")


def _channels(columns: tuple[Finished, ...]) -> dict[str, int]:
    """The number of channels that each layer of the new column reads of the others."""
    found: dict[str, int] = {}
    for column in columns:
        for path, source in column.sources.items():
            found[path] = found.get(path, 0) + source.width
    return found


def _check_layers(columns: tuple[Finished, ...], model: nn.Module) -> None:
    """Raises InputError when the model lacks a layer that the columns have."""
    for path in {path for column in columns for path in column.sources}:
        try:
            model.get_submodule(path)
        except AttributeError as error:
            raise InputError(
                f"like has no layer '{path}', which the network's model has",
                remedy="pass a model of the same structure with other sizes",
            ) from error


def _fitting(
    columns: tuple[Finished, ...], calls: list[CallInputs], model: nn.Module
) -> tuple[tuple[Finished, ...], list[CallInputs]]:
    """Columns and calls without layers that cannot read: in the new column they get other sizes.

    Not only channels become fewer in a narrow copy: a model may have states or tokens that layers
    make, and a layer that runs along those has as many as its own column.
    """
    kept = set(_channels(columns))
    for call in calls:
        own = {name: value for name, value in call.kwargs.items() if name != KEYWORD}
        shapes = input_shapes(model, kept, call.args, own)
        for path, values in call.kwargs[KEYWORD].items():
            dim = channel_dim(model.get_submodule(path))
            theirs = [_beside(value.shape, dim) for value in values]
            if theirs != [_beside(shape, dim) for shape in shapes.get(path, [])]:
                kept.discard(path)
    only = lambda found: {path: each for path, each in found.items() if path in kept}  # noqa: E731
    columns = tuple(replace(column, sources=only(column.sources)) for column in columns)
    for call in calls:
        call.kwargs[KEYWORD] = only(call.kwargs[KEYWORD])
    return columns, calls


def _beside(shape: Sequence[int], dim: int | None) -> list[int]:
    """The sizes of a tensor beside its channels."""
    sizes = list(shape)
    if dim is not None:
        del sizes[dim]
    return sizes


def _with_laterals(
    columns: tuple[Finished, ...], first: Network, example: CallInputs
) -> CallInputs:
    """An example of the new column: that of the model, and what it reads of the others."""
    with ExitStack() as stack:
        for column in columns:  # the newest one may be in train mode
            stack.enter_context(undisturbed(column.network, evaluate=True, generators="torch"))
        args, kwargs = example_values(first, example)
        found = laterals(columns, args, kwargs)
    return CallInputs(args, {**kwargs, KEYWORD: found}, example.decisions)
