"""The results of ``benchmarks/slim.py`` as Markdown."""

from __future__ import annotations

from statistics import mean, stdev

from autoeidetic.commands.benchmark.runner import Record
from benchmarks.slim_networks import OURS, THEIRS

Key = tuple[str, float, str, str]  # network, share, tool, score
NEAR = 0.02  # share by which the multiply-adds may be more than asked for
HEAD = (
    "network",
    "multiply-adds",
    "tool",
    "score",
    "multiply-adds left",
    "parameters left",
    "right after pruning",
    "fine-tuned",
    "",
)


def slim_report(records: list[Record]) -> str:
    """Accuracies of the trained networks, of all smaller copies, and the lead over the other."""
    known = [record for record in records if "error" not in record]
    rows = _grouped(known)
    best = chosen(rows)
    lines = ["Test accuracy in percent, mean and standard deviation over the seeds.", ""]
    lines += _trained(known)
    lines += [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines += [_line(key, found, key in best.values()) for key, found in rows.items()]
    lines += ["", *leads(rows)]
    lines += [f"- {record['model']}: {record['error']}" for record in records if "error" in record]
    lines += [
        f"- {record['model']}, {row['tool']}, {row['score']}, {row['share']:.0%}: {row['error']}"
        for record in known
        for row in record["rows"]
        if "error" in row
    ]
    return "\n".join(lines)


def chosen(rows: dict[Key, list[Record]]) -> dict[tuple[str, float, str], Key]:
    """Network, share and tool -> its score with the best mean accuracy on validation images.

    Copies that have more multiply-adds left than were asked for do not count.
    """
    best: dict[tuple[str, float, str], Key] = {}
    for key, found in rows.items():
        if _mean(found, "left") > (1 + NEAR) * key[1]:
            continue
        before = best.get(key[:3])
        if before is None or _mean(found, "validation") > _mean(rows[before], "validation"):
            best[key[:3]] = key
    return best


def leads(rows: dict[Key, list[Record]]) -> list[str]:
    """How much better the chosen score of autoeidetic is than the other tool's, in points."""
    best, lines, all_leads = chosen(rows), [], []
    for network, share in dict.fromkeys((key[0], key[1]) for key in rows):
        pair = [best.get((network, share, tool)) for tool in (OURS, THEIRS)]
        if None in pair:
            continue
        ours, theirs = (_mean(rows[key], "accuracy") for key in pair if key is not None)
        all_leads.append(100 * (ours - theirs))
        lines.append(f"- {network}, {share:.0%} of the multiply-adds: {all_leads[-1]:+.2f} points")
    if not lines:
        return []
    title = (
        "Lead of autoeidetic over Torch-Pruning after fine-tuning, each with the score that is "
        f"best on the validation images; on average {mean(all_leads):+.2f} points:"
    )
    return [title, "", *lines]


def _grouped(records: list[Record]) -> dict[Key, list[Record]]:
    rows: dict[Key, list[Record]] = {}
    for record in records:
        for row in record["rows"]:
            if "error" not in row:
                key = (record["network"], row["share"], row["tool"], row["score"])
                rows.setdefault(key, []).append(row)
    return rows


def _trained(records: list[Record]) -> list[str]:
    lines = []
    for network in dict.fromkeys(record["network"] for record in records):
        those = [record for record in records if record["network"] == network]
        lines.append(
            f"- {network}: {_spread([record['accuracy'] for record in those])} before pruning, "
            f"{those[0]['multiply_adds'] / 1e6:.1f} M multiply-adds, "
            f"{those[0]['parameters'] / 1e3:,.0f} k parameters, {len(those)} seeds"
        )
    return [*lines, ""]


def _line(key: Key, found: list[Record], is_best: bool) -> str:
    network, share, tool, score = key
    cells = [
        network,
        f"{share:.0%}",
        tool,
        score,
        f"{_mean(found, 'left'):.1%}",
        f"{_mean(found, 'parameters_left'):.1%}",
        _spread([row["pruned"] for row in found]),
        _spread([row["accuracy"] for row in found]),
        "chosen" if is_best else "too large" if _mean(found, "left") > (1 + NEAR) * share else "",
    ]
    return f"| {' | '.join(cells)} |"


def _mean(rows: list[Record], key: str) -> float:
    return mean(row[key] for row in rows)


def _spread(values: list[float]) -> str:
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"
