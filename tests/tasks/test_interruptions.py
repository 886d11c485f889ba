"""Steps in the life of tasks are taken as a whole or not at all; passes are taken one at a time."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lives
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import autoeidetic
from autoeidetic import EideticNet, errors

HERE = str(Path(autoeidetic.__file__).parent)
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 16)
        self.bn = nn.BatchNorm1d(16)
        self.b = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.a(x)))
        return self.head(self.norm(x + F.gelu(self.b(x))))


@pytest.fixture
def life() -> lives.Life:
    """Task 0 is finished, task 1 open and trained a little."""
    return lives.Life(Net(), X).first_task().second_task()


# -- interruptions --------------------------------------------------------------------------------


@contextmanager
def interrupted(after: int) -> Iterator[list[int]]:
    """Ctrl-C at the n-th call of a function of the library; yields how many there were."""
    calls = [0]

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HERE):
            calls[0] += 1
            if calls[0] == after:
                raise KeyboardInterrupt

    sys.setprofile(trace)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def number_of_calls(net: EideticNet, step: Callable[[EideticNet], None]) -> int:
    other = copy.deepcopy(net)
    with interrupted(-1) as calls:
        step(other)
    return calls[0]


STEPS: dict[str, Callable[[EideticNet], None]] = {
    "prune": lambda net: net.prune(0.5),
    "finish": lambda net: net.finish_task(),
    "prepare": lambda net: net.prepare_for_task(2, num_classes=5, on_full="reuse"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see the else below
@pytest.mark.parametrize("name", STEPS)
def test_an_interrupted_step_is_not_half_taken(life: lives.Life, name: str, tmp_path: Path) -> None:
    step, total = STEPS[name], number_of_calls(life.net, STEPS[name])
    undone = 0
    for after in range(1, total, max(1, total // 12)):
        other = copy.deepcopy(life)
        net = other.net
        before = lives.answers(net, X, 1)
        try:
            with interrupted(after):
                step(net)
        except KeyboardInterrupt:
            undone += 1
        else:  # in what is done when an object is gone, where Python swallows it
            continue
        if net.open_task != 1:  # after the step: nothing but the lock was left to be given back
            assert after > 0.95 * total
            other.check("interrupted at the end")
            continue
        assert net.open_task == 1
        assert [task.finished for task in net.tasks] == [True, False]
        assert set(net.heads) == {"0", "1"}
        if name != "prune":
            assert lives.same(lives.answers(net, X, 1), before)
        other.check("interrupted")
        lives.train(net, X, [lives.sgd(net)])
        other.prune()
        other.finish()
        net.save(tmp_path / "net.safetensors")
        assert autoeidetic.load(tmp_path / "net.safetensors", Net()).tasks == net.tasks
        other.prepare()
        lives.train(net, X, [lives.adamw(net)])
        other.check("after an interruption")
        other.verify()
    assert undone >= 8


def test_a_task_that_cannot_be_prepared_leaves_the_one_before_open(
    life: lives.Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(type(life.net), "begin", fail)
    with pytest.raises(OSError, match="no space"):
        life.net.prepare_for_task(2, num_classes=5, on_full="reuse")
    assert life.net.open_task == 1
    life.check("not prepared")
    monkeypatch.undo()
    life.prune()
    life.finish()


# -- modules that are exchanged -------------------------------------------------------------------


@pytest.mark.parametrize("open_task", [True, False])
@pytest.mark.parametrize("path", ["a", "bn", "norm", "head"])
def test_a_module_exchanged_for_its_like_is_divided_again(
    life: lives.Life, path: str, open_task: bool
) -> None:
    net = life.net
    if not open_task:
        life.finish()
    for new in (copy.deepcopy(net.backbone.get_submodule(path)), getattr(Net(), path)):
        setattr(net.backbone, path, new)
        life.check(f"{path} exchanged")
    if open_task:
        lives.train(net, X, [lives.adamw(net)])
        life.check(f"{path} exchanged and trained")
    life.verify()


class LowRank(nn.Linear):
    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features)
        self.load_state_dict(like.state_dict())
        self.down = nn.Linear(like.in_features, 2)
        self.up = nn.Linear(2, like.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.up(self.down(x))


def narrowed(net: EideticNet) -> None:
    net.backbone.b = nn.Linear(16, 8)


def adapted(net: EideticNet) -> None:
    net.backbone.b = LowRank(net.backbone.b)


def removed(net: EideticNet) -> None:
    net.backbone.norm = None


def compiled(net: EideticNet) -> None:
    net.backbone.b = torch.compile(net.backbone.b, backend="eager")


CHANGES = {
    "narrowed": (narrowed, r"'b.weight' has the shape \(8, 16\)"),
    "adapted": (adapted, "was a Linear when the model was converted, and is a LowRank now"),
    "removed": (removed, "was a LayerNorm when the model was converted, and is gone now"),
    "compiled": (compiled, "was a Linear when .* converted, and is an OptimizedModule now"),
    "parametrized": (
        lambda net: parametrizations.weight_norm(net.backbone.b),
        "was a Linear when the model was converted, and is a ParametrizedLinear now",
    ),
    "masked": (
        lambda net: prune.random_unstructured(net.backbone.b, "weight", 0.5),
        r"module .backbone\.[a-z]+. \(Linear\) has no .weight. any more",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_analysis_has_not_seen_is_refused(life: lives.Life, name: str) -> None:
    """Before the next answer, and at every step; other networks are not disturbed."""
    change, message = CHANGES[name]
    change(life.net)
    for action in (
        lambda: life.net(X),
        lambda: life.net(X, task=0),
        lambda: life.net.verify(X),
        life.net.finish_task,
        lambda: life.net.prepare_for_task(2, num_classes=5, on_full="reuse"),
    ):
        with pytest.raises(errors.EnforcementError, match=message):
            action()
        assert [task.finished for task in life.net.tasks] == [True, False]
    other = nn.Linear(2, 2)
    other(torch.randn(3, 2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()


# -- several threads ------------------------------------------------------------------------------


def test_threads_get_their_own_answers(life: lives.Life) -> None:
    life.finish()
    net = life.net.eval()
    wrong: list[int] = []

    def ask(task: int) -> None:
        for _ in range(150):
            if not lives.same(lives.answers(net, X, task), life.said[task]):
                wrong.append(task)

    threads = [threading.Thread(target=ask, args=(task,)) for task in (0, 1, 0, 1)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    again = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    assert lives.same(lives.answers(again, X, 0), life.said[0])


# -- loops ----------------------------------------------------------------------------------------


def test_an_optimizer_for_each_parameter_may_step_during_backward(life: lives.Life) -> None:
    net = life.net
    owners = {p: torch.optim.AdamW([p], lr=0.01, weight_decay=0.5) for p in net.parameters()}

    def step(parameter: Tensor) -> None:
        owners[parameter].step()
        owners[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    before = lives.state(net)
    for _ in range(3):
        lives.loss_of(net.train()(X)).backward()
    assert "backbone.b.weight" in lives.changed(net, before)
    life.check("stepped in backward")
    life.verify()


def test_a_step_on_others_is_an_occasion_to_look(life: lives.Life) -> None:
    """An edit that leaves no trace, and then a step of an optimizer that has other parameters."""
    net = life.net.eval()
    net.backbone.a.weight.data.mul_(2)
    bias = net.backbone.b.bias
    bias.grad = torch.ones_like(bias)
    torch.optim.SGD([bias], lr=0.1).step()
    life.check("edited")


def test_a_refused_state_changes_nothing(life: lives.Life) -> None:
    other = lives.Life(Net(), X)
    with torch.no_grad():
        for parameter in other.net.parameters():
            parameter.mul_(3)
    other.first_task().second_task()
    with lives.unchanged(life.net), pytest.raises(RuntimeError, match="Nothing was loaded"):
        life.net.load_state_dict(other.net.state_dict())


# -- numbers, names, inference mode ---------------------------------------------------------------


def test_numbers_of_other_libraries(tmp_path: Path) -> None:
    net = autoeidetic.convert(Net(), X)
    for bad in (False, 0.0, "0", None):
        with pytest.raises(errors.TaskError, match="the next task is 0"):
            net.prepare_for_task(bad)  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="name=7 is not text"):
        net.prepare_for_task(0, name=7)  # type: ignore[arg-type]
    with pytest.raises(errors.HeadError, match=r"num_classes=2\.5"):
        net.prepare_for_task(0, num_classes=2.5)  # type: ignore[arg-type]
    net.prepare_for_task(np.int64(0), num_classes=np.int64(2))  # type: ignore[arg-type]
    with pytest.raises(errors.InputError, match="'half' is not a number between 0 and 1"):
        net.prune("half")  # type: ignore[arg-type]
    net.prune(np.float32(0.5))  # type: ignore[arg-type]
    net.finish_task()
    net.prepare_for_task(torch.tensor(1), revisit=np.int64(0))  # type: ignore[arg-type]
    net.finish_task()
    with pytest.raises(errors.TaskError, match="task '1' is not a finished revisit"):
        net.replace_task(0, by="1")  # type: ignore[arg-type]
    net.replace_task(np.int64(0), by=np.int64(1))  # type: ignore[arg-type]
    net.save(tmp_path / "net.safetensors")
    again = autoeidetic.load(tmp_path / "net.safetensors", Net())
    assert again.tasks == net.tasks
    assert torch.equal(again.eval()(X, task=np.int64(0)), net.eval()(X, task=1))
    with pytest.raises(errors.TaskError, match="task=True"):
        net(X, task=True)


def test_a_life_under_inference_mode_can_be_trained_later() -> None:
    with torch.inference_mode():
        net = autoeidetic.convert(Net(), X)
        net.prepare_for_task(0, num_classes=2)
        net.prune(0.5)
        net.finish_task()
        said = net.eval()(X, task=0)
        net.prepare_for_task(1, num_classes=2)
        net.rollback()
    lives.train(net, X, [lives.adamw(net)])
    assert lives.same([net.eval()(X, task=0).detach()], [said.clone()])
