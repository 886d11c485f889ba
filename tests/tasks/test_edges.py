"""Edges: unusual models, files, modes and arguments end well, or in an error with a remedy."""

from __future__ import annotations

import copy
import gc
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lives
import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

import autoeidetic
from autoeidetic.errors import AutoeideticError, CheckpointError, InputError, TaskError
from autoeidetic.tasks import snapshot

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 2
SHORT: dict[str, Any] = {"max_epochs": 2, "prune": False, "progress": False}


class Normed(nn.Module):
    """Its norm is analysed differently in inference mode, if nothing is done about it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 2)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x).flatten(2).transpose(1, 2)).mean(1))


class TwoNames(nn.Module):
    """A batch norm that is registered twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.both = nn.Sequential(self.norm, nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.both(self.inner(x)))


class TiedByData(nn.Module):
    """Two parameters in one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight.data = self.first.weight.data
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).relu())


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def opened(**options: Any) -> autoeidetic.EideticNet:
    net = autoeidetic.convert(plain(), X, **options)
    net.prepare_for_task(0)
    return net


def learns(net: autoeidetic.EideticNet, x: Tensor) -> bool:
    """Does every trainable tensor of the open task get a gradient and a step?"""
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    before = [p.detach().clone() for p in net.heads[str(net.open_task)].parameters()]
    net.train()(x).square().mean().backward()
    optimizer.step()
    after = net.heads[str(net.open_task)].parameters()
    return not any(map(torch.equal, before, after))


def lives_on(net: autoeidetic.EideticNet, x: Tensor) -> bool:
    """Two tasks; is the first the same after the second?"""
    net.prepare_for_task(0, num_classes=4)
    assert learns(net, x)
    net.prune(0.5)
    net.finish_task()
    said = lives.answers(net, x, 0)
    net.prepare_for_task(1, num_classes=3)
    assert learns(net, x)
    return lives.same(lives.answers(net, x, 0), said) and net.verify(x).ok


def failure(kind: type[AutoeideticError], call: Callable[[], Any]) -> AutoeideticError:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.remedy
    return caught.value


# -- the file with the values at the start of a task ---------------------------------------------


def test_module_under_two_names() -> None:
    assert lives_on(autoeidetic.convert(TwoNames(), X), X)


def test_weights_tied_by_data() -> None:
    assert lives_on(autoeidetic.convert(TiedByData(), X, inplace=True), X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_forked_process_leaves_the_file() -> None:
    kept = snapshot.Snapshot({"x": X})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads: the child does nothing but this
        child = os.fork()
    if not child:
        try:
            kept._finalizer()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert torch.equal(kept.load()["x"], X)
    path = Path(kept._path)
    del kept
    assert not path.exists()  # its own process does remove it


@pytest.mark.parametrize("damage", [os.remove, lambda path: os.truncate(path, 3)])
def test_file_is_gone(damage: Callable[[str], None]) -> None:
    net = opened()
    assert net._snapshot is not None
    damage(net._snapshot._path)
    error = failure(TaskError, net.rollback)
    assert "cannot be read any more" in error.fact
    assert "saved before the task" in error.remedy


@pytest.mark.parametrize("kind", [OSError, SafetensorError])
def test_no_room_for_the_file(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(tensors: Any, path: Any) -> None:
        Path(path).write_bytes(b"some of it")
        raise kind("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    error = failure(CheckpointError, opened)
    assert "No space left on device" in error.fact
    assert "TMPDIR" in error.remedy
    del error
    gc.collect()
    assert not list(tmp_path.iterdir())  # what was written of it is gone


def test_no_directory_for_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "TMPDIR" in failure(CheckpointError, opened).remedy


# -- models that cannot be converted -------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_model_that_cannot_be_copied() -> None:
    """As the older weight norm makes them; the remedy works."""
    model = plain()
    model[0] = nn.utils.weight_norm(model[0])
    error = failure(InputError, lambda: autoeidetic.convert(model, X))
    assert error.fact.startswith("the model cannot be copied: Only Tensors created explicitly")
    assert "inplace=True" in error.remedy
    assert lives_on(autoeidetic.convert(model, X, inplace=True), X)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("inplace", [False, True])
def test_script_with_parameters(inplace: bool) -> None:
    script = torch.jit.script(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)))
    model = nn.Sequential(nn.Linear(6, 8), nn.Sequential(script, nn.ReLU()), nn.Linear(8, 3))
    before = {name: (id(p), p.requires_grad) for name, p in model.named_parameters()}
    error = failure(InputError, lambda: autoeidetic.convert(model, X, inplace=inplace))
    assert error.module == "1.0"
    assert "scripted from" in error.remedy
    assert {name: (id(p), p.requires_grad) for name, p in model.named_parameters()} == before


@pytest.mark.parametrize("steps", range(4))
def test_already_converted(steps: int) -> None:
    """Just converted, with an open task, after it, and while the next one is open."""
    model = plain()
    net = autoeidetic.convert(model, X, inplace=True)
    for step in (
        lambda: net.prepare_for_task(0),
        lambda: (net.prune(0.5), net.finish_task()),
        lambda: net.prepare_for_task(1),
    )[:steps]:
        step()
    for again, path in ((model, ""), (net, ""), (nn.Sequential(model, nn.ReLU()), "0")):
        for inplace in (False, True):
            with pytest.raises(InputError, match="already converted") as caught:
                autoeidetic.convert(again, X, inplace=inplace)
            assert caught.value.module == path
    assert autoeidetic.convert(plain(), X).backbone is not model


def test_copy_of_a_converted_model_with_guards() -> None:
    net = opened()
    with pytest.raises(InputError, match="already converted"):
        autoeidetic.convert(copy.deepcopy(net).backbone, X)


# -- inference mode ------------------------------------------------------------------------------


def test_analysis_in_inference_mode() -> None:
    x = torch.randn(2, 3, 4, 4)
    with torch.inference_mode():
        found = autoeidetic.analyze(Normed(), x)
    expected = autoeidetic.analyze(Normed(), x)
    assert found.locked == expected.locked
    assert [(g.name, g.size) for g in found.groups] == [(g.name, g.size) for g in expected.groups]


def test_conversion_in_inference_mode() -> None:
    """Also of a model that was made in it: its copy can be trained."""
    x = torch.randn(4, 3, 4, 4)
    with torch.inference_mode():
        net = autoeidetic.convert(Normed(), torch.randn(2, 3, 4, 4))
    assert lives_on(net, x)


def test_loading_in_inference_mode(tmp_path: Path) -> None:
    x, path = torch.randn(4, 3, 4, 4), tmp_path / "net.safetensors"
    net = autoeidetic.convert(Normed(), x)
    net.prepare_for_task(0, num_classes=2)
    net.prune(0.5)
    net.finish_task()
    net.prepare_for_task(1, num_classes=2)
    with torch.inference_mode():
        net.save(path)
        again = autoeidetic.load(path, Normed())
        assert autoeidetic.audit(path, Normed()).ok
    assert learns(again, x)
    assert lives.same(lives.answers(again, x, 0), lives.answers(net, x, 0))


def test_model_made_in_inference_mode_in_place() -> None:
    with torch.inference_mode():
        model = plain()
    error = failure(InputError, lambda: autoeidetic.convert(model, X, inplace=True))
    assert error.fact.startswith("0.weight was made in torch.inference_mode")


# -- optimizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [0, 1])
def test_optimizer_from_before_the_task(task: int) -> None:
    net = autoeidetic.convert(plain(), X)
    if task:
        net.prepare_for_task(0, num_classes=2)
        net.prune(0.5)
        net.finish_task()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net.prepare_for_task(task, num_classes=2)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    error = failure(InputError, lambda: net.train_task([(X, Y)], optimizer=optimizer, **SHORT))
    assert f"heads.{task}.2.weight" in error.fact
    assert "after prepare_for_task" in error.remedy
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    optimizer.add_param_group({"params": list(net.heads[str(task)].parameters())})  # the remedy
    net.train_task([(X, Y)], optimizer=optimizer, **SHORT)
    assert not torch.equal(before[f"heads.{task}.2.weight"], net.heads[str(task)]["2"].weight)


def test_optimizer_from_before_a_task_with_the_models_own_head() -> None:
    """Then it has that head; unless it is the one of another model."""
    model = plain()
    net = autoeidetic.convert(model, X, keep_head=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net.prepare_for_task(0)
    net.train_task([(X, Y)], optimizer=optimizer, **SHORT)
    other = torch.optim.SGD(model.parameters(), 0.1)
    error = failure(InputError, lambda: net.train_task([(X, Y)], optimizer=other, **SHORT))
    assert "backbone.2.weight" in error.fact
    net.prune(0.5)
    net.prepare_for_task(1)
    failure(InputError, lambda: net.train_task([(X, Y)], optimizer=optimizer, **SHORT))


def test_optimizer_of_some_parameters() -> None:
    net = opened()
    head = list(net.heads["0"].parameters())
    for some in (head, [net.backbone[0].weight, *head]):
        net.train_task([(X, Y)], optimizer=torch.optim.SGD(some, 0.1), **SHORT)
    body = torch.optim.SGD(net.backbone.parameters(), 0.1)
    failure(InputError, lambda: net.train_task([(X, Y)], optimizer=body, **SHORT))
    net.heads["0"].requires_grad_(False)  # said so, it may stay as it is
    net.train_task([(X, Y)], optimizer=body, **SHORT)


@pytest.mark.parametrize("wrong", [torch.optim.AdamW, lambda parameters: None, "adam"])
def test_no_optimizer(wrong: Any) -> None:
    net = opened()
    error = failure(InputError, lambda: net.train_task([(X, Y)], optimizer=wrong, **SHORT))
    assert "not a torch.optim.Optimizer" in error.fact
    assert "torch.optim.AdamW(net.parameters(), lr=0.001)" in error.remedy


# -- loaders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, 3, torch.relu])
def test_no_loader(wrong: Any) -> None:
    net = opened()
    error = failure(InputError, lambda: net.train_task(wrong, **SHORT))
    assert error.fact.startswith("loader is a ")
    assert "DataLoader" in error.remedy
    net.finish_task()
    error = failure(InputError, lambda: net.train_router([wrong], progress=False))
    assert error.fact.startswith("loaders[0] is a ")


def test_loader_that_is_read_by_number() -> None:
    """As Python reads it: a dataset of batches is a loader."""

    class Batches:
        def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
            if number > 1:
                raise IndexError
            return X, Y

    assert len(opened().train_task(Batches(), **SHORT).epochs) == 2


def test_empty_batch() -> None:
    """Not a matter of learning rates; the network is as it was before the epoch."""
    net = opened()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    batches = [(X, Y), (X[:0], Y[:0])]
    error = failure(InputError, lambda: net.train_task(batches, **SHORT))
    assert error.fact == (
        "batch 1 of a train epoch of task 0 is empty, so it has no loss; "
        "the network is back where it was after 0 epochs"
    )
    assert "learning rate" not in error.remedy
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
