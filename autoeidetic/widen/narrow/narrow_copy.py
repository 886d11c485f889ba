"""A narrower copy of a model: the same classes and code, with a part of the channels.

analysis      which channels there are, and where they lie in every value
choice        the channels that stay (cells.py, choice.py)
shapes        the sizes of all tensors that follow from it (shapes.py)
copy          the model on ``meta`` with parameters of these sizes (build.py)
attributes    numbers in the code that are sizes, found by trial (attributes.py)
check         the graph of the copy is the model's, with the predicted shapes (match.py)
values        fresh ones, drawn by the modules' own initialisation
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ...capture.capture import first_line
from ...common.inputs import CallInputs
from ...common.trees import convert
from ...common.undisturbed import undisturbed
from ...errors import AutoeideticError
from ...plan.analysis import Analysis, run_analysis
from .attributes import Attribute, Neighbourhoods, change, set_scales, suspects
from .build import copy_with, initialise
from .choice import Choice, choices
from .match import Match, match
from .shapes import Channels

#: The search for attributes ends after this many captures of a copy, or this many seconds.
MOST_CAPTURES = 60
MOST_SECONDS = 30.0
_TOO_FEW = "too few channels can be left out"


@dataclass(frozen=True)
class NarrowCopy:
    """A narrower copy of a model.

    ``width`` is the share of the model's channels that it has, weighted by their parameter
    elements, without output layers. It may be another one than was asked for: at least one channel
    of each kind stays, and whole attention heads where that is possible. ``reason``: why the copy
    has the full width; empty if it is narrow.
    """

    model: nn.Module
    width: float
    reason: str


@dataclass
class _Budget:
    """What is left of the captures and seconds of one search."""

    captures: int = MOST_CAPTURES
    until: float = field(default_factory=lambda: time.monotonic() + MOST_SECONDS)

    def spend(self) -> bool:
        self.captures -= 1
        return self.captures >= 0 and time.monotonic() < self.until


def narrow_copy(model: nn.Module, examples: tuple[CallInputs, ...], width: float) -> NarrowCopy:
    """Copy a model with about ``width`` times the channels in every layer, and fresh values.

    Inputs and the outputs of the output layer keep their sizes, modules their paths, kernels and
    order. Where there is no such copy it has the full width. The model is not changed, and neither
    are random number generators.

    Args:
        model: a model that :func:`autoeidetic.analyze` accepts.
        examples: the calls by which it is analysed.
        width: the share of the channels, above 0 and up to 1.

    Example:
        >>> import torch
        >>> from autoeidetic.common.inputs import CallInputs
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> made = narrow_copy(model, (CallInputs((torch.randn(2, 4),), {}),), 0.25)
        >>> made.model
        Sequential(
          (0): Linear(in_features=4, out_features=2, bias=True)
          (1): ReLU()
          (2): Linear(in_features=2, out_features=3, bias=True)
        )
        >>> made.width
        0.25
    """
    made, share, reason = None, 1.0, ""
    with undisturbed(trainable=True, quiet=True):
        if width < 1:
            analysis = run_analysis(model, list(examples))
            try:
                made, share, reason = _search(model, examples, analysis, width)
            except Exception as error:  # the model's own code, with sizes it was not made for
                reason = f"{type(error).__name__}: {first_line(error)}"
        if made is None:
            made = copy_with(model, None)
        initialise(model, made)
    return NarrowCopy(made, share, reason)


def _search(
    model: nn.Module, examples: tuple[CallInputs, ...], analysis: Analysis, width: float
) -> tuple[nn.Module | None, float, str]:
    """The first choice of channels for which there is a copy: the copy, its width; or why not."""
    budget = _Budget()
    reason = _TOO_FEW
    for choice in choices(Channels(analysis), width):
        sizes = Neighbourhoods(analysis.capture, choice.shapes)
        found, said = _fit(model, examples, choice, sizes, budget)
        if found is not None:
            made = copy_with(model, choice.shapes)
            for attributes in found:
                for attribute in attributes:
                    change(made, attribute, sizes)
            set_scales(made, sizes)
            failure = _failure_in_training(model, made, examples, analysis)
            return (None, 1.0, failure) if failure else (made, choice.width, "")
        # what the best choice lacks says most
        reason = said if reason == _TOO_FEW else reason
    return None, 1.0, reason


def _fit(
    model: nn.Module,
    examples: tuple[CallInputs, ...],
    choice: Choice,
    sizes: Neighbourhoods,
    budget: _Budget,
) -> tuple[list[tuple[Attribute, ...]] | None, str]:
    """The attributes to change so that a copy computes what was predicted; None and why not."""
    captured, shapes = sizes.captured, choice.shapes
    copied = copy_with(model, shapes, "meta" if captured.way == "meta" else None)
    if captured.way == "real":  # the code looks at values
        initialise(model, copied)

    def compare() -> Match:
        return match(copied, examples, captured, shapes.nodes)

    now, kept, followed = compare(), [], {*shapes.buffers, *shapes.narrowed}
    while not now.whole:
        assert now.node is not None
        for trial in suspects(copied, captured, now.node, sizes, followed):
            undo = [step for attribute in trial for step in change(copied, attribute, sizes)]
            if not undo:
                continue
            if not budget.spend():
                return None, f"{now.reason} (the search was ended)"
            then = compare()
            if then.length > now.length or then.whole:
                now = then
                kept.append(trial)
                break
            for step in reversed(undo):
                step()
        else:
            return None, now.reason
    try:
        run_analysis(copied, list(examples))  # whoever trains the copy will analyse it
    except AutoeideticError as error:
        return None, f"{error.place}: {error.fact}"
    return kept, ""


def _failure_in_training(
    model: nn.Module, made: nn.Module, examples: tuple[CallInputs, ...], analysis: Analysis
) -> str:
    """What a copy raises in train mode and the model does not; empty if nothing.

    The analysis reads a pass in eval mode. Auxiliary output layers, which compute only in training,
    keep their sizes and would meet narrower values.
    """
    unused = any(not parameter.used for parameter in analysis.plan.parameters.values())
    if not unused or any(p.is_meta for p in model.parameters()):
        return ""
    initialise(model, made)
    found = _raised(made, examples)
    return f"in train mode: {found}" if found and not _raised(model, examples) else ""


def _raised(model: nn.Module, examples: tuple[CallInputs, ...]) -> str:
    """The first line of what a model raises in train mode; nothing in it changes."""
    device = next(model.parameters()).device

    def drawn(x: Tensor) -> Tensor:
        return x.to(device) if not x.is_meta else torch.ones_like(x, device=device)

    with undisturbed(
        model, attributes=True, values=model.buffers(), generators="all", gradients=False
    ):
        for module in model.modules():
            module.training = True
        for example in examples:
            args, kwargs = convert((example.args, example.kwargs), Tensor, drawn)
            try:
                model(*args, **kwargs)
            except Exception as error:
                return f"{type(error).__name__}: {first_line(error)}"
    return ""
