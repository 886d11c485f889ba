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
    extracted,
    failures,
    is_divided,
    other_tools_failures,
    part,
    pruned_by_torch_pruning,
    skipped,
    torch_pruning,
    verified,
    widened,
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
        ("extract", extracted, "two finished tasks leave as programs with the same outputs"),
        ("verify", verified, "no bit of a finished task moved, with real weights"),
        ("widen", widened, "widened twice, no bit of a finished task moved"),
    ):
        asked = [r for r in records if r.get(stage)]
        left_out = sum("skipped" in r[stage] for r in asked)
        if asked:
            rest = f"; {left_out} were not run" if left_out else ""
            lines.append(f"{sum(map(done, asked))} of {len(asked)} models: {text}{rest}.")
    lines += _program_lines([part(r, "extract") for r in records if extracted(r)])
    lines += _column_lines([part(r, "widen") for r in records if widened(r)])
    lines += _times_lines([part(r, "compare") for r in records if part(r, "compare")])
    lines += _torch_pruning_lines(records)
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


def _program_lines(found: list[Record]) -> list[str]:
    """The size and the time of programs of tasks that keep half of the units."""
    if not found:
        return []
    wide = [one["measured"] for one in found if one["measured_in"] == "float64"]
    worst = f"{max(wide):.0e}" if wide else "an unknown part"
    left, work = (median(one[key] for one in found) for key in ("left", "multiply_adds_left"))
    times = {
        count: [one["times"][count] for one in found if count in one["times"]]
        for count in ("1", "4")
    }
    parts = [f"{median(t):.2f} at a batch of {count}" for count, t in times.items() if t]
    takes = f" and takes {' and '.join(parts)} of the plain model's time" if parts else ""
    return [
        f"The program of a task that keeps half of the units has {left:.0%} of the parameters and "
        f"{work:.0%} of the multiply-adds,{takes} (medians); its outputs differ by at most "
        f"{worst} of the largest one in float64. Extracted in "
        f"{median(one['seconds'] for one in found):.1f} s (median)."
    ]


def _column_lines(found: list[Record]) -> list[str]:
    """The width of the first column that was added."""
    if not found:
        return []
    columns = [one["columns"][0] for one in found]
    narrow = [each["width"] for each in columns if not each["reason"]]
    line = f"{len(narrow)} columns are narrow"
    if narrow:
        line += (
            f", with {median(narrow):.0%} of the model's width (median; widest {max(narrow):.0%})"
        )
    full = len(columns) - len(narrow)
    return [f"{line}; {full} have its full width."]


def _times_lines(found: list[Record]) -> list[str]:
    lines = []
    for way, title in (
        ("export", "torch.export"),
        ("torch_pruning", "Torch-Pruning's graph and groups"),
    ):
        pairs = [
            (s["analyze"], s[way])
            for one in found
            if {"analyze", way} <= (s := one["seconds"]).keys()
        ]
        if pairs:
            # Per model, then the median: a few giants would decide a ratio of sums.
            ratios = [ours / theirs for ours, theirs in pairs]
            lines.append(
                f"`analyze` takes {median(ratios):.2f} times as long as {title} (median of "
                f"{len(pairs)} models that both support; worst {max(ratios):.2f})."
            )
    return lines


def _torch_pruning_lines(records: list[Record]) -> list[str]:
    asked = [r for r in records if part(r, "compare") or r.get("extract")]
    tried = [r for r in asked if torch_pruning(r)]
    if not tried:
        return ["Torch-Pruning is not installed."] if asked else []
    done = [r for r in tried if pruned_by_torch_pruning(r)]
    stages = Counter(torch_pruning(r)["stage"] for r in tried if not pruned_by_torch_pruning(r))
    rest = ", ".join(f"{n} fail to {stage}" for stage, n in stages.items())
    lines = [
        f"Torch-Pruning, as documented: of {len(tried)} models {len(done)} are pruned by half and "
        f"run with as many outputs as before{f'; {rest}' if rest else ''}."
    ]
    both = [
        (part(r, "extract"), torch_pruning(r))
        for r in done
        if extracted(r) and "multiply_adds_left" in torch_pruning(r)
    ]
    if both:
        ours, theirs = (
            median(x["multiply_adds_left"] for x in side) for side in zip(*both, strict=True)
        )
        lines.append(
            f"Multiply-adds left in the {len(both)} models that both make smaller (medians): "
            f"{ours:.1%}, by Torch-Pruning {theirs:.1%}."
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
