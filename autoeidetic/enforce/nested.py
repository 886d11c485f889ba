"""Nested evaluation: a module that mixes channels is run once per level.

The outputs of a level are computed from inputs, parameters and running statistics of that level
and earlier ones only, so what is learned later never enters them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import EnforcementError, Place
from .guard import CallCounter, Forward, Runtime


@dataclass
class Masks:
    """For one call: which elements of each input a level may read, which outputs it makes.

    Lists in the order of ``pytree`` leaves; None where nothing is hidden. Masks have size 1
    along dimensions in which they do not vary.
    """

    visible: list[Tensor | None]
    own: list[Tensor | None]


@dataclass
class Level:
    """One run: masks for every call of the module, and for its parameters and buffers.

    ``held`` lists (path of the holder inside the module, name, visible elements).
    """

    number: int
    calls: list[Masks]
    held: list[tuple[str, str, Tensor]]
    learns: bool


@dataclass
class NestedModule:
    """Evaluates a module level by level; ``levels`` in ascending order.

    Inside the run of a module around it, which hides all that the level may not see, it is
    simply called.
    """

    runtime: Runtime
    path: str
    levels: list[Level]
    counter: CallCounter

    def run(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        number = self.counter.next()
        if self.runtime.level is not None:  # what a later level computes must not enter its run
            return forward(*args, **kwargs)
        results = [
            _run(self.runtime, self.path, level, number, module, forward, args, kwargs)
            for level in self.levels
        ]
        leaves, structure = pytree.tree_flatten(results[-1])
        leaves = [_dense(leaf) for leaf in leaves]
        for level, result in zip(self.levels[:-1], results[:-1], strict=True):
            earlier = pytree.tree_leaves(result)
            own = level.calls[number].own
            leaves = [
                late if mask is None else _merged(mask, early, late)
                for mask, early, late in zip(own, earlier, leaves, strict=True)
            ]
        return pytree.tree_unflatten(leaves, structure)


def _dense(value: Any) -> Any:
    """A tensor in the layout that a copy of it has.

    What follows may take other kernels, and give other bits, for another layout: it must not
    depend on how many levels there are.
    """
    if not isinstance(value, Tensor):
        return value
    copied = torch.empty_like(value, device="meta").stride()
    return value if value.stride() == copied else value.clone()


def _merged(mask: Tensor, early: Tensor, late: Tensor) -> Tensor:
    """Elements of an earlier level put into a later one's, in the layout of that."""
    merged = torch.where(mask, early, late)
    return merged if merged.stride() == late.stride() else torch.empty_like(late).copy_(merged)


@dataclass
class NestedHead:
    """A module with the output layer in it: run on what the task that is asked for may see."""

    runtime: Runtime
    path: str
    levels: dict[int, Level]
    counter: CallCounter

    def run(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        (task,) = self.runtime.tasks
        number, level = self.counter.next(), self.levels[task]
        return _run(self.runtime, self.path, level, number, module, forward, args, kwargs)


def _run(
    runtime: Runtime,
    path: str,
    level: Level,
    number: int,
    module: nn.Module,
    forward: Forward,
    args: Any,
    kwargs: Any,
) -> Any:
    """Run a module on what one level may see.

    Within the run, values of frozen units may depend on what learns: they mix what the level sees.
    So nothing is left out of its backward pass.
    """
    frozen = runtime.restrict and not level.learns
    leaves, structure = pytree.tree_flatten((args, kwargs))
    masks = level.calls[number].visible
    if len(leaves) != len(masks):
        raise EnforcementError(
            f"module '{path}' was called with {len(leaves)} values where the analysis saw "
            f"{len(masks)}",
            place=Place(module=path),
            remedy="convert the model with example inputs of the kind it is used with",
        )
    seen = [
        value if mask is None else torch.where(mask, value, torch.zeros_like(value))
        for value, mask in zip(leaves, masks, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(seen, structure)
    around = runtime.level, runtime.settled, runtime.restrict
    runtime.level, runtime.settled, runtime.restrict = level.number, not level.learns, False
    try:
        with torch.no_grad() if frozen else nullcontext(), _restricted(module, level):
            return forward(*args, **kwargs)
    finally:
        runtime.level, runtime.settled, runtime.restrict = around


@contextmanager
def _restricted(module: nn.Module, level: Level) -> Iterator[None]:
    """The module with zeros in everything that the level may not read."""
    before: list[Any] = []
    try:
        for path, name, visible in level.held:
            holder = module.get_submodule(path)
            home: dict[str, Any] = holder._parameters
            if name not in home:
                home = holder._buffers
            value: Any = home[name]
            before.append((holder, home, name, value, visible))
            home[name] = torch.where(visible, value, torch.zeros_like(value))
        yield
    finally:
        for holder, home, name, value, visible in reversed(before):  # the first is its own value
            if level.learns and home is holder._buffers:  # statistics that the run has updated
                value.copy_(torch.where(visible, home[name], value))
            home[name] = value
