"""How the costs of a converted network grow with width, depth, tasks and the frozen share.

The section ``growth`` of ``benchmarks/speed.py``. One quantity changes at a time, in an MLP and in
a small ViT; plain model, converted one and the reference's masks alternate in one process.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from autoeidetic.commands.benchmark.runner import Record
from benchmarks.reference_masks import ReferenceNet
from benchmarks.speed_memory import state_bytes
from benchmarks.speed_steps import compare, forward, next_task, optimizer, ratios, stepper, timed
from benchmarks.workloads import CLASSES, converted, masked, mlp

COSTS = ("step", "evaluation", "prune and finish", "bytes")
PRUNINGS = 3


@dataclass(frozen=True)
class Point:
    """A network with ``tasks`` finished tasks, which own the share ``frozen`` of the units."""

    kind: str
    axis: str
    width: int
    depth: int
    tasks: int = 1
    frozen: float = 0.5

    @property
    def value(self) -> float:
        return float(getattr(self, self.axis))

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.axis} {self.value:g}"


def _points() -> list[Point]:
    axes = {
        "width": {"mlp": (250, 500, 1000, 2000), "vit": (64, 128, 192, 384)},
        "depth": {"mlp": (2, 4, 8, 16), "vit": (2, 4, 8, 12)},
        "tasks": {"mlp": (1, 2, 4, 8), "vit": (1, 2, 4, 8)},
        "frozen": {"mlp": (0.1, 0.25, 0.5, 0.75, 0.9), "vit": (0.1, 0.25, 0.5, 0.75, 0.9)},
    }
    bases = {"mlp": Point("mlp", "", 1000, 4), "vit": Point("vit", "", 192, 4)}
    return [
        replace(bases[kind], axis=axis, **{axis: value})
        for axis, kinds in axes.items()
        for kind, values in kinds.items()
        for value in values
    ]


POINTS = {point.name: point for point in _points()}


def grown(name: str) -> Record:
    """All costs at one point."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    point = POINTS[name]
    model, x = network(point)
    labels = torch.randint(CLASSES, x.shape[:1])
    ways = learned(model, x, point)
    steps = {w: stepper(net, x, labels, optimizer("sgd", net)) for w, net in ways.items()}
    costs = {"step": compare(steps)}
    costs["evaluation"] = compare({way: forward(net, x) for way, net in ways.items()})
    costs["bytes"] = _bytes(ways)
    rounds = [_prunings(learned(model, x, point), steps["plain"]) for _ in range(PRUNINGS)]
    costs["prune and finish"] = ratios(rounds)
    return {"kind": point.kind, "axis": point.axis, "value": point.value, "costs": costs}


def network(point: Point) -> tuple[nn.Module, Tensor]:
    if point.kind == "mlp":
        return mlp(784, *[point.width] * point.depth, CLASSES), torch.randn(64, 784)
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"embed_dim": point.width, "depth": point.depth, "num_heads": point.width // 32}
    model = VisionTransformer(img_size=32, patch_size=4, num_classes=CLASSES, **sizes)
    return model, torch.randn(8, 3, 32, 32)


def learned(model: nn.Module, x: Tensor, point: Point) -> dict[str, Any]:
    """The plain model, and both others with the finished tasks and the next one open."""
    net, reference = converted(model, x), masked(model, x)
    share = point.frozen / point.tasks
    for task in range(point.tasks):
        for each in (net, reference):
            each.prune(1 - share / (1 - task * share))
            each.finish_task()
        next_task(net, reference)
    return {"plain": model, "converted": net, "reference": reference}


def _prunings(ways: dict[str, Any], plain: Any) -> dict[str, tuple[float, float]]:
    """Time to prune half of the open task and finish it, and of a step of the plain model."""

    def pruned(net: Any) -> None:
        net.prune(0.5)
        net.finish_task()

    ways["plain"].train()
    found = {way: timed(lambda n=ways[way]: pruned(n)) for way in ("converted", "reference")}
    return {"plain": timed(plain), **found}


def _bytes(ways: dict[str, Any]) -> Record:
    """Bytes of parameters and buffers; for the reference also of the masked weights."""
    sizes = {way: state_bytes(net) for way, net in ways.items()}
    sizes["reference"] += _masked_weights(ways["reference"])
    plain = sizes["plain"]
    return {
        **sizes,
        "ratio": sizes["converted"] / plain,
        "reference_ratio": sizes["reference"] / plain,
    }


def _masked_weights(reference: ReferenceNet) -> int:
    return sum(layer.module.weight.nbytes for layer in reference.layers)


def growth_report(records: list[Record]) -> str:
    """Ratios to the plain model for autoeidetic and the reference, one table per quantity."""
    known = [record for record in records if "error" not in record]
    lines = []
    for (kind, axis), group in groupby(known, key=lambda r: (r["kind"], r["axis"])):
        lines += ["", f"{kind}, growing {axis}:", ""]
        titles = " | ".join(f"{cost} | reference" for cost in COSTS)
        lines += [f"| {axis} | plain step (ms) | {titles} |", "|---|---|" + "---|---|" * len(COSTS)]
        lines += [_row(record) for record in group]
    lines += ["", *(f"- {r['model']}: {r['error']}" for r in records if "error" in r)]
    return "\n".join(lines).strip()


def _row(record: Record) -> str:
    costs = record["costs"]
    cells = [f"{record['value']:g}", f"{1e3 * costs['step']['plain']:.1f}"]
    for cost in COSTS:
        cells += [f"{costs[cost]['ratio']:.2f}", f"{costs[cost]['reference_ratio']:.2f}"]
    return f"| {' | '.join(cells)} |"
