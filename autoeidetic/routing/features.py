"""Features: the values that routers read from a network, restricted to those that stay the same.

Features are the inputs of the output layers, averaged over everything but batch and channels:

    [inputs, channels, *positions]  -> mean ->  [inputs, channels]  -> select ->  [inputs, width]

Only channels that a finished task may see are selected: the others change while a later task is
trained, and a router fitted to them would change its answers. A head that is a bare parameter has
no input that can be captured; the outputs of the finished tasks are used instead of features.

A revisit of a task (``prepare_for_task(..., revisit=0)``) counts as the same task: it has the same
inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import HeadError, InputError, Place
from ..plan.call_plan import ATTACHED, HeadPlan
from ..propagate.values import varies
from ..tasks.network import Network


@dataclass(frozen=True)
class FeatureBlock:
    """The features from the input of one output layer.

    ``run`` is the task in whose pass they are captured; None if they are the same in all passes.
    ``index`` selects from the ``channels`` channels along dimension ``channel``. ``mask`` is False
    for elements that may not be seen, where only a part of a channel may be. ``column``: of a
    network that was widened, the one that the layer is in.
    """

    layer: str
    run: int | None
    channel: int
    channels: int
    index: Tensor
    mask: Tensor | None
    column: int = 0


@dataclass(frozen=True)
class View:
    """The features of a network, and those that each finished task may see.

    ``numbers`` are the tasks; ``classes`` (sizes of their heads) and ``columns`` (indices of the
    features that a task may see) follow the same order. ``width`` is the number of features.
    """

    numbers: tuple[int, ...]
    classes: tuple[int, ...]
    columns: tuple[Tensor, ...]
    width: int
    blocks: tuple[FeatureBlock, ...]

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.numbers)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that a router's layout may name."""
        seen = {f"seen_{task}": len(columns) for task, columns in enumerate(self.columns)}
        return {"tasks": self.tasks, "width": self.width, **seen}


@dataclass(frozen=True)
class Seen:
    """The values that a router may read about a batch of inputs.

    ``logits`` has the first output of each task's head, classes in the last dimension; it is empty
    if the router does not read outputs. ``inputs`` is the number of inputs. ``captured`` has the
    input of each output layer, by column and task of the pass.
    """

    view: View
    inputs: int
    logits: tuple[Tensor, ...]
    captured: Sequence[Mapping[int | None, Mapping[str, Tensor]]]

    @property
    def features(self) -> Tensor:
        """The features, in float32 or better: ``[inputs, view.width]``.

        Raises:
            InputError: their shape is not the one in the analysis.
        """
        if self.view.blocks:
            parts = [
                _read(b, self.captured[b.column][b.run], self.inputs) for b in self.view.blocks
            ]
        else:
            parts = [_averaged(_precise(logits), logits.dim() - 1) for logits in self.logits]
        return torch.cat(parts, 1)


# -- where features are ------------------------------------------------------------------------


def routable_tasks(net: Network) -> list[int]:
    """The finished tasks that a router chooses from: all but revisits of another task."""
    return [task.index for task in net.tasks if task.finished and task.revisits is None]


def view(net: Network, tasks: int) -> View:
    """The view of the first ``tasks`` routable tasks."""
    parts = []
    for column in net.networks:
        numbers = tuple(routable_tasks(column))[:tasks]
        tasks -= len(numbers)
        parts.append(_view(column, numbers))
    return parts[0] if len(parts) == 1 else _joined(parts, net.networks)


def _joined(parts: Sequence[View], columns: Sequence[Network]) -> View:
    """The views of all columns side by side; a task sees its own column and those before."""
    # features   column 0 [ . . . . ]  column 1 [ . . . ]      a task of column 1 sees all of
    #                                                          column 0's that any task there sees
    numbers: list[int] = []
    seen: list[Tensor] = []
    blocks: list[FeatureBlock] = []
    start = width = 0
    for number, (part, column) in enumerate(zip(parts, columns, strict=True)):
        if part.numbers and not part.blocks:
            raise HeadError(
                "a router cannot read the features of this widened network: an output layer is a "
                "bare parameter",
                remedy="name the task when you call the network",
            )
        before = torch.arange(width)
        seen += [torch.cat([before, own + width]) for own in part.columns]
        numbers += [start + each for each in part.numbers]
        blocks += [replace(block, column=number) for block in part.blocks]
        start, width = start + len(column.tasks), width + part.width
    classes = tuple(size for part in parts for size in part.classes)
    return View(tuple(numbers), classes, tuple(seen), width, tuple(blocks))


