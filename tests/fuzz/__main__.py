"""``python -m fuzz FIRST [COUNT]``: run lives, shrink what is found, group it by cause."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict

import torch

from .life import NOT_YET, Report, live
from .script import draw
from .shrink import shrunk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--all", action="store_true", help="also what is not safe yet")
    parser.add_argument("--shrink", type=int, default=3, help="how many that look alike")
    parser.add_argument("--exclude", nargs="+", default=[], help='tags: "write", "dtype:half"')
    options = parser.parse_args()
    excluded = (frozenset() if options.all else NOT_YET) | frozenset(options.exclude)
    torch.set_num_threads(1)
    found: dict[str, list[tuple[int, Report]]] = defaultdict(list)
    alike: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.count):
        report = live(draw(seed), excluded)
        if report.finding is not None:
            finding = report.finding
            print(f"{seed}: {finding} (after {finding.step})", flush=True)
            look = f"{finding.cause} {finding.step}"
            alike[look] += 1
            if alike[look] > options.shrink:
                continue
            short = shrunk(report, excluded)
            assert short.finding is not None
            names = " ".join(step.name for step in short.script.steps)
            found[f"{short.finding.cause} || {names}"].append((seed, short))
    for cause, reports in sorted(found.items(), key=lambda item: -len(item[1])):
        seed, short = min(reports, key=lambda pair: len(pair[1].script.steps))
        seeds = [number for number, _ in reports]
        print(f"\n## {len(reports)} x {cause}\nseeds {seeds}\n{short.finding}\n{short.script}")
    for look, count in alike.most_common():
        print(f"{count:4} x {look}")
    return 1 if alike else 0


if __name__ == "__main__":
    raise SystemExit(main())
