"""Rehearse: run through two tasks on a copy of the network, before anything is trained.

The analysis cannot see everything: code that asks for the type of a module, state outside of
parameters and buffers, weights that a model writes itself. Such things show here, before a task is
learned and lost.

    task 0    random values, half of the units given up, frozen      reference answer
    task 1    a training pass, all free values scrambled             the same answer?
              half of the units given up, frozen                     the same answer?
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from tqdm import tqdm

from ..common.bits import different, finite
from ..common.inputs import CallInputs
from ..common.undisturbed import seed_generators, undisturbed
from ..enforce.guard import original_class
from ..errors import AutoeideticError, EnforcementError, Place, RehearsalWarning, warn_user
from ..tasks.network import Network
from ..tasks.opening import new_heads
from ..tasks.pruning.choose import choose
from ..tasks.task import Task
from .recheck import check_first
from .verify import Record, compare, first_moved, outputs, record, scramble

_PASSES = 4
_SEEDS = range(3)  # another seed is tried when the kept units answer all inputs alike


def rehearse(net: Network) -> None:
    """Run through two tasks on a copy; the network, its modes and random numbers are untouched.

    Raises:
        EnforcementError: an answer of the first task changed after it was finished.
        NonFiniteError: the first task answers NaN because of units that it gave up.
    """
    if any(parameter.is_meta for parameter in net.backbone.parameters()):
        return  # there are no values to compute with
    # quiet: the analysis has given the model's warnings already
    with undisturbed(generators="all", gradients=False, quiet=True):
        try:
            total = _PASSES * len(net.examples)
            with tqdm(total=total, desc="rehearsal", delay=5, leave=False, disable=None) as bar:
                for example in net.examples:
                    for seed in _SEEDS:
                        if _rehearse(lambda: _copy(net, bar), example, seed):
                            break
            return
        except AutoeideticError as error:
            raise type(error)(
                f"the model cannot be converted: in a rehearsal before any training, {error.fact}",
                place=error.place,
                remedy=f"{error.remedy}; rehearse=False converts it without a guarantee",
            ) from error
        except Exception as error:  # a model may raise anything on random values
            cause = f"{type(error).__name__}: {error}"
    warn_user(
        f"the conversion could not be rehearsed: {cause}\n  remedy: pass example_inputs that the "
        "model can be run with in eval mode, or rehearse=False and call net.verify(x) after the "
        "first task",
        RehearsalWarning,
    )


def _copy(net: Network, bar: tqdm[NoReturn]) -> Network:
    """A copy whose forward passes advance the bar."""

    def passed(*_: object) -> None:
        bar.update()

    made = copy.deepcopy(net)
    made.register_forward_hook(passed)
    return made


def _rehearse(copied: Callable[[], Network], example: CallInputs, seed: int) -> bool:
    """Rehearse one example; False when its answers cannot show a change.

    The units that a small network keeps may be zero for every input.
    """
    net = copied()
    inputs = _begin(net, example, seed)
    reference = _answer(net, inputs)
    if not finite(reference):
        check_first(net, net.tasks[0])
    if seed != _SEEDS[-1] and _vary((inputs.args, inputs.kwargs)) and not _vary(reference):
        return False
    for step in _life(net, inputs):
        answer = _answer(net, inputs)
        elements, changed, _ = compare(reference, answer)
        if not changed:
            continue
        # a difference counts only if the model gives one answer twice now
        if compare(answer, _answer(net, inputs))[1]:
            raise RuntimeError("the model answers the same inputs differently each time")
        where = _first_output(net, inputs, reference, answer)
        path, what = _culprit(copied(), example, seed, step)
        raise EnforcementError(
            f"{changed} of {elements} outputs of a task changed {step}, the first in {where}: "
            f"{what}",
            place=Place(module=path),
            remedy="what the analysis cannot see is listed in docs/guarantee-and-limits.md: mostly "
            "numbers that change in training and are no buffer (register_buffer makes them one), "
            "code that asks for type(module), or weights that the model writes itself",
        )
    return True


def _begin(net: Network, example: CallInputs, seed: int) -> CallInputs:
    """Take a network to the end of the first task's training; returns the inputs."""
    seed_generators(seed)
    inputs = _copied(example, lambda given: _numbers(given, net))
    net.eval()
    _shake(net)
    _open_task(net)
    _give_up_half(net)
    return inputs


def _first_output(
    net: Network, inputs: CallInputs, before: list[Tensor], after: list[Tensor]
) -> str:
    """The place in the output's structure of the first tensor that differs."""
    own = _copied(inputs, Tensor.clone)
    leaves = pytree.tree_flatten_with_path(net(*own.args, task=0, **own.kwargs))[0]
    paths = [path for path, leaf in leaves if isinstance(leaf, Tensor)]
    number = next(n for n, pair in enumerate(zip(before, after, strict=True)) if _differ(*pair))
    return f"output{pytree.keystr(paths[number])}" if paths[number] else "its only output"


