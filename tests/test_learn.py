"""A whole sequence of tasks: recorded, resumable, routed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lives
import pytest
import torch
from training.test_training import KilledError, X, data, loader, network

import autoeidetic
from autoeidetic.errors import CapacityError, InputError

SHORT: dict[str, Any] = {"max_epochs": 4, "step": 0.2, "tolerance": 0.02, "progress": False}


def lessons(count: int = 3, **settings: Any) -> list[autoeidetic.Lesson]:
    return [
        autoeidetic.Lesson(loader(task), [data(task)], 2, f"digits {task}", settings)
        for task in range(count)
    ]


def learn(directory: Path, **options: Any) -> tuple[autoeidetic.EideticNet, autoeidetic.Run]:
    net = network()
    given = {"optimizer": lambda p: torch.optim.Adam(p, lr=0.01), **SHORT, **options}
    return net, autoeidetic.learn(net, lessons(), directory, **given)


def test_record(tmp_path: Path) -> None:
    net, run = learn(tmp_path, router="learned")
    assert run.matrix.backward_transfer() == 0.0
    assert run.matrix.average() > 0.95
    assert run.bitwise.ok
    assert net.open_task is None
    results = json.loads((tmp_path / "results.json").read_text())
    assert [task["name"] for task in results["tasks"]] == ["digits 0", "digits 1", "digits 2"]
    assert results["tasks"][-1]["evaluation"]["tasks"][0]["agnostic"] > 0.5
    names = {path.name for path in tmp_path.iterdir()}
    assert {"metrics.csv", "tasks.csv", "network.safetensors", "checkpoints", "plots"} <= names
    again = autoeidetic.load(tmp_path / "network.safetensors", model=network().backbone)
    assert all(lives.same(lives.answers(again, X, t), lives.answers(net, X, t)) for t in range(3))
    assert torch.equal(again.predict(X).task, net.predict(X).task)


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [2, 6, 9])
def test_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int) -> None:
    whole, run = learn(tmp_path / "whole", router="learned")
    epoch, passes = autoeidetic.Run.epoch, []

    def killed(self: autoeidetic.Run, row: Any) -> None:
        epoch(self, row)
        passes.append(row)
        if len(passes) == stop_after:
            raise KilledError

    monkeypatch.setattr(autoeidetic.Run, "epoch", killed)
    with pytest.raises(KilledError):
        learn(tmp_path / "other", router="learned")
    monkeypatch.undo()
    again, other = learn(tmp_path / "other", router="learned")
    assert not lives.changed(again, lives.state(whole))
    rows = [{**row, "seconds": 0} for row in run.rows]
    assert [{**row, "seconds": 0} for row in other.rows] == rows
    once_more, _ = learn(tmp_path / "other", router="learned")
    assert not lives.changed(once_more, lives.state(whole))


@pytest.mark.slow
def test_settings(tmp_path: Path) -> None:
    """Of all tasks, of one task, of the last one."""
    net = network()
    given = lessons(2)
    given[0] = autoeidetic.Lesson(
        loader(0), [data(0)], 2, settings={"max_epochs": 2, "tolerance": 1.0}
    )
    schedulers = []

    def scheduler(optimizer: torch.optim.Optimizer) -> Any:
        schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
        return schedulers[-1]

    run = autoeidetic.learn(net, given, tmp_path, scheduler=scheduler, **SHORT)
    trained = [[r for r in run.rows if r["task"] == t and r["phase"] == "train"] for t in (0, 1)]
    assert [len(rows) for rows in trained] == [2, 4]
    assert [row["lr"] for row in trained[1]] == [0.001, 0.0005, 0.00025, 0.000125]
    assert all(row["phase"] == "train" for row in run.rows if row["task"] == 1)
    assert len(schedulers) == 2


def test_never_pruned(tmp_path: Path) -> None:
    net = network()
    text = r"is full: its \d+ units all belong to task 0, which gave up none of them"
    with pytest.raises(CapacityError, match=text):
        autoeidetic.learn(net, lessons(2), tmp_path, prune=False, **SHORT)


@pytest.mark.slow
def test_wrong_calls(tmp_path: Path) -> None:
    net = network()
    with pytest.raises(InputError, match="0 lessons"):
        autoeidetic.learn(net, [], tmp_path)
    net.prepare_for_task(0, num_classes=2)
    with pytest.raises(InputError, match="a network with 1 tasks"):
        autoeidetic.learn(net, lessons(), tmp_path)
    learn(tmp_path / "run")
    with pytest.raises(InputError, match="another configuration"):
        learn(tmp_path / "run", step=0.3)
