"""What learns, learns in full: restricted gradients are those of plain autograd.

Backward passes leave out what frozen units would need. What the open task trains must get the
gradient that it would get without any such restriction, after pruning as well.
"""

from __future__ import annotations

from typing import Any

import lives
import pytest
import timm
import torch
from proof.test_lives import NOT_DIFFERENTIABLE, REFUSED, UNHANDLED
from sweeps import every_fourth
from torch import Tensor, nn
from zoo import ZOO

import autoeidetic
from autoeidetic.net import EideticNet

NAMES = sorted(set(ZOO) - set(REFUSED) - set(UNHANDLED) - NOT_DIFFERENTIABLE)


def gradients(net: EideticNet, inputs: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net.train()
    net.zero_grad()
    lives.loss_of(lives.call(net, inputs)).backward()
    return {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}


def unrestricted(net: EideticNet, inputs: Any) -> dict[str, Tensor]:
    """As for a caller who wants the gradient of the inputs; these may be integers."""

    def lift(*_: Any) -> None:
        net.runtime.restrict = False

    hook = net.backbone.register_forward_pre_hook(lift)
    try:
        return gradients(net, inputs)
    finally:
        hook.remove()


def compare(net: EideticNet, inputs: Any) -> None:
    buffers = {buffer: buffer.clone() for buffer in net.buffers()}
    restricted = gradients(net, inputs)
    for buffer, value in buffers.items():  # a spectral norm goes on with every pass
        buffer.copy_(value)
    plain = unrestricted(net, inputs)
    largest = max(float(each.abs().max()) for each in plain.values())
    assert largest > 0
    for name, expected in plain.items():
        found = restricted.get(name, torch.zeros_like(expected))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * largest, msg=name)


@pytest.mark.parametrize("name", every_fourth(NAMES))
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
def test_open_task(name: str) -> None:
    check(*ZOO[name]())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["test_vit", "test_convnext", "test_efficientnet_gn", "test_mambaout", "test_nfnet"]
)
def test_timm(name: str) -> None:
    model = timm.create_model(name)
    check(model, torch.randn(4, *model.default_cfg["input_size"]))


def check(model: nn.Module, inputs: Any) -> None:
    """Whole and pruned; the first task, and one on top of it."""
    net = autoeidetic.convert(lives.randomise(model), inputs)
    for task in (0, 1):
        net.prepare_for_task(task, num_classes=3, on_full="reuse")
        compare(net, inputs)
        net.prune(0.4, by="random")
        compare(net, inputs)
        net.finish_task()
