"""How long ``autoeidetic.analyze`` takes, and what a converted network costs.

    python benchmarks/speed.py analyze                    # the smallest model of each timm family
    python benchmarks/speed.py analyze --models resnet18 test_vit
    python benchmarks/speed.py analyze --giant            # a billion parameters, on meta
    python benchmarks/speed.py step                       # also: eval, prune, memory

See README.md in this directory for what is measured and how.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.families import SMALLEST
from benchmarks.runner import (
    RESULTS,
    Record,
    limited,
    peak_memory,
    run_all,
    seconds_of,
    setting,
    short,
)
from benchmarks.speed_memory import memory
from benchmarks.speed_steps import evaluate, prune, step
from benchmarks.workloads import BATCHES

GIANTS = ("vit_giant_patch14_clip_224", "eva_giant_patch14_224")
WARM_UP = ("test_resnet", "test_vit")  # the second one when the first is what is measured
ROUNDS = 3
LONGEST = 20  # seconds that one call may take


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("section", choices=["analyze", *COSTS], nargs="?", default="analyze")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="instead of the usual ones")
    parser.add_argument("--giant", action="store_true", help="seconds and memory on meta")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of a model")
    parser.add_argument("--memory", type=float, default=12.0, help="memory limit in GiB")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    kind = "giant" if options.giant else options.section
    section = SECTIONS[kind]
    into = RESULTS / f"speed-{kind}.jsonl"
    if options.fresh:
        into.unlink(missing_ok=True)
    records = run_all(
        section.measure,
        options.models or section.models,
        into,
        seconds=options.seconds,
        gibibytes=options.memory,
    )
    report = f"{_setting_line()}\n\n{section.report(records)}"
    print(report)
    if not options.models:
        content = {"setting": setting(), "models": records}
        (RESULTS / f"speed-{kind}.json").write_text(json.dumps(content, indent=1) + "\n")
        (RESULTS / f"speed-{kind}.md").write_text(report + "\n")
    return 0


# -- one model, in its own process ----------------------------------------------------------------


def compare(name: str) -> Record:
    """Seconds of each way, alternating; the median of three rounds after a warm-up."""
    import timm
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ways: dict[str, Callable[[Any], Callable[[], object]]] = {
        "analyze": _analyze,
        "export": _export,
        "torch_pruning": _torch_pruning,
    }
    other = timm.create_model(WARM_UP[0] if name != WARM_UP[0] else WARM_UP[1])
    for prepare in ways.values():
        prepare(other)()
    model = timm.create_model(name)
    times: dict[str, list[float]] = {way: [] for way in ways}
    errors: dict[str, str] = {}
    for _ in range(ROUNDS):
        for way, prepare in ways.items():
            if way in errors:
                continue
            try:
                action = prepare(model)
                gc.collect()
                with limited(LONGEST):
                    times[way].append(seconds_of(action))
            except Exception as error:  # whatever a tool may raise on a model
                errors[way] = short(error)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": {way: median(t) for way, t in times.items() if t and way not in errors},
        "errors": errors,
    }


def _analyze(model: Any) -> Callable[[], object]:
    import autoeidetic

    return lambda: autoeidetic.analyze(model)


def _export(model: Any) -> Callable[[], object]:
    import torch

    model.eval()
    x = torch.randn(2, *_input_size(model))
    return lambda: torch.export.export(model, (x,), strict=False)


def _torch_pruning(model: Any) -> Callable[[], object]:
    """As its documentation has it: eval mode, batch 1, gradients on, the classifier left out."""
    import torch
    import torch_pruning as tp

    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    x = torch.randn(1, *_input_size(model))
    head = model.get_classifier()
    ignored = list(head) if isinstance(head, (tuple, list)) else [head]
    return lambda: tp.pruner.BasePruner(
        model,
        x,
        importance=tp.importance.MagnitudeImportance(p=2),
        pruning_ratio=0.5,
        ignored_layers=ignored,
    )


def _input_size(model: Any) -> tuple[int, ...]:
    """The size that ``analyze`` takes by default, so that all three see the same image."""
    from autoeidetic.inputs import call_inputs

    inputs = call_inputs(model)
    return tuple(inputs.args[0].shape[1:])


def giant(name: str) -> Record:
    """Seconds and memory above the imports for a model on the meta device."""
    import timm
    import torch

    import autoeidetic

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    autoeidetic.analyze(timm.create_model(WARM_UP[0]))
    before = peak_memory()
    with torch.device("meta"):
        model = timm.create_model(name)
    found: list[Any] = []
    seconds = seconds_of(lambda: found.append(autoeidetic.analyze(model)))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": seconds,
        "gibibytes": peak_memory() - before,
        "classes": found[0].plan.classes,
    }


# -- reports ------------------------------------------------------------------------------------


def compare_report(records: list[Record]) -> str:
    """Every model, then the median and the worst ratios."""
    lines = ["| model | analyze (s) | torch.export (s) | ratio | Torch-Pruning (s) | ratio |"]
    lines.append("|---|---|---|---|---|---|")
    lines.extend(_compare_row(record) for record in records)
    lines.append("")
    for way, title in (("export", "torch.export"), ("torch_pruning", "Torch-Pruning")):
        lines.append(_summary(records, way, title))
    failures = [
        f"- {record['model']}, {way}: {text}"
        for record in records
        for way, text in _errors(record).items()
    ]
    if failures:
        lines += ["", "What failed:", "", *failures]
    return "\n".join(lines)


def _compare_row(record: Record) -> str:
    seconds = record.get("seconds", {})
    cells = [_number(seconds.get("analyze"))]
    for way in ("export", "torch_pruning"):
        cells += [_number(seconds.get(way)), _number(_ratio(record, way), 2)]
    return f"| {record['model']} | {' | '.join(cells)} |"


def _ratio(record: Record, way: str) -> float | None:
    seconds = record.get("seconds", {})
    if "analyze" not in seconds or way not in seconds:
        return None
    return float(seconds["analyze"] / seconds[way])


def _errors(record: Record) -> dict[str, str]:
    return {"all": record["error"]} if "error" in record else dict(record.get("errors", {}))


def _summary(records: list[Record], way: str, title: str) -> str:
    ratios = {r["model"]: x for r in records if (x := _ratio(r, way)) is not None}
    if not ratios:
        return f"analyze / {title}: no model was measured both ways."
    worst = max(ratios, key=lambda name: ratios[name])
    mine = median(r["seconds"]["analyze"] for r in records if r["model"] in ratios)
    theirs = median(r["seconds"][way] for r in records if r["model"] in ratios)
    return (
        f"analyze / {title}, {len(ratios)} of {len(records)} models: median "
        f"{median(ratios.values()):.2f}, worst {ratios[worst]:.2f} ({worst}); median seconds "
        f"{mine:.3f} against {theirs:.3f}.  "
    )


def giant_report(records: list[Record]) -> str:
    lines = ["| model | parameters | seconds | GiB above the imports |"]
    lines.append("|---|---|---|---|")
    for record in records:
        if "error" in record:
            lines.append(f"| {record['model']} | | {record['error']} | |")
        else:
            lines.append(
                f"| {record['model']} | {record['parameters'] / 1e6:,.0f} M | "
                f"{record['seconds']:.1f} | {record['gibibytes']:.2f} |"
            )
    return "\n".join(lines)


def cost_report(records: list[Record]) -> str:
    """Every comparison of a converted network with the plain one, and its budget."""
    return _cost_table(records, "plain (ms)", "converted (ms)", 1e3)


def bytes_report(records: list[Record]) -> str:
    return _cost_table(records, "model or frozen values (kB)", "added (kB)", 1e-3)


def _cost_table(records: list[Record], plain: str, other: str, scale: float) -> str:
    lines = [
        f"| model | what | {plain} | {other} | ratio | budget | | processor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        if "error" in record:
            lines.append(f"| {record['model']} | {record['error']} | | | | | fail | |")
        lines.extend(_cost_row(record["model"], row, scale) for row in record.get("rows", []))
    return "\n".join(lines)


def _cost_row(model: str, row: Record, scale: float) -> str:
    budget, verdict = row["budget"], ""
    if budget is not None:
        verdict = "pass" if row["ratio"] <= budget else "fail"
    numbers = f"{row['plain'] * scale:,.1f} | {row['converted'] * scale:,.1f}"
    cells = [numbers, f"{row['ratio']:.3f}", "" if budget is None else str(budget), verdict]
    return f"| {model} | {row['what']} | {' | '.join(cells)} | {_number(row.get('cpu_ratio'))} |"


def _setting_line() -> str:
    return ", ".join(f"{key} {value}" for key, value in setting().items()) + ", one thread"


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Section:
    """What one section measures, on which models, and how it says so."""

    measure: Callable[[str], Record]
    models: tuple[str, ...]
    report: Callable[[list[Record]], str]


COSTS = {
    "step": Section(step, tuple(BATCHES), cost_report),
    "eval": Section(evaluate, tuple(BATCHES), cost_report),
    "prune": Section(prune, ("resnet50",), cost_report),
    "memory": Section(memory, tuple(BATCHES), bytes_report),
}
SECTIONS = {
    "analyze": Section(compare, tuple(SMALLEST.values()), compare_report),
    "giant": Section(giant, GIANTS, giant_report),
    **COSTS,
}


if __name__ == "__main__":
    raise SystemExit(main())
