"""The texts that the demo prints, for a reader who sees it for the first time."""

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
    "For comparison, the same network with ordinary fine-tuning: same images, same epochs, same "
    "learning rates, one head per task:"
)


def introduction(net: EideticNet, tasks: list[Lesson]) -> str:
    """The network, the data and what happens to each task."""
    groups = net.capacity().groups
    parameters = sum(p.numel() for p in net.backbone.parameters())
    channels = sum(group.size for group in groups)
    network = f"""Network: {NAME} from timm, {parameters:,} parameters. autoeidetic.convert
        found which of its {channels} channels depend on each other ({len(groups)} groups),
        so that they can be divided between tasks."""
    data = f"""Data: scikit-learn's handwritten digits. Each task distinguishes two of them:
        {", ".join(str(task.name) for task in tasks)}. Once a task is finished, the
        network is not trained on its images again."""
    parts = [
        f"One network learns {len(tasks)} tasks, one after another, and forgets nothing.\n",
        paragraph(network),
        f"{paragraph(data)}\n",
        "Each task trains all free units, is pruned to those it needs, and is then frozen:",
    ]
    return "\n".join(parts)


def doing(tasks: list[Lesson], epoch: Epoch) -> str:
    """A description of an epoch for the progress bar."""
    words = {"train": "learning", "prune": "pruning", "recover": "recovering", "settle": "settling"}
    return f"{words.get(epoch.phase, epoch.phase)}: {tasks[epoch.task].name}"


def learned(task: Lesson, record: Record, moment: Moment) -> str:
    return (
        f"  {task.name}: {record.rows[-1][-1]:6.1%} correct, keeps {moment.tasks[-1]:5.1%} of the "
        f"network, {moment.free:5.1%} is free for later tasks"
    )


def forgotten(record: Record) -> str:
    first, last = record.rows[0][0], record.rows[-1][0]
    return (
        f"  first task: {first:.1%} correct when it was learned, {last:.1%} after all other tasks"
    )


def ending(outcome: Outcome) -> str:
    """The results and their meaning."""
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
            f"{outcome.free:.1%} of the network is still free for further tasks.",
        ]
    )


def averages(outcome: Outcome) -> str:
    ours, tuned = outcome.matrix.average(), outcome.tuned_matrix.average()
    return (
        "A column follows one task over time: on the left it stays the same, on the right it is "
        f"forgotten. Average accuracy at the end: {ours:.1%} with autoeidetic, {tuned:.1%} with "
        "fine-tuning."
    )


def routed(outcome: Outcome) -> str:
    return (
        "If the task of an image is not given, a router predicts it. Trained at the end on images "
        f"of all tasks, it is right for {outcome.routed:.1%} of the test images. Task and digit "
        f"are both correct for {outcome.agnostic:.1%}."
    )


def changed(outcome: Outcome) -> str:
    count = f"{outcome.changed:,} of {outcome.logits:,} logits changed"
    if outcome.changed:
        return f"{count}: this is a bug. Please report it."
    return f"{count}: every finished task gives the same bits as when it was finished."


def scrambled(outcome: Outcome) -> str:
    if outcome.scramble_proof:
        return "They stay the same even when everything free is overwritten with random numbers."
    return "They change when everything free is overwritten: this is a bug. Please report it."


def matrix_lines(matrix: AccuracyMatrix) -> list[str]:
    """The matrix as lines of text, with short task names.

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
