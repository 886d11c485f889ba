"""The Markdown tables of ``benchmarks/speed.py``."""

from __future__ import annotations

from statistics import median

from autoeidetic.commands.benchmark.runner import Record


def compare_report(records: list[Record]) -> str:
    """A table of all models, then the median and worst ratios."""
    lines = ["| model | analyze (s) | torch.export (s) | ratio | Torch-Pruning (s) | ratio |"]
    lines.append("|---|---|---|---|---|---|")
    lines.extend(_compare_row(record) for record in records)
    return "\n".join([*lines, "", *compare_summary(records)])


def compare_summary(records: list[Record]) -> list[str]:
    """The ratios and the failures."""
    ways = (("export", "torch.export"), ("torch_pruning", "Torch-Pruning"))
    lines = [_summary(records, way, title) for way, title in ways]
    failures = [
        f"- {record['model']}, {way}: {text}"
        for record in records
        for way, text in _errors(record).items()
    ]
    if failures:
        lines += ["", "Failures:", "", *failures]
    return lines


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
    """All comparisons of a converted network with the plain model, and their budgets."""
    return _cost_table(records, "plain (ms)", "converted (ms)", 1e3)


def bytes_report(records: list[Record]) -> str:
    return _cost_table(records, "model or frozen values (kB)", "added (kB)", 1e-3)


def _cost_table(records: list[Record], plain: str, other: str, scale: float) -> str:
    unit = other.partition(" ")[2]
    lines = [
        f"| model | what | {plain} | {other} | ratio | budget | | processor | reference {unit} "
        "| ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        if "error" in record:
            lines.append(f"| {record['model']} | {record['error']} | | | | | fail | | | |")
        lines.extend(_cost_row(record["model"], row, scale) for row in record.get("rows", []))
    return "\n".join(lines)


def _cost_row(model: str, row: Record, scale: float) -> str:
    budget, verdict = row["budget"], ""
    if budget is not None:
        verdict = "pass" if row["ratio"] <= budget else "fail"
    masks = row.get("reference")
    cells = [
        model,
        row["what"],
        f"{row['plain'] * scale:,.1f}",
        f"{row['converted'] * scale:,.1f}",
        f"{row['ratio']:.3f}",
        "" if budget is None else str(budget),
        verdict,
        _number(row.get("cpu_ratio")),
        "" if masks is None else f"{masks * scale:,.1f}",
        _number(row.get("reference_ratio")),
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
