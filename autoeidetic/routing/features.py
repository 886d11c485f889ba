"""Features: what a network shows of its inputs in one pass, and which part of it is settled.

Features are the inputs of the output layers, averaged over everything but batch and channels. Only
channels that a finished task may see are taken: the others change while a later task is trained.
A head that is a bare parameter has no input that could be caught, and the outputs of the
finished tasks take the place of features.

A second go at a task (``prepare_for_task(..., revisit=0)``) is not told from the task itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import HeadError, InputError, Place
from ..plan.call_plan import ATTACHED, HeadPlan
from ..propagate.values import varies

if TYPE_CHECKING:
    from ..net import EideticNet


@dataclass(frozen=True)
class Block:
    """Features that come from the input of one output layer.

    ``run`` is the task in whose pass they are found; None where they are the same in all.
    ``index`` are the channels to take, of ``channels`` in all along dimension ``channel``;
    ``mask`` hides elements where not all of a channel may be seen.
    """

    layer: str
    run: int | None
    channel: int
    channels: int
    index: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class View:
    """Where the features of the finished tasks are.

    ``numbers`` are the tasks, and everything else follows their order: ``classes``, the size of a
    task's head; ``columns``, the features that it may see. ``width`` is the number of features.
    """

    numbers: tuple[int, ...]
    classes: tuple[int, ...]
    columns: tuple[Tensor, ...]
    width: int
    blocks: tuple[Block, ...]

    @property
    def tasks(self) -> int:
        """How many there are."""
        return len(self.numbers)

    @property
    def sizes(self) -> dict[str, int]:
        """Everything about it that decides the shape of a router's tensors, by name."""
        seen = {f"seen_{task}": len(columns) for task, columns in enumerate(self.columns)}
        return {"tasks": self.tasks, "width": self.width, **seen}


@dataclass(frozen=True)
class Seen:
    """What the network shows of some inputs.

    ``logits`` are the first outputs that a head makes, for each task, with the classes in the
    last dimension; none when nobody has asked for them. ``inputs`` is the number of inputs,
    ``captured`` what each output layer has read, by the task of the pass.
    """

    view: View
    inputs: int
    logits: tuple[Tensor, ...]
    captured: Mapping[int | None, Mapping[str, Tensor]]

    @property
    def features(self) -> Tensor:
        """The features, in float32 or better: ``[inputs, view.width]``.

        Raises:
            InputError: they are not as the analysis saw them.
        """
        if self.view.blocks:
            parts = [_read(b, self.captured[b.run], self.inputs) for b in self.view.blocks]
        else:
            parts = [_averaged(_precise(logits), logits.dim() - 1) for logits in self.logits]
        return torch.cat(parts, 1)


# -- where features are ------------------------------------------------------------------------


def to_be_found(net: EideticNet) -> list[int]:
    """The finished tasks, without those that are a second go at another."""
    return [task.index for task in net.tasks if task.finished and task.revisits is None]


def view(net: EideticNet, tasks: int) -> View:
    """What the first ``tasks`` of the tasks that are to be found may see."""
    numbers = tuple(to_be_found(net)[:tasks])
    classes = tuple(_classes(net, task) for task in numbers)
    blocks: list[Block] = []
    columns: dict[int, list[Tensor]] = {task: [] for task in numbers}
    width = 0
    for head in net.blueprint.heads:
        if head.leaf is not None:
            continue
        for run in numbers if head.nested else [None]:
            readers = numbers if run is None else (run,)
            block, seen = _block(net, head, run, readers)
            place = seen.any(0).cumsum(0) - 1 + width
            for task, mine in zip(readers, seen, strict=True):
                columns[task].append(place[mine])
            blocks.append(block)
            width += len(block.index)
    if not blocks:
        width = sum(classes)
        return View(numbers, classes, (torch.arange(width),) * tasks, width, ())
    seen_by = tuple(torch.cat(columns[task]) for task in numbers)
    return View(numbers, classes, seen_by, width, tuple(blocks))


def _block(
    net: EideticNet, head: HeadPlan, run: int | None, readers: tuple[int, ...]
) -> tuple[Block, Tensor]:
    """The features of one output layer, and which of its channels each reader may see."""
    channel = _channel(net, head)
    channels = head.inputs.shape[channel]
    masks = [net._visible[head.layer, task] for task in readers]
    seen = torch.stack([_channels_of(mask, channel, channels) for mask in masks])
    elements: Tensor | None = None
    if all(mask is not None and mask.numel() > mask.shape[channel] for mask in masks):
        elements = torch.stack([mask for mask in masks if mask is not None]).any(0)
    index = seen.any(0).nonzero().reshape(-1)
    return Block(head.layer, run, channel, channels, index, elements), seen


