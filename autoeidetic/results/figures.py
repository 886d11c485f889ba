"""Figures: the parts that all plots share. matplotlib is imported only when a plot is drawn."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common import files
from ..common.tables import line
from ..errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The colour-blind safe palette of Okabe and Ito, without its two faint colours.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
FREE, GRID, INK = "#E6E6E6", "#D9D9D9", "#333333"
WIDTH, SMALL, MEDIUM = 6.5, 8, 9


def need_matplotlib() -> None:
    """Check that matplotlib is installed.

    Raises:
        InputError: it is not.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            "plots need matplotlib, which is not installed",
            remedy="pip install 'autoeidetic[plots]'",
        ) from error


def colour_of(task: int, count: int) -> str:
    """The colour of a task; for many tasks, a scale from dark to light.

    >>> colour_of(0, 3)
    '#0072B2'
    """
    if count <= len(_COLOURS):
        return _COLOURS[task % len(_COLOURS)]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    # 0.9: the last tenth of the scale is too bright for white paper.
    return to_hex(colormaps["viridis"](0.9 * task / (count - 1)))


def rendered(figure: Figure, form: str) -> bytes:
    """A figure as "png" or "svg"; names given by users are not parsed as math."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # Without a date in the file, the same figure gives the same bytes.
        target = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(target, format=form, dpi=200, bbox_inches="tight", metadata=metadata)
    return target.getvalue()


def new_figure(width: float, height: float, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with ``rows`` panels above each other.

    Raises:
        InputError: matplotlib is not installed.
    """
    need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, sharex=True)[:, 0]
    return figure, list(axes)


def finished(figure: Figure, path: Any) -> Figure:
    """The figure, written to a path if there is one.

    Raises:
        InputError: the suffix is unknown, or the file cannot be written.
    """
    if path is None:
        return figure
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in ("png", "svg"):
        raise InputError(
            f"'{path}' ends in '{form}', which is no format of plots", remedy="use .png or .svg"
        )
    files.write(Path(path), rendered(figure, form))
    return figure


def plain_axes(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.tick_params(labelsize=SMALL, length=3, color=INK)


def name_ticks(ax: Axes, places: Sequence[float] | range, names: Sequence[str]) -> None:
    """Put the names of tasks on the horizontal axis, slanted if they are long."""
    labels = [short(name, 18) for name in names]
    crowded = sum(len(label) for label in labels) > 60
    ax.set_xticks(
        list(places), labels, fontsize=SMALL, rotation=45 if crowded else 0,
        ha="right" if crowded else "center", rotation_mode="anchor",
    )  # fmt: skip


def short(name: str, length: int) -> str:
    """A name shortened to its end, which says more than its beginning.

    >>> short("stages.3.blocks.11.attention", 18)
    '…11.attention'
    """
    name = line(name)
    if len(name) <= length:
        return name
    # Cut at a dot in the first half of what is left, so that no part of a path is torn.
    end = name[-(length - 1) :]
    return "…" + end[end.find(".", 0, length // 2) + 1 :]