def _view(net: Network, numbers: tuple[int, ...]) -> View:
    """The view of these tasks of one column."""
    tasks = len(numbers)
    if not numbers:
        return View((), (), (), 0, ())
    classes = tuple(_classes(net, task) for task in numbers)
    blocks: list[FeatureBlock] = []
    columns: dict[int, list[Tensor]] = {task: [] for task in numbers}
    width = 0
    for head in net.call_plan.heads:
        if head.leaf is not None:
            continue
        # The module around a nested head mixes channels and runs on what one task may see, so its
        # features differ from task to task.
        for run in numbers if head.nested else [None]:
            readers = numbers if run is None else (run,)
            block, seen = _block(net, head, run, readers)
            # seen: [readers, channels]; a channel becomes a feature if any reader may see it.
            # place: channel -> its column in the row of features, counted over the blocks so far.
            place = seen.any(0).cumsum(0) - 1 + width
            for task, mine in zip(readers, seen, strict=True):
                columns[task].append(place[mine])
            blocks.append(block)
            width += len(block.index)
    if not blocks:
        width = sum(classes)
        # No layer has an input to capture: the logits of all heads, side by side, are the features.
        return View(numbers, classes, (torch.arange(width),) * tasks, width, ())
    seen_by = tuple(torch.cat(columns[task]) for task in numbers)
    return View(numbers, classes, seen_by, width, tuple(blocks))


def _block(
    net: Network, head: HeadPlan, run: int | None, readers: tuple[int, ...]
) -> tuple[FeatureBlock, Tensor]:
    """The features of one output layer, and a mask [readers, channels] of what each may see."""
    channel = _channel(net, head)
    channels = head.inputs.shape[channel]
    masks = [net.visible[head.layer, task] for task in readers]
    seen = torch.stack([_channels_of(mask, channel, channels) for mask in masks])
    # Masks have one element per channel, or more if only a part of a channel may be seen (a head
    # that reads [channels, positions]). In that case hidden elements count as 0 in the mean.
    elements: Tensor | None = None
    if all(mask is not None and mask.numel() > mask.shape[channel] for mask in masks):
        elements = torch.stack([mask for mask in masks if mask is not None]).any(0)
    index = seen.any(0).nonzero().reshape(-1)
    return FeatureBlock(head.layer, run, channel, channels, index, elements), seen


def _channel(net: Network, head: HeadPlan) -> int:
    """The dimension of the channels in the input of an output layer."""
    if head.layer == ATTACHED:
        return head.dim
    # The units in the head's input vary along the channels. If they vary along several dimensions
    # (or none), the layer decides: convolutions have channels second, linear layers last.
    dims = [dim for dim in varies(head.inputs) if dim > 0]
    if len(dims) == 1:
        return dims[0]
    ranks = [net.backbone.get_parameter(name).dim() for name in head.parameters]
    return 1 if max(ranks, default=0) > 2 else head.inputs.dim() - 1


def _channels_of(mask: Tensor | None, channel: int, channels: int) -> Tensor:
    """A mask ``[channels]``: is any element of the channel visible? None masks nothing."""
    if mask is None:
        return torch.ones(channels, dtype=torch.bool)
    others = [dim for dim in range(mask.dim()) if dim != channel]
    return (mask.any(others) if others else mask).reshape(-1).expand(channels).cpu()


def _classes(net: Network, task: int) -> int:
    """The number of classes of the head that makes the first output."""
    layers = [where[1] for where in net.call_plan.split if where is not None]
    layer = layers[0] if layers else net.call_plan.heads[0].layer
    return net.tasks[task].classes[layer]


# -- reading features --------------------------------------------------------------------------


