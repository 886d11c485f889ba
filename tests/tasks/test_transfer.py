"""Backward transfer: revisiting an earlier task, with what was learned since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lives
import pytest
import timm
import torch
from sweeps import only
from torch import nn
from zoo import ZOO

import autoeidetic
from autoeidetic.errors import CheckpointError, InputError, TaskError

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16),
        nn.ReLU(), nn.Linear(16, 3),
    )  # fmt: skip


MODELS: dict[str, Any] = {
    "mlp": lambda: (small(), X),
    "resnet": lambda: (timm.create_model("test_resnet"), torch.randn(2, 3, 64, 64)),
    "vit": lambda: (timm.create_model("test_vit"), torch.randn(2, 3, 160, 160)),
    "conv_head": lambda: ZOO["conv_head_pooled"](),
    "no_head": lambda: (nn.Sequential(nn.Linear(6, 12), nn.ReLU()), X),
    "parameter_head": lambda: ZOO["matmul_parameter"](),
}


def two_tasks(name: str, **options: Any) -> lives.Life:
    life = lives.Life(*MODELS[name](), classes=(4, 3, None), **options).first_task().second_task()
    life.prune()
    life.finish()
    return life


@pytest.mark.parametrize("name", only(set(MODELS) - {"vit", "resnet"}, sorted(MODELS)))
def test_second_go(name: str) -> None:
    """It starts with the answers of the first, learns, and nothing old moves."""
    life = two_tasks(name)
    net = life.net
    net.prepare_for_task(2, revisit=0, on_full="reuse")
    for now, before in zip(lives.answers(net, life.inputs, 2), life.said[0], strict=True):
        torch.testing.assert_close(now, before, rtol=1e-4, atol=1e-5)
    life.train(lives.adamw(net))
    now = lives.answers(net, life.inputs, 2)
    assert not lives.same(now, life.said[0])
    life.prune()
    life.finish()
    life.verify()
    net.replace_task(0, by=2)
    assert lives.same(lives.answers(net, life.inputs, 0), lives.answers(net, life.inputs, 2))
    assert lives.same(lives.tensors(lives.answer(net, life.inputs, "all")[0]), life.said[2])
    assert lives.same(lives.answers(net, life.inputs, 1), life.said[1])
    life.verify()
    net.replace_task(0, by=None)
    life.check("put back")


def test_models_own_head() -> None:
    life = lives.Life(small(), X, classes=(None, 3), keep_head=True).first_task().second_task()
    life.prune()
    life.net.prepare_for_task(2, revisit=0)
    now = lives.answers(life.net, X, 2)
    torch.testing.assert_close(now, life.said[0])


def test_disjoint_tasks_cannot_be_revisited() -> None:
    life = lives.Life(small(), X, forward_transfer=False).first_task()
    fact = "the tasks of this network share nothing"
    with lives.unchanged(life.net), pytest.raises(InputError, match=fact):
        life.net.prepare_for_task(1, revisit=0)


def test_recorded_as_another_answer(tmp_path: Path) -> None:
    """A task that a revisit answers for has not moved, and the router is still measured."""
    net = two_tasks("mlp").net
    loaders = [[(X, torch.zeros(len(X), dtype=torch.int64))]] * 3
    record = autoeidetic.Run(tmp_path, draw=False, tensorboard=False)
    net.train_router(by="entropy")
    record.after_task(1, autoeidetic.evaluate(net, loaders), net.capacity())
    net.prepare_for_task(2, revisit=0)
    net.finish_task()
    net.replace_task(0, by=2)
    evaluation = autoeidetic.evaluate(net, loaders)
    assert evaluation.note == ""
    assert evaluation.tasks[2].agnostic is None
    record.after_task(2, evaluation, net.capacity())
    assert record.bitwise.ok


def test_rollback_starts_with_the_same_head() -> None:
    life = two_tasks("mlp")
    life.net.prepare_for_task(2, revisit=0)
    before = lives.state(life.net)
    life.train(lives.adamw(life.net))
    life.net.rollback()
    assert not lives.changed(life.net, before)


def test_saved_and_loaded(tmp_path: Path) -> None:
    life = two_tasks("mlp")
    net = life.net
    net.prepare_for_task(2, revisit=0)
    life.train(lives.adamw(net))
    net.finish_task()
    net.replace_task(0, by=2)
    said = [lives.answers(net, X, task) for task in range(3)]
    net.save(tmp_path / "net")
    again = autoeidetic.load(tmp_path / "net", model=small())
    assert all(lives.same(lives.answers(again, X, task), said[task]) for task in range(3))
    assert again.tasks == net.tasks


def test_edited_file(tmp_path: Path) -> None:
    """A task cannot be answered by one that does not revisit it."""
    life = two_tasks("mlp")
    life.net.update_task(0, answered_by=1)
    life.net.save(tmp_path / "net")
    with pytest.raises(CheckpointError, match="does not follow from the ones before"):
        autoeidetic.load(tmp_path / "net", model=small())


def test_wrong_calls() -> None:
    life = two_tasks("mlp")
    net = life.net
    with lives.unchanged(net):
        with pytest.raises(TaskError, match="there are tasks 0 to 1"):
            net.prepare_for_task(2, revisit=5)
        with pytest.raises(InputError, match="does not apply when task 0 is revisited"):
            net.prepare_for_task(2, num_classes=7, revisit=0)
        for by in (1, 7, -1):
            with pytest.raises(TaskError, match="is not a finished revisit of task 0"):
                net.replace_task(0, by=by)
    net.prepare_for_task(2, revisit=0)
    with pytest.raises(TaskError, match="is not a finished revisit"):
        net.replace_task(0, by=2)
