"""Optimizer steps: pinned values are back in place when a step of any optimizer ends.

Two hooks run around every step of every ``torch.optim.Optimizer`` in the process, whoever made it.
They are registered once, when this module is imported (see ``common/process_state.py``).

    before_step   take the pass locks of the networks whose pinned tensors the optimizer holds
      step        momentum, weight decay: writes to everything, pinned elements included
    after_step    write the pinned values back, release the locks

Between the write and the correction a finished task would answer with other bits; the locks keep
passes of other threads out of that gap.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..common.process_state import optimizer_hooks, watched_pins
from .pins import Pins


def watch(pins: Pins) -> None:
    """From now on, steps of optimizers end with the pinned values in place."""
    watched_pins.add(pins)


def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    """Keep passes out of the networks concerned until their pinned values are back in place.

    Returns other arguments for the step when one of them is a closure: see :func:`_lending`.
    """
    if not watched_pins or torch.compiler.is_compiling():
        return None
    stepped = _tensor_ids(optimizer)
    # always in the order of the locks' numbers: two such steps in two threads cannot deadlock
    concerned = sorted(
        (pins for pins in list(watched_pins) if pins.concerned(stepped)),
        key=lambda pins: pins.lock.number,
    )
    for pins in concerned:
        # held by the frame that runs the step: torch does not report a step that raises
        pins.lock.begin_step(sys._getframe(1))
    if not concerned or not any(map(callable, (*args[1:], *kwargs.values()))):
        return None
    lend = partial(_lending, concerned)
    return (args[0], *map(lend, args[1:])), {name: lend(value) for name, value in kwargs.items()}


def after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Put pinned values back in what the optimizer has stepped, then let passes go on."""
    if not watched_pins:
        return
    stepped = _tensor_ids(optimizer)
    frame = None if torch.compiler.is_compiling() else sys._getframe(1)
    for pins in list(watched_pins):
        try:
            pins.after_step(stepped)
        finally:
            if frame is not None:
                pins.lock.end_step(frame)


def _tensor_ids(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _lending(concerned: list[Pins], closure: Any) -> Any:
    """A closure that gives up the networks' locks while it runs; other arguments stay as they are.

    A closure (LBFGS calls it several times in a step) runs passes of the network. Its backward
    pass may run them in another thread, which would wait for ever for this thread's lock.
    """
    if not callable(closure):
        return closure

    @wraps(closure)
    def lent(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for pins in concerned:
                pins.look_everywhere()  # the step may have written before it calls the closure
                stack.enter_context(pins.lock.lent())
            return closure(*args, **kwargs)

    return lent


if not optimizer_hooks:
    optimizer_hooks.append(register_optimizer_step_pre_hook(before_step))
    optimizer_hooks.append(register_optimizer_step_post_hook(after_step))
