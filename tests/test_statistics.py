"""Running statistics that lag behind the weights: estimated anew before anything relies on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import autoeidetic


def network(width: int = 24, momentum: float | None = 0.1) -> autoeidetic.EideticNet:
    """Two convolutions with batch norms."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=momentum),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=momentum),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2),
    )  # fmt: skip
    return autoeidetic.convert(model, torch.randn(2, 1, 8, 8))


def batches(task: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Four batches of images: in one class the upper half is brighter, or the left one."""
    generator = torch.Generator().manual_seed(1 + task)
    x, y = 3 + 2 * torch.randn(64, 1, 8, 8, generator=generator), torch.arange(64) % 2
    x[y == 1] += (torch.arange(8) < 4).view((1, 8, 1) if task % 2 == 0 else (1, 1, 8))
    return list(zip(x.split(16), y.split(16), strict=True))


def adam(net: nn.Module, lr: float = 0.003) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=lr)


def test_a_task_of_few_steps_is_not_frozen_at_chance() -> None:
    """Training accuracy of 0.875, and 0.5 in eval mode with statistics of the first steps."""
    net = network()
    net.prepare_for_task(0, num_classes=2)
    history = net.train_task(
        batches(), optimizer=adam(net), max_epochs=4, step=0.1, tolerance=0.03, progress=False
    )
    reached = max(epoch.accuracy for epoch in history.epochs if epoch.phase == "train")
    assert reached > 0.8
    assert history.accuracy >= reached - 0.03
    net.finish_task()
    assert autoeidetic.evaluate(net, [batches()]).average == history.accuracy
