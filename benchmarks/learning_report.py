"""The results of a learning run as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]
#: The paper's table for MNIST-5 and a small MLP: per class, with its router and given the task.
PAPER_SPLIT = {
    "l1": (
        "99.39 99.74 97.77 97.92 99.08 98.32 98.12 98.15 97.74 96.83",
        "99.69 99.74 98.06 98.32 100.00 98.32 98.75 98.44 97.84 97.82",
    ),
    "l2": (
        "99.29 99.47 97.77 99.41 98.17 97.53 98.85 99.22 95.38 97.22",
        "99.80 99.74 97.87 99.70 99.29 97.87 99.37 99.42 95.69 98.81",
    ),
    "taylor": (
        "98.88 99.56 99.22 98.02 98.57 97.87 98.23 98.54 97.43 97.22",
        "99.29 99.56 99.42 98.61 99.29 97.98 99.37 99.22 98.97 98.12",
    ),
}


def table(name: str, record: Record) -> str:
    """The report of one command."""
    lines = [f"# Learning: {name}", "", f"`{record['command']}`", ""]
    lines += [
        f"{record['setting']['date']}, torch {record['setting']['torch']}, seed "
        f"{record['options']['seed']}; this call {record['seconds_of_this_call']} s. "
        f"{'Passed' if record['passed'] else 'NOT passed'}.",
        "",
    ]
    if "scores" in record:
        lines += _scores(record["scores"], PAPER_SPLIT if name.endswith("split-mnist") else {})
    elif "curves" in record:
        lines += _curves(record)
    elif "columns" in record.get("ours", ()):
        lines += _widened(record)
    elif "ours" in record:
        lines += _sequence(record)
    else:
        facts = {k: v for k, v in record.items() if k not in ("setting", "options", "command")}
        lines += [f"- {key}: {value}" for key, value in facts.items()]
    return "\n".join(lines)


def _sequence(record: Record) -> list[str]:
    ours = record["ours"]
    rows = [["autoeidetic", *_percents(ours["accuracy"][-1]), f"{ours['average']:.2%}"]]
    for name, other in record.get("others", {}).items():
        last = other["accuracy"][-1]
        rows.append([name, *_percents(last), f"{sum(last) / len(last):.2%}"])
    tasks = len(ours["accuracy"])
    lines = _markdown(["after the last task", *(f"task {t}" for t in range(tasks)), "mean"], rows)
    lines += ["", _facts(ours)]
    if "gap" in record:
        gap = 100 * record["gap"]
        side = "Below" if gap > 0 else "Above"
        lines += ["", f"{side} separate networks by {abs(gap):.2f} points on average."]
    if "paper" in ours:
        lines += ["", f"The paper reports {ours['paper']:.2%} for ten tasks."]
    return lines


def _widened(record: Record) -> list[str]:
    """Networks with columns: accuracies and parameters of every task, next to others."""
    ours, first = record["ours"], int("logits" in record["ours"])  # ImageNet is task 0
    last = ours["accuracy"][-1]
    size = sum(ours["parameters"]) / len(ours["parameters"])
    rows = [["autoeidetic", *_percents(last), f"{ours['average']:.2%}", f"{size:,.0f}"]]
    for name, other in record["others"].items():
        found = other["accuracy"][-1]
        filled = [*_percents(found), *[""] * (len(last) - len(found))]
        mean = f"{sum(found) / len(found):.2%}"
        rows.append([name, *filled, mean, f"{other['parameters']:,.0f}"])
    tasks = [f"task {task}" for task in range(first, first + len(last))]
    lines = _markdown(["after the last task", *tasks, "mean", "parameters of a task"], rows)
    own = ", ".join(f"{size:,}" for size in ours["parameters"])
    lines += [
        "",
        f"Columns with {', '.join(map(str, ours['columns']))} tasks. Parameters that each task "
        f"owns, its output layer included: {own}.",
    ]
    if "first and last five" in record:
        ends = record["first and last five"]
        lines += [
            "",
            f"The first five tasks have {ends[0]:.2%}, the last five {ends[1]:.2%}. {_facts(ours)}",
        ]
    else:
        same = "the same bits" if ours["logits"] else "DIFFERENT BITS"
        verified = "ok" if ours["verified"] else "FAILED"
        lines += [
            "",
            f"{ours['column']}. ImageNet logits after every task, compared with the plain model: "
            f"{same}; verify {verified}.",
        ]
    return lines


def _curves(record: Record) -> list[str]:
    shares = [f"{share:.0%} free" for share in record["free"]]
    rows = [
        [
            by,
            *(
                "not reached" if mean is None else f"{100 * mean:.1f} ± {100 * spread:.1f}"
                for mean, spread in zip(found["mean"], found["std"], strict=True)
            ),
        ]
        for by, found in record["curves"].items()
    ]
    about = (
        f"Test accuracy in percent at the same free share of the parameters, mean and standard "
        f"deviation over {len(record['seeds'])} seeds; one task, the same trained network pruned "
        "by each score, twenty batches of training after each round. `hybrid` is better than the "
        f"best of `l2` and `taylor` by {100 * record['lead']:.2f} points on average."
    )
    return [about, "", *_markdown(["score", *shares], rows)]


def _facts(ours: Record) -> str:
    owned = ", ".join(f"{share:.1%}" for share in ours["capacity"])
    same = {True: "the same bits", False: "DIFFERENT BITS", None: "not comparable"}
    return (
        f"Backward transfer {ours['backward transfer']}; outputs of finished tasks over time: "
        f"{same[ours['bitwise']['ok']]}; verify {'ok' if ours['verified'] else 'FAILED'}. Owned by "
        f"the tasks: {owned}; free {ours['free']:.1%}. {ours['epochs']} epochs, "
        f"{ours['seconds']:.0f} s."
    )


def _scores(scores: Record, paper: dict[str, tuple[str, str]]) -> list[str]:
    head = ["score", "given the task", "free", "learned", "entropy", "energy", "mahalanobis"]
    rows = [
        [
            by,
            f"{one['average']:.2%}",
            f"{one['free']:.1%}",
            *(f"{one['routed'][kind]['accuracy']:.2%}" for kind in head[3:]),
        ]
        for by, one in scores.items()
    ]
    lines = [
        "Mean accuracy over the tasks; in the last four columns a router predicts the task.",
        "",
    ]
    lines += _markdown(head, rows)
    lines += ["", "Per class: with the learned router, and below it given the task.", ""]
    each = []
    for by, one in scores.items():
        found = one["routed"]["learned"]
        each.append([by, *_percents([p for task in found["per class"] for p in task])])
        each.append(["", *_percents([p for task in found["told"] for p in task])])
        if by in paper:
            each += [
                [text, *row.split()] for text, row in zip(("paper", ""), paper[by], strict=True)
            ]
    lines += _markdown(["score", *(str(digit) for digit in range(10))], each)
    for by, one in scores.items():
        lines += ["", f"{by}: {_facts(one)}"]
    return lines


def _percents(values: Sequence[float]) -> list[str]:
    return [f"{100 * value:.2f}" for value in values]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]
