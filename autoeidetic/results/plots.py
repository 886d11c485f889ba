"""Plots: drawings of a run, for a report or a paper. Needs matplotlib.

Figures are built without pyplot, so the user's backend and settings are not touched. Every function
returns the figure, and writes it if a path is given: PNG or SVG by its suffix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..common.tables import line
from ..errors import InputError
from .accuracy_matrix import AccuracyMatrix
from .curves import Curves, draw_curves, limits, points_by_task
from .figures import FREE, MEDIUM, SMALL, WIDTH, colour_of, finished, name_ticks, new_figure, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..tasks.capacity import Capacity

#: The most tasks for which the cells of a heat map show their numbers.
_NUMBERED = 12
#: Letters that fit in a line of the legend.
_LEGEND = 66


# -- accuracy over time ---------------------------------------------------------------------------


def accuracy_over_time(
    curves: AccuracyMatrix | Curves,
    path: Any = None,
    *,
    compare: AccuracyMatrix | Curves | None = None,
    titles: tuple[str, str] = ("eidetic", "fine-tuning"),
    boundaries: Sequence[float] = (),
    names: Sequence[str] = (),
    measure: str = "accuracy",
) -> Figure:
    """Accuracy on every task while the others are learned.

    Args:
        curves: the accuracies after every task; or, for each task, pairs (step, accuracy).
        path: the file to write.
        compare: the same of another method, for a second panel.
        titles: the titles of the two panels.
        boundaries: with curves of steps: where each task ends.
        names: the names of the tasks.
        measure: the name of the vertical axis.

    Example:
        >>> eidetic = AccuracyMatrix([[0.97], [0.97, 0.95], [0.97, 0.95, 0.96]])
        >>> tuned = AccuracyMatrix([[0.98], [0.61, 0.97], [0.52, 0.55, 0.98]])
        >>> figure = accuracy_over_time(eidetic, compare=tuned)
        >>> len(figure.axes)
        2

    Raises:
        InputError: matplotlib is missing, or the suffix of the path is not known.
    """
    sets = [curves] if compare is None else [curves, compare]
    if len({isinstance(each, AccuracyMatrix) for each in sets}) > 1:
        raise InputError(
            "a matrix cannot be compared with curves of steps", remedy="pass two of the same kind"
        )
    if isinstance(curves, AccuracyMatrix) and not names:
        names = curves.names
    names = _names(names, max(max(points_by_task(each), default=-1) for each in sets) + 1)
    figure, axes = new_figure(WIDTH, 1.0 + 2.2 * len(sets), rows=len(sets))
    points = [point for each in sets for curve in points_by_task(each).values() for point in curve]
    # One range for both panels: only then can their curves be compared by eye.
    span = limits([accuracy for _, accuracy in points])
    for number, (each, ax) in enumerate(zip(sets, axes, strict=True)):
        ax.set_ylim(*span)
        draw_curves(ax, each, boundaries, names)
        ax.set_ylabel(measure, fontsize=MEDIUM)
        if len(sets) > 1:
            ax.set_title(line(titles[number]), fontsize=MEDIUM, loc="left", fontweight="bold")
    if isinstance(curves, AccuracyMatrix):
        name_ticks(axes[-1], range(1, len(names) + 1), names)
        axes[-1].set_xlabel("after learning", fontsize=MEDIUM)
    else:
        axes[-1].set_xlabel("epochs", fontsize=MEDIUM)
    return finished(figure, path)


# -- heat maps ------------------------------------------------------------------------------------


def accuracy_matrix(
    matrix: AccuracyMatrix, path: Any = None, *, measure: str = "accuracy"
) -> Figure:
    """Accuracy on every task after every task, as a heat map.

    Example:
        >>> figure = accuracy_matrix(AccuracyMatrix([[0.97], [0.97, 0.95]]))
        >>> figure.axes[0].get_ylabel()
        'after learning'

    Raises:
        InputError: matplotlib is missing, or the suffix of the path is not known.
    """
    labels = (f"{measure} on", "after learning", measure)
    return _heat_map(matrix.rows, matrix.names, "{:.3f}", labels, path)


def reuse(
    capacity: Capacity | Mapping[str, Any], path: Any = None, *, names: Sequence[str] = ()
) -> Figure:
    """The share of what each task reads that was learned by each task, as a heat map.

    Args:
        capacity: the network's capacity, or its ``to_dict()``.
        path: the file to write.
        names: the names of the tasks.

    Example:
        >>> figure = reuse({"reuse": [[1.0, 0.0], [0.3, 0.7]]})
        >>> figure.axes[0].get_xlabel()
        'reads what was learned by'

    Raises:
        InputError: matplotlib is missing, or the suffix of the path is not known.
    """
    rows = _dict(capacity)["reuse"]
    # A task cannot read what later tasks learn: those cells stay empty instead of 0.
    rows = [[v if s <= t else math.nan for s, v in enumerate(row)] for t, row in enumerate(rows)]
    labels = ("reads what was learned by", "weights of", "share of weight magnitude")
    names = _names(names, len(rows))
    return _heat_map(rows, names, "{:.0%}", labels, path)


def _heat_map(
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    form: str,
    labels: tuple[str, str, str],
    path: Any,
) -> Figure:
    side = min(max(0.46 * len(rows), 1.6), 5.0)
    figure, (ax,) = new_figure(side + 2.0, side + 1.1)
    # The scale is 0 to 1, or wider, so that small differences do not look large.
    known = [value for row in rows for value in row if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    low, high = min(low, 0.0), max(high, 1.0)
    image = ax.imshow([list(row) for row in rows], cmap="Blues", vmin=low, vmax=high)
    if len(rows) <= _NUMBERED:
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                if math.isfinite(value):
                    dark = (value - low) / (high - low) > 0.68
                    ax.text(
                        x, y, form.format(value), ha="center", va="center", fontsize=SMALL - 1,
                        color="white" if dark else "black",
                    )  # fmt: skip
    name_ticks(ax, range(len(rows)), names)
    ax.set_yticks(range(len(rows)), [short(name, 18) for name in names], fontsize=SMALL)
    # Minor ticks lie between the cells; their grid draws white gaps.
    lines = [n + 0.5 for n in range(len(rows) - 1)]
    ax.set_xticks(lines, minor=True)
    ax.set_yticks(lines, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.0)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel(labels[0], fontsize=MEDIUM)
    ax.set_ylabel(labels[1], fontsize=MEDIUM)
    bar = figure.colorbar(image, ax=ax, fraction=0.046, pad=0.04)
    bar.set_label(labels[2], fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=2)
    if "%" in form:
        bar.ax.yaxis.set_major_formatter(lambda value, _: form.format(value))
    bar.outline.set_visible(False)
    return finished(figure, path)


# -- capacity -------------------------------------------------------------------------------------


def capacity_by_group(
    capacity: Capacity | Mapping[str, Any],
    path: Any = None,
    *,
    names: Sequence[str] = (),
    limit: int = 40,
) -> Figure:
    """How each group's units are divided between the tasks and free units: a bar for each group.

    Args:
        capacity: the network's capacity, or its ``to_dict()``.
        path: the file to write.
        names: the names of the tasks.
        limit: the most groups to draw; the largest ones are.

    Example:
        >>> group = {"name": "layer1", "size": 8, "tasks": [4, 2], "free": 2}
        >>> whole = {"free": 0.25, "tasks": [0.5, 0.25], "groups": [group]}
        >>> figure = capacity_by_group(whole)
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['all parameters', 'layer1 (8)']

    Raises:
        InputError: matplotlib is missing, or the suffix of the path is not known.
    """
    whole = _dict(capacity)
    names = _names(names, len(whole["tasks"]))
    groups = _largest(whole["groups"], limit)
    shares = [[*whole["tasks"], whole["free"]]]
    shares += [[n / max(g["size"], 1) for n in (*g["tasks"], g["free"])] for g in groups]
    labels = ["all parameters", *(f"{short(g['name'], 34)} ({g['size']})" for g in groups)]
    # One bar for the whole network on top, a gap, then one bar per group.
    places = [0.0, *(n + 1.5 for n in range(len(groups)))]
    figure, (ax,) = new_figure(WIDTH, 1.3 + 0.19 * len(places))
    _stack(ax, places, shares, [*names, "free"])
    ax.set_yticks(places, labels, fontsize=SMALL)
    ax.set_ylim(places[-1] + 0.6, -0.6)
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"], fontsize=SMALL)
    count = len(whole["groups"])
    all_drawn = count == len(groups)
    which = "each group" if all_drawn else f"the {len(groups)} largest of {count} groups"
    ax.set_xlabel(f"share of the units of {which}", fontsize=MEDIUM)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return finished(figure, path)


def _stack(
    ax: Axes, places: Sequence[float], shares: Sequence[Sequence[float]], names: Sequence[str]
) -> None:
    count = len(names) - 1
    left = [0.0] * len(places)
    for part, name in enumerate(names):
        widths = [row[part] for row in shares]
        colour = FREE if part == count else colour_of(part, count)
        ax.barh(
            places, widths, left=left, height=0.8, color=colour, label=short(name, 18),
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    handles, labels = ax.get_legend_handles_labels()
    columns = min(count + 1, 6, _LEGEND // (max(map(len, labels)) + 4))
    # matplotlib fills a legend column by column; reorder so that it reads row by row.
    row_by_row = [n for c in range(columns) for n in range(c, count + 1, columns)]
    ax.legend(
        [handles[n] for n in row_by_row], [labels[n] for n in row_by_row],
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, frameon=False,
        fontsize=SMALL, handlelength=1.0, handleheight=1.0, columnspacing=1.2, borderaxespad=0.3,
    )  # fmt: skip


def _largest(groups: Sequence[Any], limit: int) -> list[Any]:
    """The largest groups, in the order of the network."""
    # Sorted twice: by size to choose, then by position to keep the order.
    order = sorted(range(len(groups)), key=lambda n: (-groups[n]["size"], n))
    return [groups[n] for n in sorted(order[:limit])]


# -- arguments ------------------------------------------------------------------------------------


def _names(names: Sequence[str], tasks: int) -> Sequence[str]:
    if names and len(names) != tasks:
        raise InputError(f"{len(names)} names for {tasks} tasks", remedy="pass one for each task")
    return names or tuple(f"task {task}" for task in range(tasks))


def _dict(capacity: Any) -> Mapping[str, Any]:
    return capacity if isinstance(capacity, Mapping) else capacity.to_dict()
