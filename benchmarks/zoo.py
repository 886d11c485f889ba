"""What ``autoeidetic.analyze`` finds in the smallest model of each timm family.

    python benchmarks/zoo.py                        # all 97 families
    python benchmarks/zoo.py --models resnet18 test_vit

Writes results/families.json and results/families.md (for all families) and prints the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.families import SMALLEST
from benchmarks.runner import RESULTS, Record, peak_memory, run_all, seconds_of, setting

LARGEST_CLASS = 0.02
LARGEST_LOCKED = 0.10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="instead of the 97 families")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of a model")
    parser.add_argument("--memory", type=float, default=12.0, help="memory limit in GiB")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    families = {name: family for family, name in SMALLEST.items()}
    names = options.models or list(families)
    into = RESULTS / "families.jsonl"
    if options.fresh:
        into.unlink(missing_ok=True)
    records = run_all(measure, names, into, seconds=options.seconds, gibibytes=options.memory)
    records = [{"family": families.get(r["model"], ""), **r} for r in records]
    text = report(records)
    print(text)
    if not options.models:
        content = {"setting": setting(), "families": records}
        (RESULTS / "families.json").write_text(json.dumps(content, indent=1) + "\n")
        (RESULTS / "families.md").write_text(text + "\n")
    return 0


def measure(name: str) -> Record:
    """One model, in its own process."""
    import timm
    import torch

    import autoeidetic

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = timm.create_model(name)
    before = peak_memory()
    found: list[Any] = []
    seconds = seconds_of(lambda: found.append(autoeidetic.analyze(model)))
    deps = found[0]
    return {
        "captured_by": deps.capture.way,
        "nodes": len(deps.capture.graph.nodes),
        "operators": dict(sorted(deps.operators.items())),
        "parameters": sum(p.numel() for p in model.parameters()),
        "unaccounted": _unaccounted(model, deps),
        "groups": len(deps.groups),
        "classes": deps.plan.classes,
        "nested": len(deps.plan.nested),
        "heads": [head.layer for head in deps.heads],
        "largest_class_share": deps.largest_class_share,
        "largest_class": _largest_class(deps),
        "locked_share": deps.locked.share,
        "locked": [lock.to_dict() for lock in deps.locked],
        "unused": list(deps.unused),
        "unhandled": [str(place) for place in deps.unhandled],
        "seconds": seconds,
        "gibibytes": peak_memory() - before,
    }


def _largest_class(deps: Any) -> str:
    """Where the largest class outside the heads lies, and what ties it together."""
    group = max(deps.groups, key=lambda group: group.elements / group.size)
    operators = dict.fromkeys(
        f"{bond.place.operator} in {bond.place.module}"
        for bond in group.bonds
        if bond.kind == "joined"
    )
    tied = f", joined by {', '.join(list(operators)[:2])}" if operators else ""
    return f"one of the {group.size} classes of {len(group.layers)} layers ({group.name}){tied}"


def _unaccounted(model: Any, deps: Any) -> int:
    """Parameter elements that belong to no class."""
    missing = 0
    for name, parameter in model.named_parameters():
        plan = deps.plan.parameters.get(name)
        if plan is None or plan.owner.shape != parameter.shape:
            missing += parameter.numel()
        else:
            missing += int((plan.owner < 1).sum())
    return missing


def is_divided(record: Record) -> bool:
    """Is no class larger than 2 % of the backbone, and at most 10 % of it locked?"""
    return (
        "error" not in record
        and record["largest_class_share"] <= LARGEST_CLASS
        and record["locked_share"] <= LARGEST_LOCKED
    )


def report(records: list[Record]) -> str:
    known = [r for r in records if "error" not in r]
    complete = [r for r in known if not r["unhandled"] and not r["unaccounted"]]
    divided = [r for r in known if is_divided(r)]
    lines = [
        ", ".join(f"{key} {value}" for key, value in setting().items()),
        "",
        f"{len(known)} of {len(records)} models analysed, {len(complete)} with no operator "
        "unhandled and every parameter element in a class. In "
        f"{len(divided)} the largest class outside the heads holds at most {LARGEST_CLASS:.0%} of "
        f"the backbone's elements and at most {LARGEST_LOCKED:.0%} of them are locked.",
        "",
        "| family | model | by | nodes | operators | groups | classes | largest class | locked "
        "| seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *[_row(record) for record in records],
    ]
    rest = [record for record in records if not is_divided(record)]
    if rest:
        lines += ["", "Not divided that far, and why:", "", *[_reason(r) for r in rest]]
    return "\n".join(lines)


def _row(record: Record) -> str:
    start = f"| {record['family']} | {record['model']} |"
    if "error" in record:
        return f"{start} {record['error']} | | | | | | | |"
    return (
        f"{start} {record['captured_by']} | {record['nodes']} | {len(record['operators'])} | "
        f"{record['groups']} | {record['classes']} | {record['largest_class_share']:.2%} | "
        f"{record['locked_share']:.2%} | {record['seconds']:.2f} |"
    )


def _reason(record: Record) -> str:
    if "error" in record:
        return f"- {record['model']}: {record['error']}"
    parts = []
    if record["largest_class_share"] > LARGEST_CLASS:
        parts.append(
            f"the largest class holds {record['largest_class_share']:.1%}: "
            f"{record['largest_class']}"
        )
    if record["locked_share"] > LARGEST_LOCKED:
        first, count = record["locked"][0], len(record["locked"])
        parts.append(
            f"{record['locked_share']:.1%} is locked in {count} places, the largest "
            f"{first['group']} ({first['share']:.1%}): {first['reason']} [{first['operator']}]"
        )
    return f"- {record['model']}: {'; '.join(parts)}."


if __name__ == "__main__":
    raise SystemExit(main())
