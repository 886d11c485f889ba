"""verify: what it says of networks that are as they should be, and of those that are not."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import lives
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoeidetic.errors import EnforcementError
from autoeidetic.net import EideticNet
from autoeidetic.tasks import heads

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.b(F.relu(self.a(x)))))


class AlwaysNoisy(Net):
    """In eval mode as well."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(x + torch.randn_like(x))))


class OutOfPython(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(x)) * (1 + random.random()))


@pytest.fixture
def life() -> lives.Life:
    return lives.Life(Net(), X).first_task().second_task()


@pytest.mark.parametrize("model", [AlwaysNoisy, OutOfPython])
def test_a_model_that_is_random_in_eval_mode(model: type[nn.Module]) -> None:
    net = lives.Life(model(), X).net
    net.prepare_for_task(0, num_classes=3)
    net.prune(0.5)
    net.finish_task()
    net.prepare_for_task(1, num_classes=3)
    before, numbers = torch.get_rng_state(), random.getstate()
    report = net.verify(X)
    assert report.random
    assert not report.ok
    assert report.moved is None
    assert "the model is random in eval mode" in str(report)
    assert "HAVE CHANGED" not in str(report)
    assert all(verdict.changed == 0 for verdict in report.tasks)
    assert report.to_dict()["random"]
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == numbers


class OutOfNowhere(Net):
    """No seed makes it answer the same again."""

    source = random.Random()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.a(x)) * (1 + self.source.random()))


@pytest.mark.parametrize("model", [AlwaysNoisy, OutOfPython, OutOfNowhere])
def test_random_models_live(model: type[nn.Module]) -> None:
    """Tasks are finished one after another all the same."""
    net = lives.Life(model(), X, rehearse=False).net
    for task in range(3):
        net.prepare_for_task(task, num_classes=3)
        net.prune(0.5)
        net.finish_task()
        random.random()
        torch.randn(3)
    if model is OutOfNowhere:
        with pytest.raises(EnforcementError, match="random in eval mode, and not by"):
            net.verify(X)
    else:
        assert "HAVE CHANGED" not in str(net.verify(X))


def test_randomness_hides_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "mask", lambda value, visible: value)
    net = lives.Life(AlwaysNoisy(), X, rehearse=False).net
    net.prepare_for_task(0, num_classes=3)
    net.prune(0.5)
    net.finish_task()
    report = net.verify(X)
    assert report.random
    assert report.tasks[0].changed
    assert "FINISHED TASKS HAVE CHANGED" in str(report)


def test_all_is_well(life: lives.Life) -> None:
    report = life.net.verify(X)
    assert report.ok
    assert [(v.changed, v.nans, v.sealed, v.note) for v in report.tasks] == [(0, 0, True, "")]
    assert str(report) == "task 0: 0 of 16 outputs changed\nnothing moved in 3 rounds"


def edit_what_is_frozen(net: EideticNet) -> None:
    """As nothing in the library does it: the store as well."""
    for pin in net.pins.frozen():
        if pin.name == "backbone.a.weight":
            net.pins.values(pin.name).add_(0.1)
    net.pins.impose()


def test_other_frozen_values_than_sealed(life: lives.Life) -> None:
    edit_what_is_frozen(life.net)
    report = life.net.verify(X)
    assert not report.ok
    assert report.tasks[0].changed == 0
    assert "its frozen values are not those that were sealed" in str(report)
    assert "FINISHED TASKS HAVE CHANGED" in str(report)
    life.net.seal()
    assert life.net.verify(X).ok


def sealed(net: EideticNet, **changes: object) -> None:
    """Another reference in the seal of task 0."""
    task = net.tasks[0]
    then = replace(task.seal.reference, **changes)
    net.update_task(0, seal=replace(task.seal, reference=then))


def test_other_answers_than_sealed(life: lives.Life) -> None:
    other = copy.deepcopy(life.net)
    edit_what_is_frozen(other)
    other.seal()
    sealed(life.net, outputs=other.tasks[0].seal.reference.outputs)
    report = life.net.verify(X)
    assert not report.ok
    assert "its outputs are not those that were sealed" in str(report)


def test_bits_of_another_machine(life: lives.Life) -> None:
    """Last bits are compared where they were recorded; elsewhere it is values."""
    then = life.net.tasks[0].seal.reference
    (output,) = then.outputs
    other = replace(output, digest="0" * 64)
    sealed(life.net, outputs=(other,), environment={**then.environment, "threads": "64"})
    report = life.net.verify(X)
    assert report.ok
    assert report.tasks[0].sealed is None
    assert "the last bits of its sealed outputs differ, its values do not" in report.tasks[0].note
    assert "threads was '64' and is '1'" in str(report)
    life.finish()  # which is no reason to refuse the next task


def test_a_change_of_type_is_told(life: lives.Life) -> None:
    report = life.net.half().verify(X.half())
    assert report.ok
    assert "the network was converted to float16 after it was finished" in str(report)
    assert life.net.float().verify(X).tasks[0].sealed
    life.net.backbone.double()
    life.net.heads.double()
    assert "converted to float64" in str(life.net.verify(X.double()))


def test_without_a_seal(life: lives.Life) -> None:
    life.net.update_task(0, seal=None)
    report = life.net.verify(X)
    assert report.ok
    assert "net.seal() takes one" in str(report)
    life.finish()


class WritesInEvalMode(Net):
    def train(self, mode: bool = True) -> WritesInEvalMode:
        super().train(mode)
        if not mode:
            with torch.no_grad():
                self.a.weight.clamp_(-0.1, 0.1)
        return self


def test_weights_that_a_model_writes_on_a_change_of_mode_are_put_back() -> None:
    net = lives.Life(WritesInEvalMode(), X).first_task().second_task().net.train()
    with torch.no_grad():
        net.backbone.a.weight.add_(0.7)
    net.pins.impose()
    with lives.unchanged(net):
        assert net.verify(X).ok