def _culprit(net: Network, example: CallInputs, seed: int, until: str) -> tuple[str, str]:
    """The first module whose output or frozen values changed, and how.

    Repeats the rehearsal and compares every module's output and every frozen value.
    """
    # frozen values before outputs: a value that was written explains the outputs that follow
    inputs = _begin(net, example, seed)
    outputs, values = _look(net, inputs)
    for step in _life(net, inputs):
        if step != until:
            continue
        outputs_now, values_now = _look(net, inputs)
        for name, value in values_now.items():
            if bool((different(value, values[name]) & _first_tasks(net, name)).any()):
                return name.rpartition(".")[0], f"the frozen values of '{name}' moved"
        path = first_moved(net, outputs, outputs_now, last=0)
        if path is not None:
            return path, f"module '{path}' is the first whose frozen channels moved"
    kind = original_class(net.backbone).__name__
    return "", f"no module inside {kind} moved, so its own forward makes the difference"


def _look(net: Network, inputs: CallInputs) -> tuple[Record, dict[str, Tensor]]:
    """Every module's outputs for task 0, and copies of the tensors that the plan divides."""
    seed_generators(0)
    own = _copied(inputs, Tensor.clone)
    outputs = record(net, own.args, own.kwargs)
    divided = [n for n, e in net.call_plan.plan.parameters.items() if e.used and not e.head]
    names = [*divided, *net.call_plan.plan.buffers]
    slots = {name: net.slots[f"backbone.{name}"] for name in names}
    return outputs, {name: home[leaf].detach().clone() for name, (home, leaf) in slots.items()}


def _first_tasks(net: Network, name: str) -> Tensor:
    """Which elements of a parameter or a buffer belong to task 0."""
    plan = net.call_plan.plan
    units = plan.buffers[name] if name in plan.buffers else plan.parameters[name].units
    home, leaf = net.slots[f"backbone.{name}"]
    return (net.owners.level_of(units) == 0).to(home[leaf].device)


def _differ(before: Tensor, after: Tensor) -> bool:
    return bool(different(before, after).any())


def _vary(tree: Any) -> bool:
    """Do the samples in a batch differ?"""
    leaves = [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor) and x.dim()]
    return any(bool((leaf != leaf[:1]).any()) for leaf in leaves)


def _life(net: Network, inputs: CallInputs) -> Iterator[str]:
    """From the end of a task to the end of the next; yields the stage after each change."""
    # in train mode, so that the pass updates running statistics and whatever else a model keeps
    net.train()
    net.freeze()
    _open_task(net)
    _pass_in_training(net, inputs)
    net.eval()
    scramble(net, torch.Generator().manual_seed(0))
    yield "while the next one was in training"
    _give_up_half(net)
    net.freeze()
    yield "when the next one was finished"


def _pass_in_training(net: Network, inputs: CallInputs) -> None:
    own = _copied(inputs, Tensor.clone)
    try:
        net(*own.args, **own.kwargs)
    except AutoeideticError:
        raise
    except Exception:  # batch norms refuse single values, detectors want targets
        pass


def _open_task(net: Network) -> None:
    """Like ``prepare_for_task``, without the snapshot for a rollback."""
    index = len(net.tasks)
    classes = {head.layer: head.size or 2 for head in net.call_plan.heads}
    task = Task(index, f"task {index}", classes, finished=False, seed=0)
    net.open(task, new_heads(net, task), keep_start=False)


def _give_up_half(net: Network) -> None:
    """Like ``prune``, with random scores."""
    scores = np.random.random(net.call_plan.plan.units + 1)
    net.give_up(choose(net.call_plan, net.owners, scores, 0.5))


def _answer(net: Network, inputs: CallInputs) -> list[Tensor]:
    """Task 0 in eval mode, with the same seed each time: a model may be random even then."""
    seed_generators(0)
    own = _copied(inputs, Tensor.clone)  # a model may write into them
    return outputs(net, 0, own.args, own.kwargs)


def _copied(inputs: CallInputs, copy_of: Callable[[Tensor], Tensor]) -> CallInputs:
    return CallInputs(*pytree.tree_map_only(Tensor, copy_of, (inputs.args, inputs.kwargs)))


def _numbers(example: Tensor, net: Network) -> Tensor:
    """The example, or random values if it is a meta tensor."""
    if not example.is_meta:
        return example
    device = next(net.backbone.parameters()).device
    made = torch.empty(example.shape, dtype=example.dtype, device=device)
    return made.normal_() if made.is_floating_point() else made.zero_()


def _shake(net: Network) -> None:
    """Add noise to constant tensors, which would hide leaks; random weights stay."""
    # a norm with scale 1 and bias 0, or a zero-initialised branch, lets a wrong channel through
    # without changing any bit
    for name, tensor in net.trained_tensors().items():
        if not tensor.numel():
            continue
        if tensor.dim() < 2 or bool((tensor == tensor.flatten()[0]).all()):
            noise = 0.1 * torch.randn(tensor.shape, dtype=torch.float32).to(tensor)
            tensor.add_(noise.abs() if name.endswith("running_var") else noise)
