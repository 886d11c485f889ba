"""``convert``: a model in, a network that cannot forget out."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from .analysis import analyze
from .blueprint import ATTACHED, blueprint
from .errors import InputError
from .inputs import call_inputs
from .net import EideticNet


def convert(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    inplace: bool = False,
    forward_transfer: bool = True,
    keep_head: bool = False,
    recycle: str = "reinit",
) -> EideticNet:
    """Make a network that learns tasks one after another and cannot forget.

    Args:
        model: any ``nn.Module``.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword
            arguments. May be left out for timm, torchvision and transformers models.
        inplace: use the model itself instead of a copy.
        forward_transfer: later tasks read what earlier ones learned; False keeps tasks apart.
        keep_head: the model's own output layer is the head of task 0.
        recycle: what a new task finds in free units: "reinit", fresh values; "keep", what they
            held, which suits a pretrained model.

    Example:
        >>> import timm, autoeidetic
        >>> net = autoeidetic.convert(timm.create_model("test_resnet"))
        >>> net.prepare_for_task(0, num_classes=10)

    Raises:
        InputError: an option is unknown, or there is no output layer to keep; and whatever else
            :func:`autoeidetic.analyze` raises.
        HeadError: the model has no output layer and no features a head could read.
    """
    if recycle not in ("reinit", "keep"):
        raise InputError(f"recycle={recycle!r} is unknown", remedy='use "reinit" or "keep"')
    deps = analyze(model, example_inputs)
    plan = blueprint(model, deps)
    if keep_head and plan.heads[0].layer == ATTACHED:
        raise InputError(
            "keep_head=True, but the model has no output layer to keep",
            remedy="leave keep_head out: every task gets a head of its own",
        )
    if not inplace:
        model = copy.deepcopy(model)
    return EideticNet(
        model,
        plan,
        call_inputs(model, example_inputs),
        forward_transfer=forward_transfer,
        keep_head=keep_head,
        recycle=recycle,
    )
