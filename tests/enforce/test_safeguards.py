"""Every safeguard is tested by removing it: without it some finished task moves.

With all of them in place nothing moves on any of these models: see ``test_lives.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lives
import numpy as np
import pytest
import torch
from torch import Tensor
from zoo import ZOO

import autoeidetic
from autoeidetic.enforce import derive_levels, derive_pins
from autoeidetic.enforce.guard import Guard
from autoeidetic.enforce.nested import NestedModule
from autoeidetic.enforce.owners import Owners
from autoeidetic.enforce.pins import Pins
from autoeidetic.enforce.treatments import ComputedWeight, LevelNorms, RunningStatistics
from autoeidetic.errors import EnforcementError
from autoeidetic.plan import plan as plan_module
from autoeidetic.plan.plan import Plan
from autoeidetic.tasks import heads
from autoeidetic.tasks.pruning import choose

Patch = pytest.MonkeyPatch


def no_pins(patch: Patch) -> None:
    patch.setattr(Pins, "_impose", lambda self, *_, **__: None)
    patch.setattr(Pins, "before_forward", lambda self, *_: None)


def no_frozen_values(patch: Patch) -> None:
    """Zeros are imposed, frozen values are not."""

    def zeros_only(self: Pins, *_: Any, **__: Any) -> None:
        with torch.no_grad():
            for pin, tensor in zip(self._pins, self.tensors(), strict=True):
                if pin.zeros is not None:
                    pin.zeros.clear(tensor.detach())

    patch.setattr(Pins, "_impose", zeros_only)
    patch.setattr(Pins, "before_forward", zeros_only)


def no_zeros(patch: Patch) -> None:
    """Parameters keep what they read from units of later tasks."""
    patch.setattr(Owners, "zeros", lambda self, name: None)


def nothing_hidden(patch: Patch) -> None:
    """Neither zeros nor levels nor masks: ownership without nesting."""
    hidden = Owners.hidden

    def none(self: Owners, rows: Any, columns: Tensor) -> Tensor:
        return torch.zeros_like(hidden(self, rows, columns))

    patch.setattr(Owners, "hidden", none)


def moving_statistics(patch: Patch) -> None:
    """Batch norms know nothing of tasks; pins still hold their buffers after the step."""
    patch.setattr(RunningStatistics, "wanted", lambda self, module: False)


def loose_statistics(patch: Patch) -> None:
    """And the buffers are not pinned."""
    moving_statistics(patch)
    pins = derive_pins.backbone_pins

    def without(plan: Any, owners: Owners, own: Any) -> Any:
        return [pin for pin in pins(plan, owners, own) if pin.name not in plan.plan.buffers]

    patch.setattr(derive_pins, "backbone_pins", without)


def without_treatment(kind: type) -> Callable[[Patch], None]:
    def remove(patch: Patch) -> None:
        run = Guard._intercepted

        def intercepted(self: Guard, *args: Any) -> Any:
            self.treatments = [t for t in self.treatments if not isinstance(t, kind)]
            return run(self, *args)

        patch.setattr(Guard, "_intercepted", intercepted)

    return remove


def no_nested_modules(patch: Patch) -> None:
    def run(self: NestedModule, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    patch.setattr(NestedModule, "run", run)


def nested_parameters_shown(patch: Patch) -> None:
    """Levels of a nested module see all of its parameters and buffers."""
    patch.setattr(derive_levels, "_tensors_inside", lambda plan, path: [])


def open_pruning(patch: Patch) -> None:
    """What is kept is not closed under requires."""
    patch.setattr(choose, "dependents", lambda requires, chosen: chosen)
    patch.setattr(Plan, "closure", lambda self, kept: kept)


def no_locks(patch: Patch) -> None:
    """And what every task needs may be pruned."""
    open_pruning(patch)
    none = Owners.none

    def unlocked(plan: Plan, outside: Any, locked: np.ndarray, transfer: bool) -> Owners:
        return none(plan, outside, np.zeros_like(locked), transfer)

    patch.setattr(Owners, "none", staticmethod(unlocked))


def blind_heads(patch: Patch) -> None:
    """Heads read all features."""
    patch.setattr(heads, "mask", lambda value, visible: value)


def constants_loose(patch: Patch) -> None:
    """Buffers that follow no channel are not frozen."""
    patch.setattr(plan_module, "_constants", lambda capture, buffers: ())


#: A safeguard that is removed, and models on which that must show.
REMOVED: list[tuple[Callable[[Patch], None], tuple[str, ...]]] = [
    (no_pins, ("mlp", "residual", "lstm", "layer_norm", "spatial_gate")),
    (no_frozen_values, ("mlp", "residual", "lstm", "attention_written")),
    (no_zeros, ("mlp", "residual", "lstm", "grouped_conv", "tied_transposed")),
    (nothing_hidden, ("mlp", "layer_norm", "group_norm", "std_conv", "flatten_head")),
    (loose_statistics, ("conv_bn_relu", "batch_norm_1d")),
    (without_treatment(LevelNorms), ("layer_norm", "group_norm", "functional_layer_norm")),
    (no_nested_modules, ("global_response_norm", "eca", "cbam")),
    (nested_parameters_shown, ("softmax_then_linear",)),
    (open_pruning, ("spatial_gate", "attention_written")),
    (no_locks, ("spatial_gate", "shared_scalar", "squeeze_excite")),
    (without_treatment(ComputedWeight), ("std_conv", "scaled_std_conv")),
    (blind_heads, ("mlp", "conv_bn_relu", "matmul_parameter")),
]

CASES = [(remove, name) for remove, names in REMOVED for name in names]


#: What only an optimizer or a hand moves, a rehearsal does not. Hidden elements of a standardised
#: weight are at its mean: without their zeros they weigh as much as rounding leaves of them.
REHEARSED = [
    (remove, name)
    for remove, name in CASES
    if remove is not no_frozen_values and name not in ("std_conv", "scaled_std_conv")
]


def label(value: Any) -> str:
    return value if isinstance(value, str) else value.__qualname__.split(".")[0]


@pytest.mark.parametrize(("remove", "name"), CASES, ids=label)
def test_removed(monkeypatch: Patch, remove: Callable[[Patch], None], name: str) -> None:
    remove(monkeypatch)
    with pytest.raises(lives.Forgotten):
        lives.live(*ZOO[name](), rehearse=False)


@pytest.mark.parametrize(("remove", "name"), REHEARSED, ids=label)
def test_the_rehearsal_notices(
    monkeypatch: Patch, remove: Callable[[Patch], None], name: str
) -> None:
    """Before anything is trained."""
    remove(monkeypatch)
    with pytest.raises(EnforcementError, match="in a rehearsal"):
        autoeidetic.convert(*ZOO[name]())


def test_constants_are_frozen(monkeypatch: Patch) -> None:
    """A buffer that follows no channel, edited by hand."""

    def edited() -> None:
        life = lives.Life(*ZOO["buffer_mask"]()).first_task()
        life.prepare()
        for buffer in life.net.backbone.buffers():
            buffer.copy_(buffer.flatten().roll(1).view_as(buffer))
        life.check("edited")

    edited()
    constants_loose(monkeypatch)
    with pytest.raises(lives.Forgotten):
        edited()


@pytest.mark.parametrize("name", ["conv_bn_relu", "batch_norm_1d"])
def test_statistics_are_frozen_in_training(monkeypatch: Patch, name: str) -> None:
    """A finished task says the same in train mode, when other channels use the batch."""

    def same_in_train_mode() -> bool:
        life = lives.Life(*ZOO[name]()).first_task().second_task()
        life.net.train()
        with torch.no_grad():
            return lives.same(lives.tensors(life.net(life.inputs, task=0)), life.said[0])

    assert same_in_train_mode()
    moving_statistics(monkeypatch)
    assert not same_in_train_mode()
