"""The benchmark's results as one self-contained HTML page: a sortable table and plots."""

from __future__ import annotations

from collections import defaultdict
from html import escape

from . import plots
from .records import (
    analysed,
    converted,
    extracted,
    part,
    pruned_by_torch_pruning,
    torch_pruning,
    verified,
)
from .result_table import Column, shown
from .runner import Record, setting_line
from .summary import summary

_STYLE = """
:root { color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif; }
body { margin: 1.5rem; } code { font-size: .95em; }
svg { vertical-align: top; max-width: 100%; height: auto; border: 1px solid #8884; margin: .3rem; }
.table { overflow-x: auto; max-height: 85vh; border: 1px solid #8884; }
table { border-collapse: collapse; font-size: 12px; }
th, td { padding: .2rem .5rem; border-bottom: 1px solid #8883; white-space: nowrap; }
th { position: sticky; top: 0; background: Canvas; cursor: pointer; text-align: left; }
th:focus-visible { outline: 2px solid; } td.number { text-align: right; }
th[aria-sort=ascending]::after { content: " \\25B2"; }
th[aria-sort=descending]::after { content: " \\25BC"; }
tr.failed td { background: #d1495b22; }
"""
_SCRIPT = """
const table = document.querySelector("table"), body = table.tBodies[0];
const heads = [...table.tHead.rows[0].cells];
const search = document.querySelector("input");
function sort(index) {
  const down = heads[index].getAttribute("aria-sort") === "ascending";
  heads.forEach(head => head.removeAttribute("aria-sort"));
  heads[index].setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = row => row.cells[index].dataset.value ?? row.cells[index].textContent;
  const number = heads[index].dataset.number !== undefined;
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = number ? x - y : x.localeCompare(y);
    return down ? -order : order;
  });
  body.append(...rows);
}
heads.forEach((head, index) => {
  head.onclick = () => sort(index);
  head.onkeydown = event => { if (event.key === "Enter") sort(index); };
});
search.oninput = () => {
  for (const row of body.rows) row.hidden = !row.textContent.includes(search.value);
};
"""


def to_html(title: str, command: str, setting: Record, records: list[Record]) -> str:
    columns = shown(records)
    said = "\n".join(f"<li>{escape(line)}</li>" for line in summary(records))
    rows = "\n".join(_row(columns, record) for record in records)
    return f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
<h1>{escape(title)}</h1>
<p><code>{escape(command)}</code><br>{escape(setting_line(setting))}</p>
<ul>
{said}
</ul>
<div>
{plot_times(records)}
{plot_coverage(records)}
</div>
<p><label>Show rows with <input type="search"></label></p>
<div class="table"><table>
<thead><tr>{"".join(map(_head, columns))}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<script>{_SCRIPT}</script>
</html>
"""


def _head(column: Column) -> str:
    number = " data-number" if column.format else ""
    return f'<th tabindex="0"{number}>{escape(column.title)}</th>'


def _row(columns: list[Column], record: Record) -> str:
    cells = []
    for column in columns:
        value, text = column.value(record), escape(column.text(record))
        if column.format:  # `data-value` has the exact number, by which the script sorts
            exact = "" if value is None else f"{value:g}" if isinstance(value, float) else value
            cells.append(f'<td class="number" data-value="{exact}">{text}</td>')
        else:
            cells.append(f"<td>{text}</td>")
    failed = "" if analysed(record) else ' class="failed"'
    return f"<tr{failed}>{''.join(cells)}</tr>"


def plot_times(records: list[Record]) -> str:
    """Seconds against the size of the graph, for autoeidetic and the other tools."""
    series: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    titles = {"export": "torch.export", "torch_pruning": "Torch-Pruning's graph"}
    for record in records:
        found = part(record, "analyze")
        if not found:
            continue
        # Dots of one model share their x, so tools can be compared column by column.
        series["analyze"].append((found["nodes"], found["seconds"], record["model"]))
        for way, title in titles.items():
            seconds = part(record, "compare").get("seconds", {}).get(way)
            if seconds is not None:
                series[title].append((found["nodes"], seconds, record["model"]))
    return plots.points(dict(series), "Time against the size of the graph", "nodes", "seconds")


def plot_coverage(records: list[Record]) -> str:
    """The number of models of each family that passed each stage."""
    # Only stages that were run have bars; a missing stage is no failure.
    kinds = {"analysed": analysed}
    if any(record.get("convert") for record in records):
        kinds["converted"] = converted
    if any(record.get("verify") for record in records):
        kinds["no bit moved"] = verified
    if any(record.get("extract") for record in records):
        kinds["extracted"] = extracted
    if any(map(torch_pruning, records)):
        kinds["halved by Torch-Pruning"] = pruned_by_torch_pruning
    families: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        families[record["family"]].append(record)
    rows = [
        (family, [sum(map(done, members)) for done in kinds.values()], len(members))
        for family, members in sorted(families.items())
    ]
    return plots.bars(rows, list(kinds), "Coverage by family")
