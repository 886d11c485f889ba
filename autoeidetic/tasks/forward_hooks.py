"""Forward hooks: those present at conversion belong to the model, later ones do not.

A new call is analysed by running the model in the middle of its use. Hooks that a user has
registered since, to watch activations, must not see that run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

_KINDS = ("_forward_pre_hooks", "_forward_hooks")


def hooks_of(model: nn.Module) -> dict[str, frozenset[int]]:
    """The numbers of all forward hooks, by the path of their module."""
    found = {path: frozenset(_numbers(module)) for path, module in model.named_modules()}
    return {path: numbers for path, numbers in found.items() if numbers}


def _numbers(module: nn.Module) -> Iterator[int]:
    for kind in _KINDS:
        yield from module.__dict__[kind]


@contextmanager
def only(model: nn.Module, known: Mapping[str, frozenset[int]]) -> Iterator[None]:
    """Within this context a model has no other forward hooks than these."""
    aside: list[tuple[nn.Module, str, Any]] = []
    try:
        for path, module in model.named_modules():
            for kind in _KINDS:
                hooks = module.__dict__[kind]
                kept = [number for number in hooks if number in known.get(path, ())]
                if len(kept) < len(hooks):
                    aside.append((module, kind, hooks))
                    module.__dict__[kind] = OrderedDict((n, hooks[n]) for n in kept)
        yield
    finally:
        for module, kind, hooks in aside:
            module.__dict__[kind] = hooks