def _channel(net: EideticNet, head: HeadPlan) -> int:
    """The dimension of the channels in what an output layer reads."""
    if head.layer == ATTACHED:
        return head.dim
    dims = [dim for dim in varies(head.inputs) if dim > 0]
    if len(dims) == 1:
        return dims[0]
    ranks = [net.backbone.get_parameter(name).dim() for name in head.parameters]
    return 1 if max(ranks, default=0) > 2 else head.inputs.dim() - 1


def _channels_of(mask: Tensor | None, channel: int, channels: int) -> Tensor:
    """The channels that a mask leaves something of; None leaves all."""
    if mask is None:
        return torch.ones(channels, dtype=torch.bool)
    others = [dim for dim in range(mask.dim()) if dim != channel]
    return (mask.any(others) if others else mask).reshape(-1).expand(channels).cpu()


def _classes(net: EideticNet, task: int) -> int:
    """The number of classes of the head whose output counts."""
    layers = [where[1] for where in net.blueprint.split if where is not None]
    layer = layers[0] if layers else net.blueprint.heads[0].layer
    return net.tasks[task].classes[layer]


# -- looking -----------------------------------------------------------------------------------


@contextmanager
def looking(net: EideticNet) -> Iterator[None]:
    """The network in eval mode and without gradients; modes are put back."""
    modes = {module: module.training for module in net.modules()}
    try:
        with torch.no_grad():
            net.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def observe(net: EideticNet, view: View, args: Any, kwargs: Any, *, outputs: bool = True) -> Seen:
    """One pass of the body: features, and the outputs of the tasks in view.

    Several passes where the network needs them for the outputs of several tasks; just one when no
    ``outputs`` are asked for and the features are the same for all tasks.
    """
    answering = [net._answering(task) for task in view.numbers]
    needed = answering if outputs or not view.blocks else []
    needed = needed + [block.run for block in view.blocks if block.run is not None]
    asked = tuple(dict.fromkeys(needed or answering[:1]))
    net._before(args, kwargs)
    answers: dict[int, Tensor] = {}
    captured: dict[int | None, Mapping[str, Tensor]] = {}
    try:
        for run in [asked] if net.blueprint.joint else [(task,) for task in asked]:
            net._runtime.features = {}
            for task, output in zip(run, net._answer_all(run, args, kwargs), strict=True):
                answers[task] = _logits(net, task, output)
                captured[task] = captured[None] = net._runtime.features
    finally:
        net._runtime.features = None
    logits = tuple(answers[task] for task in answering) if outputs or not view.blocks else ()
    return Seen(view, len(answers[asked[0]]), logits, captured)


def _logits(net: EideticNet, task: int, output: Any) -> Tensor:
    """The first output that a head makes, classes last."""
    leaves = pytree.tree_leaves(output)
    for leaf, where in zip(leaves, net.blueprint.split, strict=False):
        if where is not None:
            return leaf.movedim(where[0], -1)
    # an attached head, or one that is followed by something like a softmax
    classes = _classes(net, task)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() > 1:
            dims = [dim for dim in (1, leaf.dim() - 1) if leaf.shape[dim] == classes]
            if dims:
                return leaf.movedim(dims[0], -1)
    raise HeadError(
        f"no output of the model has {classes} classes in its second or its last dimension",
        remedy="convert a model that returns logits",
    )


def _read(block: Block, captured: Mapping[str, Tensor], rows: int) -> Tensor:
    """The features of one output layer, ``[rows, channels that are seen]``."""
    value = captured[block.layer].detach()
    found = value.shape[block.channel] if value.dim() > block.channel else 0
    if found != block.channels or value.shape[0] % max(rows, 1):
        raise InputError(
            f"the output layer reads features of shape {tuple(value.shape)} for {rows} inputs; "
            f"dimension {block.channel} had {block.channels} channels when the model was analysed",
            place=Place(module=block.layer),
            remedy="pass inputs of the kind that the model was converted with",
        )
    # the same layout at all times, for the last bits of a mean depend on it
    value = _precise(value).contiguous()
    if block.mask is not None:
        value = torch.where(block.mask.to(value.device), value, torch.zeros_like(value))
    value = _averaged(value, block.channel)
    if len(value) != rows:  # tokens or windows that the model has put into the batch
        value = value.reshape(rows, -1, block.channels).mean(1)
    return value.index_select(1, block.index.to(value.device))


def _precise(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))


def _averaged(value: Tensor, channel: int) -> Tensor:
    others = [dim for dim in range(1, value.dim()) if dim != channel]
    return value.mean(others) if others else value
