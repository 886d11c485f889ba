"""Recheck: compare the answers of finished tasks to reference inputs with those that were sealed.

Reference inputs can be generated on every machine. The check runs before a newly finished task is
accepted, with its units in place, and as a part of ``verify``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..common.bits import different, finite, tensors_of
from ..common.environment import difference
from ..errors import EnforcementError, NonFiniteError, Place
from ..tasks import reference
from ..tasks.network import Network
from ..tasks.task import Reference, Task
from . import seals

_ROLLBACK = (
    "net.rollback() takes the network back to the start of the task; train again with a lower "
    "learning rate, or with clipped gradients"
)


def finished(net: Network) -> None:
    """Check that the newest task, just frozen, has not changed an earlier task's answers.

    Raises:
        NonFiniteError: its units overflow, so that an earlier task or it itself answers NaN, or
            the first task answers NaN because of units that it gave up.
        EnforcementError: an earlier task answers something else.
    """
    # one pass for all tasks that were sealed with the same batch size, and the newest one with them
    *earlier, newest = net.tasks
    if not earlier:
        check_first(net, newest)
    batches = {_batch(net, task) for task in earlier}
    for batch in batches:
        asked = [task for task in earlier if _batch(net, task) == batch]
        if any(task.seal is not None and task.seal.reference is None for task in asked):
            continue  # the model does not run on such inputs
        with reference.asking(net, batch) as (args, kwargs, digest):
            answers = net.bare_answers(
                [*[task.index for task in asked], newest.index], args, kwargs
            )
            for task, answer in zip(asked, answers, strict=False):
                # no digest to compare with, or another machine: compute the task without the
                # newest one's units, on this machine, and compare with that
                if not _as_sealed(net, task, answer, digest):
                    _compare(newest, task, *reference.both_answers(net, task.index, args, kwargs))
            if not finite(answers[-1]) and all(map(finite, answers[:-1])):
                raise NonFiniteError(
                    f"task {newest.index} cannot be finished: it answers reference inputs with "
                    "infinite values or NaN, and earlier tasks answer them with finite ones",
                    remedy=_ROLLBACK,
                )


def check_first(net: Network, first: Task) -> None:
    """Check that giving up units is not what makes the first task answer NaN.

    Raises:
        NonFiniteError: it answers NaN, and the model with all its units does not.
    """
    try:
        with reference.asking(net, reference.few_rows(net)) as (args, kwargs, _):
            (answer,) = net.bare_answers([first.index], args, kwargs)
            if finite(answer):
                return
            with net.unguarded():
                whole = net.backbone(*args, **kwargs)
            place = Place(module=_first_not_finite(net, first.index, args, kwargs))
    except Exception:  # whatever a model may raise on inputs that it does not know
        return
    if finite(whole):
        raise NonFiniteError(
            f"task {first.index} cannot be finished: it answers reference inputs with infinite "
            "values or NaN, and the model with all its units answers them with finite ones",
            place=place,
            remedy="the module divides by units that the task gave up, or takes their "
            "logarithm: add a small constant there, prune less, or report the model",
        )


def _first_not_finite(net: Network, task: int, args: Any, kwargs: Any) -> str:
    """The first module to return infinite values or NaN for inputs that are finite."""
    found: list[str] = []

    def look(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            if not finite(output) and finite(given):
                found.append(path)

        return hook

    modules = net.backbone.named_modules()
    hooks = [module.register_forward_hook(look(path)) for path, module in modules]
    try:
        net.bare_answers([task], args, kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""


def _batch(net: Network, task: Task) -> int | None:
    known = task.seal is not None and task.seal.reference is not None
    return task.seal.reference.batch if known else reference.few_rows(net)  # type: ignore[union-attr]


def _as_sealed(net: Network, task: Task, answer: Any, digest: str) -> bool:
    """Is the answer the sealed one, bit for bit? (On another machine it need not be.)"""
    if task.seal is None or task.seal.reference is None:
        return False
    then = task.seal.reference
    return reference.recorded(net, answer, then.batch, digest).outputs == then.outputs


def _compare(newest: Task, task: Task, answer: Any, alone: Any) -> None:
    pairs = list(zip(tensors_of(answer), tensors_of(alone), strict=True))
    changed = sum(int(different(a, b).sum()) for a, b in pairs)
    if not changed:
        return
    total = sum(a.numel() for a, _ in pairs)
    if finite(alone) and not finite(answer):
        raise NonFiniteError(
            f"task {newest.index} cannot be finished: its weights are finite, but its units "
            f"overflow, and with them {changed} of {total} outputs of task {task.index} on "
            "reference inputs are infinite or NaN",
            remedy=_ROLLBACK,
        )
    raise EnforcementError(
        f"task {newest.index} cannot be finished: with its units, {changed} of {total} outputs of "
        f"task {task.index} on reference inputs differ from those before",
        remedy="net.verify(x) names the layer; what the analysis cannot see is listed in "
        "docs/guarantee-and-limits.md",
    )


# -- seals ---------------------------------------------------------------------------------------


def with_seal(net: Network, task: Task) -> tuple[bool | None, str]:
    """Does a finished task agree with its seal? None if it cannot be compared; and the reason."""
    # values before outputs: digests of values are exact on every machine
    sealed = task.seal
    if sealed is None:
        return None, "it has no seal: net.seal() takes one"
    kind = (sealed.converted or seals.other_type(net, sealed)).removeprefix("torch.")
    if kind:
        return None, f"the network was converted to {kind} after it was finished"
    if not seals.holds(net, task.index, sealed):
        return False, "its frozen values are not those that were sealed when it was finished"
    if sealed.reference is None:
        return None, f"its outputs were not recorded when it was finished ({sealed.why_not})"
    return _answers_as(net, task, sealed.reference)


def _answers_as(net: Network, task: Task, then: Reference) -> tuple[bool | None, str]:
    # from the exact to the excusable: the same bits; a random model; other inputs; another machine
    # or setting, which may change last bits. Only what none of these explains is a change
    now = reference.ask(net, task.index, then.batch)
    if now.outputs == then.outputs:
        return True, ""
    if now.outputs != reference.ask(net, task.index, then.batch).outputs:
        return None, "the model answers the same inputs differently each time"
    if now.inputs != then.inputs:
        return None, "the example inputs are not those that it was sealed with"
    elsewhere = difference(then.environment, now.environment)
    if reference.close(then, now):
        why = elsewhere or "the memory format or a setting of torch may be another one"
        return None, f"the last bits of its sealed outputs differ, its values do not ({why})"
    return False, "its outputs are not those that were sealed when it was finished"
