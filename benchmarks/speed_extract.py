"""The time of a program that ``net.extract`` made, relative to the plain model.

The section ``extract`` of ``benchmarks/speed.py``. The plain model, the program of a task that
keeps half of the units, and Torch-Pruning's model with as many multiply-adds alternate in one
process.
"""

from __future__ import annotations

import warnings
from statistics import median
from typing import Any

import torch
from torch import nn

from autoeidetic.commands.benchmark.models import (
    as_example,
    batch,
    build,
    drawn,
    logits,
    multiply_adds,
    parameters,
)
from autoeidetic.commands.benchmark.runner import Record, error_line
from autoeidetic.commands.benchmark.with_torch_pruning import pruned_to
from autoeidetic.common.inputs import CallInputs
from benchmarks.speed_steps import Action, compare

MODELS = (
    "resnet18",
    "resnet50",
    "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mixer_s32_224",
    "convnext_atto",
    "regnetx_004",
    "efficientnet_b0",
    "mobilenetv3_small_050",
    "torchvision:densenet121",
)
#: Images -> the budget: time ratio divided by the ratio of multiply-adds, median over the models.
BUDGETS = {1: 1.6, 16: 1.25}
NEAR = 0.05  # Torch-Pruning's multiply-adds may differ from the program's by this share


def extracted(name: str) -> Record:
    """Ratios of size and of time to the plain model, for one image and for several."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(name).eval()
    x = batch(model)
    one = drawn(x, 1)
    work = multiply_adds(model, one)
    program = _program(name, x)
    left = multiply_adds(program, one)
    record: Record = {
        "multiply_adds": work,
        "left": left / work,
        "parameters_left": parameters(program) / parameters(model),
    }
    ways = {"plain": model, "program": program}
    try:
        smaller = _by_torch_pruning(model, one, left)
        record["torch_pruning_left"] = multiply_adds(smaller, one) / work
        ways["torch_pruning"] = smaller
    except Exception as error:  # a tool may raise anything
        record["torch_pruning_error"] = error_line(error)
    record["rows"] = [_row(ways, drawn(x, count), record) for count in BUDGETS]
    return record


def _program(name: str, x: CallInputs) -> nn.Module:
    import autoeidetic

    model = build(name).eval()
    with torch.no_grad():
        classes = logits(model(*x.args, **x.kwargs)).shape[1]
    net: Any = autoeidetic.convert(model, as_example(x), inplace=True, rehearse=False)
    net.prepare_for_task(0, num_classes=classes)
    net.prune(0.5)
    net.finish_task()
    return net.extract(0).eval()


def _by_torch_pruning(model: nn.Module, one: CallInputs, left: float) -> nn.Module:
    """Its pruned model; attention is fused again, which only changes the time."""
    smaller = pruned_to(model, one, left)
    found = multiply_adds(smaller, one)
    if abs(found / left - 1) > NEAR:
        raise ValueError(f"{found:,} multiply-adds are the nearest to {left:,.0f}")
    for layer in smaller.modules():
        if hasattr(layer, "fused_attn"):
            layer.fused_attn = True
    with torch.no_grad():
        smaller(*one.args, **one.kwargs)
    return smaller


def _row(ways: dict[str, nn.Module], x: CallInputs, record: Record) -> Record:
    found = compare({way: _forward(model, x) for way, model in ways.items()})
    row = {"images": len(x.args[0]), **found, "quotient": found["program_ratio"] / record["left"]}
    if "torch_pruning" in ways:
        # Per multiply-add: the two sizes are only nearly the same.
        theirs = found["torch_pruning_ratio"] / record["torch_pruning_left"]
        row["against_torch_pruning"] = row["quotient"] / theirs
    return row


def _forward(model: nn.Module, x: CallInputs) -> Action:
    def action() -> None:
        with torch.no_grad():
            model(*x.args, **x.kwargs)

    return action


# -- reporting ------------------------------------------------------------------------------------


def extract_report(records: list[Record]) -> str:
    """All models, then the medians and their budgets."""
    head = "model | images | plain (ms) | program (ms) | ratio | multiply-adds left | quotient"
    lines = [f"| {head} | Torch-Pruning (ms) | program / Torch-Pruning |", "|" + "---|" * 9]
    for record in records:
        if "error" in record:
            lines.append(f"| {record['model']} | {record['error']} |" + " |" * 7)
        lines += [_line(record, row) for row in record.get("rows", [])]
    failures = [
        f"- {record['model']}, Torch-Pruning: {record['torch_pruning_error']}"
        for record in records
        if "torch_pruning_error" in record
    ]
    return "\n".join([*lines, "", *extract_summary(records), *failures])


def extract_summary(records: list[Record]) -> list[str]:
    """The medians of the quotients, their budgets, and those of the other tool."""
    lines = []
    for images, budget in BUDGETS.items():
        rows = [row for r in records for row in r.get("rows", []) if row["images"] == images]
        if not rows:
            continue
        quotient = median(row["quotient"] for row in rows)
        verdict = "pass" if quotient <= budget else "fail"
        both = [row["against_torch_pruning"] for row in rows if "against_torch_pruning" in row]
        rest = (
            f"; against Torch-Pruning's models with as many multiply-adds {median(both):.2f} "
            f"({len(both)} models)"
            if both
            else ""
        )
        lines.append(
            f"- Batch {images}: ratio of times / ratio of multiply-adds, median of {len(rows)} "
            f"models, {quotient:.2f} (budget {budget}: {verdict}){rest}."
        )
    return lines


def _line(record: Record, row: Record) -> str:
    theirs = row.get("torch_pruning")
    against = row.get("against_torch_pruning")
    cells = [
        record["model"],
        str(row["images"]),
        f"{row['plain'] * 1e3:,.1f}",
        f"{row['program'] * 1e3:,.1f}",
        f"{row['program_ratio']:.3f}",
        f"{record['left']:.1%}",
        f"{row['quotient']:.2f}",
        "" if theirs is None else f"{theirs * 1e3:,.1f}",
        "" if against is None else f"{against:.2f}",
    ]
    return f"| {' | '.join(cells)} |"
