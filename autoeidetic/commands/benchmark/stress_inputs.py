"""What the torture shows a model, and weights that hide nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...common.inputs import CallInputs
from .models import batch

SMALL = (96, 128, 112)  # pixels tried before a model's own size, for speed
CLASSES = 10


def small_batch(model: nn.Module) -> CallInputs:
    """Images of the smallest size that the model takes as it is, in eval and in train mode.

    Other inputs than images are of the model's own size.
    """
    inputs = batch(model)
    if inputs.kwargs or inputs.args[0].dim() != 4:
        return inputs
    count, channels, *own = inputs.args[0].shape
    for size in SMALL:
        x = torch.randn(count, channels, size, size)
        if size < min(own) and _takes(model, x):
            return CallInputs((x,), {})
    return inputs


def varied(inputs: CallInputs) -> CallInputs:
    """Other inputs: noise on numbers, a few words exchanged."""
    args, kwargs = pytree.tree_map_only(Tensor, _varied, (inputs.args, inputs.kwargs))
    return CallInputs(args, kwargs)


def _varied(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return x + 0.1 * torch.randn_like(x)
    shuffled = x.flatten()[torch.randperm(x.numel())].view_as(x)
    return torch.where(torch.rand(x.shape) < 0.2, shuffled, x)


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
