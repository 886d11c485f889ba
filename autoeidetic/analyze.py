"""``analyze``: a model in, its channel structure out."""

from __future__ import annotations

from typing import Any

from torch import nn

from .common.inputs import check_module
from .errors import InputError, UnhandledOperatorError, UnhandledOperatorWarning, warn_user
from .extract.program import Program, in_modules, inputs_of
from .plan.analysis import run_analysis
from .report.dependencies import Dependencies


def analyze(
    model: nn.Module, example_inputs: Any = None, *, on_unhandled: str = "warn"
) -> Dependencies:
    """Work out which channels of a model depend on which. Changes nothing in the model.

    Args:
        model: any ``nn.Module``, on any device (``meta`` too).
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword
            arguments. May be left out for timm, torchvision and transformers models and for
            programs. A list holds several examples, which are analysed as one: it shows all the
            paths that a model with branches can take.
        on_unhandled: what to do about an operator that has neither a rule nor a decomposition:
            ``"warn"`` and mix everything it reads, or ``"raise"``.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> deps = autoeidetic.analyze(net, torch.randn(2, 4))
        >>> [(group.name, group.size) for group in deps.groups]
        [('0', 8)]
        >>> [head.layer for head in deps.heads]
        ['2']

    Raises:
        InputError: inputs are missing or cannot be traced.
        CaptureError: the model runs neither on meta tensors nor on real ones.
        NoParametersError: no output depends on a parameter.
        UnhandledOperatorError: see ``on_unhandled``.
    """
    check_module(model)
    if on_unhandled not in ("warn", "raise"):
        raise InputError(
            f"on_unhandled={on_unhandled!r} is unknown", remedy='use "warn" or "raise"'
        )
    analysis = run_analysis(*analysable(model, example_inputs))
    for unhandled in analysis.unhandled:
        if on_unhandled == "raise":
            raise UnhandledOperatorError(
                unhandled.reason, place=unhandled.place, remedy=unhandled.remedy
            )
        text = f"{unhandled.reason}\n  where: {unhandled.place}\n  remedy: {unhandled.remedy}"
        warn_user(text, UnhandledOperatorWarning)
    return Dependencies(analysis)


def analysable(model: nn.Module, example_inputs: Any = None) -> tuple[nn.Module, Any]:
    """What is analysed of a model: a program takes the modules of the user's model again."""
    if not isinstance(model, Program):
        return model, example_inputs
    return in_modules(model), inputs_of(model) if example_inputs is None else example_inputs
