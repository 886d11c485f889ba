"""Undisturbed: run code on the user's model and leave no trace of it.

One context manager restores everything that a pass may change: modes, attributes and values of a
model, random number generators, and the state of torch around the pass.
"""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

#: "cpu": torch's generator on the CPU. "torch": those on all devices. "all": those on the devices
#: that are in use, Python's and NumPy's.
Generators = Literal["cpu", "torch", "all"]
_CONTAINERS = (dict, list, set, OrderedDict)


@contextmanager
def undisturbed(
    model: nn.Module | None = None,
    *,
    evaluate: bool = False,
    attributes: bool = False,
    values: Iterable[Tensor] = (),
    generators: Generators | None = None,
    also: Sequence[torch.Generator] = (),
    seed: int | None = None,
    gradients: bool = True,
    trainable: bool = False,
    autocast: Sequence[str] = (),
    eager: bool = False,
    quiet: bool = False,
) -> Iterator[None]:
    """Restore everything named here after the block, whatever happens inside.

    Args:
        model: Its modules go back into the modes they were in.
        evaluate: The model is in eval mode meanwhile.
        attributes: Attributes and containers of the model's modules are kept, too, as modules may
            cache something in their first pass; attention takes its slow path, which is the one
            that is recorded. The mode is set past ``train()``, which a model may override.
        values: Tensors that get their values back.
        generators: Random number generators that go on with the numbers they would have given.
        also: More of them.
        seed: Seeds ``generators`` for the block.
        gradients: False records no gradients.
        trainable: Leaves the inference mode, whose tensors can never be trained.
        autocast: Types of devices on which nothing is cast.
        eager: Nothing is compiled.
        quiet: Warnings are ignored.

    Example:
        >>> model = nn.Dropout()
        >>> with undisturbed(model, evaluate=True, generators="cpu", seed=0):
        ...     model.training
        False
        >>> model.training
        True
    """
    # Entered from the outside to the inside, left from the inside to the outside:
    #
    #     warnings > state of torch > generators > modes and attributes > values
    #
    # Values are put back first, with gradients still off (copy_ into a leaf needs that); then the
    # containers that hold them; generators after everything that might draw from them.
    with ExitStack() as stack:
        if quiet:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        for context in _of_torch(gradients, trainable, autocast, eager):
            stack.enter_context(context)
        if generators is not None:
            stack.enter_context(_generators(generators))
        stack.enter_context(_restored([(each.set_state, each.get_state()) for each in also]))
        if model is not None:
            kept = _attributes(model, evaluate) if attributes else _modes(model, evaluate)
            stack.enter_context(kept)
        stack.enter_context(_values(list(values)))
        # last: nothing of the set-up above may draw from the seeded generators
        if seed is not None:
            _SEED[generators or "all"](seed)
        yield


def _of_torch(
    gradients: bool, trainable: bool, autocast: Sequence[str], eager: bool
) -> Iterator[AbstractContextManager[Any]]:
    if not gradients:
        yield torch.no_grad()
    if trainable:
        yield torch.inference_mode(False)
    for device in autocast:
        yield torch.autocast(device, enabled=False)
    if eager and "torch._dynamo" in sys.modules:  # else nothing was ever compiled
        yield torch.compiler.set_stance("force_eager")


# -- models --------------------------------------------------------------------------------------


@contextmanager
def _modes(model: nn.Module, evaluate: bool) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    try:
        if evaluate:
            model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _attributes(model: nn.Module, evaluate: bool) -> Iterator[None]:
    # modules() is read before the block, which may add and remove modules
    states = [(module, _snapshot(module)) for module in model.modules()]
    modes = [(module, module.training) for module, _ in states]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        if evaluate:
            for module, _ in modes:
                _set_mode(module, False)
        yield
    finally:
        # first: an interruption of the rest, which takes long, must not leave torch changed
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, mode in modes:
            _set_mode(module, mode)
        for module, state in states:
            _restore(module, state)


def _snapshot(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Every attribute, with a shallow copy of those that are containers.

    Parameters, buffers, hooks and submodules are such containers, too: dicts of the module.
    """
    return {
        name: (value, copy.copy(value) if type(value) in _CONTAINERS and value else None)
        for name, value in module.__dict__.items()
    }


def _restore(module: nn.Module, state: dict[str, tuple[Any, Any]]) -> None:
    # through __dict__: an overridden __setattr__ or __delattr__ would see it
    for name in module.__dict__.keys() - state.keys():
        del module.__dict__[name]
    for name, (value, content) in state.items():
        module.__dict__[name] = value
        # in place: others may hold the same container
        if type(value) in _CONTAINERS and not _same_items(value, content):
            value.clear()
            if content:
                value.extend(content) if isinstance(value, list) else value.update(content)


def _same_items(left: Any, right: Any) -> bool:
    """Do two containers hold the same objects? Not by ``==``, which gives tensors for tensors."""
    if right is None:
        return not left
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(left[key] is right[key] for key in left)
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def _set_mode(module: nn.Module, training: bool) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        module.train(training)
    else:
        module.__dict__["training"] = training  # past overridden train() and slow __setattr__


@contextmanager
def _values(tensors: Sequence[Tensor]) -> Iterator[None]:
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, values in zip(tensors, before, strict=True):
            # copy_ raises the version counter, which pins read as a sign of a write
            if not torch.equal(tensor, values):
                tensor.copy_(values)


# -- generators ----------------------------------------------------------------------------------


def _generators(which: Generators) -> AbstractContextManager[None]:
    if which == "cpu":
        return torch.random.fork_rng(devices=[])
    if which == "torch":
        # also of devices not in use yet: torch.manual_seed seeds these, too
        return torch.random.fork_rng()
    states: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
    ]
    if torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return _restored(states)


@contextmanager
def _restored(states: Sequence[tuple[Callable[[Any], object], Any]]) -> Iterator[None]:
    try:
        yield
    finally:
        for restore, state in states:
            restore(state)


def seed_generators(seed: int) -> None:
    """Seed torch's, Python's and NumPy's generators."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed)


_SEED: dict[str, Callable[[int], object]] = {
    "cpu": torch.default_generator.manual_seed,
    "torch": torch.manual_seed,
    "all": seed_generators,
}
