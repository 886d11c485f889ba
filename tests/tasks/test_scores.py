"""Scores and what is pruned by them, against brute force that shares no code with them."""

from __future__ import annotations

from typing import Any

import lives
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autoeidetic
from autoeidetic.errors import InputError
from autoeidetic.tasks.pruning.choose import choose
from autoeidetic.tasks.pruning.scores import ScoreData, unit_scores

X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BATCHES = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 40, 10)]


def network(*widths: int) -> autoeidetic.EideticNet:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in zip((5, *widths), widths, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 2))
    net = autoeidetic.convert(model, X)
    net.prepare_for_task(0, num_classes=2)
    return net


def loss(net: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def units(net: autoeidetic.EideticNet, layer: int) -> list[int]:
    """The classes of a layer's rows."""
    return net.call_plan.plan.parameters[f"{2 * layer}.bias"].units.tolist()


@pytest.mark.parametrize("by", ["l1", "l2"])
def test_magnitudes(by: str) -> None:
    net = network(6, 7)
    scores = unit_scores(net, by, None)
    power = int(by[1])
    for layer in range(2):
        linear = net.backbone[2 * layer]
        rows = torch.cat([linear.weight, linear.bias[:, None]], 1).detach().abs() ** power
        found = torch.tensor(scores[units(net, layer)])
        torch.testing.assert_close(found, rows.sum(1).double())


def test_taylor_is_the_loss_without_the_unit_to_first_order() -> None:
    """The derivative of the loss by a common factor on a unit's own parameters."""
    net = network(6, 7)
    scores = unit_scores(net, "taylor", ScoreData(BATCHES, loss))
    net.eval()
    for layer in range(2):
        linear = net.backbone[2 * layer]
        for row, unit in enumerate(units(net, layer)):
            kept = linear.weight.detach().clone(), linear.bias.detach().clone()
            slopes = []
            for batch in BATCHES:
                values = []
                for factor in (1.01, 0.99):
                    with torch.no_grad():
                        linear.weight[row] = kept[0][row] * factor
                        linear.bias[row] = kept[1][row] * factor
                        values.append(loss(net.double(), (batch[0].double(), batch[1])))
                        net.float()
                        linear.weight.copy_(kept[0])
                        linear.bias.copy_(kept[1])
                slopes.append(float(values[0] - values[1]) / 0.02)
            assert scores[unit] == pytest.approx(np.mean(np.square(slopes)), rel=0.05, abs=1e-9)


def test_taylor_leaves_no_trace() -> None:
    net = network(6, 7)
    net.train()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    with lives.unchanged(net):
        unit_scores(net, "taylor", ScoreData(BATCHES, loss))
    assert all((p.grad == 1).all() for p in net.parameters())


def test_hybrid_is_between_its_parents() -> None:
    """The geometric mean of the change of the loss and the norm of the parameters."""
    net = network(6, 7)
    data = ScoreData(BATCHES, loss)
    taylor, l2, hybrid = (unit_scores(net, by, data) for by in ("taylor", "l2", "hybrid"))
    assert np.allclose(np.square(hybrid), np.sqrt(taylor) * np.sqrt(l2))
    assert hybrid[units(net, 0)].min() > 0


def pruned(
    net: autoeidetic.EideticNet, scores: Any, fraction: float, over_network: float
) -> list[int]:
    """How many units each layer gives up."""
    vector = np.zeros(net.call_plan.plan.units + 1)
    for layer, values in enumerate(scores):
        vector[units(net, layer)] = values
    chosen = choose(net.call_plan, net.owners, vector, fraction, over_network=over_network)
    for layer, values in enumerate(scores):
        own = np.asarray(units(net, layer))
        gone = chosen[own]
        if gone.any() and not gone.all():
            assert np.asarray(values)[gone].max() <= np.asarray(values)[~gone].min()
    return [int(chosen[units(net, layer)].sum()) for layer in range(len(scores))]


def test_ranking() -> None:
    """The same share of each layer, or the lowest of all."""
    net = network(10, 10)
    low, high = np.linspace(0.1, 1, 10), np.linspace(0.9, 1, 10)
    assert pruned(net, (low, high), 0.4, 0.0) == [4, 4]
    # divided by their lengths, 8 of the 20 are taken
    every = np.concatenate([low / np.linalg.norm(low), high / np.linalg.norm(high)])
    lowest = np.argsort(every)[:8]
    by_rank = [int((lowest < 10).sum()), int((lowest >= 10).sum())]
    assert by_rank[0] > by_rank[1]
    assert pruned(net, (low, high), 0.4, 1.0) == by_rank


def test_part_of_it_ranked() -> None:
    """Every layer gives up its fixed part, however high its scores; the number is the same."""
    net = network(20, 20)
    low, high = np.r_[np.linspace(0.001, 0.01, 16), np.ones(4)], np.linspace(50, 51, 20)
    ranked = pruned(net, (high, low), 0.4, 1.0)
    assert ranked[0] == 0
    for part in (0.25, 0.5, 0.75):
        found = pruned(net, (high, low), 0.4, part)
        assert sum(found) == sum(ranked) == 16
        assert found[0] == round((1 - part) * 0.4 * 20)


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75, 0.95])
def test_what_goes_holds_parameters(part: float) -> None:
    """Units of the first layer have 5 weights and a bias, of the second 40 and a bias."""
    net = network(40, 20)
    low, high = np.r_[np.linspace(0.001, 0.01, 36), np.ones(4)], np.linspace(50, 51, 20)
    assert pruned(net, (low, high), 0.5, 1.0) == [30, 0]
    first, second = pruned(net, (low, high), 0.5, part)
    assert first + second == 30
    parameters = first * 6 + second * 41
    fixed = round((1 - part) * 0.5 * 20)
    assert parameters >= 0.75 * 0.5 * (40 * 6 + 20 * 41)
    assert fixed <= second <= max(fixed, 10)
    if second > fixed:  # no more than it takes, up to the steps in which it is looked for
        assert parameters < 0.75 * 0.5 * (40 * 6 + 20 * 41) + 3 * 41


