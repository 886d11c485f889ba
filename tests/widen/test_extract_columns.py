"""Tasks of widened networks as programs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from torch import Tensor, nn

import autoeidetic
from autoeidetic.errors import TaskError

from .test_widen import HAZARDS, IMAGES, Conv, Life, X, mlp


def close(found: Any, said: Any) -> bool:
    with torch.no_grad():
        return bool((found - said).abs().max() <= 1e-4 * said.abs().max().clamp(min=1e-3))


@pytest.fixture(scope="module")
def grown() -> Life:
    """Three columns with two, two and one task."""
    return Life(mlp(), X).whole.widen(0.5).learn()


@pytest.mark.parametrize("task", range(5))
def test_one_task(grown: Life, task: int) -> None:
    program = grown.net.extract(task)
    assert close(program(X), grown.said[task])
    more = torch.randn(9, 5)
    assert close(program(more), grown.net(more, task=task))
    report = program.report
    assert report.parameters_after < report.parameters_before
    assert report.multiply_adds_after < report.multiply_adds_before
    names = [name for name in program.state_dict() if name.startswith("columns.")]
    last = max((int(name.split(".")[1]) for name in names), default=0)
    assert last == (0, 0, 1, 1, 2)[task], "later columns are not in it"
    assert task > 1 or "0.weight" in program.state_dict(), "the user's own names"


@pytest.mark.parametrize("tasks", [[0, 2], [4, 1], ["task 3", 3, 0], "all"])
def test_several_tasks(grown: Life, tasks: Any) -> None:
    program = grown.net.extract(tasks)
    named = {"task 3": 3}
    numbers = range(5) if tasks == "all" else [named.get(task, task) for task in tasks]
    for found, number in zip(program(X), numbers, strict=True):
        assert close(found, grown.said[number])
    # every column runs once: the largest task alone needs almost as much
    alone = max(grown.net.extract(n).report.multiply_adds_after for n in numbers)
    assert program.report.multiply_adds_after < 1.5 * alone


@pytest.mark.parametrize("kind", ["entropy", "learned"])
def test_router(grown: Life, kind: str) -> None:
    net = copy.deepcopy(grown.net)
    loaders = [[(X + task, torch.zeros(len(X), dtype=torch.long))] for task in range(5)]
    net.train_router(loaders, kind, progress=False)
    found, expected = net.extract("all")(X), net.predict(X)
    assert torch.equal(found["task"], expected.task)
    assert torch.equal(found["label"], expected.label)


def test_bits_and_modes_stay(grown: Life) -> None:
    net = grown.net.train()
    net.extract(4)
    assert net.training
    assert not net.columns[0].training
    assert not any(column.runtime.prepared for column in net.columns)
    grown.check()


def test_files(grown: Life, tmp_path: Path) -> None:
    program = grown.net.extract([4, 0])
    program.save(tmp_path / "program.safetensors")
    loaded: Any = autoeidetic.load(tmp_path / "program.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(loaded(X), program(X), strict=True))
    grown.net.save(tmp_path / "net.safetensors")
    net: Any = autoeidetic.load(tmp_path / "net.safetensors", mlp())
    assert close(net.extract(4)(X), grown.said[4])


def test_unknown_task(grown: Life) -> None:
    for task in ("nope", 5, -1):
        with pytest.raises(TaskError, match="does not exist"):
            grown.net.extract(task)


def test_open_task(grown: Life) -> None:
    net = copy.deepcopy(grown.net)
    net.prepare_for_task(5, num_classes=2, on_full="reuse")
    with pytest.raises(TaskError, match="still open"):
        net.extract(5)
    assert close(net.extract(4)(X), grown.said[4])


def test_inputs_that_a_model_writes_to() -> None:
    life = Life(Conv(), IMAGES).learn().widen().learn().widen().learn()
    before = IMAGES.clone()
    program = life.net.extract([2, 0])
    assert all(close(a, b) for a, b in zip(program(IMAGES), life.said[::-2], strict=True))
    assert torch.equal(IMAGES, before)


@pytest.mark.parametrize("name", sorted({*HAZARDS.split()} - {"dict_input", "two_heads"}))
def test_hazard(name: str) -> None:
    model, x = zoo.ZOO[name]()
    life = Life(model, x)
    life.learn(fraction=0.4).widen(0.5).learn(fraction=0.4)
    program = life.net.extract(1)
    assert close(program(x), life.said[1])


class States(nn.Module):
    """The number of states is that of channels in a layer, and another layer runs along them."""

    def __init__(self, width: int = 16, states: int = 12) -> None:
        super().__init__()
        self.stem, self.to_states = nn.Linear(5, width), nn.Linear(width, states)
        self.along, self.head = nn.Conv1d(width, width, 1), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()  # batch, tokens, width
        weights = self.to_states(x).softmax(1)
        held = torch.einsum("btw,bts->bws", x, weights)
        return self.head(self.along(held).relu().mean(2))


def test_layers_that_get_other_sizes_do_not_read(tmp_path: Path) -> None:
    x = torch.randn(4, 7, 5)
    life = Life(States(), x).learn(fraction=0.3).widen(0.5).learn().widen(0.5).learn()
    assert all("along" not in column.sources for column in life.net.newest.earlier)
    assert any("to_states" in column.sources for column in life.net.newest.earlier)
    assert close(life.net.extract(2)(x), life.said[2])
    life.net.save(tmp_path / "net.safetensors")
    life.check(autoeidetic.load(tmp_path / "net.safetensors", States()))
    life.learn()
