"""Inputs and weights of the stress test."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...common.inputs import CallInputs
from .models import batch

SMALL = (96, 128, 112)  # image sizes tried before a model's own, for speed
CLASSES = 10


def small_batch(model: nn.Module) -> CallInputs:
    """A batch of images of the first size that the model accepts in eval and in train mode.

    Inputs other than images have the model's own size.
    """
    inputs = batch(model)
    if inputs.kwargs or inputs.args[0].dim() != 4:
        return inputs
    count, channels, *own = inputs.args[0].shape
    for size in SMALL:
        x = torch.randn(count, channels, size, size)
        if size < min(own) and _accepts(model, x):
            return CallInputs((x,), {})
    return inputs


def varied(inputs: CallInputs) -> CallInputs:
    """Varied inputs: noise is added to floats, some token ids are exchanged."""
    args, kwargs = pytree.tree_map_only(Tensor, _varied, (inputs.args, inputs.kwargs))
    return CallInputs(args, kwargs)


def _varied(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return x + 0.1 * torch.randn_like(x)
    # Ids from the same batch: always valid, whatever the vocabulary is.
    shuffled = x.flatten()[torch.randperm(x.numel())].view_as(x)
    return torch.where(torch.rand(x.shape) < 0.2, shuffled, x)


def _accepts(model: nn.Module, x: Tensor) -> bool:
    before = model.training
    try:
        with torch.no_grad():
            for mode in (model.eval(), model.train()):
                mode(x)
    except Exception:  # a model may raise anything at another size
        return False
    finally:
        model.train(before)
    return True


def randomize(model: nn.Module) -> None:
    """Randomise constant values: affine parameters, layer scales, biases, running statistics.

    A norm with weight 1 and bias 0, or a residual branch that starts at 0, would hide a leak.
    Weights that are already random stay, so that signals keep their scale.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() <= 1 or bool((parameter == parameter.flatten()[0]).all()):
                parameter.copy_(_randomized(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.2)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def _randomized(parameter: Tensor) -> Any:
    """Random values around the mean if that is large; otherwise small and not zero."""
    center = float(parameter.float().mean())
    # Zeros: small values of both signs. Ones: within 40 % of 1, so that signals keep their scale.
    if abs(center) < 0.1:
        return torch.empty_like(parameter).uniform_(0.05, 0.2) * _signs(parameter)
    return center * torch.empty_like(parameter).uniform_(0.6, 1.4)


def _signs(parameter: Tensor) -> Tensor:
    return torch.where(torch.rand(parameter.shape) < 0.5, -1.0, 1.0)
