"""Pruning leaves the groups of a grouped convolution equally large, so programs have no filling."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import autoeidetic
from autoeidetic.tasks.pruning.choose import choose

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def grouped(conv: Any = nn.Conv2d, groups: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 1), nn.ReLU(), conv(16, 24, 3, groups=groups), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5),
    )  # fmt: skip


def opened(model: nn.Module, transfer: bool = True) -> autoeidetic.EideticNet:
    net = autoeidetic.convert(model, IMAGE, forward_transfer=transfer)
    net.prepare_for_task(0, num_classes=2)
    return net


def units(net: autoeidetic.EideticNet, layer: int) -> np.ndarray:
    """The units of a layer's channels, by group of the convolution."""
    return net.call_plan.plan.parameters[f"{layer}.bias"].units.numpy().reshape(4, -1)


def kept(net: autoeidetic.EideticNet, layer: int) -> list[int]:
    """How many units each group has that the open task uses."""
    use = net.owners.in_training | (net.owners.task >= 0)
    return use[units(net, layer)].sum(1).tolist()


@pytest.mark.parametrize("conv", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("by", ["l2", "random"])
def test_equally_many_stay(conv: Any, by: str) -> None:
    net = opened(grouped(conv))
    net.prune(0.5, by=by)
    assert kept(net, 0) == [2] * 4
    assert kept(net, 2) == [3] * 4


def test_the_lowest_of_each_group_go() -> None:
    net = opened(grouped())
    scores = np.random.default_rng(0).random(net.call_plan.plan.units + 1)
    chosen = choose(net.call_plan, net.owners, scores, 0.5)
    for each in units(net, 2):
        assert scores[each[chosen[each]]].max() < scores[each[~chosen[each]]].min()


def test_rounds_go_on_where_a_group_has_less_than_one_each() -> None:
    net = opened(grouped())
    sizes = [sum(kept(net, 2))]
    for _ in range(12):
        net.prune(0.1)
        counts = kept(net, 2)
        assert max(counts) - min(counts) <= 1
        sizes.append(sum(counts))
    assert sizes[-1] < 8
    assert all(after <= before for before, after in pairwise(sizes))


def test_units_of_earlier_tasks_count() -> None:
    net = opened(grouped())
    uneven = np.zeros_like(net.owners.pruned)
    uneven[units(net, 2)[0]] = True
    uneven[units(net, 2)[1, :3]] = True
    net.give_up(uneven)
    net.finish_task()
    net.prepare_for_task(1, num_classes=2, on_full="reuse")
    net.prune(3 / 9)  # 9 units are free: 6 in the first group, 3 in the second
    assert sorted(kept(net, 2)) == [4, 5, 6, 6]


def test_programs_have_no_filling() -> None:
    net = opened(grouped())
    net.prune(0.5)
    net.finish_task()
    program = net.eval().extract(0)
    assert program.get_parameter("2.weight").shape == (12, 2, 3, 3)
    assert not (program.get_parameter("2.weight") == 0).any()


@pytest.mark.parametrize("groups", [1, 8])
def test_other_layers_have_no_blocks(groups: int) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=groups), nn.Flatten(), nn.Linear(288, 2)
    )
    plan = autoeidetic.analyze(model, IMAGE).plan
    assert not plan.blocks.any()
