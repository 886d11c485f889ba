"""Networks: a stock one of timm, and the same with a head for each task, to be fine-tuned."""

from __future__ import annotations

from typing import Any

import timm
from torch import Tensor, nn

NAME = "resnet10t"
#: Grey images, and a quarter of the usual width: the images are small and there are few of them.
ARGUMENTS: dict[str, Any] = {"in_chans": 1, "stem_width": 16, "channels": (32, 64, 96, 128)}


def stock_network(num_classes: int = 2) -> nn.Module:
    """What ``timm.create_model`` makes, and nothing else."""
    return timm.create_model(NAME, num_classes=num_classes, **ARGUMENTS)


class FineTuned(nn.Module):
    """The same network in ordinary use: all tasks share the body, each has a head of its own."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.body = stock_network(num_classes=0)
        width = ARGUMENTS["channels"][-1]
        self.heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(tasks))

    def forward(self, images: Tensor, task: int) -> Tensor:
        return self.heads[task](self.body(images))
