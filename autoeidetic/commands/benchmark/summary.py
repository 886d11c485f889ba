"""The results of the benchmark in a few sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape
from statistics import median

from .measure import REAL
from .records import (
    LARGEST_LOCKED,
    LARGEST_UNIT,
    analysed,
    converted,
    failures,
    is_divided,
    other_tools_failures,
    part,
    pruned_by_torch_pruning,
    skipped,
    verified,
)
from .runner import Record


def bullets(lines: Iterable[str]) -> list[str]:
    """A Markdown list; HTML in names and error messages is escaped."""
    return [f"- {escape(line, quote=False)}" for line in lines]


def summary(records: list[Record]) -> list[str]:
    """A few sentences: counts first, then times, then failures with their causes."""
    lines = [_analysis_line(records)]
    for stage, done, text in (
        ("convert", converted, "converted and rehearsed with real weights"),
        ("verify", verified, "no bit of a finished task moved, with real weights"),
    ):
        asked = [r for r in records if r.get(stage)]
        left_out = sum("skipped" in r[stage] for r in asked)
        if asked:
            rest = f"; {left_out} were not run" if left_out else ""
            lines.append(f"{sum(map(done, asked))} of {len(asked)} models: {text}{rest}.")
    lines += _other_tools_lines([r for r in records if part(r, "compare")])
    # A model that skips several stages for one reason counts once.
    why = Counter(reason for r in records for reason in set(skipped(r).values()))
    lines += [f"{number} not run: {reason}." for reason, number in sorted(why.items())]
    lines += [
        f"FAILED: {r['model']}, {stage}: {cause}"
        for r in records
        for stage, cause in failures(r).items()
    ]
    return lines


def _analysis_line(records: list[Record]) -> str:
    known = [part(r, "analyze") for r in records if analysed(r)]
    # analysed is not complete: an operator without a rule is mixed, which is sound but coarse
    complete = [r for r in known if not r["unhandled"] and not r["unaccounted"]]
    text = (
        f"{len(known)} of {len(records)} models ({len(known) / max(len(records), 1):.1%}) "
        f"analysed, {len(complete)} with no operator unhandled and every parameter element in a "
        f"unit; in {sum(map(is_divided, records))} of them no unit holds more than "
        f"{LARGEST_UNIT:.0%} of the backbone and at most {LARGEST_LOCKED:.0%} is locked"
    )
    if not known:
        return text + "."
    seconds = [r["seconds"] for r in known]
    without = sum(r["weights"] != REAL for r in known)
    return (
        f"{text}. Median {median(seconds):.2f} s, longest {max(seconds):.1f} s. Analysed without "
        f"memory for weights: {without}."
    )


def _other_tools_lines(records: list[Record]) -> list[str]:
    if not records:
        return []
    lines = []
    for way, title in (
        ("export", "torch.export"),
        ("torch_pruning", "Torch-Pruning's graph and groups"),
    ):
        pairs = [
            (s["analyze"], s[way])
            for r in records
            if {"analyze", way} <= (s := part(r, "compare")["seconds"]).keys()
        ]
        if pairs:
            # Per model, then the median: a few giants would decide a ratio of sums.
            ratios = [ours / theirs for ours, theirs in pairs]
            lines.append(
                f"`analyze` takes {median(ratios):.2f} times as long as {title} (median of "
                f"{len(pairs)} models that both support; worst {max(ratios):.2f})."
            )
    records = [r for r in records if "torch_pruning" in part(r, "compare")]
    if not records:
        return [*lines, "Torch-Pruning is not installed."]
    done = sum(map(pruned_by_torch_pruning, records))
    stages = Counter(
        part(r, "compare")["torch_pruning"]["stage"]
        for r in records
        if not pruned_by_torch_pruning(r)
    )
    rest = ", ".join(f"{n} fail to {stage}" for stage, n in stages.items())
    lines.append(
        f"Torch-Pruning, as documented: of {len(records)} models {done} are pruned by half and run "
        f"with as many outputs as before{f'; {rest}' if rest else ''}."
    )
    return lines


def reasons(records: list[Record]) -> list[str]:
    """For each model: why it is not divided further, and what other tools failed at."""
    undivided = [f"{r['model']}: {_undivided(r)}" for r in records if analysed(r)]
    blocks = {
        f"More than {LARGEST_UNIT:.0%} in one unit, or more than {LARGEST_LOCKED:.0%} locked:": [
            line for line in undivided if not line.endswith(": ")
        ],
        "Failures of other tools:": [
            f"{r['model']}, {tool}: {cause}"
            for r in records
            for tool, cause in other_tools_failures(r).items()
        ],
    }
    return [
        line
        for title, block in blocks.items()
        if block
        for line in ("", title, "", *bullets(block))
    ]


def _undivided(record: Record) -> str:
    """Why a model is not divided further; empty when it is divided well."""
    found = part(record, "analyze")
    parts = []
    if found["largest_unit_share"] > LARGEST_UNIT:
        parts.append(
            f"the largest unit holds {found['largest_unit_share']:.1%}: {found['largest_unit']}"
        )
    if found["locked_share"] > LARGEST_LOCKED:
        first = found["locked"][0]
        parts.append(
            f"{found['locked_share']:.1%} is locked in {found['locks']} places, the largest "
            f"{first['group']} ({first['share']:.1%}): {first['reason']} [{first['operator']}]"
        )
    return "; ".join(parts)
