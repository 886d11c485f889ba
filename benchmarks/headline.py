"""The table of results in README.md, written from benchmarks/results/."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from autoeidetic.commands.benchmark.records import (
    analysed,
    extracted,
    torch_pruning,
    verified,
    widened,
)
from autoeidetic.commands.benchmark.runner import Record

BEGIN, END = "<!-- results: written by benchmarks/report.py -->", "<!-- end of results -->"


class Row(NamedTuple):
    """A claim, its measurement, and the command that repeats it."""

    what: str
    measured: str
    command: str


def replaced(readme: str, results: Path) -> str:
    """The text with its table updated; unchanged if it has no marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return readme
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}"


def table(results: Path) -> str:
    """All recorded results as a Markdown table."""
    lines = ["| what | measured | command |", "|---|---|---|"]
    for stem, rows in ROWS.items():
        path = results / f"{stem}.json"
        if path.exists():
            content = json.loads(path.read_text())
            lines += [f"| {row.what} | {row.measured} | `{row.command}` |" for row in rows(content)]
    return "\n".join(lines)


# -- sets of models -------------------------------------------------------------------------------


def _model_set(name: str, options: str) -> Callable[[Record], Iterator[Row]]:
    def rows(content: Record) -> Iterator[Row]:
        models = content["models"]
        command = f"autoeidetic benchmark {options}"
        if any("verify" in model for model in models):
            same = sum(map(verified, models))
            what = f"{name}: three tasks with hostile optimizers, no bit of a finished task moved"
            large = sum("skipped" in model.get("verify", ()) for model in models)
            rest = f" (the other {large} are too large for this machine)" if large else ""
            yield Row(what, f"{same} of {len(models)} models{rest}", command)
        else:
            share = sum(map(analysed, models)) / len(models)
            yield Row(f"{name}: analysed", f"{share:.1%} of {len(models):,} models", command)

        if any("extract" in model for model in models):
            asked = [model for model in models if "extract" in model]
            halved = sum(torch_pruning(model).get("stage") == "done" for model in asked)
            what = f"{name}: a task with half of the units leaves as a small program, same outputs"
            count = f"{sum(map(extracted, asked))} of {len(asked)} models"
            rest = f" (Torch-Pruning halves {halved})" if any(map(torch_pruning, asked)) else ""
            extract = f"autoeidetic benchmark {options.partition(' ')[0]} --only extract"
            yield Row(what, count + rest, extract)
        if any("widen" in model for model in models):
            asked = [model for model in models if "widen" in model]
            yield Row(
                f"{name}: widened twice, four tasks, no bit of a finished task moved",
                f"{sum(map(widened, asked))} of {len(asked)} models",
                f"autoeidetic benchmark {options.partition(' ')[0]} --only widen",
            )

    return rows


# -- learning -------------------------------------------------------------------------------------


def _permuted(content: Record) -> Iterator[Row]:
    ours = content["ours"]
    yield Row(
        f"Permuted MNIST, {len(ours['accuracy'])} tasks, the paper's MLP",
        f"{ours['average']:.2%} on average, {_forgotten(ours)} (the paper: {ours['paper']:.2%})",
        "python benchmarks/learning.py permuted",
    )


def _split(data: str) -> Callable[[Record], Iterator[Row]]:
    def rows(content: Record) -> Iterator[Row]:
        ours = content["scores"]["hybrid"]
        routed = max(found["accuracy"] for found in ours["routed"].values())
        yield Row(
            f"Split {data}, five tasks of two classes, small MLP",
            f"{ours['average']:.2%} given the task, {routed:.2%} with a router, {_forgotten(ours)}",
            f"python benchmarks/learning.py split --data {content['options']['data']}",
        )

    return rows


def _cifar(model: str) -> Callable[[Record], Iterator[Row]]:
    def rows(content: Record) -> Iterator[Row]:
        means = {
            name: sum(other["accuracy"][-1]) / len(other["accuracy"][-1])
            for name, other in content["others"].items()
        }
        others = ", ".join(f"{name} {mean:.1%}" for name, mean in means.items())
        yield Row(
            f"Split CIFAR-100 (250 images a class), five tasks, {model}, the same epochs for each",
            f"{content['ours']['average']:.1%}, {_forgotten(content['ours'])}; {others}",
            content["command"],
        )

    return rows