def observe(
    net: Network, view: View, args: Any, kwargs: Any, *, outputs: bool = True, bare: bool = False
) -> Seen:
    """Run the network once: features, and the outputs of all tasks of the view.

    ``net.before_pass`` must come before. With ``bare``, answers are not checked for divergence.

    A network whose tasks cannot share a pass runs once per task, but still only once in all if
    ``outputs`` is False and the features are the same for all tasks.
    """
    logits: list[Tensor] = []
    captured: list[dict[int | None, Mapping[str, Tensor]]] = []
    inputs = start = 0
    for number, (column, own, named) in enumerate(net.column_calls(args, kwargs)):
        mine = [task - start for task in view.numbers if 0 <= task - start < len(column.tasks)]
        start += len(column.tasks)
        if not mine:
            captured.append({})
            continue
        if column is not net:
            column.before_pass(own, named)
        blocks = [block for block in view.blocks if block.column == number]
        found, values = _observe(column, mine, blocks, own, named, outputs=outputs, bare=bare)
        inputs = len(next(iter(found.values())))
        if outputs or not view.blocks:
            logits += [found[column.answering_task(task)] for task in mine]
        captured.append(values)
    return Seen(view, inputs, tuple(logits), captured)


def _observe(
    net: Network,
    tasks: Sequence[int],
    blocks: Sequence[FeatureBlock],
    args: Any,
    kwargs: Any,
    *,
    outputs: bool,
    bare: bool,
) -> tuple[dict[int, Tensor], dict[int | None, Mapping[str, Tensor]]]:
    """Run one column: the logits of tasks that answer, and the inputs of output layers."""
    answering = [net.answering_task(task) for task in tasks]
    # Without blocks the outputs are the features. Blocks with a run need the pass of that task.
    needed = answering if outputs or not blocks else []
    needed = needed + [block.run for block in blocks if block.run is not None]
    asked = tuple(dict.fromkeys(needed or answering[:1]))
    answers: dict[int, Tensor] = {}
    captured: dict[int | None, Mapping[str, Tensor]] = {}
    try:
        for run in [asked] if net.call_plan.joint else [(task,) for task in asked]:
            net.runtime.features = {}
            answer = net.bare_answers if bare else net.answer_all
            for task, output in zip(run, answer(run, args, kwargs), strict=True):
                answers[task] = _logits(net, task, output)
                # None: for blocks that are the same in all passes, whichever pass was the last.
                captured[task] = captured[None] = net.runtime.features
    finally:
        net.runtime.features = None
    return answers, captured


def _logits(net: Network, task: int, output: Any) -> Tensor:
    """The first output of a head, with the classes in the last dimension."""
    leaves = pytree.tree_leaves(output)
    for leaf, where in zip(leaves, net.call_plan.split, strict=False):
        if where is not None:
            return leaf.movedim(where[0], -1)
    # The analysis names no output: an attached head, or a head followed by a softmax or the like.
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


def _read(block: FeatureBlock, captured: Mapping[str, Tensor], rows: int) -> Tensor:
    """The features of one output layer, ``[rows, len(block.index)]``."""
    value = captured[block.layer].detach()
    found = value.shape[block.channel] if value.dim() > block.channel else 0
    if found != block.channels or value.shape[0] % max(rows, 1):
        raise InputError(
            f"the output layer reads features of shape {tuple(value.shape)} for {rows} inputs; "
            f"dimension {block.channel} had {block.channels} channels when the model was analysed",
            place=Place(module=block.layer),
            remedy="pass inputs of the kind that the model was converted with",
        )
    # Always the same memory layout: the last bits of a mean depend on it.
    value = _precise(value).contiguous()
    if block.mask is not None:
        value = torch.where(block.mask.to(value.device), value, torch.zeros_like(value))
    value = _averaged(value, block.channel)
    if len(value) != rows:  # the model folded tokens or windows into the batch dimension
        value = value.reshape(rows, -1, block.channels).mean(1)
    return value.index_select(1, block.index.to(value.device))


def _precise(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))


def _averaged(value: Tensor, channel: int) -> Tensor:
    # [inputs, ..., channels, ...] -> [inputs, channels]; dimension 0 is the batch.
    others = [dim for dim in range(1, value.dim()) if dim != channel]
    return value.mean(others) if others else value
