"""The networks of the learning runs: timm models and multi-layer perceptrons.

ResNet-18 and ViT-tiny need 40 to 50 seconds on one core for an epoch of 5000 images of 32 pixels;
each has a slim variant made with timm's arguments only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
from torch import nn

from benchmarks.learning_data import Directory, lite0_weights


@dataclass(frozen=True)
class Network:
    """How a model is built, and the shape of one example."""

    build: Callable[..., nn.Module]
    shape: tuple[int, ...]


def paper_mlp(classes: int = 10, *, width: int = 2000, dropout: float = 0.1) -> nn.Module:
    """The paper's network for permuted MNIST: two hidden layers of 2000 units."""
    return _mlp(784, width, classes, dropout)


def small_mlp(classes: int = 2, *, width: int = 400) -> nn.Module:
    """Two hidden layers of 400 units, as usual for split MNIST."""
    return _mlp(784, width, classes, dropout=0.0)


def _mlp(inputs: int, width: int, classes: int, dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(width, classes),
    )  # fmt: skip


def resnet18(classes: int = 20) -> nn.Module:
    """timm's unchanged ResNet-18, here for images of 32 pixels."""
    return timm.create_model("resnet18", num_classes=classes)


def resnet18_slim(classes: int = 20, *, width: int = 32, pool: bool = True) -> nn.Module:
    """timm's ResNet-18, half as wide, with timm's deep stem of 3x3 convolutions.

    Without the stem's pooling, every map has twice the height and width and takes twice the time.
    """
    model = timm.create_model(
        "resnet18",
        num_classes=classes,
        stem_type="deep",
        stem_width=width // 2,
        channels=(width, 2 * width, 4 * width, 8 * width),
    )
    if not pool:
        model.maxpool = nn.Identity()
    return model


def vit_tiny(classes: int = 20, **options: Any) -> nn.Module:
    """timm's ViT-tiny for images of 32 pixels in patches of 8.

    It has twelve heads of 16 channels instead of three of 64: a head is the smallest part of the
    attention that a task can own, and three heads cannot be divided between five tasks.
    """
    options = {"img_size": 32, "patch_size": 8, "num_heads": 12} | options
    return timm.create_model("vit_tiny_patch16_224", num_classes=classes, **options)


def vit_tiny_slim(classes: int = 20) -> nn.Module:
    """The same with six blocks."""
    return vit_tiny(classes, depth=6)


def efficientnet_lite0(*, directory: Directory = None, frozen_norms: bool = True) -> nn.Module:
    """timm's ``tf_efficientnet_lite0`` with weights and statistics of ImageNet.

    Batch norms keep their ImageNet statistics, as usual with 120 images per task: statistics of the
    first pair would not suit the other four.
    """
    model = timm.create_model("tf_efficientnet_lite0")
    model.load_state_dict(lite0_weights(directory))
    return timm.layers.freeze_batch_norm_2d(model) if frozen_norms else model


NETWORKS = {
    "paper_mlp": Network(paper_mlp, (784,)),
    "small_mlp": Network(small_mlp, (1, 28, 28)),
    "resnet18": Network(resnet18, (3, 32, 32)),
    "resnet18_slim": Network(resnet18_slim, (3, 32, 32)),
    "vit_tiny": Network(vit_tiny, (3, 32, 32)),
    "vit_tiny_slim": Network(vit_tiny_slim, (3, 32, 32)),
    "efficientnet_lite0": Network(efficientnet_lite0, (3, 224, 224)),
}
