"""Batch and instance norm in which some channels learn and the others are frozen.

    channel            0        1        2        3             active = [1, 3]
    normalised with    running  batch    running  batch
    running stats      stay     updated  stay     updated

Active channels use the statistics of the batch (of the instance) and update their running ones;
all others are normalised with their running statistics, in training as in evaluation.

The whole tensor is normalised in evaluation mode first, so that frozen channels go through one
kernel of one shape; the active channels are gathered, normalised in training mode, and put over it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# The text of stock's error. Raised here: stock would name the size of the gathered channels.
_TOO_FEW = "Expected more than 1 {} when training, got input size {}"


def batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    active: Tensor,
    *,
    restrict: bool = True,
) -> Tensor:
    """`F.batch_norm`, in training for the `active` channels and in evaluation for the others.

    With `restrict` only active channels get gradients, at a cost that is proportional to
    their number; without it the others get those of the evaluation formula.

    >>> x, mean, var = torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.zeros(2), torch.ones(2)
    >>> batch_norm(x, mean, var, None, None, 0.5, 1e-9, torch.tensor([1])).tolist()
    [[0.0, -1.0], [2.0, 1.0]]
    >>> mean.tolist(), var.tolist()
    ([0.0, 0.5], [1.0, 1.5])
    """
    if active.shape[0] > 0 and x.numel() == x.shape[1]:
        raise ValueError(_TOO_FEW.format("value per channel", x.size()))
    return _norm(
        F.batch_norm, x, running_mean, running_var, weight, bias, momentum, eps, active, restrict
    )


def instance_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    active: Tensor,
    *,
    restrict: bool = True,
) -> Tensor:
    """`F.instance_norm`, with the instance's statistics for the `active` channels and with
    running statistics for the others. See `batch_norm`.

    >>> x, mean, var = torch.tensor([[[0.0, 2.0], [0.0, 2.0]]]), torch.zeros(2), torch.ones(2)
    >>> instance_norm(x, mean, var, None, None, 0.5, 1e-9, torch.tensor([1])).tolist()
    [[[0.0, 2.0], [-1.0, 1.0]]]
    """
    if active.shape[0] > 0 and x.shape[2:].numel() == 1:
        raise ValueError(_TOO_FEW.format("spatial element", x.size()))
    return _norm(
        F.instance_norm, x, running_mean, running_var, weight, bias, momentum, eps, active, restrict
    )


def _norm(
    function: Callable[..., Tensor],
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    active: Tensor,
    restrict: bool,
) -> Tensor:
    # Detached tensors get no gradient, so the backward pass is that of the gathered channels alone.
    # Running statistics are copied: another call may update them before the backward pass.
    inputs = (x, running_mean.clone(), running_var.clone(), weight, bias)
    detached = [t if t is None else t.detach() for t in inputs]
    y = function(*(detached if restrict else inputs), False, momentum, eps)
    affine = [None if t is None else t.index_select(0, active) for t in (weight, bias)]
    z = x.index_select(1, active)
    if active.shape[0] > 0:
        mean, var = running_mean.index_select(0, active), running_var.index_select(0, active)
        z = function(z, mean, var, *affine, True, momentum, eps)
        with torch.no_grad():
            running_mean.index_copy_(0, active, mean)
            running_var.index_copy_(0, active, var)
    else:
        # The kernels refuse tensors without channels. Gradients are still zeros, not None.
        z = sum((t.sum() for t in affine if t is not None), z)
    return y.index_copy_(1, active, z)
