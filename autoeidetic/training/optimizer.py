"""Optimizer: the default one, and the check that a caller's optimizer knows the task's head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..tasks.network import Network

#: Devices with fused optimizer kernels in every supported torch version.
_FUSED = ("cpu", "cuda")


def default_optimizer(
    parameters: Iterable[nn.Parameter], rate: float = 1e-3
) -> torch.optim.Optimizer:
    """AdamW, fused where possible.

    Most elements of a frozen layer have zero gradients and second moments, on which the unfused
    implementation is slow.
    """
    parameters = list(parameters)
    fused = all(p.is_floating_point() and p.device.type in _FUSED for p in parameters)
    return torch.optim.AdamW(parameters, lr=rate, fused=fused or None)


def check_optimizer(net: Network, optimizer: Any) -> None:
    """Refuse an optimizer without the head of the open task.

    ``prepare_for_task`` creates the head, so an optimizer from before it would leave the head
    untrained without any sign of it.

    Raises:
        InputError: it is no optimizer, or lacks a parameter of the head.
    """
    if not hasattr(optimizer, "param_groups"):  # a class, or a function that makes one
        raise InputError(
            f"optimizer is {optimizer!r:.80}, not a torch.optim.Optimizer",
            remedy="pass one, for instance torch.optim.AdamW(net.parameters(), lr=0.001)",
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in _head_parameters(net).items():
        if parameter.requires_grad and id(parameter) not in held:
            raise InputError(
                f"the optimizer does not have {name}, a parameter of the head of task "
                f"{net.open_task}, which would not learn",
                remedy="make the optimizer after prepare_for_task, from net.parameters(), or add "
                "the parameter with optimizer.add_param_group; exclude a parameter from training "
                "with requires_grad_(False)",
            )


def _head_parameters(net: Network) -> dict[str, nn.Parameter]:
    """Parameters of the open task's head, by their names in the network."""
    # With keep_head, task 0 trains the model's own output layer, which lies in the backbone.
    if net.keep_head and net.open_task == 0:
        names = [name for head in net.call_plan.heads for name in head.parameters]
        return {f"backbone.{name}": net.backbone.get_parameter(name) for name in names}
    own = f"heads.{net.open_task}"
    return dict(net.heads[str(net.open_task)].named_parameters(prefix=own))
