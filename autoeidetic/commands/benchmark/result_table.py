"""The columns of the benchmark's results, and the tables built from them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

from .records import (
    extracted,
    failures,
    part,
    pruned_by_torch_pruning,
    skipped,
    torch_pruning,
    verified,
    widened,
)
from .runner import Record
from .summary import bullets, reasons, summary

Value = str | float | None


# -- columns ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column; ``format`` is a format specification, empty for text."""

    title: str
    value: Callable[[Record], Value]
    format: str = ""

    def text(self, record: Record) -> str:
        value = self.value(record)
        return "" if value is None else format(value, self.format)


def _field(stage: str, key: str) -> Callable[[Record], Value]:
    return lambda record: part(record, stage).get(key)


def _seconds(way: str) -> Callable[[Record], Value]:
    return lambda record: part(record, "compare").get("seconds", {}).get(way)


def _locked_because(record: Record) -> Value:
    locked = part(record, "analyze").get("locked")
    return f"{locked[0]['reason']} [{locked[0]['operator']}]" if locked else None


def _operators(record: Record) -> Value:
    # a list while it is measured, a number in the result files
    operators = part(record, "analyze").get("operators")
    return len(operators) if isinstance(operators, list) else operators


def _rest_of_analysis(record: Record) -> Value:
    found = part(record, "analyze")
    return max(found["seconds"] - found["seconds_capture"], 0.0) if found else None


def _passed(stage: str, done: Callable[[Record], bool]) -> Callable[[Record], Value]:
    def value(record: Record) -> Value:
        if not record.get(stage):
            return None
        if "skipped" in record[stage]:
            return "not run"
        return "yes" if done(record) else "no"

    return value


def _time_at(count: str) -> Callable[[Record], Value]:
    return lambda record: part(record, "extract").get("times", {}).get(count)


def _second(record: Record) -> Value:
    return part(record, "extract").get("second", {}).get("measured")


def _left_by_torch_pruning(key: str) -> Callable[[Record], Value]:
    # Without a model that runs, what is left of it means nothing.
    return lambda r: torch_pruning(r).get(key) if pruned_by_torch_pruning(r) else None


def _of_column(key: str) -> Callable[[Record], Value]:
    """About the first column that was added."""

    def value(record: Record) -> Value:
        columns = part(record, "widen").get("columns")
        return (columns[0][key] or None) if columns else None

    return value


def _halved(record: Record) -> Value:
    found = torch_pruning(record)
    if not found:
        return None
    return "yes" if found["stage"] == "done" else f"fails to {found['stage']}"


def _cause(record: Record) -> Value:
    return "; ".join(f"{s}: {c}" for s, c in failures(record).items()) or None


def _not_run(record: Record) -> Value:
    return "; ".join(dict.fromkeys(skipped(record).values())) or None


# One list for CSV, Markdown, page and live output; a column without values is left out.
COLUMNS = (
    Column("family", lambda r: r["family"]),
    Column("model", lambda r: r["model"]),
    Column("captured by", _field("analyze", "captured_by")),
    Column("weights", _field("analyze", "weights")),
    Column("parameters", _field("analyze", "parameters"), ",d"),
    Column("nodes", _field("analyze", "nodes"), "d"),
    Column("operators", _operators, "d"),
    Column("groups", _field("analyze", "groups"), "d"),
    Column("units", _field("analyze", "units"), "d"),
    Column("largest unit", _field("analyze", "largest_unit_share"), ".2%"),
    Column("locked", _field("analyze", "locked_share"), ".2%"),
    Column("locked because", _locked_because),
    Column("free after half", _field("analyze", "free_after_half"), ".1%"),
    Column("capture (s)", _field("analyze", "seconds_capture"), ".3f"),
    Column("rest of analysis (s)", _rest_of_analysis, ".3f"),
    Column("analysis (GiB)", _field("analyze", "gibibytes"), ".2f"),
    Column("convert (s)", _field("convert", "seconds"), ".3f"),
    Column("rehearsal (s)", _field("convert", "seconds_rehearsal"), ".3f"),
    Column("convert (GiB)", _field("convert", "gibibytes"), ".2f"),
    Column("analyze again (s)", _seconds("analyze"), ".3f"),
    Column("torch.export (s)", _seconds("export"), ".3f"),
    Column("Torch-Pruning (s)", _seconds("torch_pruning"), ".3f"),
    Column("extracted", _passed("extract", extracted)),
    Column("difference", _field("extract", "measured"), ".1e"),
    Column("reported", _field("extract", "difference"), ".1e"),
    Column("of task 1", _second, ".1e"),
    Column("parameters left", _field("extract", "left"), ".1%"),
    Column("multiply-adds left", _field("extract", "multiply_adds_left"), ".1%"),
    Column("extract (s)", _field("extract", "seconds"), ".2f"),
    Column("time at batch 1", _time_at("1"), ".2f"),
    Column("time at batch 4", _time_at("4"), ".2f"),
    Column("Torch-Pruning halves it", _halved),
    Column("its parameters left", _left_by_torch_pruning("left"), ".1%"),
    Column("its multiply-adds left", _left_by_torch_pruning("multiply_adds_left"), ".1%"),
    Column("bitwise", _passed("verify", verified)),
    Column("stress test (s)", _field("verify", "seconds"), ".0f"),
    Column("widened, bitwise", _passed("widen", widened)),
    Column("column", _of_column("width"), ".0%"),
    Column("full width because", _of_column("reason")),
    Column("widen (s)", _of_column("seconds"), ".2f"),
    Column("failure", _cause),
    Column("not run", _not_run),
)
_LIVE = {
    "analyze": ("captured by", "nodes", "groups", "units", "largest unit", "locked"),
    "convert": ("convert (s)", "rehearsal (s)"),
    "compare": ("analyze again (s)", "torch.export (s)", "Torch-Pruning halves it"),
    "extract": ("extracted", "difference", "multiply-adds left", "time at batch 4", "extract (s)"),
    "verify": ("bitwise", "stress test (s)"),
    "widen": ("widened, bitwise", "column", "widen (s)"),
}


def shown(records: list[Record]) -> list[Column]:
    """The columns that have a value for at least one of the records."""
    return [c for c in COLUMNS if any(c.value(r) is not None for r in records)]


def live_head(stage: str) -> str:
    return _live_line("model", _LIVE[stage])


def live_row(stage: str, found: Record) -> str:
    """The line that is printed when a stage of one model is done."""
    if "error" in found:
        return f"{found['model'][:40]:40}  {found['error']}"
    record = {"model": found["model"], "family": "", stage: found}
    by_title = {column.title: column for column in COLUMNS}
    return _live_line(found["model"], [by_title[t].text(record) for t in _LIVE[stage]])


def _live_line(name: str, cells: Iterable[str]) -> str:
    return f"{name[:40]:40}  " + "  ".join(f"{cell:>15}" for cell in cells).rstrip()


# -- files ------------------------------------------------------------------------------------


def to_csv(records: list[Record]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = shown(records)
    writer.writerow([column.title for column in columns])
    writer.writerows([[column.value(record) for column in columns] for record in records])
    return file.getvalue()


def to_markdown(records: list[Record]) -> str:
    columns = shown(records)
    rows = [[_cell(column.text(record)) for column in columns] for record in records]
    return "\n".join(
        [
            *bullets(summary(records)),
            "",
            *markdown([column.title for column in columns], rows),
            *reasons(records),
        ]
    )


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _cell(text: str) -> str:
    # In Markdown a bar ends a cell and a line break ends a row.
    return " ".join(escape(text, quote=False).replace("|", "&#124;").split())
