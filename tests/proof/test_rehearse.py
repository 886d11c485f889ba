"""The rehearsal in ``convert``: what the analysis cannot see shows before anything is trained.

That it lets every other model pass is seen in ``test_lives.py``, whose networks are all rehearsed.
"""

from __future__ import annotations

import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic.common.bits import same
from autoeidetic.enforce.owners import Owners
from autoeidetic.errors import EnforcementError, NonFiniteError, RehearsalWarning

INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))


class AsksForTheType(nn.Module):
    """Computes something else as soon as a layer is a guarded one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu())
        return self.head(x if type(self.second) is nn.Linear else x.relu())


class PassesItsNormBy(nn.Module):
    """Without the norm that the analysis saw."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(self.norm(x) if type(self.norm) is nn.LayerNorm else x)


class KeepsANumber(nn.Module):
    """A running scale in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.scale = nn.Linear(6, 8), nn.Linear(8, 3), 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * float(INPUTS.abs().mean())
        return self.head(x * self.scale)


class Merges(nn.Linear):
    """A low-rank update that is added to the weight for evaluation, behind PyTorch's back."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.update = nn.Parameter(torch.zeros(outputs, inputs))
        self.merged = False

    def train(self, mode: bool = True) -> Merges:
        if mode == self.merged:
            self.weight.data += self.update.data * (-1 if mode else 1)
            self.merged = not mode
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.merged else self.weight + self.update
        return nn.functional.linear(x, weight, self.bias)


def merging() -> nn.Module:
    return nn.Sequential(Merges(6, 8), nn.ReLU(), nn.Linear(8, 3))


UNSEEN = [AsksForTheType, PassesItsNormBy, KeepsANumber, merging]


@pytest.mark.parametrize("build", UNSEEN)
def test_a_model_that_would_forget_is_refused_before_training(build: Any) -> None:
    model = build()
    with pytest.raises(EnforcementError, match="in a rehearsal") as caught:
        autoeidetic.convert(model, INPUTS)
    assert caught.value.remedy
    autoeidetic.convert(model, INPUTS, rehearse=False)


@pytest.mark.parametrize("build", [AsksForTheType, KeepsANumber])
def test_the_same_models_do_forget(build: Any) -> None:
    """The rehearsal is right: without it, a finished task moves."""
    net = autoeidetic.convert(build(), INPUTS, rehearse=False)
    net.prepare_for_task(0)
    net.prune(0.5)
    net.finish_task()
    before = net.eval()(INPUTS, task=0)
    net.prepare_for_task(1)
    net.train()(INPUTS)
    assert not same(net.eval()(INPUTS, task=0), before)


def test_a_model_that_merges_would_lose_what_it_learned() -> None:
    """What is frozen in training mode stays without the update, while the model thinks it is in."""
    net = autoeidetic.convert(merging(), INPUTS, rehearse=False)
    nn.init.normal_(net.backbone[0].update)
    net.prepare_for_task(0)
    net.prune(0.5)
    before = net.eval()(INPUTS)
    net.train().finish_task()
    after = net.eval()(INPUTS, task=0)
    assert not torch.allclose(after, before)
    net.prepare_for_task(1)
    assert same(net.train().eval()(INPUTS, task=0), after)  # but from then on it does not move


def test_it_names_the_layer_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owners, "zeros", lambda self, name: None)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(EnforcementError) as caught:
        autoeidetic.convert(model, INPUTS)
    assert caught.value.module == "2"
    assert "12 of 12 outputs of a task changed" in caught.value.fact
    assert "the first in its only output: module '2' is the first whose" in caught.value.fact


class TwoOutputs(KeepsANumber):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"input": x, "made": (x, super().forward(x))}


@pytest.mark.parametrize(
    ("build", "module", "fact"),
    [
        (merging, "0", "the first in its only output: the frozen values of '0.weight' moved"),
        (TwoOutputs, "", "the first in output['made'][1]: no module inside TwoOutputs moved, so"),
        (PassesItsNormBy, "norm", "module 'norm' ran 0 times where the analysis saw 1"),
    ],
)
def test_it_names_the_output_and_what_moved(build: Any, module: str, fact: str) -> None:
    with pytest.raises(EnforcementError) as caught:
        autoeidetic.convert(build(), INPUTS)
    assert caught.value.module == module
    assert fact in caught.value.fact


