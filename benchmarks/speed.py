"""The time of ``autoeidetic.analyze``, and the costs of a converted network.

    python benchmarks/speed.py analyze                    # the smallest model of each timm family
    python benchmarks/speed.py analyze --models resnet18 test_vit
    python benchmarks/speed.py analyze --giant            # a billion parameters, on meta
    python benchmarks/speed.py step                       # also: eval, prune, memory
    python benchmarks/speed.py calls                      # sizes that no example had
    python benchmarks/speed.py extract                    # programs, and Torch-Pruning's models
    python benchmarks/speed.py widen                      # a column beside a finished network
    python benchmarks/speed.py growth                     # with width, depth, tasks, share frozen
    python benchmarks/speed.py import                     # of the package, beyond that of torch

README.md in this directory describes the measurements.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from autoeidetic.commands.benchmark.families import smallest
from autoeidetic.commands.benchmark.other_tools import WARM_UP, compare
from autoeidetic.commands.benchmark.runner import (
    Record,
    discard,
    peak_memory,
    run_all,
    seconds_of,
    setting,
    setting_line,
)
from benchmarks import RESULTS
from benchmarks.speed_calls import NETWORKS, calls, calls_report
from benchmarks.speed_extract import MODELS, extract_report, extracted
from benchmarks.speed_growth import POINTS, grown, growth_report
from benchmarks.speed_import import import_report, imported
from benchmarks.speed_memory import memory
from benchmarks.speed_steps import evaluate, prune, step
from benchmarks.speed_tables import bytes_report, compare_report, cost_report, giant_report
from benchmarks.speed_widen import MODELS as COLUMNS
from benchmarks.speed_widen import widen
from benchmarks.workloads import BATCHES

GIANTS = ("vit_giant_patch14_clip_224", "eva_giant_patch14_224")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    kind = "giant" if options.giant else options.section
    section = SECTIONS[kind]
    names = options.models or list(section.models())
    traces = options.into / f"speed-{kind}.jsonl"
    if options.fresh:
        discard(traces, names)
    records = run_all(
        section.measure, names, traces, seconds=options.seconds, gibibytes=options.memory
    )
    about = setting("torch-pruning", records=records)
    report = f"{setting_line(about)}, one thread\n\n{section.report(records)}"
    print(report)
    if not options.models:
        command = shlex.join(["python", "benchmarks/speed.py", *arguments])
        content = {"command": command, "setting": about, "models": records}
        (options.into / f"speed-{kind}.json").write_text(json.dumps(content, indent=1) + "\n")
        (options.into / f"speed-{kind}.md").write_text(report + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    sections = [name for name in SECTIONS if name != "giant"]
    parser.add_argument("section", choices=sections, nargs="?", default="analyze")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="instead of the default models")
    parser.add_argument("--giant", action="store_true", help="seconds and memory on meta")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit per model")
    parser.add_argument("--memory", type=float, default=12.0, help="memory limit in GiB")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results")
    parser.add_argument("--into", type=Path, default=RESULTS, help="folder for the results")
    return parser


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
        "units": found[0].plan.units,
    }


@dataclass(frozen=True)
class Section:
    """A section: its measurement, its models and its report."""

    measure: Callable[[str], Record]
    models: Callable[[], Iterable[str]]
    report: Callable[[list[Record]], str]


SECTIONS = {
    "analyze": Section(compare, lambda: smallest().values(), compare_report),
    "giant": Section(giant, lambda: GIANTS, giant_report),
    "step": Section(step, lambda: BATCHES, cost_report),
    "eval": Section(evaluate, lambda: BATCHES, cost_report),
    "prune": Section(prune, lambda: ["resnet50"], cost_report),
    "memory": Section(memory, lambda: BATCHES, bytes_report),
    "calls": Section(calls, lambda: NETWORKS, calls_report),
    "extract": Section(extracted, lambda: MODELS, extract_report),
    "widen": Section(widen, lambda: COLUMNS, cost_report),
    "growth": Section(grown, lambda: POINTS, growth_report),
    "import": Section(imported, lambda: ["autoeidetic"], import_report),
}


if __name__ == "__main__":
    raise SystemExit(main())
