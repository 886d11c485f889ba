"""Nested evaluation: a module that mixes channels is run once per level.

The outputs of a level are computed from inputs, parameters and running statistics of that level
and earlier ones; all others are zeros in its run. So nothing that is learned later enters them:

    inputs   of task  0 0 1 1 2            outputs   0 0 1 1 2
    run of level 0    x x 0 0 0     ->               a a . . .      only outputs of the level are
    run of level 1    x x x x 0     ->               . . b b .      taken from its run
    run of level 2    x x x x x     ->               . . . . c
                                    merged           a a b b c

The shapes in the run of a level never depend on later levels: the inputs keep their full width.
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
class CallMasks:
    """For one call and one level: which input elements it may read, which outputs it makes.

    Lists in the order of ``pytree`` leaves; None where nothing is hidden, or a leaf is no tensor.
    Masks have size 1 along dimensions in which they do not vary.
    """

    readable: list[Tensor | None]
    made: list[Tensor | None]


@dataclass
class Level:
    """The run of one level: masks for every call of the module, and for its own tensors.

    ``restricted`` lists the parameters and buffers of which the level may not read all: (path of
    the holder inside the module, name, readable elements). ``learns``: it is the open task's.
    """

    number: int
    calls: list[CallMasks]
    restricted: list[tuple[str, str, Tensor]]
    learns: bool


@dataclass
class NestedModule:
    """Evaluates a module level by level; ``levels`` in ascending order.

    Inside the run of a module around it, which hides everything that the level may not read, one
    plain call is enough.
    """

    runtime: Runtime
    path: str
    levels: list[Level]
    counter: CallCounter

    def run(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        number = self.counter.next()
        if self.runtime.level is not None:
            return forward(*args, **kwargs)
        results = [
            _run(self.runtime, self.path, level, number, module, forward, args, kwargs)
            for level in self.levels
        ]
        leaves, structure = pytree.tree_flatten(results[-1])
        leaves = [_dense(leaf) for leaf in leaves]
        for level, result in zip(self.levels[:-1], results[:-1], strict=True):
            earlier = pytree.tree_leaves(result)
            made = level.calls[number].made
            leaves = [
                late if mask is None else _merged(mask, early, late)
                for mask, early, late in zip(made, earlier, leaves, strict=True)
            ]
        return pytree.tree_unflatten(leaves, structure)


def _dense(value: Any) -> Any:
    """A tensor in the layout that a copy of it has.

    Later operators may choose other kernels, with other bits, for another layout. With several
    levels the result is a merged copy, so a single level must have the layout of a copy as well.
    """
    if not isinstance(value, Tensor):
        return value
    copied = torch.empty_like(value, device="meta").stride()
    return value if value.stride() == copied else value.clone()


def _merged(mask: Tensor, early: Tensor, late: Tensor) -> Tensor:
    """The elements of an earlier level in place of the later one's, in the later one's layout."""
    merged = torch.where(mask, early, late)
    return merged if merged.stride() == late.stride() else torch.empty_like(late).copy_(merged)


@dataclass
class NestedHead:
    """Runs a module that contains the output layer on what the requested task may read."""

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
    """Run a module on what one level may read.

    The backward pass of a level that learns is not restricted: in the run, values of frozen units
    depend on units that learn, because they mix everything that the level reads. A level that does
    not learn needs no backward pass, unless the network's input wants its gradient.
    """
    frozen = runtime.restrict and not level.learns
    leaves, structure = pytree.tree_flatten((args, kwargs))
    masks = level.calls[number].readable
    if len(leaves) != len(masks):
        raise EnforcementError(
            f"module '{path}' was called with {len(leaves)} values where the analysis saw "
            f"{len(masks)}",
            place=Place(module=path),
            remedy="convert the model with example inputs of the kind it is used with",
        )
    hidden_as_zero = [
        value if mask is None else torch.where(mask, value, torch.zeros_like(value))
        for value, mask in zip(leaves, masks, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(hidden_as_zero, structure)
    around = runtime.level, runtime.settled, runtime.restrict
    runtime.level, runtime.settled, runtime.restrict = level.number, not level.learns, False
    try:
        with torch.no_grad() if frozen else nullcontext(), _restricted(module, level):
            return forward(*args, **kwargs)
    finally:
        runtime.level, runtime.settled, runtime.restrict = around


@contextmanager
def _restricted(module: nn.Module, level: Level) -> Iterator[None]:
    """The module with zeros in all parameters and buffers that the level may not read."""
    before: list[Any] = []
    try:
        for path, name, readable in level.restricted:
            holder = module.get_submodule(path)
            tensors: dict[str, Any] = holder._parameters
            if name not in tensors:
                tensors = holder._buffers
            value: Any = tensors[name]
            before.append((holder, tensors, name, value, readable))
            tensors[name] = torch.where(readable, value, torch.zeros_like(value))
        yield
    finally:
        # In reverse: a shared tensor is listed twice, and its first entry has the original value.
        for holder, tensors, name, value, readable in reversed(before):
            if level.learns and tensors is holder._buffers:
                # running statistics that the run has updated, in the elements it could read
                value.copy_(torch.where(readable, tensors[name], value))
            tensors[name] = value
