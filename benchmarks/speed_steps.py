"""How long a converted network takes: training steps, evaluation, pruning.

Sections of ``benchmarks/speed.py``. Plain and converted model alternate in one process; see
README.md in this directory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.runner import Record, seconds_of
from benchmarks.workloads import CLASSES, build, converted

Action = Callable[[], object]
PRUNED = (0.8, 0.75, 2 / 3, 0.5, 0.0)  # by each of five tasks: each keeps a fifth of all
LONGEST = 30.0  # seconds for the rounds of one comparison
ROUNDS = 40


# -- timing ---------------------------------------------------------------------------------------


def timed(action: Action) -> tuple[float, float]:
    """Seconds of one call by the clock, and of the processor."""
    cpu = time.process_time()
    return seconds_of(action), time.process_time() - cpu


def compare(plain: Action, other: Action) -> Record:
    """Both by turns, the order changing; medians, and the median of each round's ratio.

    The processor's time tells what a shared machine hides, and nothing of waiting.
    """
    for _ in range(3):
        plain()
        other()
    gc.collect()
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    start = time.perf_counter()
    while len(pairs) < ROUNDS and time.perf_counter() - start < LONGEST:
        if len(pairs) % 2:
            second, first = timed(other), timed(plain)
        else:
            first, second = timed(plain), timed(other)
        pairs.append((first, second))
    return {
        "plain": median(a for (a, _), _ in pairs),
        "converted": median(b for _, (b, _) in pairs),
        "ratio": median(b / a for (a, _), (b, _) in pairs),
        "cpu_ratio": median(b / a for (_, a), (_, b) in pairs),
        "rounds": len(pairs),
    }


def stepper(
    model: nn.Module, x: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer
) -> Action:
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def _optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=kind == "adamw, fused" or None)


# -- sections: a model's name -> its measurements -------------------------------------------------


def step(name: str) -> Record:
    """Training steps of task 0, and of task 1 with three quarters of the units frozen."""
    model, x, labels = build(name)
    rows = []
    for kind in ("sgd", "adamw, fused", "adamw"):
        plain = stepper(model, x, labels, _optimizer(kind, model))
        net = converted(model, x)
        action = stepper(net, x, labels, _optimizer(kind, net))
        rows.append({"what": f"task 0, {kind}", "budget": 1.03, **compare(plain, action)})
        net.prune(0.25)
        net.finish_task()
        net.prepare_for_task(1, num_classes=CLASSES, on_full="reuse")
        later = stepper(net, x, labels, _optimizer(kind, net))
        budget = 0.85 if name == "vit_tiny" else 0.75
        what = f"task 1, {net.capacity().tasks[0]:.0%} of the elements frozen, {kind}"
        rows.append({"what": what, "budget": budget, **compare(plain, later)})
    return {"rows": rows}


def evaluate(name: str) -> Record:
    """A forward pass in eval mode with one finished task and with five."""
    model, x, labels = build(name)
    net = converted(model, x)
    rows = []
    budget = 1.25 if name == "vit_tiny" else 1.03
    for task, fraction in enumerate(PRUNED):
        stepper(net, x, labels, _optimizer("sgd", net))()
        if fraction:
            net.prune(fraction)
        net.finish_task()
        if task in (0, len(PRUNED) - 1):
            plain, other = _forward(model, x), _forward(net, x)
            what = f"{task + 1} finished task{'s' if task else ''}"
            rows.append({"what": what, "budget": budget, **compare(plain, other)})
        if task + 1 < len(PRUNED):
            net.prepare_for_task(task + 1, num_classes=CLASSES, on_full="reuse")
    return {"rows": rows}


def _forward(model: nn.Module, x: Tensor) -> Action:
    model.eval()

    def forward() -> None:
        with torch.no_grad():
            model(x)

    return forward


def prune(name: str) -> Record:
    """``prune(by="l2")`` and ``finish_task`` against one training step of the plain model."""
    model, x, labels = build(name)
    plain = stepper(model, x, labels, _optimizer("sgd", model))
    plain()
    steps, prunings, finishes = [], [], []
    for _ in range(7):
        net = converted(model, x)
        stepper(net, x, labels, _optimizer("sgd", net))()
        gc.collect()
        steps.append(timed(plain))
        prunings.append(timed(lambda net=net: net.prune(0.5, by="l2")))
        finishes.append(timed(net.finish_task))
    rounds = list(zip(steps, prunings, finishes, strict=True))
    row = {
        "what": "prune + finish_task",
        "budget": 2.0,
        "plain": median(a for a, _ in steps),
        "prune": median(a for a, _ in prunings),
        "finish": median(a for a, _ in finishes),
        "converted": median(b[0] + c[0] for _, b, c in rounds),
        "ratio": median((b[0] + c[0]) / a[0] for a, b, c in rounds),
        "cpu_ratio": median((b[1] + c[1]) / a[1] for a, b, c in rounds),
        "rounds": len(rounds),
    }
    return {"rows": [row]}
