"""Other tools on the same models: the times of ``torch.export`` and of Torch-Pruning.

Used by the stage ``compare`` of ``autoeidetic benchmark``, and ``benchmarks/speed.py analyze``.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from .models import batch, build, example, parameters
from .runner import Record, error_line, seconds_of, time_limit
from .with_torch_pruning import dependency_graph, halve, has_torch_pruning

WARM_UP = ("test_resnet", "test_vit")  # the second one if the first is being measured
ROUNDS = 3
LONGEST = 20  # time limit of one timed call, in seconds
Action = Callable[[], object]


def compare(name: str) -> Record:
    """Seconds of each tool: the median of three alternating rounds after a warm-up.

    A tool that raises on a model is not tried again; its first error is recorded.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ways: dict[str, Callable[[nn.Module], Action]] = {
        "analyze": _analyze,
        "export": _export,
    }
    if has_torch_pruning():
        ways["torch_pruning"] = dependency_graph
    other = build(WARM_UP[0] if name != WARM_UP[0] else WARM_UP[1])
    # On another model: the first call of a tool imports and compiles, which is not measured.
    for prepare in ways.values():
        prepare(other)()
    model = build(name)
    times: dict[str, list[float]] = {way: [] for way in ways}
    errors: dict[str, str] = {}
    # Tools alternate, so that a machine that slows down affects all of them.
    for _ in range(ROUNDS):
        for way, prepare in ways.items():
            if way in errors:
                continue
            try:
                action = prepare(model)
                # garbage of one tool must not be collected in the time of the next
                gc.collect()
                with time_limit(LONGEST):
                    times[way].append(seconds_of(action))
            except Exception as error:  # a tool may raise anything
                errors[way] = error_line(error)
    return {
        "parameters": parameters(model),
        "seconds": {way: median(t) for way, t in times.items() if t and way not in errors},
        "errors": errors,
    }


def compare_and_prune(name: str) -> Record:
    """The times, and how far Torch-Pruning gets when it removes half of the channels."""
    record = compare(name)
    return {**record, "torch_pruning": halve(name)} if has_torch_pruning() else record


def _analyze(model: nn.Module) -> Action:
    import autoeidetic

    return lambda: autoeidetic.analyze(model, example(model))


def _export(model: nn.Module) -> Action:
    model.eval()
    x = batch(model)
    return lambda: torch.export.export(model, x.args, x.kwargs, strict=False)
