"""Recheck: finished tasks are asked again, on inputs that every machine can make.

Before a task is finished for good, with its units in place; and when somebody wants to verify a
network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common.bits import alike, different, finite, tensors_of
from ..common.environment import difference
from ..common.undisturbed import seed_generators
from ..errors import EnforcementError, NonFiniteError
from ..tasks import reference
from ..tasks.reference import Reference
from . import seals

if TYPE_CHECKING:
    from ..tasks.network import Answering, Task

_ROLLBACK = (
    "net.rollback() takes the network back to the start of the task; train again with a lower "
    "learning rate, or with clipped gradients"
)


def finished(net: Answering) -> None:
    """Has the newest task, which has just been frozen, left all earlier ones their answers?

    Raises:
        NonFiniteError: its units overflow, so that an earlier task or it itself answers NaN.
        EnforcementError: an earlier task answers something else.
    """
    *earlier, newest = net.tasks
    batches = {_batch(net, task) for task in earlier}
    for batch in batches:
        asked = [task for task in earlier if _batch(net, task) == batch]
        if any(task.seal is not None and task.seal.reference is None for task in asked):
            continue  # the model does not run on such inputs
        with reference.asking(net, batch) as (args, kwargs, digest):
            answers = net._bare([*[task.index for task in asked], newest.index], args, kwargs)
            for task, answer in zip(asked, answers, strict=False):
                if not _as_sealed(net, task, answer, digest):
                    _compare(newest, task, *_both(net, task.index, args, kwargs))
            if not finite(answers[-1]) and all(map(finite, answers[:-1])):
                raise NonFiniteError(
                    f"task {newest.index} cannot be finished: it answers reference inputs with "
                    "infinite values or NaN, and earlier tasks answer them with finite ones",
                    remedy=_ROLLBACK,
                )


def poisoned(net: Answering, task: int) -> bool:
    """Does a finished task answer reference inputs otherwise than with its own units alone?"""
    sealed = net.tasks[task].seal
    if sealed is None or sealed.reference is None:
        return False
    with reference.asking(net, sealed.reference.batch) as (args, kwargs, _):
        return not alike(*_both(net, task, args, kwargs))


def _both(net: Answering, task: int, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """An answer with all units there are, and one with those of a task and of earlier ones.

    A model may be random in eval mode; what differs by itself is not held against anybody.
    """
    seed_generators(0)
    (answer,) = net._bare([task], args, kwargs)
    seed_generators(0)
    alone = net._alone(task, args, kwargs)
    seed_generators(0)
    repeatable = alike(answer, alone) or alike(alone, net._alone(task, args, kwargs))
    return (answer, alone) if repeatable else (alone, alone)


def _batch(net: Answering, task: Task) -> int | None:
    known = task.seal is not None and task.seal.reference is not None
    return task.seal.reference.batch if known else reference.few_rows(net)  # type: ignore[union-attr]


def _as_sealed(net: Answering, task: Task, answer: Any, digest: str) -> bool:
    """Bit for bit; if not, that may still be another machine."""
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
        f"task {task.index} on reference inputs are others than before",
        remedy="net.verify(x) names the layer; what the analysis cannot see is listed in "
        "docs/guarantee-and-limits.md",
    )


# -- seals ---------------------------------------------------------------------------------------


def with_seal(net: Answering, task: Task) -> tuple[bool | None, str]:
    """Is a finished task what its seal says? None: that cannot be told, and why."""
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


def _answers_as(net: Answering, task: Task, then: Reference) -> tuple[bool | None, str]:
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
