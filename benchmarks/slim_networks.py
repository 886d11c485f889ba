"""The networks of the comparison in ``benchmarks/slim.py``, their data and their training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoeidetic.extract.program import Program
from benchmarks.learning_data import (
    Batches,
    Directory,
    Examples,
    crop_and_flip,
    fashion_mnist,
    normalised,
)

OURS, THEIRS = "autoeidetic", "Torch-Pruning"
CLASSES = 10
TRAIN, VALIDATION = 10_000, 2_000  # of the 60,000 training images; the others are not used
BATCH = 64
EPOCHS = 8
DECAY = 0.05


@dataclass(frozen=True)
class Tuning:
    """The highest learning rate, and whether the statistics of batch norms are trained, too."""

    lr: float
    statistics: bool = False

    def __str__(self) -> str:
        return f"rate {self.lr:g}" + (", statistics trained" if self.statistics else "")


@dataclass(frozen=True)
class Network:
    """How a network is built, its highest learning rate, and how copies of each tool are tuned."""

    build: Callable[[], nn.Module]
    lr: float
    tuning: dict[str, Tuning]


@dataclass(frozen=True)
class Data:
    """Fashion-MNIST: training and validation images from its training part, and its test part."""

    train: Examples
    validation: Examples
    test: Examples


def resnet() -> nn.Module:
    """timm's ResNet-18 with a quarter of its channels, a deep stem and no pooling."""
    model = timm.create_model(
        "resnet18",
        num_classes=CLASSES,
        in_chans=1,
        stem_type="deep",
        stem_width=8,
        channels=(16, 32, 64, 128),
    )
    model.maxpool = nn.Identity()
    return model


def vit() -> nn.Module:
    """timm's ViT with four blocks of 96 channels, six heads, and patches of 7 pixels."""
    return timm.create_model(
        "vit_tiny_patch16_224",
        num_classes=CLASSES,
        in_chans=1,
        img_size=28,
        patch_size=7,
        embed_dim=96,
        depth=4,
        num_heads=6,
    )


def mobilenet() -> nn.Module:
    """timm's smallest MobileNetV3, whose first convolution keeps the size of these small images."""
    model = timm.create_model("mobilenetv3_small_050", num_classes=CLASSES, in_chans=1)
    model.conv_stem.stride = (1, 1)
    return model


def _tuned(ours: Tuning, theirs: Tuning) -> dict[str, Tuning]:
    return {OURS: ours, THEIRS: theirs}


#: Chosen on the validation images (``--tune``).
NETWORKS = {
    "resnet": Network(
        resnet, 3e-3, _tuned(Tuning(4e-3, statistics=True), Tuning(8e-3, statistics=True))
    ),
    "vit": Network(vit, 2e-3, _tuned(Tuning(2e-3), Tuning(2e-3))),
    "mobilenet": Network(
        mobilenet, 3e-3, _tuned(Tuning(4e-3, statistics=True), Tuning(8e-3, statistics=True))
    ),
}


def read(directory: Directory) -> Data:
    images = fashion_mnist(directory)
    both = TRAIN + VALIDATION
    some = normalised(Examples(images.train.x[:both], images.train.y[:both]), images)
    return Data(
        Examples(some.x[:TRAIN], some.y[:TRAIN]),
        Examples(some.x[TRAIN:], some.y[TRAIN:]),
        normalised(images.test, images),
    )


def example() -> Tensor:
    return torch.zeros(1, 1, 28, 28)


def batches(examples: Examples, seed: int) -> Batches:
    """Shuffled batches; half of the images are mirrored."""
    return Batches(*examples, BATCH, seed=seed, transform=_mirror)


def _mirror(x: Tensor, generator: torch.Generator | None) -> Tensor:
    return crop_and_flip(x, generator, padding=0)


def train(
    model: nn.Module,
    examples: Examples,
    epochs: int,
    lr: float,
    seed: int,
    *,
    statistics: bool = True,
) -> float:
    """Train with AdamW and one cycle of the learning rate; returns the seconds.

    Without ``statistics`` batch norms keep those that they have.
    """
    torch.manual_seed(seed)
    loader = batches(examples, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
    start = time.perf_counter()
    model.train()
    if isinstance(model, Program):
        model.learn_statistics(statistics)
    for layer in batch_norms(model):
        layer.train(statistics)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    return time.perf_counter() - start


def has_batch_norms(model: nn.Module) -> bool:
    """Whether a model, or a program, has statistics of batch norms."""
    return any(name.endswith("running_mean") for name, _ in model.named_buffers())


def batch_norms(model: nn.Module) -> list[nn.Module]:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    return [layer for layer in model.modules() if isinstance(layer, kinds)]


def trained(name: str, seed: int, data: Data, folder: Path) -> nn.Module:
    """The trained network, loaded if an earlier call has stored it."""
    file = folder / f"slim-{name}-seed{seed}.pt"
    torch.manual_seed(seed)
    model = NETWORKS[name].build()
    if not file.exists():
        train(model, data.train, EPOCHS, NETWORKS[name].lr, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        # In two steps: a stopped run leaves no incomplete file of this name.
        torch.save(model.state_dict(), file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)
    model.load_state_dict(torch.load(file, weights_only=True))
    return model.eval()
