"""The models of the torture matrix: how they are built, what they are shown, random affines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

#: The smallest of each of torchvision's classification families.
TORCHVISION = """
alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3
maxvit_t mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf resnet18 resnext50_32x4d
shufflenet_v2_x0_5 squeezenet1_0 swin_t swin_v2_t vgg11 vgg11_bn vit_b_16 wide_resnet50_2
""".split()

SMALL = (96, 128, 112)  # tried before a model's own size, for speed
BATCH = 2
CLASSES = 10


def build(name: str) -> nn.Module:
    """A timm model, or one of torchvision's by ``torchvision/name``; random weights."""
    if name.startswith("torchvision/"):
        import torchvision

        name = name.removeprefix("torchvision/")
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(name, num_classes=CLASSES, **options)
    import timm

    return timm.create_model(name, num_classes=CLASSES)


def image(model: nn.Module) -> Tensor:
    """A batch of the smallest size that the model takes as it is, in eval and in train mode."""
    from autoeidetic.inputs import call_inputs

    channels, *own = call_inputs(model).args[0].shape[1:]
    for size in SMALL:
        x = torch.randn(BATCH, channels, size, size)
        if size < min(own) and _takes(model, x):
            return x
    return torch.randn(BATCH, channels, *own)


def _takes(model: nn.Module, x: Tensor) -> bool:
    try:
        with torch.no_grad():
            for mode in (model.eval(), model.train()):
                mode(x)
    except Exception:  # whatever a model raises at a size that is not its own
        return False
    return True


def randomize(model: nn.Module) -> None:
    """No ones, no zeros: affine parameters, layer scales, biases and running statistics.

    A norm with weight 1 and bias 0 or a residual branch that starts at 0 would hide what leaks.
    Weights that are random already stay, so that signals keep their size.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() <= 1 or bool((parameter == parameter.flatten()[0]).all()):
                parameter.copy_(_shaken(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.2)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def _shaken(parameter: Tensor) -> Any:
    """Around what it was when that was large; small but not zero otherwise."""
    center = float(parameter.float().mean())
    if abs(center) < 0.1:
        return torch.empty_like(parameter).uniform_(0.05, 0.2) * _signs(parameter)
    return center * torch.empty_like(parameter).uniform_(0.6, 1.4)


def _signs(parameter: Tensor) -> Tensor:
    return torch.where(torch.rand(parameter.shape) < 0.5, -1.0, 1.0)
