"""Opening: what is checked before a task begins, and the heads that it begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..common.inputs import whole_number
from ..common.undisturbed import undisturbed
from ..enforce.owners import FREE
from ..errors import CapacityError, InputError, Place, TaskError
from ..plan.call_plan import HeadPlan
from . import heads
from .answer import asked_tasks
from .task import Task

if TYPE_CHECKING:
    from .network import Network


def opened(
    network: Network, task: Any, num_classes: Any, name: Any, revisit: Any, on_full: str
) -> Task:
    """The record of the next task. Nothing in the network changes.

    Raises:
        InputError, TaskError, CapacityError, HeadError: it cannot be opened so.
    """
    if on_full not in ("raise", "reuse", "widen"):
        raise InputError(
            f"on_full={on_full!r} is unknown", remedy='use "raise", "reuse" or "widen"'
        )
    if name is not None and not isinstance(name, str):
        raise InputError(f"name={name!r} is not text", remedy="pass a string, or none")
    index = len(network.tasks)
    if whole_number(task) != index:
        raise TaskError(
            f"task {task!r} cannot be prepared: the network has {index} tasks so far",
            remedy=f"the next task is {index}",
        )
    network.follow()
    if revisit is not None:
        num_classes = _revisited_classes(network, revisit, num_classes)
        revisit = whole_number(revisit)
    classes = _classes(network, index, num_classes)
    if on_full == "raise":
        _check_room(network)
    seed = int(torch.randint(2**62, ()))
    title = name or f"task {index}"
    return Task(index, title, classes, finished=False, seed=seed, revisits=revisit)


def _revisited_classes(network: Network, task: Any, num_classes: Any) -> dict[str, int]:
    """The classes of a task that is revisited."""
    (asked,) = asked_tasks(network, task)
    if not network.owners.forward_transfer:
        raise InputError(
            f"task {task} cannot be revisited: the tasks of this network share nothing",
            remedy="convert with forward_transfer=True",
        )
    if num_classes is not None:
        raise InputError(
            f"num_classes={num_classes!r} does not apply when task {task} is revisited",
            remedy="leave it out: the classes are those of the task",
        )
    return network.tasks[asked].classes


def _classes(network: Network, task: int, num_classes: Any) -> dict[str, int]:
    """The number of classes of each head."""
    sizes = heads.sizes(network.call_plan.heads, num_classes)
    if not (network.keep_head and task == 0) or num_classes is None:
        return sizes
    own = {head.layer: head.size for head in network.call_plan.heads}
    if sizes != own:
        raise InputError(
            f"num_classes={num_classes!r} does not fit the model's own head, which "
            "keep_head=True keeps",
            remedy="leave num_classes out for task 0",
        )
    return own


def _check_room(network: Network) -> None:
    """Check that the next task finds free units.

    Raises:
        CapacityError: a group that can be divided has none left.
    """
    owners = network.owners if network.open_task is None else network.owners.finished()
    for group in network.call_plan.plan.groups:
        units = list(group.units)
        if owners.locked[units].all() or (owners.task[units] == FREE).any():
            continue
        held = set(owners.task[units].tolist())
        whose = "belong to finished tasks"
        if len(held) == 1:
            whose = f"all belong to task {held.pop()}, which gave up none of them"
        raise CapacityError(
            f"group '{group.name}' is full: its {group.size} units {whose}",
            place=Place(module=group.name),
            remedy="prune more before finishing a task (net.prune, or a higher tolerance), "
            'pass on_full="widen" to add a column (net.widen), or on_full="reuse" to build on '
            "what is there",
        )


def replacement(network: Network, task: Any, by: Any) -> tuple[int, int | None]:
    """The numbers of a task and of the revisit that is to answer in its place.

    Raises:
        TaskError: there is no such task, or ``by`` is not a finished revisit of it.
    """
    asked_tasks(network, task)
    number, other = whole_number(task), whole_number(by)
    assert number is not None
    if by is not None:
        known = other is not None and 0 <= other < len(network.tasks)
        revisit = network.tasks[other] if known else None  # type: ignore[index]
        if revisit is None or revisit.revisits != number or not revisit.finished:
            raise TaskError(
                f"task {by!r} is not a finished revisit of task {task}",
                remedy=f"train one: prepare_for_task({len(network.tasks)}, revisit={task})",
            )
    return number, other


# -- heads ---------------------------------------------------------------------------------------


def first_heads(network: Network, task: Task) -> nn.ModuleDict:
    """The heads that a task begins with: new ones, or those of the task that it revisits."""
    made = new_heads(network, task)
    if task.revisits is not None:
        before = network.answering_task(task.revisits)
        for head in network.call_plan.heads:
            heads.take_over(
                head,
                made[heads.key(head.layer)],
                network.head(before, head.layer),
                network.backbone,
                lambda units: network.owners.hidden(before, units),
                network.call_plan.plan,
            )
    return made


def new_heads(network: Network, task: Task) -> nn.ModuleDict:
    """Heads with fresh values, which the task's seed decides."""
    made = nn.ModuleDict()
    if network.keep_head and task.index == 0:
        return made
    with undisturbed(generators="torch", seed=task.seed):
        for head in network.call_plan.heads:
            spread = network.spreads[head.parameters[0]][1] if head.parameters else 0.0
            made[heads.key(head.layer)] = heads.build(
                head,
                network.head_templates.get(head.layer),
                task.classes[head.layer],
                _like(network, head),
                spread,
            )
    return made


def _like(network: Network, head: HeadPlan) -> Tensor:
    """A tensor whose device and type a head takes."""
    if head.parameters:
        return network.backbone.get_parameter(head.parameters[0]).detach()
    return next(p for p in network.backbone.parameters() if p.is_floating_point()).detach()
