"""``convert``: a model in, a network that cannot forget out."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .analyze import analyze
from .common.inputs import check_module, example_calls
from .common.process_state import converted_backbones
from .common.torch_modes import unsupported_module
from .enforce.guard import Guarded
from .errors import InputError, Place
from .net import EideticNet
from .plan.call_plan import ATTACHED, call_plans
from .proof import rehearse as rehearsal


def convert(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    inplace: bool = False,
    forward_transfer: bool = True,
    keep_head: bool = False,
    recycle: str = "reinit",
    rehearse: bool = True,
) -> EideticNet:
    """Make a network that learns tasks one after another and cannot forget.

    Args:
        model: any ``nn.Module``.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword
            arguments. May be left out for timm, torchvision and transformers models. A list
            holds several examples, which are analysed together: pass it when the model takes
            different paths (flags, masks, short and long inputs).
        inplace: use the model itself instead of a copy.
        forward_transfer: later tasks read what earlier ones learned; False keeps tasks apart.
        keep_head: the model's own output layer is the head of task 0.
        recycle: the values of free units at the start of a task: "reinit", fresh ones; "keep",
            those that they held, which suits a pretrained model.
        rehearse: run two tasks on a copy, with random values, and check that no bit of the first
            one's answers changes. It takes a few passes with the example inputs, and memory for
            the copy.

    Example:
        >>> import timm, autoeidetic
        >>> net = autoeidetic.convert(timm.create_model("test_resnet"))
        >>> net.prepare_for_task(0, num_classes=10)

    Raises:
        InputError: an option is unknown, or there is no output layer to keep; the model is
            converted already, cannot be copied, or has a scripted part with parameters; and
            whatever else :func:`autoeidetic.analyze` raises.
        EnforcementError: in the rehearsal the answers of a finished task changed: the model does
            something that its analysis did not see.
        HeadError: the model has no output layer and no features a head could read.
    """
    if recycle not in ("reinit", "keep"):
        raise InputError(f"recycle={recycle!r} is unknown", remedy='use "reinit" or "keep"')
    check_module(model)
    _check_new(model)
    _check_weights(model)
    with torch.inference_mode(False):  # tensors made in inference mode can never be trained
        net = _converted(
            model,
            example_inputs,
            inplace,
            forward_transfer=forward_transfer,
            keep_head=keep_head,
            recycle=recycle,
        )
        if rehearse:
            rehearsal.rehearse(net)
        converted_backbones.add(net.backbone)
        return net


def _converted(
    model: nn.Module, example_inputs: Any, inplace: bool, *, keep_head: bool, **options: Any
) -> EideticNet:
    # plan first, then change: nothing in the model is touched before the plan of every call exists
    examples = example_calls(model, example_inputs)
    deps = analyze(model, list(examples))
    # A model that was captured with real tensors may have looked at values that depend on its
    # parameters, which training changes. What it read is stored with each example, so that a later
    # analysis of the example follows the same path.
    if deps.capture.way == "real":
        taken = zip(examples, deps.capture.decisions, strict=True)
        examples = tuple(replace(each, decisions=decided) for each, decided in taken)
    plan = call_plans(model, deps.analysis)
    if keep_head and plan[0].heads[0].layer == ATTACHED:
        raise InputError(
            "the model has no output layer that keep_head=True could keep",
            remedy="leave keep_head out: every task gets its own head",
        )
    if inplace:
        _check_trainable(model)
    else:
        model = _copy(model)
    return EideticNet(model, plan, examples, keep_head=keep_head, **options)


def _check_new(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, (EideticNet, Guarded)) or module in converted_backbones:
            raise InputError(
                "the model is already converted",
                place=Place(module=path),
                remedy="use the network that convert returned, or build the model anew",
            )


def _check_weights(model: nn.Module) -> None:
    """Check that every module holds its weights as tensors that can be pinned and trained.

    Raises:
        InputError: a module does not (scripted, quantized).
    """
    for path, module in model.named_modules():
        found = unsupported_module(module)
        if found is not None:
            raise InputError(
                f"{found.kind} cannot be divided between tasks",
                place=Place(module=path),
                remedy=found.remedy,
            )


def _check_trainable(model: nn.Module) -> None:
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    made = [name for name, tensor in tensors if tensor.is_inference()]
    if made:
        raise InputError(
            f"{made[0]} was made in torch.inference_mode, so it can never be trained",
            remedy="build the model outside of it, or leave inplace out: the copy can be trained",
        )


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # a model's own code may raise anything
        raise InputError(
            f"the model cannot be copied: {error}",
            remedy="pass inplace=True, which uses the model itself",
        ) from error
