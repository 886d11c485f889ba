"""The costs of a column beside a finished network: training steps, memory, answers.

The section ``widen`` of ``benchmarks/speed.py``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoeidetic.commands.benchmark.runner import Record
from benchmarks.speed_steps import Action, compare, optimizer, stepper
from benchmarks.workloads import CLASSES, build, converted

WIDTH = 0.25
MODELS = ("resnet18", "vit_tiny", "convnext_tiny")
STEP, KEPT, ANSWER = 0.60, 0.5, 1.02  # budgets


def widen(name: str) -> Record:
    """A column of a quarter of the width beside a network that keeps every unit."""
    model, x, labels = build(name)
    first = converted(model, x)
    first.finish_task()
    net = copy.deepcopy(first)
    about = net.widen(WIDTH)
    rows = [_answers(first, net, x)]
    net.prepare_for_task(1, num_classes=CLASSES)
    for kind in ("sgd", "adamw, fused"):
        ways = {
            "plain": stepper(model, x, labels, optimizer(kind, model)),
            "converted": stepper(net, x, labels, optimizer(kind, net)),
        }
        rows.append({"what": f"training step, {kind}", "budget": STEP, **compare(ways)})
    with net.cache_columns():
        ways["converted"]()  # what comes again is known
        row = {"what": "training step, adamw, fused, cached", "budget": STEP, **compare(ways)}
    rows.append(row)
    plain, ours = (kept_bytes(each, x, labels) for each in (model, net))
    found = {"plain": plain * 1e-6, "converted": ours * 1e-6, "ratio": ours / plain}
    rows.append({"what": "activations kept (kB)", "budget": KEPT, **found})
    return {"rows": rows, "width": about.width, "parameters": about.parameters}


def _answers(before: Any, after: Any, x: Tensor) -> Record:
    """A pass of the first task, before and after widening."""
    found = compare({"plain": _first_task(before, x), "converted": _first_task(after, x)})
    return {"what": "answer of task 0, before and after", "budget": ANSWER, **found}


def _first_task(net: Any, x: Tensor) -> Action:
    net.eval()

    def call() -> None:
        with torch.no_grad():
            net(x, task=0)

    return call


def kept_bytes(model: nn.Module, x: Tensor, labels: Tensor) -> int:
    """The bytes that a training pass keeps for the backward pass, without parameters."""
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = F.cross_entropy(model(x), labels)
    loss.backward()
    return sum(found.values())