def test_wrong_part() -> None:
    with pytest.raises(InputError, match="over_network=2"):
        autoeidetic.score("test-nothing", over_network=2)


def test_no_layer_is_emptied_across_the_network() -> None:
    net = network(10, 10)
    nothing, much = np.full(10, 1e-9), np.arange(1.0, 11)
    nothing[0] = 1.0  # alone it has all the length of its group
    assert pruned(net, (nothing, much), 1.0, 1.0) == [9, 9]


def test_since_start_adds_up() -> None:
    net = network(8, 8)
    for share, expected in ((0.05, 0), (0.1, 1), (0.15, 1), (0.2, 2), (0.5, 4), (0.4, 4)):
        net.prune(share, since_start=True)
        gone = net.owners.pruned[units(net, 0)].sum()
        assert gone == expected, share


def test_own_score_per_class_and_per_element() -> None:
    @autoeidetic.score("test-last")
    def last(net: Any, data: Any) -> Any:
        return np.arange(net.call_plan.plan.units + 1, dtype=float)

    net = network(6, 6)
    net.prune(0.5, by="test-last")
    assert net.owners.pruned[units(net, 0)].tolist() == [True] * 3 + [False] * 3
    with pytest.raises(InputError, match="there is a score 'test-last' already"):
        autoeidetic.score("test-last")(last)


def test_scores_that_are_no_numbers() -> None:
    @autoeidetic.score("test-nan")
    def nan(net: Any, data: Any) -> Any:
        return {name: p * float("nan") for name, p in net.backbone.named_parameters()}

    net = network(6, 6)
    with lives.unchanged(net), pytest.raises(InputError, match="infinite or NaN"):
        net.prune(0.5, by="test-nan")


@pytest.mark.parametrize("by", ["taylor", "hybrid"])
def test_needs_data(by: str) -> None:
    net = network(6, 6)
    with lives.unchanged(net), pytest.raises(InputError, match="needs data"):
        net.prune(0.5, by=by)
    with lives.unchanged(net), pytest.raises(InputError, match="got no batch"):
        net.prune(0.5, by=by, loader=[])
    net.prune(0.5, by=by, loader=BATCHES)
