"""Draw the smallest model of each timm family and three giants as HTML and SVG.

    python benchmarks/drawings.py                        # all families and the giants
    python benchmarks/drawings.py --models resnet50 swin_tiny_patch4_window7_224

Prints the table, and writes results/drawings.json and results/drawings.md after a run of all
models. ``--keep FOLDER`` keeps the drawings in a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parent.parent))

from autoeidetic.commands.benchmark.families import smallest
from autoeidetic.commands.benchmark.runner import Record, run_all, seconds_of, setting
from benchmarks import RESULTS

#: Thousands of operators, many branches, a billion parameters; built without memory for weights.
GIANTS = ("coat_small", "nasnetalarge", "vit_giant_patch14_224")
_KEEP = "AUTOEIDETIC_DRAWINGS"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="only these models")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit per model")
    parser.add_argument("--memory", type=float, default=12.0, help="memory limit in GiB")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the drawings there")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results")
    options = parser.parse_args()
    families = {name: family for family, name in smallest().items()}
    names = options.models or list(dict.fromkeys((*families, *GIANTS)))
    into = RESULTS / "drawings.jsonl"
    if options.fresh:
        into.unlink(missing_ok=True)
    if options.keep:
        Path(options.keep).mkdir(parents=True, exist_ok=True)
        os.environ[_KEEP] = str(Path(options.keep).resolve())
    records = run_all(measure, names, into, seconds=options.seconds, gibibytes=options.memory)
    records = [{"family": families.get(r["model"], "giant"), **r} for r in records]
    text = report(records)
    print(text)
    if not options.models:
        content = {"setting": setting(), "drawings": records}
        (RESULTS / "drawings.json").write_text(json.dumps(content, indent=1) + "\n")
        (RESULTS / "drawings.md").write_text(text + "\n")
    return 0 if all("error" not in record for record in records) else 1


def measure(name: str) -> Record:
    """Describe one model, then write it as a page and as a picture; runs in its own process."""
    import torch

    from autoeidetic.commands.images.model_names import inspect_model
    from autoeidetic.draw import describe, save
    from autoeidetic.draw.picture.folding import fold

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: list[Any] = []
    analysis = seconds_of(lambda: found.append(inspect_model(name, None)))
    description = seconds_of(lambda: found.append(describe(found[0], title=name)))
    drawing = found[1]
    record: Record = {
        "nodes": len(drawing.nodes),
        "edges": len(drawing.edges),
        "modules": len(drawing.modules),
        "groups": len(drawing.groups),
        "cards": len(fold(drawing).cards),
        "seconds_analyze": analysis,
        "seconds_describe": description,
    }
    with tempfile.TemporaryDirectory() as temporary:
        for format in ("html", "svg"):
            path = Path(os.environ.get(_KEEP, temporary)) / f"{name}.{format}"
            record[f"seconds_{format}"] = seconds_of(lambda: save(drawing, path))  # noqa: B023
            record[f"bytes_{format}"] = path.stat().st_size
        ElementTree.parse(path)  # the SVG must be well-formed XML
    return record


def report(records: list[Record]) -> str:
    known = [r for r in records if "error" not in r]
    lines = [
        ", ".join(f"{key} {value}" for key, value in setting().items()),
        "",
        f"{len(known)} of {len(records)} models drawn as HTML and as SVG.",
    ]
    if known:
        lines += [_summary(known, format) for format in ("describe", "html", "svg")]
    lines += [
        "",
        "| family | model | nodes | edges | groups | cards | describe (s) | HTML (s) | HTML (kB) "
        "| SVG (s) | SVG (kB) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *[_row(record) for record in records],
    ]
    return "\n".join(lines)


def _summary(known: list[Record], step: str) -> str:
    seconds = {r["model"]: r[f"seconds_{step}"] for r in known}
    slowest = max(seconds, key=lambda name: seconds[name])
    text = f"{step}: median {median(seconds.values()):.2f} s, worst {seconds[slowest]:.2f} s"
    if f"bytes_{step}" in known[0]:
        sizes = [r[f"bytes_{step}"] / 1e6 for r in known]
        text += f"; median {median(sizes):.2f} MB, largest {max(sizes):.2f} MB"
    return f"- {text} (slowest: {slowest})"


def _row(record: Record) -> str:
    start = f"| {record['family']} | {record['model']} |"
    if "error" in record:
        return f"{start} {record['error']} | | | | | | | | |"
    return (
        f"{start} {record['nodes']} | {record['edges']} | {record['groups']} | {record['cards']} | "
        f"{record['seconds_describe']:.2f} | {record['seconds_html']:.2f} | "
        f"{record['bytes_html'] / 1000:.0f} | {record['seconds_svg']:.2f} | "
        f"{record['bytes_svg'] / 1000:.0f} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
