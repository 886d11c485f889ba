"""Answer: one pass of the backbone, and what each task sees of its output.

    net(x, task="all")
        before_pass        follow exchanged modules, meet the call, put pinned values back
        run                one pass of the backbone, guards in place
        part               for each task: its slice of the output, masked to what it may see
        second opinion     only where a finished task's answer is not finite

One pass answers for several tasks (``joint``) where nothing but element-wise operators and views
follows the heads: their results lie side by side in the output and are cut apart afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..calls.signature import signature
from ..capture.decisions import decisions
from ..common.bits import alike, finite
from ..common.inputs import CallInputs, whole_number
from ..common.torch_modes import (
    is_recording,
    is_transforming,
    recording_paused,
    same_gradients_in_traces,
)
from ..enforce.guard import check_outputs, check_runs, start_runs
from ..errors import EnforcementError, TaskError
from ..plan.call_plan import ATTACHED
from . import compiled, divergence, heads, new_calls

if TYPE_CHECKING:
    from .network import Network

#: So many paths through the model's code are tried until one is protected as it is taken.
_PATHS = 4


def forward(network: Network, task: int | str | None, args: Any, kwargs: Any) -> Any:
    """The outputs for a task, eager or while the network is being compiled."""
    if not torch.compiler.is_compiling():
        return eagerly(network, task, args, kwargs)
    fused = (
        network.has_fused_layers
        and not network.training
        and torch.backends.mha.get_fastpath_enabled()
    )
    standing = compiled.standing(network.number, signature(args, kwargs))
    if fused or standing == compiled.EAGER:
        return compiled.uncompiled(eagerly, network, task, args, kwargs)
    if standing == compiled.NEW:
        compiled.uncompiled(new_calls.meet, network, args, kwargs)
        if network.call.call_plan.looks:  # only its analysis can tell
            return compiled.uncompiled(eagerly, network, task, args, kwargs)
    if not torch.compiler.is_exporting():
        network.runtime.restrict = not want_gradients((args, kwargs))
        args, kwargs = compiled.looked_after((args, kwargs), network.number)
    return answers_for(network, task, args, kwargs)


def eagerly(network: Network, task: int | str | None, args: Any, kwargs: Any) -> Any:
    """The outputs for a task, without a compiler."""
    kind = type(network)
    with network.pass_lock:
        if type(network) is not kind:  # another thread has widened it in the meantime
            return network(*args, task=task, **kwargs)
        with recording_paused():
            before_pass(network, args, kwargs)
        if is_recording() or is_transforming():  # neither supports the restricted backward pass
            network.runtime.restrict = False
        with same_gradients_in_traces():
            return answers_for(network, task, args, kwargs)


def before_pass(network: Network, args: Any, kwargs: Any, *, passing: bool = False) -> None:
    """What every pass needs first: known modules, a known call, pinned values in place."""
    if network.runtime.prepared:
        return
    network.follow()
    if network.check_calls:
        new_calls.meet(network, args, kwargs, passing=passing)
    learning = network.training and torch.is_grad_enabled()
    network.pins.before_forward(learning)
    network.runtime.restrict = not want_gradients((args, kwargs))


def want_gradients(arguments: Any) -> bool:
    """Are gradients of inputs asked for? They flow through frozen units as well."""
    return torch.is_grad_enabled() and any(
        isinstance(leaf, Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(arguments)
    )


# -- which task answers --------------------------------------------------------------------------


def answers_for(network: Network, task: int | str | None, args: Any, kwargs: Any) -> Any:
    """One task's outputs, or with ``"all"`` a list of every task's."""
    asked = asked_tasks(network, task)
    if task == "all":
        return answer_all(network, asked, args, kwargs)
    return answer(network, asked[0], args, kwargs)


def asked_tasks(network: Network, task: int | str | None) -> tuple[int, ...]:
    """The tasks that answer for what was asked: a number, "all", or None for the newest.

    Raises:
        TaskError: there is no such task.
    """
    count = len(network.tasks)
    if not count:
        raise TaskError(
            "the network has no task yet",
            remedy="call prepare_for_task(0, num_classes=...) first",
        )
    if task is None:
        return (count - 1,)
    if isinstance(task, str) and task == "all":
        return tuple(network.answering_task(each) for each in range(count))
    number = whole_number(task)
    if number is None or not 0 <= number < count:
        raise TaskError(
            f"task={task!r} does not exist: there are tasks 0 to {count - 1}",
            remedy='pass one of them, or "all"',
        )
    return (network.answering_task(number),)


def answer_all(network: Network, asked: tuple[int, ...], args: Any, kwargs: Any) -> list[Any]:
    """The outputs of several tasks, in one pass of the backbone if that is possible."""
    if not network.call.call_plan.joint or len(asked) == 1:
        return [answer(network, task, args, kwargs) for task in asked]
    output = _run(network, asked, args, kwargs)
    parts = [part_of_task(network, output, position, asked) for position in range(len(asked))]
    if torch.compiler.is_compiling():
        pairs = zip(asked, parts, strict=True)
        return [_watched(network, task, part, args, kwargs) for task, part in pairs]
    if divergence.suspect(network, asked, parts):
        return [answer(network, task, args, kwargs) for task in asked]
    return parts


def answer(network: Network, task: int, args: Any, kwargs: Any) -> Any:
    """The outputs of one task."""
    if network.tasks[task].finished and divergence.diverged(network):
        divergence.warn_diverged(network, task)
        return answer_alone(network, task, args, kwargs)
    output = _run_for_one(network, task, args, kwargs)
    if torch.compiler.is_compiling():
        return _watched(network, task, output, args, kwargs)
    if divergence.suspect(network, (task,), [output]):
        return _second_opinion(network, task, output, args, kwargs)
    return output


def bare_answers(network: Network, asked: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
    """The outputs of several tasks as they come, infinite values and NaN included."""
    tasks = tuple(asked)
    if network.call.call_plan.joint:
        output = _run(network, tasks, args, kwargs)
        return [part_of_task(network, output, position, tasks) for position in range(len(tasks))]
    return [
        part_of_task(network, _run(network, (task,), args, kwargs), 0, (task,)) for task in tasks
    ]


def answer_alone(network: Network, task: int, args: Any, kwargs: Any) -> Any:
    """A finished task's outputs with fresh values for everything that later tasks or nobody owns.

    Its own bits: whatever is replaced here is multiplied by zeros in an ordinary pass.
    """
    before = replace(network.free, owners=network.owners.upto(task))
    with torch.no_grad(), before.made_harmless(network.spreads):
        return _run_for_one(network, task, args, kwargs)


def _second_opinion(network: Network, task: int, output: Any, args: Any, kwargs: Any) -> Any:
    """Decides who is to blame for an answer that is not finite."""
    alone = answer_alone(network, task, args, kwargs)
    if not alike(output, alone):
        divergence.warn_diverged(network, task)
    elif not finite((args, kwargs)):
        divergence.warn_about_inputs(task)
    else:  # some tasks rightly answer so: masks, logarithms
        return output
    return alone


def _watched(network: Network, task: int, output: Any, args: Any, kwargs: Any) -> Any:
    """The answer of a compiled network: see :mod:`autoeidetic.tasks.compiled`."""
    if torch.compiler.is_exporting() or not network.tasks[task].finished:
        return output
    return compiled.watched(output, (args, kwargs), network.number, task)


# -- passes --------------------------------------------------------------------------------------


def _run(network: Network, tasks: tuple[int, ...], args: Any, kwargs: Any) -> Any:
    """One pass of the backbone, for the heads of some tasks."""
    watched = network.call.call_plan.looks and network.check_calls and not network.training
    if watched and not torch.compiler.is_compiling():
        return watched_pass(network, tasks, args, kwargs)
    return plain_pass(network, tasks, args, kwargs)


def _run_for_one(network: Network, task: int, args: Any, kwargs: Any) -> Any:
    return part_of_task(network, _run(network, (task,), args, kwargs), 0, (task,))


def watched_pass(network: Network, tasks: tuple[int, ...], args: Any, kwargs: Any) -> Any:
    """A pass of a model whose code reads data: the path it takes must be a known one.

    A path that is new is analysed and protected, and the pass is repeated: with other guards the
    code may read other values and take yet another path.

    Raises:
        EnforcementError: the path needs something that the network's plan does not keep.
    """
    problem: EnforcementError | None = None
    for _ in range(_PATHS):
        output, problem = None, None
        with decisions() as seen:
            try:
                output = plain_pass(network, tasks, args, kwargs)
            except EnforcementError as error:  # perhaps it must be protected as another path
                problem = error
        inputs = CallInputs(args, kwargs, None if problem else tuple(seen))
        call = new_calls.path_call(network, inputs)
        if call is network.call:
            break
        network.protect(call)
    else:
        problem = EnforcementError(
            "the model takes another path each time that it is protected for the last one",
            remedy="compute with tensors instead of numbers (torch.where instead of if)",
        )
    if problem is not None:
        raise problem
    return output


def plain_pass(network: Network, tasks: tuple[int, ...], args: Any, kwargs: Any) -> Any:
    """Run the backbone with its guards, which read ``runtime`` for what this pass is about."""
    runtime, guards = network.runtime, network.guards
    runtime.tasks = tasks
    runtime.counting = not torch.compiler.is_compiling()
    start_runs(guards)
    if torch.compiler.is_compiling():
        with _parameter_heads(network, tasks):
            return network.backbone(*args, **kwargs)
    # fused kernels of torch's transformer layers bypass the norms inside them
    fused = bool(guards) and torch.backends.mha.get_fastpath_enabled()
    if fused:
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _parameter_heads(network, tasks):
            output = network.backbone(*args, **kwargs)
    except RuntimeError as error:
        if network.unfit is not None:  # the masks are those of another call
            raise network.unfit from error
        raise
    finally:
        if fused:
            torch.backends.mha.set_fastpath_enabled(True)
    if not network.training:
        check_runs(guards)
    return output


@contextmanager
def _parameter_heads(network: Network, tasks: tuple[int, ...]) -> Iterator[None]:
    """Put the task's own parameters in the place of output parameters of the model."""
    swapped = []
    try:
        for head in network.call_plan.heads:
            if head.leaf is None:
                continue
            own = network.head(tasks[0], head.layer)
            home: dict[str, Any] = network.backbone.get_submodule(head.holder)._parameters
            swapped.append((home, head.leaf, home[head.leaf]))
            value = home[head.leaf] if own is None else own.value
            home[head.leaf] = heads.mask(value, network.visible[head.layer, tasks[0]])
        yield
    finally:
        for home, leaf, value in swapped:
            home[leaf] = value


def part_of_task(network: Network, output: Any, position: int, asked: tuple[int, ...]) -> Any:
    """What one task sees of an output that holds those of several tasks side by side."""
    task = asked[position]
    leaves, structure = pytree.tree_flatten(output)
    call_plan = network.call.call_plan
    attached = call_plan.heads[0]
    if attached.layer == ATTACHED:
        features = leaves[attached.reads]
        if network.runtime.features is not None:
            network.runtime.features[ATTACHED] = features
        visible = network.visible[ATTACHED, task]
        return network.head(task, ATTACHED)(heads.mask(features, visible))
    if len(leaves) != len(call_plan.outputs) and network.training:
        return output  # a model may have other outputs in training
    check_outputs(leaves, call_plan)
    parts = []
    for number, (leaf, where) in enumerate(zip(leaves, call_plan.split, strict=True)):
        if len(asked) > 1 and where is not None:
            dim, layer = where
            sizes = [network.tasks[each].classes[layer] for each in asked]
            leaf = leaf.split(sizes, dim)[position]
        elif isinstance(leaf, Tensor) and where is None:
            leaf = heads.mask(leaf, network.visible[number, task])
        parts.append(leaf)
    return pytree.tree_unflatten(parts, structure)
