"""Curves: lines of accuracy over time with their names at the right end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import InputError
from .accuracy_matrix import AccuracyMatrix
from .figures import GRID, SMALL, colour_of, plain_axes, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Task -> points (step, accuracy).
Curves = Mapping[int, Sequence[tuple[float, float]]]


def draw_curves(
    ax: Axes, curves: AccuracyMatrix | Curves, boundaries: Sequence[float], names: Sequence[str]
) -> None:
    """Draw the curves of one panel."""
    matrix = isinstance(curves, AccuracyMatrix)
    lines = points_by_task(curves)
    plain_axes(ax)
    for end in range(1, len(names) + 1) if matrix else boundaries:
        ax.axvline(end, color=GRID, linewidth=0.8, zorder=0)
    ends: list[tuple[float, float, str, str]] = []
    for task, points in sorted(lines.items()):
        colour = colour_of(task, len(names))
        xs, ys = zip(*points, strict=True)
        marker = "o" if len(points) <= 20 else ""
        ax.plot(xs, ys, color=colour, linewidth=1.6, marker=marker, markersize=3.5)
        ends += [(x, y, names[task], colour) for x, y in points if math.isfinite(y)][-1:]
    last = max(x for points in lines.values() for x, _ in points)
    first = min(x for points in lines.values() for x, _ in points)
    width = last - first
    left = (0.09 if matrix else 0.03) * width or 1.0  # a single task lies at the right
    ax.set_xlim(first - left, last + (0.03 * width or 0.03))
    _label_ends(ax, ends)


def _label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names at the right end of the curves, moved apart where they would overlap."""
    low, high = ax.get_ylim()
    inches = ax.bbox.height / ax.figure.dpi
    # A line of text in units of the axis: points are 1/72 inch.
    gap = (high - low) * (SMALL * 1.25 / 72) / inches
    placed = apart([y for _, y, _, _ in ends], gap, low, high)
    right = ax.get_xlim()[1]
    step = (right - ax.get_xlim()[0]) * 0.02
    for (x, y, name, colour), at in zip(ends, placed, strict=True):
        ax.plot([x, right + step], [y, at], color=colour, linewidth=0.6, clip_on=False)
        ax.text(right + 1.5 * step, at, short(name, 18), color=colour, fontsize=SMALL, va="center")


def apart(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the values, but at least ``gap`` apart.

    >>> apart([0.5, 0.5, 0.9], 0.1, 0.0, 1.0)
    [0.5, 0.4, 0.9]
    """
    # From the top, push values down until they are apart; from the bottom, push them up again if
    # the last ones fell below ``low``.
    order = sorted(range(len(values)), key=lambda n: (-values[n], n))
    placed = [0.0] * len(values)
    ceiling = high
    for n in order:
        placed[n] = min(values[n], ceiling)
        ceiling = placed[n] - gap
    floor = low
    for n in reversed(order):
        placed[n] = max(placed[n], floor)
        floor = placed[n] + gap
    return placed


def points_by_task(curves: AccuracyMatrix | Curves) -> dict[int, list[tuple[float, float]]]:
    """The points of every task's curve; those of a matrix lie at 1, 2, ..."""
    if not isinstance(curves, AccuracyMatrix):
        return {task: list(points) for task, points in curves.items() if points}
    rows = curves.rows
    return {
        task: [(after + 1.0, rows[after][task]) for after in range(task, len(rows))]
        for task in range(len(rows))
    }


def limits(values: Sequence[float]) -> tuple[float, float]:
    """The range of the vertical axis, with a margin.

    Raises:
        InputError: there are no values.
    """
    if not values:
        raise InputError("there is nothing to draw", remedy="draw after the first task")
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = max(0.06 * (high - low), 0.02)
    return low - margin, high + margin
