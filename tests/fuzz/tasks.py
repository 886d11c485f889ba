"""Actions in the life of tasks, and answers; within contexts, and interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lives
import torch
from torch import Tensor

import autoeidetic
from autoeidetic.errors import AutoeideticError

from .life import Life, Tolerated
from .oracle import Finding, ask, cries, verified
from .registry import MANY, action, run
from .script import Step
from .subjects import Call
from .training import call_of

HERE = str(Path(autoeidetic.__file__).parent)


@action(0.5, classes=[2, 3, 4, 5])
def prepare(life: Life, classes: int) -> None:
    net = life.net
    count = len(net.tasks)
    sizes = None if net.keep_head and count == 0 else classes
    net.prepare_for_task(count, num_classes=sizes, on_full="reuse")


@action(1, task=MANY)
def revisit(life: Life, task: int) -> None:
    net = life.net
    count = len(net.tasks)
    net.prepare_for_task(count, revisit=task % max(count, 1), on_full="reuse")


@action(1, task=MANY, by=[*MANY, None])
def replace(life: Life, task: int, by: int | None) -> None:
    """A revisit answers for a task; of those there are, if there are some."""
    count = len(life.net.tasks) or 1
    seconds = [each for each in life.net.tasks if each.revisits is not None and each.finished]
    if seconds and by is not None:
        second = seconds[by % len(seconds)]
        life.net.replace_task(second.revisits, by=second.index)  # type: ignore[arg-type]
    else:
        life.net.replace_task(task % count, by=None if by is None else by % count)


@action(1, fraction=[0.2, 0.5, 0.5, 0.8], by=["l1", "l2", "random"])
def prune(life: Life, fraction: float, by: str) -> None:
    life.net.prune(fraction, by=by)


@action(0.5)
def finish(life: Life) -> None:
    """Freezing changes nothing of what the task says."""
    net, call = life.net, life.subject.calls[0]
    task = net.open_task
    steady = task is not None and life.steady
    before = said_in_eval(life, call, task) if steady else None
    net.finish_task()
    after = None if before is None else said_in_eval(life, call, task)
    if before and after and not lives.same(before, after) and all(map(finite, before)):
        raise Finding("finish", f"finishing moved task {task} {lives.distance(after, before)}")


def said_in_eval(life: Life, call: Call, task: Any) -> list[Tensor] | None:
    """What a task says in eval mode; None when it refuses to.

    A change of mode puts pinned values back that somebody wrote over through ``.data``.
    """
    training = life.net.training
    try:
        life.net.train()
        return ask(life.net.eval(), call, task)
    except AutoeideticError:
        return None
    finally:
        life.net.train(training)


def finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


@action(0.5)
def rollback(life: Life) -> None:
    life.net.rollback()


@action(1, call=MANY)
def verify(life: Life, call: int) -> None:
    """Says no only when something moved, which the next look will see; and changes nothing."""
    before = _open_says(life)
    life.cried = cries(verified(life.net, call_of(life, call))) or life.cried
    after = _open_says(life)
    if before and after and all(map(finite, before)) and not lives.same(before, after):
        raise Finding("verify", "verify changed what the open task says")


def _open_says(life: Life) -> list[Tensor] | None:
    task = life.net.open_task
    return None if task is None else said_in_eval(life, life.subject.calls[0], task)


# -- asking ---------------------------------------------------------------------------------------


@action(1, mode=["train", "eval"])
def switch(life: Life, mode: str) -> None:
    life.net.train(mode == "train")


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@action(1, call=MANY, task=[*MANY, "all", None], mode=["train", "eval"])
def answer(life: Life, call: int, task: Any, mode: str) -> None:
    """Ask for a task, with gradients, in either mode."""
    if not life.net.tasks:
        raise Tolerated("no task")
    task = task % len(life.net.tasks) if isinstance(task, int) else task
    life.net.train(mode == "train")
    try:
        lives.call(life.net, call_of(life, call).inputs, task=task)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise Tolerated("a batch norm wants more") from error


@action(
    1.5,
    context=sorted(CONTEXTS),
    inner=("prepare", "prune", "finish", "verify", "answer", "save_load", "rollback"),
)
def within(life: Life, context: str, inner: Step) -> None:
    with CONTEXTS[context]():
        run(life, inner)


# -- interruptions --------------------------------------------------------------------------------


@action(
    3,
    after=[1, 2, 4, 7, 12, 20, 33, 55, 90, 150, 250, 400, 650, 1000, 2000, 3000, 4000],
    inner=(
        *("prepare", "finish", "prune", "rollback", "revisit", "verify", "train", "switch"),
        *("finish", "save_load", "deepcopy", "dtype", "answer", "load_state", "undo"),
    ),
)
def interrupt(life: Life, after: int, inner: Step) -> None:
    """Ctrl-C at the n-th call that the package makes."""
    try:
        with _interrupted(after):
            run(life, inner)
    except KeyboardInterrupt:
        life.net.float()  # a change of type that stops halfway leaves any model in two types


@contextmanager
def _interrupted(after: int) -> Iterator[None]:
    left = after

    def trace(frame: FrameType, event: str, called: Any) -> None:
        nonlocal left
        code = frame.f_code
        if event == "c_call" and called.__name__ in ("__exit__", "release"):
            return  # Python looks for signals after such a call, not before: the lock is free
        if event in ("call", "c_call") and code.co_filename.startswith(HERE):
            if code.co_name == "_remove":  # what is done when an object is gone; it is swallowed
                return
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    sys.setprofile(trace)
    try:
        yield
    finally:
        sys.setprofile(None)
