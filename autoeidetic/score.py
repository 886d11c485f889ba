"""Score: how much each class is worth to the task in training.

A score function gets the network and returns, for every parameter element, a value that is summed
over the elements of a class. One registry: ``@score("name")``; a second registration raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .errors import InputError
from .values import core, varies

if TYPE_CHECKING:
    from .net import EideticNet

Array = np.ndarray
Score = Callable[["EideticNet", Any], dict[str, Tensor]]
_SCORES: dict[str, Score] = {}


def score(name: str) -> Callable[[Score], Score]:
    """Register a score function: (network, loader) -> a tensor of worths per parameter name."""

    def register(function: Score) -> Score:
        if name in _SCORES:
            raise InputError(
                f"there is a score {name!r} already", remedy="register it by another name"
            )
        _SCORES[name] = function
        return function

    return register


def class_scores(net: EideticNet, by: str, loader: Iterable[Any] | None) -> Array:
    """The score of every class, over all its members.

    Raises:
        InputError: no such score, or it needs a loader.
    """
    if by not in _SCORES:
        raise InputError(f"by={by!r} is unknown", remedy=f"use one of {', '.join(sorted(_SCORES))}")
    plan = net.blueprint.plan
    total = np.zeros(plan.classes + 1)
    worth = _SCORES[by](net, loader)
    for name, entry in plan.parameters.items():
        if name in worth and not entry.head:
            _add(total, entry.owner, worth[name])
    return total


def _add(total: Array, owner: Tensor, worth: Tensor) -> None:
    """Sum a parameter's worths by class."""
    constant = [d for d in range(owner.dim()) if d not in varies(owner)]
    summed = worth.detach().double().cpu()
    if constant:
        summed = summed.sum(constant, keepdim=True)
    index = core(owner).reshape(-1).numpy()
    np.add.at(total, index, summed.reshape(-1).numpy())


def _parameters(net: EideticNet) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in net.backbone.named_parameters()}


@score("l1")
def l1(net: EideticNet, loader: Any) -> dict[str, Tensor]:
    """Sum of absolute values."""
    return {name: p.abs() for name, p in _parameters(net).items()}


@score("l2")
def l2(net: EideticNet, loader: Any) -> dict[str, Tensor]:
    """Sum of squares."""
    return {name: p.square() for name, p in _parameters(net).items()}


@score("random")
def random(net: EideticNet, loader: Any) -> dict[str, Tensor]:
    """A random order, from torch's generator."""
    return {name: torch.rand(p.shape) for name, p in _parameters(net).items()}


@score("taylor")
def taylor(net: EideticNet, loader: Iterable[Any] | None) -> dict[str, Tensor]:
    """First-order Taylor expansion of the loss (Molchanov et al.): (gradient x weight) squared.

    Gradients of a cross entropy over the loader's (inputs, labels), in eval mode.
    """
    if loader is None:
        raise InputError('by="taylor" needs data', remedy="pass loader=, of (inputs, labels)")
    kept = {name: p.grad for name, p in net.named_parameters()}
    training = net.training
    net.eval()
    try:
        net.zero_grad(set_to_none=True)
        for inputs, labels in loader:
            torch.nn.functional.cross_entropy(net(inputs), labels).backward()
        return {
            name: (p.grad * p.detach()).square()
            for name, p in net.backbone.named_parameters()
            if p.grad is not None
        }
    finally:
        for name, p in net.named_parameters():
            p.grad = kept[name]
        net.train(training)
