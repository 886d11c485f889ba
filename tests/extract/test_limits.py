"""Sizes of inputs: how far they may vary, and what a program says about the others."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoeidetic
from autoeidetic import EideticNet
from extract.networks import called, far, grown


class Sequence(nn.Module):
    """Does something to a sequence between its layers."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.embed(x)).relu().mean(1))


def summed_chunks(x: Tensor) -> Tensor:
    first, *others = (chunk.mean(1, keepdim=True) for chunk in x.chunk(3, dim=1))
    return sum(others, first)


def causal(x: Tensor) -> Tensor:
    hidden = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype).triu(1)
    return (x @ x.mT + hidden).softmax(-1) @ x


def counted(x: Tensor) -> Tensor:
    return x * math.log(x.shape[1] + 1)


def sequences(length: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, 6)


LIMITED = {
    "cut to a maximum": (lambda x: x[:, :40], (1, 40)),
    "short ones padded": (lambda x: F.pad(x, (0, 0, 0, max(0, 5 - x.shape[1]))), (5, None)),
    "other chunks of short ones": (summed_chunks, (5, None)),
    "a table": (causal, (1, 21)),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limits(name: str) -> None:
    between, (least, most) = LIMITED[name]
    net = grown(Sequence(between), sequences(10), [3, 2])
    program = net.extract(1)
    assert program.report.dynamic == ("x: dimension 0", "x: dimension 1")
    words = {"at least": least if least > 1 else None, "at most": most}
    expected = [f"{word} {bound}" for word, bound in words.items() if bound]
    assert program.report.limits == tuple(f"x: dimension 1: {text}" for text in expected)
    assert f"limit: x: dimension 1: {expected[0]}" in str(program.report)
    for length in range(1, 50):
        x = sequences(length, 3)
        if least <= length <= (most or length):
            assert far(called(net, x, task=1), called(program, x)) < 1e-5
        else:
            with pytest.raises(AssertionError, match=r"^x: dimension 1 must be at (least|most)"):
                program.forward(x)


def test_limits_go_with_the_program(tmp_path: Path) -> None:
    program = grown(Sequence(causal), sequences(10), [3]).extract(0)
    files = [tmp_path / f"program{ending}" for ending in (".safetensors", ".pt2")]
    for file in files:
        program.save(file)
    again = autoeidetic.load(files[0])
    assert again.report == program.report
    compiled = torch.compile(program, fullgraph=True, dynamic=True, backend="eager")
    exported, unpickled = torch.export.load(files[1]).module(), pickle.loads(pickle.dumps(program))
    for module in (again, exported, unpickled, compiled):
        for length in (13, 20):
            x = sequences(length)
            assert far(program(x), module(x)) < 1e-5
        with pytest.raises(Exception, match="21"):
            module(sequences(22))


def test_fixed_sizes_are_checked() -> None:
    net = grown(Sequence(counted), sequences(10), [3])
    program = net.extract(0)
    assert program.report.dynamic == ("x: dimension 0",)
    with pytest.raises(AssertionError, match="x: dimension 1 must be 10:"):
        program.forward(sequences(9))


class Rows(nn.Module):
    """Python code that depends on the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.head(self.a(row).relu()) for row in x])


def test_a_fixed_batch_is_that_of_the_example() -> None:
    x = torch.randn(5, 6)
    net = grown(Rows(), x, [3, 2])
    program = net.extract(1)
    assert far(called(net, x, task=1), called(program, x)) < 1e-5
    assert not program.report.dynamic
    for batch in (2, 7):
        with pytest.raises(AssertionError, match="x: dimension 0 must be 5"):
            program.forward(torch.randn(batch, 6))


@pytest.mark.parametrize("of", ["units", "parameters"])
def test_inputs_without_a_batch(of: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(6)
    net = grown(model, x, [3, 2])
    assert far(called(net, x, task=1), called(net.extract(1), x)) < 1e-5
    assert autoeidetic.slim(model, 0.5, x, of=of)(x).shape == (3,)


class Scaled(nn.Module):
    """Divides by the side of a square as large as the image."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x).sum((2, 3)) / math.sqrt(x.shape[2] * x.shape[3]))


def test_height_and_width_that_must_be_equal(tmp_path: Path) -> None:
    net = grown(Scaled(), torch.randn(2, 3, 16, 16), [3])
    program = net.extract(0)
    assert program.report.dynamic[1:] == ("x: dimension 2", "x: dimension 3")
    assert program.report.limits == ("x: dimension 3: equal to dimension 2",)
    program.save(tmp_path / "program.pt2")
    exported = torch.export.load(tmp_path / "program.pt2").module()
    for side in (5, 16, 23):
        x = torch.randn(3, 3, side, side)
        assert far(called(net, x, task=0), called(program, x)) < 1e-5
        assert far(called(program, x), called(exported, x)) < 1e-5
    with pytest.raises(AssertionError, match="x: dimension 3 must be equal to dimension 2"):
        program.forward(torch.randn(2, 3, 16, 20))


def test_height_and_width_of_an_image_that_is_no_square() -> None:
    net = grown(Scaled(), torch.randn(2, 3, 16, 20), [3])
    program = net.extract(0)
    assert program.report.dynamic == ("x: dimension 0",)
    with pytest.raises(AssertionError, match="x: dimension 2 must be 16"):
        program.forward(torch.randn(2, 3, 20, 16))


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.up, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        assert height == 16, f"Input height ({height}) doesn't match model (16)"
        h = self.up(self.a(x) * math.log(width))
        return self.head(h.relu().mean((2, 3)))


def test_reasons_are_those_of_the_model() -> None:
    report = grown(Picky(), torch.randn(2, 3, 16, 16), [3]).extract(0).report
    height, width = report.fixed[:2]
    assert height == "x: dimension 2: Input height (32) doesn't match model (16)"
    assert width.startswith("x: dimension 3: aten.mul is given a number that is 2.77")
    assert "network" not in width


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 16), nn.Linear(16, 4)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor) -> Any:
        h = self.embed(x)
        return self.head(self.attention(h, h, h, key_padding_mask=hidden)[0].mean(1))


def padded(batch: int, length: int) -> tuple[Tensor, Tensor]:
    hidden = torch.arange(length) >= torch.randint(1, length + 1, (batch, 1))
    return sequences(length, batch), hidden


def test_some_heads_of_each_input() -> None:
    """The mask of a head is one of batch times heads: which ones are kept depends on the batch."""
    torch.manual_seed(0)
    net: EideticNet = grown(Padded(), padded(2, 10), [3, 2])
    program = net.extract(1)
    assert "x: dimension 0" in program.report.dynamic
    assert not program.report.limits
    for batch, length in ((1, 10), (6, 7), (11, 1), (32, 23)):
        x = padded(batch, length)
        assert far(called(net, x, task=1), called(program, x)) < 1e-5
