"""Scores: the importance of each unit for the task in training.

A score function gets the network and the task's data. It returns a score for every parameter
element, which is summed over the elements of a unit, or a score for every unit. One registry:
``@score("name")``; a second registration raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...common import distributed
from ...errors import InputError
from ...propagate.values import core, varies

if TYPE_CHECKING:
    from ..network import Network

Array = np.ndarray
#: (network, batch) -> the loss on it.
Loss = Callable[["Network", Any], Tensor]
Worth = dict[str, Tensor] | Array


@dataclass(frozen=True)
class ScoreData:
    """The data of a score: batches of the task, and the loss on one of them."""

    batches: Iterable[Any]
    loss: Loss


@dataclass(frozen=True)
class Score:
    """A registered score; ``over_network`` is the part of pruning that one ranking decides."""

    function: Callable[[Network, ScoreData | None], Worth]
    over_network: float


_SCORES: dict[str, Score] = {}


def score(name: str, *, over_network: float = 0.0) -> Callable[[Any], Any]:
    """Register a score function: (network, data) -> a tensor of scores per parameter name.

    It may also return one score per unit, a vector of length ``net.call_plan.plan.units + 1``.
    ``data`` is None when the caller gave no loader.

    Args:
        name: what users pass as ``pruning=`` or ``by=``.
        over_network: how units are ranked. With 0 every group gives up the same share. With 1 the
            lowest units of the whole network go, after the scores of each group were scaled to
            length 1. In between, this part of the units that go is ranked over the network, and
            the rest is the same share of each group; less is ranked if the chosen units would hold
            less than three quarters of the parameters that equal shares would free.

    Example:
        >>> import autoeidetic
        >>> @autoeidetic.score("largest")
        ... def largest(net, data):
        ...     return {name: p.abs() == p.abs().max() for name, p in net.backbone.named_parameters()}
    """  # noqa: E501

    if not 0 <= over_network <= 1:
        raise InputError(
            f"over_network={over_network!r} is not between 0 and 1", remedy="pass 0.5, say"
        )

    def register(function: Any) -> Any:
        if name in _SCORES:
            raise InputError(
                f"there is a score {name!r} already", remedy="register it by another name"
            )
        _SCORES[name] = Score(function, over_network)
        return function

    return register


def named(name: str) -> Score:
    """A registered score.

    Raises:
        InputError: there is none of this name.
    """
    if name not in _SCORES:
        raise InputError(
            f"there is no score {name!r}", remedy=f"use one of {', '.join(sorted(_SCORES))}"
        )
    return _SCORES[name]


def unit_scores(net: Network, by: str, data: ScoreData | None) -> Array:
    """The score of every unit, summed over all its members; the same in all processes.

    Raises:
        InputError: there is no such score, it needs data, or a value is infinite or NaN.
    """
    # the mean, because each process scores its own batches and all must choose the same units
    result = distributed.mean(_by_unit(net, named(by).function(net, data)))
    if not np.isfinite(result).all():
        raise InputError(
            f"score {by!r} is infinite or NaN for {int((~np.isfinite(result)).sum())} units",
            remedy="call net.rollback() if training has diverged, or fix the score",
        )
    return result


def _by_unit(net: Network, worth: Worth) -> Array:
    plan = net.call_plan.plan
    if isinstance(worth, np.ndarray):
        return worth
    total = np.zeros(plan.units + 1)
    for name, entry in plan.parameters.items():
        if name in worth and not entry.head:
            _add(total, entry.units, worth[name])
    return total


def _add(total: Array, owner: Tensor, worth: Tensor) -> None:
    """Sum a parameter's scores by unit."""
    # worth (out, in, k, k), owner with stride 0 along in, k, k: sum these dimensions first, then
    # scatter `out` numbers instead of all of them
    constant = [d for d in range(owner.dim()) if d not in varies(owner)]
    summed = worth.detach()
    if constant:
        summed = summed.sum(constant, keepdim=True, dtype=torch.float64)
    index = core(owner).reshape(-1).numpy()
    np.add.at(total, index, summed.double().cpu().reshape(-1).numpy())


# -- the scores ----------------------------------------------------------------------------------


def _parameters(net: Network) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in net.backbone.named_parameters()}


@score("l1")
def l1(net: Network, data: Any) -> Worth:
    """Sum of absolute values."""
    return {name: p.abs() for name, p in _parameters(net).items()}


@score("l2")
def l2(net: Network, data: Any) -> Worth:
    """Sum of squares."""
    return {name: p.square() for name, p in _parameters(net).items()}


@score("random")
def random(net: Network, data: Any) -> Worth:
    """A random order, from torch's generator."""
    return torch.rand(net.call_plan.plan.units + 1, dtype=torch.float64).numpy()


@score("taylor", over_network=1.0)
def taylor(net: Network, data: ScoreData | None) -> Worth:
    """First-order Taylor expansion of the loss (Molchanov et al.), ranked over the network.

    How much the loss would change, to first order, if the unit were gone: the sum of gradient
    times weight over all its elements. Squared, and averaged over batches, in eval mode.
    """
    if data is None:
        raise InputError('by="taylor" needs data', remedy="pass loader=, of (inputs, labels)")
    total, batches = np.zeros(net.call_plan.plan.units + 1), 0
    with _own_gradients(net):
        for batch in data.batches:
            net.zero_grad(set_to_none=True)
            data.loss(net, batch).backward()
            # squared per unit and batch, after the sum over elements: the members of a unit go
            # together, so their first-order effects add, with their signs
            total += np.square(
                _by_unit(
                    net,
                    {
                        name: p.grad * p.detach()
                        for name, p in net.backbone.named_parameters()
                        if p.grad is not None
                    },
                )
            )
            batches += 1
    if not batches:
        raise InputError('by="taylor" got no batch', remedy="pass a loader that has some")
    return total / batches


@score("hybrid", over_network=0.75)
def hybrid(net: Network, data: ScoreData | None) -> Worth:
    """Taylor and magnitude together, three quarters of it ranked over the network.

    The geometric mean of two lengths: the change of the loss without the unit (the root of its
    Taylor score) and the norm of its parameters. A unit must be unimportant to both to go first.
    Lengths differ less than the squares that Taylor ranks, and a quarter of the units that go is
    the same share of every group: every layer frees some units, and layers with more to spare free
    more. In a transformer the ranking would take units inside the blocks and leave the residual
    stream to the task; there less is ranked.
    """
    # taylor = |dL|^2 and l2 = |w|^2, so this is sqrt(|dL| * |w|). Why both: gradients on a few
    # batches are noisy, and a large unit may happen to have none; a magnitude alone does not tell
    # whether the loss depends on the unit.
    influence, size = taylor(net, data), _by_unit(net, l2(net, data))
    return np.power(influence * size, 0.25)


@contextmanager
def _own_gradients(net: Network) -> Iterator[None]:
    """Eval mode, and gradients that the caller does not see."""
    kept = {name: p.grad for name, p in net.named_parameters()}
    training = net.training
    net.eval()
    try:
        yield
    finally:
        for name, p in net.named_parameters():
            p.grad = kept[name]
        net.train(training)
