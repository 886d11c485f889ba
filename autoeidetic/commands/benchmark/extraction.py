"""The stage ``extract``: two finished tasks leave as programs, next to Torch-Pruning's half.

Each task keeps half of the units that it found free, so the program of task 0 has half of the
units of every group. Its outputs are compared with those of the network here once more, on other
inputs and at another batch size than ``extract`` itself compares them.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...common.inputs import CallInputs
from .models import as_example, batch, build, drawn, logits, multiply_adds, parameters
from .runner import Record, error_line, is_lack_of_memory, seconds_of
from .stress_inputs import randomize, small_batch
from .with_torch_pruning import halve, has_torch_pruning

LARGEST_SIDE = 256  # of images; models for larger ones get those of the stress test
IN_FLOAT64 = 200_000_000  # parameters; larger models are compared in their own type
#: Largest differences that are rounding. What a program computes from parameters alone was computed
#: once, in the network's own type, so that in float64 its rounding is still that of float32.
TOLERANCE = {"float64": 1e-6, "float32": 1e-3}
COMPARED = 3  # examples
_MASK = "attention_mask"
TIMED = (1, 4)  # examples
ROUNDS, LONGEST = 7, 5.0  # rounds of a comparison of times, and their limit in seconds


def measure(name: str) -> Record:
    """Extract both tasks of one model; ``phase`` is where an error was raised."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    record: Record = {"phase": "build"}
    try:
        _run(name, record)
    except Exception as error:  # a model or the library may raise anything
        if is_lack_of_memory(error):
            raise
        record["error"] = f"{record['phase']}: {error_line(error)}"
    if has_torch_pruning():
        record["torch_pruning"] = halve(name)
    return record


def _run(name: str, record: Record) -> None:
    """Fill the record step by step, so that it is kept up to a failure."""
    torch.manual_seed(0)
    model = build(name).eval()
    x = _inputs(model)
    record["size"] = list(pytree.tree_leaves((x.args, x.kwargs))[0].shape[1:])
    with torch.no_grad():
        classes = logits(model(*x.args, **x.kwargs)).shape[1]
    before = parameters(model), multiply_adds(model, _drawn(x, 1)), multiply_adds(model, x)
    randomize(model)
    if "input_ids" in x.kwargs and _looks_at(model, x):  # at ids, for want of a mask
        x = _drawn(CallInputs((), {**x.kwargs, _MASK: x.kwargs["input_ids"]}))
    net = _learned(model, x, classes, record)
    record["phase"] = "extract"
    start = time.perf_counter()
    program = net.extract(0)
    record["seconds"] = time.perf_counter() - start
    record["difference"] = program.report.difference
    record["dynamic"], record["fixed"] = list(program.report.dynamic), list(program.report.fixed)
    record["phase"] = "run"
    record["left"] = parameters(program) / before[0]
    # A program for one batch size only is measured at that size.
    free = any(text.endswith(": dimension 0") for text in program.report.dynamic)
    one, work = (_drawn(x, 1), before[1]) if free else (x, before[2])
    record["multiply_adds_left"] = multiply_adds(program, one) / work
    record["times"] = _times(build(name), program, x) if free else {}
    x = _drawn(x, COMPARED) if free else _drawn(x)
    record["phase"] = "compare"
    record |= _compared(net, program, x, 0)
    record["phase"] = "second task"
    second = net.extract(1)
    record["second"] = {
        "difference": second.report.difference,
        "left": parameters(second) / before[0],
        **_compared(net, second, x, 1),
    }
    record["phase"] = "done"


def _inputs(model: nn.Module) -> CallInputs:
    x = batch(model)
    images = not x.kwargs and x.args[0].dim() == 4
    return small_batch(model) if images and max(x.args[0].shape[2:]) > LARGEST_SIDE else x


def _looks_at(model: nn.Module, x: CallInputs) -> bool:
    """Does the model's code look at the data in these inputs?"""
    import autoeidetic

    return bool(autoeidetic.analyze(model, as_example(x)).capture.way == "real")


