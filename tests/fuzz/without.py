"""Named safeguards that can be taken out, one at a time: without one, some life must show it.

An entry gets a ``pytest.MonkeyPatch`` and disables one thing. A name that is gone from the package
raises ``AttributeError`` there, so that no entry can become a patch of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from enforce import test_safeguards as removed
from torch import Tensor
from torch.utils import _pytree as pytree

from autoeidetic.enforce import spot_checks
from autoeidetic.enforce.frozen_values import FrozenValues
from autoeidetic.enforce.pass_lock import PassLock
from autoeidetic.enforce.pins import Pins
from autoeidetic.enforce.treatments import ComputedWeight, LevelNorms
from autoeidetic.proof import recheck
from autoeidetic.tasks import answer, divergence, network, new_calls
from autoeidetic.tasks.network import Network

from .life import NOT_YET, Report, live
from .script import draw

Patch = pytest.MonkeyPatch
Remove = Callable[[Patch], None]

SAFEGUARDS: dict[str, Remove] = {
    "pins": removed.no_pins,
    "frozen values": removed.no_frozen_values,
    "zeros": removed.no_zeros,
    "nesting": removed.nothing_hidden,
    "frozen statistics": removed.loose_statistics,
    "level norms": removed.without_treatment(LevelNorms),
    "computed weights": removed.without_treatment(ComputedWeight),
    "nested modules": removed.no_nested_modules,
    "closure under requires": removed.open_pruning,
    "heads read their own features": removed.blind_heads,
}


def safeguard(name: str) -> Callable[[Remove], Remove]:
    """Register one; a second one of a name is an error."""

    def add(remove: Remove) -> Remove:
        if name in SAFEGUARDS:
            raise ValueError(f"two safeguards are called {name!r}")
        SAFEGUARDS[name] = remove
        return remove

    return add


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no(*_: Any, **__: Any) -> bool:
    return False


@safeguard("pins before a pass")
def _(patch: Patch) -> None:
    patch.setattr(Pins, "before_forward", _nothing)


@safeguard("pins after a step")
def _(patch: Patch) -> None:
    patch.setattr(Pins, "after_step", _nothing)


@safeguard("spots")
def _(patch: Patch) -> None:
    patch.setattr(spot_checks.SpotCheck, "moved", _no)


@safeguard("values that are not finite")
def _(patch: Patch) -> None:
    """Diverged free values are not set to zero for finished tasks."""
    patch.setattr(divergence, "diverged", _no)
    patch.setattr(divergence, "suspect", _no)


@safeguard("finite when finished")
def _(patch: Patch) -> None:
    patch.setattr(Network, "check_finite", _nothing)


@safeguard("exchanged modules")
def _(patch: Patch) -> None:
    patch.setattr(network, "modules_replaced", _no)


@safeguard("calls are analysed")
def _(patch: Patch) -> None:
    """A call is answered as if it were the first example."""
    patch.setattr(new_calls, "meet", _nothing)
    patch.setattr(answer, "watched_pass", answer.plain_pass)
    _unchecked_outputs(patch)


def _unchecked_outputs(patch: Patch) -> None:
    part = answer.part_of_task

    def as_it_is(net: Network, output: Any, position: int, asked: Any) -> Any:
        if len(pytree.tree_leaves(output)) != len(net.call.call_plan.outputs):
            return output
        return part(net, output, position, asked)

    patch.setattr(answer, "part_of_task", as_it_is)


@safeguard("paths of data are watched")
def _(patch: Patch) -> None:
    patch.setattr(answer, "watched_pass", answer.plain_pass)


@safeguard("earlier tasks are asked before one is finished")
def _(patch: Patch) -> None:
    """And an answer that is not finite is not looked into, for that heals it."""
    patch.setattr(recheck, "finished", _nothing)
    patch.setattr(divergence, "suspect", _no)


@safeguard("the store is out of reach")
def _(patch: Patch) -> None:
    """A state of the network has the frozen values themselves, not copies."""

    def save(self: Pins, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name in self._frozen_values:
            destination[prefix + name.replace(".", "/")] = self._frozen_values.exact(name)

    patch.setattr(Pins, "_save_to_state_dict", save)


@safeguard("frozen values stay exact in other types")
def _(patch: Patch) -> None:
    def like(self: FrozenValues, name: str, tensor: Tensor) -> Tensor:
        self._exact[name] = self._exact[name].to(tensor.dtype)
        return self._exact[name]

    patch.setattr(FrozenValues, "like", like)


@safeguard("steps and passes exclude each other")
def _(patch: Patch) -> None:
    patch.setattr(PassLock, "begin_step", _nothing)
    patch.setattr(PassLock, "end_step", _nothing)


@safeguard("one pass at a time")
def _(patch: Patch) -> None:
    patch.setattr(PassLock, "__enter__", _nothing)
    patch.setattr(PassLock, "__exit__", _nothing)


@safeguard("whole steps")
def _(patch: Patch) -> None:
    """What is interrupted stays half done."""

    @contextmanager
    def as_it_comes(self: Network) -> Iterator[None]:
        yield

    patch.setattr(Network, "whole", as_it_comes)


@safeguard("states of other networks")
def _(patch: Patch) -> None:
    """``load_state_dict`` takes frozen values from anywhere."""
    patch.setattr(Pins, "check", _nothing)
    patch.delattr(Pins, "_load_from_state_dict")


# -- running lives without one --------------------------------------------------------------------


@contextmanager
def without(name: str | None) -> Iterator[None]:
    """For as long as this lasts, a safeguard is not there. None: all are."""
    with pytest.MonkeyPatch.context() as patch:
        if name is not None:
            SAFEGUARDS[name](patch)
        yield


def until_found(
    name: str, first: int, most: int, excluded: frozenset[str] = NOT_YET
) -> tuple[int, Report | None]:
    """How many lives it takes without a safeguard to the first finding, and that life.

    Without rehearsals, which find some of it before a life begins.
    """
    with without(name):
        for seed in range(first, first + most):
            report = live(unrehearsed(seed), excluded)
            if report.finding is not None:
                return seed - first + 1, report
    return most, None


def unrehearsed(seed: int) -> Any:
    from dataclasses import replace

    script = draw(seed)
    return replace(script, convert={**script.convert, "rehearse": False})
