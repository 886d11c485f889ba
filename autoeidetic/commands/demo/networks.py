"""The networks: a stock timm model, and the same model with one head per task for fine-tuning."""

from __future__ import annotations

from typing import Any

import timm
from torch import Tensor, nn

NAME = "resnet10t"
#: Grey images and a quarter of the usual width, because the data set is small.
ARGUMENTS: dict[str, Any] = {"in_chans": 1, "stem_width": 16, "channels": (32, 64, 96, 128)}


def stock_network(num_classes: int = 2) -> nn.Module:
    """The model of ``timm.create_model``, unchanged."""
    return timm.create_model(NAME, num_classes=num_classes, **ARGUMENTS)


class FineTuned(nn.Module):
    """The same network for fine-tuning: all tasks share the body, each has its own head."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.body = stock_network(num_classes=0)
        width = ARGUMENTS["channels"][-1]
        self.heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(tasks))

    def forward(self, images: Tensor, task: int) -> Tensor:
        return self.heads[task](self.body(images))
