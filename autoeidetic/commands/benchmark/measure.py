"""What the zoo measures on one model, stage by stage, each in a process of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import autoeidetic

from ...capture.capture import capture
from ...common.inputs import call_inputs
from ...enforce.owners import Owners
from ...plan.call_plan import call_plans
from ...proof.rehearse import rehearse
from ...propagate.values import core
from ...tasks.capacity import free_share
from ...tasks.pruning.choose import choose
from ..images.model_names import parameters_on_meta
from . import torture
from .models import build, example
from .peers import WARM_UP, compare_and_prune
from .runner import Record, peak_memory, seconds_of, short

ON_META, ALL_ON_META, REAL = "parameters on meta", "all on meta", "real weights"
TOO_MANY = 500_000_000  # parameters, for memory that two models have to share


@dataclass(frozen=True)
class Stage:
    """One level of effort, and what a model may use for it."""

    measure: Callable[[str], Record]
    seconds: float
    gibibytes: float
    real: bool  # with memory for the weights


def warm_up() -> None:
    """Load what the first analysis loads, so that every process that is forked has it."""
    with warnings.catch_warnings():
        _settle()
        for name in WARM_UP:
            autoeidetic.analyze(build(name))


def count(name: str) -> Record:
    """How many parameters a model has, without memory for them."""
    _settle()
    return {"parameters": _parameters(_built(name)[0])}


def analyze(name: str) -> Record:
    """What the analysis finds, without memory for the weights where that goes."""
    _settle()
    model, weights = _built(name)
    before = peak_memory()
    found: list[Any] = []
    try:
        seconds = seconds_of(lambda: found.append(autoeidetic.analyze(model, example(model))))
    except Exception:  # code that looks at the values of its parameters, mostly
        if weights == REAL or _parameters(model) > TOO_MANY:
            raise
        model, weights = build(name), REAL
        seconds = seconds_of(lambda: found.append(autoeidetic.analyze(model, example(model))))
    memory = peak_memory() - before
    deps = found[0]
    inputs = call_inputs(model, example(model))
    return {
        "weights": weights,
        "captured_by": deps.capture.way,
        "nodes": len(deps.capture.graph.nodes),
        "operators": sorted(deps.operators),
        "parameters": _parameters(model),
        "unaccounted": _unaccounted(model, deps),
        "unhandled": [str(place) for place in deps.unhandled],
        "unused": len(deps.unused),
        "groups": len(deps.groups),
        "units": deps.plan.units,
        "nested": len(deps.plan.nested),
        "heads": [head.layer for head in deps.heads],
        "largest_unit_share": deps.largest_unit_share,
        "largest_unit": _largest_unit(deps),
        "locked_share": deps.locked.share,
        "locks": len(deps.locked),
        "locked": [_anywhere(lock.to_dict()) for lock in deps.locked][:1],
        **_capacity(model, deps),
        "seconds_capture": seconds_of(lambda: capture(model, inputs)),
        "seconds": seconds,
        "gibibytes": memory,
    }


def convert(name: str) -> Record:
    """A converted copy with real weights, its rehearsal, and what pruning half leaves free."""
    _settle()
    warnings.simplefilter("error", autoeidetic.RehearsalWarning)
    model = build(name)
    inputs = example(model)
    before = peak_memory()
    found: list[Any] = []
    seconds = seconds_of(lambda: found.append(autoeidetic.convert(model, inputs, rehearse=False)))
    net = found[0]
    rehearsal = seconds_of(lambda: rehearse(net))
    memory = peak_memory() - before
    net.prepare_for_task(0, num_classes=10)
    net.prune(0.5)
    net.finish_task()
    return {
        "seconds": seconds,
        "seconds_rehearsal": rehearsal,
        "gibibytes": memory,
        "free": net.capacity().free,
    }


STAGES = {
    "analyze": Stage(analyze, 300.0, 12.0, real=False),
    "convert": Stage(convert, 900.0, 12.0, real=True),
    "compare": Stage(compare_and_prune, 600.0, 12.0, real=True),
    "verify": Stage(torture.measure, 1800.0, 18.0, real=True),
}


def _settle() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def _built(name: str) -> tuple[nn.Module, str]:
    """A model without memory for its weights, if it can be built like that.

    Buffers keep their values, for tables of indices in them tell which unit sits where. A model
    that cannot be built so has its weights, or everything on meta when they are too many.
    """
    try:
        with parameters_on_meta():
            return build(name), ON_META
    except Exception:  # constructors raise anything
        pass
    try:
        with torch.device("meta"):
            model = build(name)
        if _parameters(model) > TOO_MANY:
            return model, ALL_ON_META
    except Exception:
        pass
    return build(name), REAL


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _capacity(model: nn.Module, deps: Any) -> Record:
    """What a task that keeps half leaves free, as far as the plan tells without weights."""
    try:
        plan = call_plans(model, deps.analysis)[0]
    except autoeidetic.HeadError as error:
        return {"free_after_half": None, "head_error": short(error)}
    owners = Owners.none(plan.plan, plan.plan.outside, plan.plan.locked, True).opened(0)
    alike = np.ones(plan.plan.units + 1)
    kept = owners.pruning(choose(plan, owners, alike, 0.5)).finished()
    return {"free_after_half": free_share(plan, kept)}


def _anywhere(lock: Record) -> Record:
    """Its line without the folder that packages are installed in here."""
    return {**lock, "line": lock["line"].rpartition("site-packages/")[2]}


def _largest_unit(deps: Any) -> str:
    """Where the largest class outside the heads lies, and what ties it together."""
    group = max(deps.groups, key=lambda group: group.elements / group.size)
    operators = dict.fromkeys(
        f"{bond.place.operator} in {bond.place.module}"
        for bond in group.bonds
        if bond.kind == "joined"
    )
    tied = f", joined by {', '.join(list(operators)[:2])}" if operators else ""
    return f"one of the {group.size} units of {len(group.layers)} layers ({group.name}){tied}"


def _unaccounted(model: nn.Module, deps: Any) -> int:
    """Parameter elements that belong to no unit."""
    missing = 0
    for name, parameter in model.named_parameters():
        plan = deps.plan.parameters.get(name)
        if plan is None or plan.units.shape != parameter.shape:
            missing += parameter.numel()
        elif (core(plan.units) < 1).any():
            missing += int((plan.units < 1).sum())
    return missing