def _drawn(like: CallInputs, count: int | None = None) -> CallInputs:
    """Random inputs like these; masks hide nothing."""
    found = drawn(like, count)
    if _MASK not in found.kwargs:
        return found
    ones = torch.ones_like(found.kwargs["input_ids"])
    return CallInputs(found.args, {**found.kwargs, _MASK: ones})


def _learned(model: nn.Module, x: CallInputs, classes: int, record: Record) -> Any:
    """The network with two finished tasks; nothing is trained, because weights are random."""
    import autoeidetic

    record["phase"] = "convert"
    net = autoeidetic.convert(model, as_example(x), inplace=True, rehearse=False)
    for task in range(2):
        record["phase"] = f"task {task}"
        net.prepare_for_task(task, num_classes=classes, on_full="reuse")
        net.prune(0.5)
        net.finish_task()
    return net.eval()


# -- comparing ------------------------------------------------------------------------------------


def _compared(net: Any, program: nn.Module, x: CallInputs, task: int) -> Record:
    """The largest difference between program and network, relative to the largest output."""
    wide = parameters(net) <= IN_FLOAT64
    if wide:
        net, program = copy.deepcopy(net).double(), copy.deepcopy(program).double()
        args, kwargs = pytree.tree_map_only(Tensor, _double, (x.args, x.kwargs))
        x = CallInputs(args, kwargs)
    with torch.no_grad():
        expected = _leaves(net(*x.args, **x.kwargs, task=task))
        actual = _leaves(program(*x.args, **x.kwargs))
    _check_informative(expected)
    if [leaf.shape for leaf in expected] != [leaf.shape for leaf in actual]:
        raise ValueError("the program has outputs of other shapes than the network")
    # A NaN must not be lost in a maximum: `difference <= tolerance` is False for it.
    worst = [_difference(*pair) for pair in zip(expected, actual, strict=True)]
    type_of = "float64" if wide else "float32"
    return {"measured": max(worst, key=lambda d: (d != d, d)), "measured_in": type_of}


def _difference(expected: Tensor, actual: Tensor) -> float:
    return float((expected - actual).abs().max() / expected.abs().max())


def _check_informative(outputs: list[Tensor]) -> None:
    """Outputs that are not finite, or the same for all examples, would prove nothing."""
    if not all(bool(leaf.isfinite().all()) for leaf in outputs):
        raise ValueError("an output of the network is not finite, which proves nothing")
    if any(bool((leaf[0] == leaf[1]).all()) for leaf in outputs):
        raise ValueError("the network gives the same outputs for two inputs, which proves nothing")


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _leaves(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def _times(plain: nn.Module, program: nn.Module, x: CallInputs) -> dict[str, float]:
    """Number of examples -> the program's time relative to the plain model's."""
    found = {}
    for count in TIMED:
        shown = _drawn(x, count)
        calls = [_call(each.eval(), shown) for each in (plain, program)]
        start, ratios = time.perf_counter(), []
        for _ in range(ROUNDS + 1):
            theirs, ours = (seconds_of(call) for call in calls)
            ratios.append(ours / theirs)
            if time.perf_counter() - start > LONGEST:
                break
        # The first round warms up.
        found[str(count)] = median(ratios[1:] or ratios)
    return found


def _call(model: nn.Module, x: CallInputs) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            model(*x.args, **x.kwargs)

    return call


# -- judging --------------------------------------------------------------------------------------


def is_ok(record: Record) -> bool:
    return not cause(record)


def cause(record: Record) -> str:
    """Why a record does not pass; empty when it does."""
    if "error" in record:
        return str(record["error"])
    for task, found in enumerate((record, record["second"])):
        # Not ">": NaN must not pass.
        if not found["measured"] <= TOLERANCE[found["measured_in"]]:
            return (
                f"the program of task {task} differs by {found['measured']:.1e} of the largest "
                f"output in {found['measured_in']}"
            )
    return ""