@pytest.mark.parametrize("inplace", [False, True])
def test_nothing_is_touched(inplace: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)).train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    net = autoeidetic.convert(model, INPUTS, inplace=inplace)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert (np.random.get_state()[1] == generators[2]).all()
    assert net.training
    assert all(module.training for module in net.modules())
    assert not net.tasks
    for name, tensor in net.backbone.state_dict().items():
        assert same(tensor, state[name]), name


def test_a_failed_rehearsal_leaves_the_model_as_it_was() -> None:
    model = AsksForTheType()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(EnforcementError):
        autoeidetic.convert(model, INPUTS, inplace=True)
    assert type(model.second) is nn.Linear
    assert all(same(tensor, state[name]) for name, tensor in model.state_dict().items())
    autoeidetic.convert(model, INPUTS, inplace=True, rehearse=False)  # not "already converted"


def test_a_model_that_is_random_in_eval_mode_may_be() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + 0.1 * torch.randn_like(x))

    autoeidetic.convert(nn.Sequential(Noisy(6, 8), nn.ReLU(), nn.Linear(8, 3)), INPUTS)


def test_a_model_that_counts_its_passes_cannot_be_rehearsed() -> None:
    class Counts(nn.Linear):
        passes = 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            return super().forward(x) * self.passes

    model = nn.Sequential(Counts(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.warns(RehearsalWarning, match="differently each time") as caught:
        autoeidetic.convert(model, INPUTS)
    assert caught[0].filename == __file__


def test_a_model_that_writes_into_its_inputs() -> None:
    class Shifts(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.add_(1))

    inputs = INPUTS.clone()
    autoeidetic.convert(nn.Sequential(Shifts(6, 8), nn.ReLU(), nn.Linear(8, 3)), inputs)
    assert torch.equal(inputs, INPUTS)


def test_a_single_sample_will_do() -> None:
    """Batch norms cannot be trained with it, so that part is left out."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    autoeidetic.convert(model, INPUTS[:1])


def test_shapes_alone_will_do() -> None:
    autoeidetic.convert(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), INPUTS.to("meta"))
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)).to("meta")
    autoeidetic.convert(model, INPUTS.to("meta"))


def test_a_parameter_without_elements() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model.empty = nn.Parameter(torch.empty(0, 4))
    net = autoeidetic.convert(model, INPUTS)
    net.prepare_for_task(0)
    net.prune(0.5)
    net.finish_task()
    assert net.verify(INPUTS).ok


def test_what_cannot_be_rehearsed_is_said() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model.lock = threading.Lock()
    with pytest.warns(RehearsalWarning, match=r"cannot pickle.*\n.*net\.verify"):
        net = autoeidetic.convert(model, INPUTS, inplace=True)
    net.prepare_for_task(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autoeidetic.convert(nn.Linear(6, 3), INPUTS, inplace=True)


class Divides(nn.Module):
    """Divides by a parameter inside a module that is run level by level."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.softmax(-1) / self.scale)


def divides() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), Divides(), nn.Linear(8, 3))


def test_a_task_that_would_answer_nan_is_seen_before_training() -> None:
    with pytest.raises(NonFiniteError, match=r"(?s)rehearsal.*all its units.*in module '1'"):
        autoeidetic.convert(divides(), INPUTS)


def test_a_task_that_answers_nan_is_not_finished() -> None:
    """The weights are finite, and so are the answers of the model with all its units."""
    net = autoeidetic.convert(divides(), INPUTS, rehearse=False)
    net.prepare_for_task(0, num_classes=2)
    net.prune(0.5)
    with pytest.raises(NonFiniteError, match="task 0 cannot be finished: it answers reference"):
        net.finish_task()
    assert net.open_task == 0
    net.rollback()
    net.finish_task()
    assert net.eval()(INPUTS, task=0).isfinite().all()


def test_a_model_that_rightly_answers_nan_is_finished() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), LogOfHead())
    net = autoeidetic.convert(model, INPUTS)
    net.prepare_for_task(0, num_classes=2)
    net.prune(0.5)
    net.finish_task()


class LogOfHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.head(x) - 1e3)