def _widened(content: Record) -> Iterator[Row]:
    ours, others = content["ours"], content["others"]
    first, last = content["first and last five"]
    apart = others["separate networks"]["accuracy"][-1]
    fixed = others["fixed network"]["accuracy"][-1]
    yield Row(
        f"Permuted MNIST, {len(ours['accuracy'])} tasks, an MLP of 2 x 1000 that widens when full",
        f"first five {first:.2%}, last five {last:.2%}, {_forgotten(ours)} (separate networks "
        f"{sum(apart) / len(apart):.2%}; without widening it ends after {len(fixed)} tasks)",
        "python benchmarks/learning.py widen",
    )


def _whole(content: Record) -> Iterator[Row]:
    ours = content["ours"]
    each = ours["accuracy"][-1]
    means = {
        name: sum(other["accuracy"][-1]) / len(other["accuracy"][-1])
        for name, other in content["others"].items()
    }
    others = ", ".join(f"{name} {mean:.1%}" for name, mean in means.items())
    bits = "the same bits" if ours["logits"] else "other bits"
    yield Row(
        "EfficientNet-Lite0 keeps all of ImageNet, and learns five pairs of Imagenette beside it",
        f"{ours['average']:.1%} on average, lowest {min(each):.1%}; ImageNet: {bits} ({others})",
        "python benchmarks/learning.py whole",
    )


def _pretrained(content: Record) -> Iterator[Row]:
    each = content["ours"]["accuracy"][-1]
    yield Row(
        "Five pairs of Imagenette from a pretrained EfficientNet-Lite0, 120 images each",
        f"{min(each):.1%} to {max(each):.1%}, {_forgotten(content['ours'])}",
        "python benchmarks/learning.py pretrained",
    )


def _kills(content: Record) -> Iterator[Row]:
    same = "the same bits" if content["same state as undisturbed"] else "OTHER BITS"
    yield Row(
        f"A job killed {content['kills']} times at random moments",
        f"ended with {same} as one that was not",
        "python benchmarks/learning.py kills",
    )


def _forgotten(ours: Record) -> str:
    return "0 bits forgotten" if ours["bitwise"]["ok"] else "BITS CHANGED"


# -- cost -----------------------------------------------------------------------------------------


def _ratios(
    what: str, way: str, chosen: Callable[[str], bool]
) -> Callable[[Record], Iterator[Row]]:
    def rows(content: Record) -> Iterator[Row]:
        found = {
            model["model"]: row["ratio"]
            for model in content["models"]
            for row in model["rows"]
            if chosen(row["what"])
        }
        yield Row(
            f"{what}, times the plain model's", _list(found), f"python benchmarks/speed.py {way}"
        )

    return rows


def _list(found: dict[str, float]) -> str:
    return ", ".join(f"{ratio:.2f} {model}" for model, ratio in found.items())


def _programs(content: Record) -> Iterator[Row]:
    """The medians over the models at the largest batch."""
    rows = [row for model in content["models"] for row in model.get("rows", [])]
    images = max((row["images"] for row in rows), default=0)
    known = [model for model in content["models"] if model.get("rows")]
    if known:
        times = median(row["program_ratio"] for row in rows if row["images"] == images)
        left = median(model["left"] for model in known)
        yield Row(
            f"Program of a task with half of the units, batches of {images}, times the plain model",
            f"{times:.2f} of the time with {left:.2f} of the multiply-adds "
            f"(medians of {len(known)} models)",
            "python benchmarks/speed.py extract",
        )


ROWS: dict[str, Callable[[Record], Iterator[Row]]] = {
    "zoo-all": _model_set("All of timm", "--all --only analyze"),
    "zoo-families": _model_set("The smallest of each timm family", "--families --verify"),
    "zoo-torchvision": _model_set(
        "torchvision's classification models", "--torchvision --verify --real-params 7e8"
    ),
    "zoo-transformers": _model_set("Encoders of transformers", "--transformers --verify"),
    "learning-permuted-10": _permuted,
    "learning-split-mnist": _split("MNIST"),
    "learning-split-fashion": _split("Fashion-MNIST"),
    "learning-cifar-resnet18": _cifar("stock ResNet-18"),
    "learning-cifar-vit_tiny": _cifar("ViT-tiny"),
    "learning-pretrained": _pretrained,
    "learning-widen": _widened,
    "learning-whole": _whole,
    "learning-kills": _kills,
    "speed-step": _ratios(
        "Training step with three quarters frozen",
        "step",
        lambda row: row.startswith("task 1") and row.endswith(", sgd"),
    ),
    "speed-eval": _ratios(
        "Evaluation with five tasks", "eval", lambda row: row == "5 finished tasks"
    ),
    "speed-extract": _programs,
    "speed-widen": _ratios(
        "Training step in a column of a quarter of the width beside a finished network",
        "widen",
        lambda row: row == "training step, sgd",
    ),
}
