"""The registry of actions: what a user may do with a network, one small function each.

``@action(weight, option=[values, ...])`` registers one; each option is drawn from its values. The
numbers of tasks, calls and layers are taken modulo how many there are, so that every step fits
every moment, and dropping one leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from .life import Life
from .script import Step

MANY = tuple(range(12))  # numbers that are taken modulo what there is


@dataclass(frozen=True)
class Action:
    """``weight``: how often it is drawn; ``inner``: names of actions that it is wrapped around."""

    run: Callable[..., None]
    weight: float
    options: dict[str, Sequence[Any]]
    inner: tuple[str, ...] = ()


ACTIONS: dict[str, Action] = {}


def action(weight: float, *, inner: tuple[str, ...] = (), **options: Sequence[Any]) -> Any:
    """Register an action under the name of its function; a second one of a name is an error."""

    def add(run: Callable[..., None]) -> Callable[..., None]:
        if run.__name__ in ACTIONS:
            raise ValueError(f"two actions are called {run.__name__!r}")
        ACTIONS[run.__name__] = Action(run, weight, options, inner)
        return run

    return add


def drawn(rng: Random, name: str | None = None) -> Step:
    """A step with random options; without a name, of any action."""
    if name is None:
        names = sorted(ACTIONS)
        (name,) = rng.choices(names, [ACTIONS[each].weight for each in names])
    found = ACTIONS[name]
    options = {key: rng.choice(values) for key, values in found.options.items()}
    if found.inner:
        options["inner"] = drawn(rng, rng.choice(found.inner))
    return Step(name, rng.randrange(1000), rng.random() < 0.2, options)


def run(life: Life, step: Step) -> None:
    """Take a step, with random numbers of its own."""
    torch.manual_seed(step.seed)
    ACTIONS[step.name].run(life, **step.options)
