"""Heads: the output layers of each task, made from the model's own, with any number of classes.

    head of a module      a copy of the layer, with one row per class           build
    head of a parameter   a tensor that the model's code uses (ParameterHead)   build
    attached head         a linear layer on features (AttachedHead)             build

``HeadSlot`` stands in the place of the model's own layer and calls the head of the current task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..common.inputs import whole_number
from ..enforce.guard import Forward, Runtime
from ..errors import HeadError, Place
from ..plan.call_plan import ATTACHED, HeadPlan
from ..plan.plan import Plan
from .initialise import reset

_SIZES = ("out_features", "out_channels", "num_classes")


class ParameterHead(nn.Module):
    """A head that is a single parameter, used by the model's own code."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)


class AttachedHead(nn.Module):
    """A linear layer on features, which are averaged over space or tokens first."""

    def __init__(self, features: int, classes: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.linear = nn.Linear(features, classes)

    def forward(self, features: Tensor) -> Tensor:
        # (batch, channels, h, w) with dim 1, (batch, tokens, channels) with dim 2
        others = [d for d in range(1, features.dim()) if d != self.dim]
        return self.linear(features.mean(others) if others else features)


def key(layer: str) -> str:
    """A module's path as a name in a ModuleDict."""
    return layer.replace(".", "/")


def sizes(heads: tuple[HeadPlan, ...], num_classes: Any) -> dict[str, int]:
    """The number of classes of every head.

    Args:
        num_classes: one number for all heads, a mapping from layer to number, or None to keep
            the model's own.

    Raises:
        HeadError: a number is missing or impossible.
    """
    result = {}
    known = [head.layer for head in heads]
    for layer in num_classes if isinstance(num_classes, Mapping) else ():
        if layer not in known:
            raise HeadError(
                f"num_classes names {layer!r}, which is not an output layer",
                remedy=f"the output layers are {', '.join(known)}",
            )
    for head in heads:
        if isinstance(num_classes, Mapping):
            number = num_classes.get(head.layer)
        elif num_classes is not None and len({h.size for h in heads}) > 1:
            raise HeadError(
                f"num_classes={num_classes} is one size for output layers of different sizes",
                remedy="pass a mapping: "
                + repr({h.layer: h.size for h in heads}).replace("'", '"'),
            )
        else:
            number = num_classes
        if number is None and head.layer == ATTACHED:
            raise HeadError(
                "the model has no output layer, so the number of classes is not known",
                remedy="pass num_classes",
            )
        if number is None:
            number = head.size
        whole = whole_number(number)
        if whole is None or whole < 1:
            raise HeadError(
                f"num_classes={number!r} is not a valid size of the output layer",
                place=Place(module=head.layer),
                remedy="pass a positive whole number",
            )
        result[head.layer] = whole
    return result


def templates(model: nn.Module, heads: tuple[HeadPlan, ...]) -> dict[str, nn.Module]:
    """Copies of the model's output layers, which new heads are made from.

    Parameters have no data (meta device), because every head is initialised anew; buffers keep
    their values.

    Raises:
        HeadError: a layer cannot be copied.
    """
    return {
        head.layer: _template(model.get_submodule(head.holder), head)
        for head in heads
        if head.leaf is None and head.layer != ATTACHED
    }


def _template(module: nn.Module, head: HeadPlan) -> nn.Module:
    try:
        made = copy.deepcopy(module)
    except Exception as error:  # a module's own code may raise anything
        raise HeadError(
            f"the output layer cannot be copied, so tasks cannot have their own: {error}",
            place=Place(module=head.layer),
            remedy="use torch.nn.utils.parametrizations.weight_norm instead of "
            "torch.nn.utils.weight_norm, which makes layers that cannot be copied; or end the "
            "model in a plain linear layer",
        ) from error
    for part in made.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(parameter.detach().to("meta"))
    return made


def build(
    head: HeadPlan, template: nn.Module | None, size: int, like: Tensor, spread: float
) -> nn.Module:
    """A fresh head with its own initialisation, on the device and of the type of ``like``.

    ``spread`` is the standard deviation for parameters that no module initialises.

    Raises:
        HeadError: a head of this size cannot be made, or there is no memory for it.
    """
    try:
        return _build(head, template, size, like, spread)
    except (RuntimeError, MemoryError, TypeError) as error:  # sizes beyond 64 bits are TypeErrors
        raise HeadError(
            f"a head with num_classes={size} cannot be made: {str(error).splitlines()[0]}",
            place=Place(module=head.layer),
            remedy="pass a number of classes whose weights fit into memory",
        ) from error


def _build(
    head: HeadPlan, template: nn.Module | None, size: int, like: Tensor, spread: float
) -> nn.Module:
    if head.layer == ATTACHED:
        channels = head.inputs.shape[head.dim]
        return AttachedHead(channels, size, head.dim).to(like)
    if head.leaf is not None:
        shape = list(head.inputs.shape if head.inputs.dim() else like.shape)
        if head.dim >= 0:
            shape[head.dim] = size
        elif size != head.size:
            raise _not_resizable(head)
        value = torch.empty(shape, dtype=like.dtype, device=like.device)
        return ParameterHead(value.normal_(std=spread or 0.02))
    assert template is not None
    # in this order: resize while the parameters have no data, allocate them, then initialise
    module = copy.deepcopy(template)
    if size != head.size:
        _resize(module, head, size)
    _on_device(module, like.device)
    module = module.to(like.dtype).train()
    try:
        reset(module, spread)
    except (RuntimeError, ValueError) as error:  # a parametrization keeps the old size
        raise _not_resizable(head) from error
    return module


def _on_device(module: nn.Module, device: torch.device) -> None:
    """Allocate the parameters of a template and move its buffers."""
    # parameters first: a meta tensor has no data that `to` could move
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(torch.empty_like(parameter, device=device))
    module.to(device)


@torch.no_grad()
def take_over(
    head: HeadPlan,
    made: nn.Module,
    old: nn.Module | None,
    backbone: nn.Module,
    hidden: Callable[[Tensor], Tensor],
    plan: Plan,
) -> None:
    """Give a fresh head the values of an older one, and zeros for features that one could not see.

    Then a revisit starts with the answers of the revisited task. ``old`` is None when that task
    uses the model's own layer; ``hidden`` marks the units that it could not see.
    """
    if head.leaf is not None:
        own = backbone.get_parameter(head.parameters[0]) if old is None else old.value
        made.value.copy_(own)  # type: ignore[operator, arg-type]
        values: dict[str, Any] = {head.parameters[0]: made.value}
    else:
        source = backbone.get_submodule(head.holder) if old is None else old
        made.load_state_dict(source.state_dict())
        values = {f"{head.holder}.{name}": value for name, value in made.named_parameters()}
    if isinstance(made, AttachedHead):
        made.linear.weight[:, hidden(head.inputs).reshape(-1)] = 0
        return
    for name, value in values.items():
        for read in plan.parameters[name].reads:
            if not read.transformed:
                value.masked_fill_(hidden(read.columns).to(value.device), 0)


def _resize(module: nn.Module, head: HeadPlan, size: int) -> None:
    """Give every parameter and buffer with one row per class another number of rows."""
    # weight (classes, features) -> (size, features), bias (classes,) -> (size,)
    for name in head.parameters:
        path, _, leaf = name.removeprefix(f"{head.holder}.").rpartition(".")
        holder = module.get_submodule(path)
        old = holder._parameters[leaf]
        if old is None or not old.dim() or old.shape[0] != head.size:
            raise _not_resizable(head)
        holder._parameters[leaf] = nn.Parameter(old.new_empty(size, *old.shape[1:]))
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.dim() and buffer.shape[0] == head.size:
                # the values of a buffer cannot be made anew: repeat its rows, or take the first
                rows = torch.arange(size, device=buffer.device) % head.size
                part._buffers[name] = buffer[rows]
    if getattr(module, "groups", 1) != 1:
        raise _not_resizable(head)
    for name in _SIZES:
        if getattr(module, name, None) == head.size:
            setattr(module, name, size)


def _not_resizable(head: HeadPlan) -> HeadError:
    return HeadError(
        "this output layer cannot be made with another number of classes",
        place=Place(module=head.layer),
        remedy=f"pass num_classes={head.size}, or end the model in a linear layer or a convolution",
    )


@dataclass
class HeadSlot:
    """Stands in the place of the output layer and calls the head of the current task.

    ``heads`` has None for a task that uses the layer itself. ``visible`` has, for each task, a mask
    of the features that it may read; None: all of them.
    """

    runtime: Runtime
    layer: str
    dim: int
    heads: dict[int, nn.Module | None] = field(default_factory=dict)
    visible: dict[int, Tensor | None] = field(default_factory=dict)

    def run(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        if self.runtime.features is not None:
            self.runtime.features[self.layer] = pytree.tree_leaves((args, kwargs))[0]
        # one pass of the body for several tasks: the heads' results lie side by side along dim, and
        # the network cuts them apart again at the output
        results = []
        for task in self.runtime.tasks:
            see = partial(mask, visible=self.visible[task])
            seen, named = pytree.tree_map_only(Tensor, see, (args, kwargs))
            results.append((self.heads[task] or forward)(*seen, **named))
        return results[0] if len(results) == 1 else torch.cat(results, self.dim)


def mask(value: Tensor, visible: Tensor | None) -> Tensor:
    """The value with zeros at the features that a task may not read."""
    if visible is None:
        return value
    # where, not a product: 0 * inf is NaN, and hidden units may have diverged
    return torch.where(visible, value, torch.zeros_like(value))
