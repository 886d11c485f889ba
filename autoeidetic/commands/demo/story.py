"""Story: what is happening and what it means, for somebody who sees it for the first time."""

from __future__ import annotations

import math
import textwrap

from ... import EideticNet, Epoch, Lesson
from ...results import AccuracyMatrix
from .networks import NAME
from .outcome import Moment, Outcome, Record

_WIDTH = 96
_GAP = " " * 4


def paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _WIDTH, break_on_hyphens=False)


FINE_TUNING = "\n" + paragraph(
    "The same network once more, fine-tuned in the ordinary way: same images, same epochs, same "
    "learning rates, a head for each task:"
)


def introduction(net: EideticNet, tasks: list[Lesson]) -> str:
    groups = net.capacity().groups
    parameters = sum(p.numel() for p in net.backbone.parameters())
    channels = sum(group.size for group in groups)
    network = f"""Network: {NAME} as timm makes it, {parameters:,} parameters. autoeidetic.convert
        has found out which of its {channels} channels depend on each other ({len(groups)} groups),
        so they can be divided between tasks."""
    data = f"""Data: scikit-learn's handwritten digits. Each task tells two of them apart:
        {", ".join(str(task.name) for task in tasks)}. Once a task is finished, the
        network is not trained on its images again."""
    parts = [
        f"One network learns {len(tasks)} tasks, one after another, and forgets nothing.\n",
        paragraph(network),
        f"{paragraph(data)}\n",
        "Each task trains on all that is free, gives up what it can do without, and is frozen:",
    ]
    return "\n".join(parts)


def doing(tasks: list[Lesson], epoch: Epoch) -> str:
    """For the progress display."""
    words = {"train": "learning", "prune": "pruning", "recover": "recovering", "settle": "settling"}
    return f"{words.get(epoch.phase, epoch.phase)}: {tasks[epoch.task].name}"


def learned(task: Lesson, record: Record, moment: Moment) -> str:
    return (
        f"  {task.name}: {record.rows[-1][-1]:6.1%} right, keeps {moment.tasks[-1]:5.1%} of the "
        f"network, {moment.free:5.1%} is free for others"
    )


def forgotten(record: Record) -> str:
    first, last = record.rows[0][0], record.rows[-1][0]
    return (
        f"  its first task: {first:.1%} right when it was learned, {last:.1%} after all the others"
    )


def ending(outcome: Outcome) -> str:
    """The result, and what it means."""
    return "\n".join(
        [
            "Accuracy on the test images of each task (columns) after learning each (rows), in %:",
            "",
            *side_by_side(
                ["autoeidetic", *matrix_lines(outcome.matrix)],
                ["fine-tuning", *matrix_lines(outcome.tuned_matrix)],
            ),
            "",
            paragraph(averages(outcome)),
            "",
            changed(outcome),
            scrambled(outcome),
            "",
            paragraph(routed(outcome)),
            f"{outcome.free:.1%} of the network is still free for tasks to come.",
        ]
    )


def averages(outcome: Outcome) -> str:
    ours, tuned = outcome.matrix.average(), outcome.tuned_matrix.average()
    return (
        "A column is the life of a task: on the left it stays as it is, on the right it fades. At "
        f"the end {ours:.1%} are right on average with autoeidetic, {tuned:.1%} with fine-tuning."
    )


def routed(outcome: Outcome) -> str:
    return (
        "When nobody says which task an image is of, a router beside the network, trained at the "
        f"end on images of all tasks, finds it for {outcome.routed:.1%} of the test images; task "
        f"and digit are both right for {outcome.agnostic:.1%}."
    )


def changed(outcome: Outcome) -> str:
    count = f"{outcome.changed:,} of {outcome.logits:,} logits changed"
    if outcome.changed:
        return f"{count}: this must not happen, and is a bug. Please report it."
    return f"{count}: every finished task gives the same bits as on the day it was finished."


def scrambled(outcome: Outcome) -> str:
    if outcome.scramble_proof:
        return "They stay the same even when all that is free is overwritten with random numbers."
    return "They change when all that is free is overwritten: this is a bug. Please report it."


def matrix_lines(matrix: AccuracyMatrix) -> list[str]:
    """Rows of numbers, with short names of tasks.

    >>> for line in matrix_lines(AccuracyMatrix([[1.0], [0.5, 0.75]], ["0 or 1", "2 or 3"])):
    ...     print(line.rstrip())
              0/1    2/3
    0 or 1  100.0
    2 or 3   50.0   75.0
    """
    width = max(map(len, matrix.names))
    lines = [" " * width + "".join(f"{name.replace(' or ', '/'):>7}" for name in matrix.names)]
    for name, row in zip(matrix.names, matrix.rows, strict=True):
        cells = ["" if math.isnan(value) else f"{100 * value:.1f}" for value in row]
        lines.append(name.ljust(width) + "".join(f"{cell:>7}" for cell in cells))
    return lines


def side_by_side(left: list[str], right: list[str]) -> list[str]:
    """Two columns of text.

    >>> side_by_side(["a", "bb"], ["c", "d"])
    ['a     c', 'bb    d']
    """
    width = max(map(len, left))
    return [f"{a:<{width}}{_GAP}{b}".rstrip() for a, b in zip(left, right, strict=True)]
