"""The time of training steps, evaluation and pruning of a converted network.

Sections of ``benchmarks/speed.py``. The plain model, the converted one and the reference
implementation's way of masking alternate in one process; see README.md in this directory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import permutations
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoeidetic.commands.benchmark.runner import Record, seconds_of
from benchmarks.reference_masks import ReferenceNet
from benchmarks.workloads import CLASSES, build, converted, masked

Action = Callable[[], object]
PRUNED = (
    0.8,
    0.75,
    2 / 3,
    0.5,
    0.0,
)  # share pruned by each of five tasks: each keeps a fifth of all units
LONGEST = 30.0  # time limit of the rounds of one comparison, in seconds
ROUNDS = 40
WARM_UPS = 3
PRUNINGS = 7


# -- timing ---------------------------------------------------------------------------------------


def timed(action: Action) -> tuple[float, float]:
    """Wall-clock seconds and processor seconds of one call."""
    cpu = time.process_time()
    return seconds_of(action), time.process_time() - cpu


def compare(ways: dict[str, Action]) -> Record:
    """Time all variants in alternating order; medians of seconds and of each round's ratios.

    Ratios are relative to the plain model. Processor time is robust against other work on the
    machine, but does not include waiting.
    """
    for _ in range(WARM_UPS):
        for action in ways.values():
            action()
    gc.collect()
    orders = list(permutations(ways))
    rounds: list[dict[str, tuple[float, float]]] = []
    start = time.perf_counter()
    while len(rounds) < ROUNDS and time.perf_counter() - start < LONGEST:
        order = orders[len(rounds) % len(orders)]
        rounds.append({name: timed(ways[name]) for name in order})
    return ratios(rounds)


def ratios(rounds: list[dict[str, tuple[float, float]]]) -> Record:
    """Median seconds and ratios, by wall clock and by processor time."""
    record: Record = {"rounds": len(rounds)}
    for name in rounds[0]:
        prefix = "" if name == "converted" else f"{name}_"
        record[name] = median(one[name][0] for one in rounds)
        if name != "plain":
            record[f"{prefix}ratio"] = median(r[name][0] / r["plain"][0] for r in rounds)
            record[f"{prefix}cpu_ratio"] = median(r[name][1] / r["plain"][1] for r in rounds)
    return record


def stepper(
    model: nn.Module, x: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer
) -> Action:
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=kind == "adamw, fused" or None)


# -- sections: a model's name -> its measurements -------------------------------------------------


def step(name: str) -> Record:
    """Training steps of task 0, and of task 1 with three quarters of the units frozen."""
    model, x, labels = build(name)
    rows = []
    for kind in ("sgd", "adamw, fused", "adamw"):
        plain = stepper(model, x, labels, optimizer(kind, model))
        net, reference = converted(model, x), masked(model, x)
        ways = {"plain": plain}
        ways["converted"] = stepper(net, x, labels, optimizer(kind, net))
        ways["reference"] = stepper(reference, x, labels, optimizer(kind, reference))
        rows.append({"what": f"task 0, {kind}", "budget": 1.03, **compare(ways)})
        for other in (net, reference):
            other.prune(0.25)
            other.finish_task()
        next_task(net, reference)
        ways["converted"] = stepper(net, x, labels, optimizer(kind, net))
        ways["reference"] = stepper(reference, x, labels, optimizer(kind, reference))
        budget = 0.85 if name == "vit_tiny" else 0.75
        what = f"task 1, {net.capacity().tasks[0]:.0%} of the elements frozen, {kind}"
        rows.append({"what": what, "budget": budget, **compare(ways)})
    return {"rows": rows}


def next_task(net: Any, reference: ReferenceNet) -> None:
    net.prepare_for_task(reference.task, num_classes=CLASSES, on_full="reuse")
    reference.prepare_for_task()


def evaluate(name: str) -> Record:
    """A forward pass in eval mode with one finished task and with five."""
    model, x, labels = build(name)
    net, reference = converted(model, x), masked(model, x)
    rows = []
    budget = 1.25 if name == "vit_tiny" else 1.03
    for task, fraction in enumerate(PRUNED):
        stepper(net, x, labels, optimizer("sgd", net))()
        for other in (net, reference):
            if fraction:
                other.prune(fraction)
            other.finish_task()
        if task in (0, len(PRUNED) - 1):
            what = f"{task + 1} finished task{'s' if task else ''}"
            ways = {"plain": model, "converted": net, "reference": reference}
            found = compare({way: forward(each, x) for way, each in ways.items()})
            rows.append({"what": what, "budget": budget, **found})
        if task + 1 < len(PRUNED):
            next_task(net, reference)
    return {"rows": rows}


def forward(model: nn.Module, x: Tensor) -> Action:
    model.eval()

    def action() -> None:
        with torch.no_grad():
            model(x)

    return action


def prune(name: str) -> Record:
    """``prune(by="l2")`` and ``finish_task`` against one training step of the plain model."""
    model, x, labels = build(name)
    plain = stepper(model, x, labels, optimizer("sgd", model))
    plain()
    rounds, prunings, finishes = [], [], []
    for _ in range(PRUNINGS):
        net, reference = converted(model, x), masked(model, x)
        for other in (net, reference):
            stepper(other, x, labels, optimizer("sgd", other))()
        gc.collect()
        found = {"plain": timed(plain), "reference": timed(lambda r=reference: _pruned(r))}
        prunings.append(timed(lambda net=net: net.prune(0.5, by="l2")))
        finishes.append(timed(net.finish_task))
        parts = zip(prunings[-1], finishes[-1], strict=True)
        rounds.append({**found, "converted": tuple(a + b for a, b in parts)})
    row = {
        "what": "prune + finish_task",
        "budget": 2.0,
        "prune": median(a for a, _ in prunings),
        "finish": median(a for a, _ in finishes),
        **ratios(rounds),
    }
    return {"rows": [row]}


def _pruned(reference: ReferenceNet) -> None:
    reference.prune(0.5)
    reference.finish_task()
