"""The stages of the benchmark: each measures one model and returns a record.

Every function here runs in a forked process of its own (:mod:`.runner`), so it may change global
settings such as warnings and threads."""

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
from . import extraction, stress_test
from .models import build, example, parameters
from .other_tools import WARM_UP, compare_and_prune
from .runner import Record, error_line, peak_memory, seconds_of

ON_META, ALL_ON_META, REAL = "parameters on meta", "all on meta", "real weights"
TOO_MANY = 500_000_000  # parameters; models that run in parallel share the memory


# Order of attempts, cheapest first; the record says which one worked:
#   ON_META       parameters without memory, buffers with values (index tables decide channels)
#   ALL_ON_META   nothing has memory; for models too large for their weights
#   REAL          weights in memory; for code that reads parameter values


@dataclass(frozen=True)
class Stage:
    """A stage with its limits of time and memory for one model."""

    measure: Callable[[str], Record]
    seconds: float
    gibibytes: float
    real: bool  # needs memory for the weights


def warm_up() -> None:
    """Analyse two small models, so that forked processes inherit what is loaded on first use."""
    with warnings.catch_warnings():
        _set_up()
        for name in WARM_UP:
            autoeidetic.analyze(build(name))


def count(name: str) -> Record:
    """The number of parameters, counted without memory for them."""
    _set_up()
    return {"parameters": parameters(_build_light(name)[0])}


def analyze(name: str) -> Record:
    """The results of the analysis, without memory for the weights where possible."""
    _set_up()
    model, weights = _build_light(name)
    # The peak of the process only rises, so the difference is what the analysis needed on top.
    before = peak_memory()
    found: list[Any] = []
    try:
        seconds = seconds_of(lambda: found.append(autoeidetic.analyze(model, example(model))))
    except Exception:  # mostly models whose code reads parameter values
        if weights == REAL or parameters(model) > TOO_MANY:
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
        "parameters": parameters(model),
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
        # the largest lock only; their number is in "locks"
        "locked": [_portable(lock.to_dict()) for lock in deps.locked][:1],
        **_capacity(model, deps),
        "seconds_capture": seconds_of(lambda: capture(model, inputs)),
        "seconds": seconds,
        "gibibytes": memory,
    }


def convert(name: str) -> Record:
    """Convert a copy with real weights; time, rehearsal, and the capacity left by pruning half."""
    _set_up()
    # A rehearsal that could not run counts as a failure here.
    warnings.simplefilter("error", autoeidetic.errors.RehearsalWarning)
    model = build(name)
    inputs = example(model)
    before = peak_memory()
    found: list[Any] = []
    # Timed apart: the rehearsal runs the model several times, the conversion once.
    seconds = seconds_of(lambda: found.append(autoeidetic.convert(model, inputs, rehearse=False)))
    net = found[0]
    rehearsal = seconds_of(lambda: rehearse(net))
    memory = peak_memory() - before
    # The capacity after one real task, to compare with free_after_half of the analysis.
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
    "extract": Stage(extraction.measure, 900.0, 18.0, real=True),
    "verify": Stage(stress_test.measure, 1800.0, 18.0, real=True),
    "widen": Stage(stress_test.measure_widened, 1800.0, 18.0, real=True),
}


def _set_up() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def _build_light(name: str) -> tuple[nn.Module, str]:
    """A model without memory for its weights if possible, and how it was built.

    Buffers keep their values, because index tables in them decide which channels are selected. A
    model that cannot be built this way gets its weights, or is built entirely on meta when they
    are too many.
    """
    try:
        with parameters_on_meta():
            return build(name), ON_META
    except Exception:  # constructors may raise anything
        pass
    try:
        with torch.device("meta"):
            model = build(name)
        if parameters(model) > TOO_MANY:
            return model, ALL_ON_META
    except Exception:
        pass
    return build(name), REAL


def _capacity(model: nn.Module, deps: Any) -> Record:
    """The capacity left by a task that keeps half of every group, computed from the plan alone."""
    try:
        plan = call_plans(model, deps.analysis)[0]
    except autoeidetic.errors.HeadError as error:
        return {"free_after_half": None, "head_error": error_line(error)}
    # opened -> half pruned -> finished: the life of a first task, on the owners alone.
    owners = Owners.none(plan.plan, plan.plan.outside, plan.plan.locked, True).opened(0)
    equal_scores = np.ones(plan.plan.units + 1)  # there are no weights to score by
    kept = owners.pruning(choose(plan, owners, equal_scores, 0.5)).finished()
    return {"free_after_half": free_share(plan, kept)}


def _portable(lock: Record) -> Record:
    """The lock with its source line relative to site-packages."""
    return {**lock, "line": lock["line"].rpartition("site-packages/")[2]}


def _largest_unit(deps: Any) -> str:
    """The place of the largest unit outside the heads, and the operators that couple it."""
    # All units of a group have the same number of elements.
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
    # Unit 0 (input or constant) owns no parameter element of a complete plan.
    missing = 0
    for name, parameter in model.named_parameters():
        plan = deps.plan.parameters.get(name)
        if plan is None or plan.units.shape != parameter.shape:
            missing += parameter.numel()
        elif (core(plan.units) < 1).any():
            missing += int((plan.units < 1).sum())
    return missing
