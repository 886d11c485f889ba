"""Bitwise means bitwise: the sign of a zero is a bit, too."""

from __future__ import annotations

import lives
import pytest
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic.commands.benchmark import stress_test
from autoeidetic.common.bits import different, same
from autoeidetic.proof import verify

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OTHERS = (torch.complex64, torch.int64, torch.int32, torch.uint8, torch.bool)


def brute_force(left: Tensor, right: Tensor) -> list[bool]:
    """Element by element, by the bytes in memory."""

    def memory(element: Tensor) -> list[int]:
        return element.reshape(1).view(torch.uint8).tolist()

    pairs = zip(left.flatten(), right.flatten(), strict=True)
    return [memory(a) != memory(b) for a, b in pairs]


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS], ids=str)
def test_against_the_bytes_in_memory(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    left = torch.randint(-3, 4, (5, 8), generator=generator).to(dtype)
    right = torch.where(torch.rand(5, 8, generator=generator) < 0.5, left, left[0, 0])
    if dtype in FLOATS:
        right = torch.where(right == 0, -right, right)
    expected = brute_force(left, right)
    assert any(expected)
    assert not all(expected)
    assert different(left, right).flatten().tolist() == expected
    assert torch.equal(different(left.t(), right.t()), different(left, right).t())
    assert not same(left.t(), right.t())
    assert same(left.t(), left.t().clone())


def test_signs_of_zero_and_nan() -> None:
    zero, minus, nan = torch.tensor([0.0]), torch.tensor([-0.0]), torch.tensor([torch.nan])
    assert different(zero, minus).all()
    assert not different(nan, -nan).any()
    assert different(nan, zero).all()
    assert not same(zero, minus)
    assert not same(zero, zero.double())
    assert not same(zero, torch.zeros(2))
    assert verify.compare([zero], [minus]) == (1, 1, 0.0)
    assert stress_test.differing(zero, minus) == 1
    assert not lives.same([zero], [minus])
    assert not lives.same([nan], [nan])


@pytest.mark.parametrize("name", ["0.bias", "2.weight"])
def test_the_sign_of_a_pinned_zero_is_put_back(name: str) -> None:
    """A frozen value that is zero, and zeros that keep free units out of frozen ones."""
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    net = autoeidetic.convert(model, torch.randn(4, 3))
    net.prepare_for_task(0, num_classes=2)
    with torch.no_grad():
        net.backbone.get_parameter("0.bias").zero_()
    net.prune(0.5)
    net.finish_task()
    net.prepare_for_task(1, num_classes=2)
    parameter = net.backbone.get_parameter(name)
    zeros = parameter == 0
    assert zeros.any()
    with torch.no_grad():
        parameter.copy_(torch.where(zeros, -parameter, parameter))
    net(torch.randn(4, 3))
    assert not parameter.signbit()[zeros].any()
