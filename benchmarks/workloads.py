"""The models and batches on which the costs of a converted network are measured."""

from __future__ import annotations

import copy
import warnings
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.reference_masks import ReferenceNet

CLASSES = 10
IMAGES = (16, 3, 64, 64)
BATCHES: dict[str, tuple[int, ...]] = {
    "resnet18": IMAGES,
    "vit_tiny": (16, 3, 96, 96),
    "mlp": (256, 784),
}


def build(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The plain model, a batch and its labels; one thread from here on."""
    import timm

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if name == "mlp":
        model = mlp(784, 2000, 2000, 2000, CLASSES)
    elif name == "vit_tiny":
        model = timm.create_model("vit_tiny_patch16_224", img_size=96, num_classes=CLASSES)
    else:
        model = timm.create_model(name, num_classes=CLASSES)
    shape = BATCHES.get(name, IMAGES)
    return model, torch.randn(shape), torch.randint(CLASSES, shape[:1])


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, next_wide in pairwise(widths):
        layers += [nn.Linear(wide, next_wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def masked(model: nn.Module, x: Tensor) -> ReferenceNet:
    """A copy with the masks of the reference implementation, ready to train task 0."""
    return ReferenceNet(copy.deepcopy(model), x)


def converted(model: nn.Module, x: Tensor) -> Any:
    """A converted copy, ready to train task 0."""
    import autoeidetic

    net = autoeidetic.convert(copy.deepcopy(model), x, inplace=True)
    net.prepare_for_task(0, num_classes=CLASSES)
    return net
