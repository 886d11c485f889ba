"""Networks that are widened: thirty tasks in a network that is never full, and a pretrained model
that keeps every unit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic.commands.benchmark.runner import Record
from benchmarks import learning_baselines as baselines
from benchmarks import learning_data as data
from benchmarks import learning_models as models
from benchmarks.learning_run import learned, stored

#: How far the last five tasks may be below the first five, and the least accuracy of a pair.
_GAP, _LEAST = 0.002, 0.97
#: What LoRA adapts: the layers that mix channels.
_TARGETS = ("conv_pw", "conv_pwl", "conv_head")


def permuted(options: argparse.Namespace) -> Record:
    """Permuted MNIST in a network that is widened when it is full.

    Next to it the same network without widening, which ends, and a network for every task.
    """
    tasks = _orders(options)
    build = lambda: models.paper_mlp(width=1000)  # noqa: E731
    settings: dict[str, Any] = {
        "scheduler": lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, options.epochs),
        "pruning": "hybrid",
        "step": options.most,  # once
        "most": options.most,
        "tolerance": 1.0,
        "patience": options.epochs,
        "max_epochs": options.epochs,
        "settle_epochs": options.settle_epochs,
        "score_batches": 40,
    }
    adam = lambda parameters: torch.optim.Adam(parameters, lr=options.lr, fused=True)  # noqa: E731
    name = "widen-validate" if options.validate else "widen"
    about = f"{name}-{options.width:g}-{options.most:g}-{options.epochs}"
    net, _, ours = learned(
        options,
        about,
        build,
        tasks,
        256,
        lambda net: adam(net.parameters()),
        on_full="widen",
        width=options.width,
        **settings,
    )
    ours["columns"] = [len(column.tasks) for column in net.networks]
    ours["parameters"] = parameters_of_tasks(net)
    epochs = round(ours["epochs"] / len(tasks))
    budget = baselines.Budget(epochs, 256, adam, _cosine(epochs), seed=options.seed)
    file = options.into / f"{about}-seed{options.seed}-separate"
    apart = stored(
        file.with_suffix(".json"),
        lambda: vars(
            baselines.separate(build, tasks[: options.others], budget, file.with_suffix(".pt"))
        ),
    )
    others = {"separate networks": {**apart, "parameters": _size(build())}}
    others["fixed network"] = stored(
        options.into / f"{about}-seed{options.seed}-fixed.json",
        lambda: _fixed(options, f"{about}-fixed", build, tasks, adam, settings),
    )
    reached = ours["accuracy"][-1]
    ends = [sum(part) / len(part) for part in (reached[:5], reached[-5:])]
    passed = bool(ours["bitwise"]["ok"] and ours["verified"] and ends[1] >= ends[0] - _GAP)
    return {
        "name": name,
        "passed": passed,
        "first and last five": ends,
        "ours": ours,
        "others": others,
    }


def _orders(options: argparse.Namespace) -> list[data.TaskData]:
    """The tasks; with ``--validate`` others, and without test images."""
    if not options.validate:
        return data.permuted_mnist(options.tasks, directory=options.data_directory)
    tasks = data.permuted_mnist(options.tasks + 1, seed=1, directory=options.data_directory)[1:]
    held = data.held_back(tasks[0], 1 / 6)
    return [replace(task, train=held.train, test=held.test) for task in tasks]


def _cosine(epochs: int) -> Callable[[torch.optim.Optimizer], Any]:
    return lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)


def _fixed(
    options: argparse.Namespace,
    name: str,
    build: Callable[[], nn.Module],
    tasks: Sequence[data.TaskData],
    adam: Callable[[Any], torch.optim.Optimizer],
    settings: Record,
) -> Record:
    """The tasks that the network learns before it has no free unit any more."""
    rows: list[list[float]] = []
    try:
        _, _, found = learned(
            options, name, build, tasks, 256, lambda net: adam(net.parameters()), **settings
        )
        rows = found["accuracy"]
    except autoeidetic.CapacityError:
        run = autoeidetic.Run(options.into / f"{name}-seed{options.seed}")
        rows = [list(row) for row in run.matrix.rows]
    return {"name": "fixed network", "accuracy": rows, "parameters": _size(build()) / len(rows)}


def parameters_of_tasks(net: Any) -> list[int]:
    """The parameter elements that each task owns in its column, with its output layer."""
    found = []
    for column in net.networks:
        plan = column.call_plan.plan
        size = int(plan.elements[~column.owners.outside].sum())
        heads = [sum(p.numel() for p in head.parameters()) for head in column.heads.values()]
        shares = column.capacity().tasks
        found += [round(s * size) + h for s, h in zip(shares, heads, strict=True)]
    return found


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# -- a pretrained model that keeps every unit ------------------------------------------------------


def whole(options: argparse.Namespace) -> Record:
    """ImageNet kept whole as task 0, and five pairs of Imagenette in one column beside it.

    Next to it adapters of the same size for each pair (LoRA of PEFT), and new output layers only.
    """
    tasks = data.imagenette_pairs(size=options.size, directory=options.data_directory)
    if options.validate:
        tasks = [data.held_back(task, 0.25) for task in tasks]
    torch.manual_seed(options.seed)
    model = models.efficientnet_lite0(directory=options.data_directory, frozen_norms=False)
    x = tasks[0].test.x[:8]
    with torch.no_grad():
        plain = model.eval()(x)
    net = autoeidetic.convert(model, x[:2], keep_head=True)
    net.prepare_for_task(0, name="ImageNet")
    net.finish_task()
    net.eval()
    same = _logits(net, x, plain)
    made = net.widen(options.width)
    print(made)
    rows: list[list[float]] = []
    for number, task in enumerate(tasks, 1):
        net.prepare_for_task(number, task.classes, task.name, on_full="widen", width=options.width)
        optimizer = torch.optim.AdamW(
            [
                {"params": net.networks[-1].backbone.parameters(), "lr": options.lr},
                {"params": net.networks[-1].heads.parameters(), "lr": options.head_lr},
            ]
        )
        history = net.train_task(
            task.batches(20, data.crop_and_flip),
            optimizer=optimizer,
            scheduler=_cosine(options.epochs)(optimizer),
            pruning="hybrid",
            step=options.most,
            most=options.most,
            tolerance=1.0,
            patience=options.epochs,
            max_epochs=options.epochs,
            settle_epochs=options.settle_epochs,
            score_batches=6,
            prune=number < len(tasks),
            progress=not options.quiet,
        )
        net.finish_task()
        net.eval()
        reached = [
            baselines.accuracy(net, *each.test, task=place)
            for place, each in enumerate(tasks[:number], 1)
        ]
        rows.append(reached)
        same &= _logits(net, x, plain)
        print(f"{task.name}: {reached[-1]:.2%} after {len(history.epochs)} epochs", flush=True)
    added = parameters_of_tasks(net)[1:]
    ours = {
        "accuracy": rows,
        "average": sum(rows[-1]) / len(tasks),
        "logits": same,
        "verified": net.verify(x).ok,
        "column": str(made),
        "columns": [len(column.tasks) for column in net.networks],
        "parameters": added,
    }
    size = round(sum(added) / len(added))
    others = {
        "LoRA": adapted(options, tasks, size),
        "output layer only": adapted(options, tasks, 0),
    }
    passed = same and ours["verified"] and min(rows[-1]) >= _LEAST
    name = "whole-validate" if options.validate else "whole"
    return {"name": name, "passed": passed, "ours": ours, "others": others}


def _logits(net: autoeidetic.EideticNet, x: Tensor, plain: Tensor) -> bool:
    with torch.no_grad():
        return torch.equal(net(x, task=0), plain)


def adapted(options: argparse.Namespace, tasks: Sequence[data.TaskData], size: int) -> Record:
    """Adapters of about ``size`` parameters for each task, and an output layer; 0: none."""
    reached, parameters = [], 0
    for task in tasks:
        torch.manual_seed(options.seed)
        model = models.efficientnet_lite0(directory=options.data_directory)
        model.classifier = nn.Linear(model.classifier.in_features, task.classes)
        model.requires_grad_(False)
        model.classifier.requires_grad_(True)
        if size:
            model = _with_lora(model, size)
        learning = {n: p for n, p in model.named_parameters() if p.requires_grad}
        parameters = sum(p.numel() for p in learning.values())
        head = [p for n, p in learning.items() if "classifier" in n]
        body = [p for n, p in learning.items() if "classifier" not in n]
        groups = [{"params": head, "lr": options.head_lr}]
        groups += [{"params": body, "lr": options.lr}] if body else []
        optimizer = torch.optim.AdamW(groups)
        epochs = options.epochs + options.settle_epochs
        baselines.train_epochs(
            model,
            task.batches(20, data.crop_and_flip),
            optimizer,
            epochs,
            _cosine(epochs)(optimizer),
            label=task.name,
        )
        reached.append(baselines.accuracy(model, *task.test))
        print(f"{'LoRA' if size else 'head'} {task.name}: {reached[-1]:.2%}", flush=True)
    return {"accuracy": [reached], "parameters": parameters}


def _with_lora(model: nn.Module, size: int) -> Any:
    """The model with adapters of the rank whose size is nearest."""
    from peft import LoraConfig, get_peft_model

    layers = [
        layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and name.split(".")[-1] in _TARGETS
    ]
    each = sum(layer.in_channels + layer.out_channels for layer in layers)
    rank = max(1, round(size / each))
    # every layer that mixes channels, as in the column; the output layer is trained as a whole
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=list(_TARGETS),
        modules_to_save=["classifier"],
    )
    return get_peft_model(model, config)
