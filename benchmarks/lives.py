"""Random lives of networks: check that no finished task ever changes.

    python benchmarks/lives.py                        # 3,000 lives
    python benchmarks/lives.py --lives 500 --first 9000 --into /tmp/lives
    python benchmarks/lives.py --without all          # remove each safeguard, one at a time
    python benchmarks/lives.py --without spots 'level norms'

The lives are those of tests/fuzz. README.md in this directory describes what is recorded.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))

from autoeidetic.commands.benchmark.runner import Record, discard, run_all, setting, setting_line
from benchmarks import RESULTS

CHUNK = 25  # lives in one process
COUNTS = ("steps", "refusals", "warned", "tolerated")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    removing = options.without is not None
    name = "lives-without" if removing else "lives"
    names = _safeguards(options.without) if removing else _chunks(options.first, options.lives)
    traces = options.into / f"{name}.jsonl"
    if options.fresh:
        discard(traces, names)

    def measure(each: str) -> Record:
        return found_without(each, options.first, options.lives) if removing else lived(each)

    records = run_all(
        measure, names, traces, seconds=options.seconds, gibibytes=8.0, workers=options.workers
    )
    about = setting(records=records)
    report = (without_report if removing else lives_report)(records)
    print(f"{setting_line(about)}, one thread\n\n{report}")
    command = shlex.join(["python", "benchmarks/lives.py", *arguments])
    content = {"command": command, "setting": about, "models": records}
    (options.into / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (options.into / f"{name}.md").write_text(f"`{command}`  \n{setting_line(about)}\n\n{report}\n")
    return 0 if removing else int(bool(_findings(records)) or any("error" in r for r in records))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--lives", type=int, default=3000, help="number of lives; with --without the maximum"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--without", nargs="+", metavar="NAME", help='remove these safeguards, or "all"'
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1800.0, help="time limit per process")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results")
    parser.add_argument("--into", type=Path, default=RESULTS, help="folder for the results")
    return parser


def _chunks(first: int, lives: int) -> list[str]:
    ends = range(first, first + lives, CHUNK)
    return [f"{start}-{min(start + CHUNK, first + lives) - 1}" for start in ends]


def _safeguards(names: list[str]) -> list[str]:
    from fuzz.without import SAFEGUARDS

    if names == ["all"]:
        return sorted(SAFEGUARDS)
    unknown = [name for name in names if name not in SAFEGUARDS]
    if unknown:
        raise SystemExit(f"unknown safeguards: {unknown}; known are {sorted(SAFEGUARDS)}")
    return names


# -- measuring ------------------------------------------------------------------------------------


def lived(seeds: str) -> Record:
    """Run the lives of some seeds ("0-24"): counts and findings."""
    from fuzz.life import live
    from fuzz.script import draw

    _quiet()
    first, last = (int(end) for end in seeds.split("-"))
    counts: dict[str, Counter[str]] = {name: Counter() for name in COUNTS}
    findings, finished, seconds = [], 0, 0.0
    for seed in range(first, last + 1):
        report = live(draw(seed))
        for name in COUNTS:
            counts[name].update(getattr(report, name))
        finished += report.finished
        seconds += report.seconds
        if report.finding is not None:
            findings.append({"seed": seed, **_shown(report)})
    plain = {name: dict(counter) for name, counter in counts.items()}
    lives = last - first + 1
    return {"lives": lives, "finished": finished, "seconds": seconds, "findings": findings, **plain}


def found_without(name: str, first: int, most: int) -> Record:
    """The number of lives until a removed safeguard is noticed."""
    from fuzz.without import until_found, without

    _quiet()
    lives, report = until_found(name, first, most)
    if report is None:
        return {"lives": lives, "found": False}
    with without(name):
        shown = _shown(report)
    return {"lives": lives, "found": True, "seed": first + lives - 1, **shown}


def _shown(report: Any) -> Record:
    """A finding and the shortest script that reproduces it."""
    from fuzz.shrink import shrunk

    short = shrunk(report)
    assert short.finding is not None
    return {
        "cause": short.finding.cause,
        "finding": str(short.finding),
        "script": str(short.script).splitlines(),
    }


def _quiet() -> None:
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


# -- reporting ------------------------------------------------------------------------------------


def lives_report(records: list[Record]) -> str:
    """Totals, then a table by action and one by refusal, then the findings."""
    known = [record for record in records if "error" not in record]
    lives, finished = (sum(record[key] for record in known) for key in ("lives", "finished"))
    found, steps = _findings(records), sum(_total(known, "steps").values())
    lines = [
        f"{lives:,} lives with {finished:,} finished tasks and {steps:,} steps: "
        f"{len(found)} findings.",
        "",
        *_table("step", _total(known, "steps")),
        "",
        *_table("refused by an error of the package", _total(known, "refusals")),
    ]
    lines += [f"- {r['model']}: {r['error']}" for r in records if "error" in r]
    for finding in found:
        lines += ["", f"Seed {finding['seed']}: {finding['finding']}", "", "```python"]
        lines += [*finding["script"], "```"]
    return "\n".join(lines)


def without_report(records: list[Record]) -> str:
    lines = ["| without | lives until it was found | as |", "|---|---|---|"]
    for record in records:
        if "error" in record:
            lines.append(f"| {record['model']} | {record['error']} | |")
        elif record["found"]:
            lines.append(f"| {record['model']} | {record['lives']} | {record['finding']} |")
        else:
            lines.append(f"| {record['model']} | not in {record['lives']} | |")
    return "\n".join(lines)


def _findings(records: Iterable[Record]) -> list[Record]:
    return [finding for record in records for finding in record.get("findings", [])]


def _total(records: list[Record], name: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for record in records:
        total.update(record[name])
    return total


def _table(title: str, counts: Counter[str]) -> list[str]:
    rows = [f"| {name} | {count:,} |" for name, count in counts.most_common()]
    return [f"| {title} | times |", "|---|---|", *rows]


if __name__ == "__main__":
    raise SystemExit(main())
