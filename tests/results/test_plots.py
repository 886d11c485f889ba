"""Drawings of a run: what is in them, and that nobody's settings are touched."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import autoeidetic
from autoeidetic import Run
from autoeidetic.errors import InputError
from autoeidetic.results import AccuracyMatrix, curves, figures, plots
from results.test_results import HOSTILE, begin, capacity, evaluation

KEPT = AccuracyMatrix([[0.9], [0.9, 0.8], [0.9, 0.8, 0.95]])
LOST = AccuracyMatrix([[0.95], [0.6, 0.9], [0.5, 0.55, 0.95]])


def texts(figure: Figure) -> list[str]:
    """All there is to read."""
    figure.draw_without_rendering()
    found = figure.findobj(mpl.text.Text)
    return [text.get_text() for text in found if text.get_visible() and text.get_text()]


def whole(tasks: int, groups: int = 2) -> dict[str, Any]:
    made = [
        {"name": f"block.{n}", "size": 10 + n, "tasks": [2] * tasks, "free": 10 + n - 2 * tasks}
        for n in range(groups)
    ]
    return {
        "free": 1 - tasks / 10,
        "tasks": [0.1] * tasks,
        "groups": made,
        "reuse": [[1 / (t + 1) * (s <= t) for s in range(tasks)] for t in range(tasks)],
    }


# -- what is drawn --------------------------------------------------------------------------------


def test_accuracy_over_time() -> None:
    figure = plots.accuracy_over_time(KEPT)
    (ax,) = figure.axes
    curves = [line for line in ax.lines if line.get_marker() == "o"]
    assert [list(curve.get_xdata()) for curve in curves] == [[1, 2, 3], [2, 3], [3]]
    assert [list(curve.get_ydata()) for curve in curves] == [[0.9] * 3, [0.8] * 2, [0.95]]
    assert len({curve.get_color() for curve in curves}) == 3
    assert texts(figure).count("task 1") == 2  # on the axis and at its curve
    assert "after learning" in texts(figure)
    assert "eidetic" not in texts(figure)


def test_two_methods_side_by_side() -> None:
    figure = plots.accuracy_over_time(KEPT, compare=LOST, titles=("ours", "theirs"))
    upper, lower = figure.axes
    assert upper.get_ylim() == lower.get_ylim()
    assert upper.get_xlim() == lower.get_xlim()
    assert {"ours", "theirs"} <= set(texts(figure))


def test_curves_of_steps() -> None:
    curves = {0: [(0.0, 0.1), (1.0, 0.9), (2.0, 0.9)], 1: [(1.0, 0.2), (2.0, math.nan)]}
    figure = plots.accuracy_over_time(curves, boundaries=[1.0, 2.0], names=["a", "b"])
    (ax,) = figure.axes
    bounds = [line for line in ax.lines if line.get_color() == figures.GRID]
    assert [line.get_xdata()[0] for line in bounds] == [1.0, 2.0]
    assert {"a", "b", "epochs"} <= set(texts(figure))


def test_labels_do_not_overlap() -> None:
    rows = [[0.9] * (n + 1) for n in range(10)]
    figure = plots.accuracy_over_time(AccuracyMatrix(rows))
    figure.draw_without_rendering()
    boxes = sorted(text.get_window_extent().y0 for text in figure.axes[0].texts)
    height = figure.axes[0].texts[0].get_window_extent().height
    assert len(boxes) == 10
    assert all(b - a > 0.8 * height for a, b in itertools.pairwise(boxes))


def test_accuracy_matrix() -> None:
    figure = plots.accuracy_matrix(LOST)
    image = figure.axes[0].images[0].get_array()
    assert np.ma.filled(image, np.nan)[2].tolist() == [0.5, 0.55, 0.95]
    assert image.mask.sum() == 3
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "0.950", "0.600", "0.900", "0.500", "0.550", "0.950",
    ]  # fmt: skip
    assert figure.axes[0].images[0].get_clim() == (0.0, 1.0)
    many = AccuracyMatrix([[0.5] * (n + 1) for n in range(20)])
    assert not plots.accuracy_matrix(many).axes[0].texts


def test_reuse() -> None:
    figure = plots.reuse(whole(2), names=["a", "b"])
    assert [text.get_text() for text in figure.axes[0].texts] == ["100%", "50%", "50%"]


def test_long_names_leave_room_for_the_bars() -> None:
    names = [f"a long name of task {n}" for n in range(5)]
    figure = plots.capacity_by_group(whole(5), names=names)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    assert ax.get_position().width > 0.6


def test_capacity_by_group() -> None:
    figure = plots.capacity_by_group(whole(3, groups=2))
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "all parameters", "block.0 (10)", "block.1 (11)",
    ]  # fmt: skip
    widths = np.array([[bar.get_width() for bar in part] for part in ax.containers])
    assert widths.shape == (4, 3)
    assert widths.sum(0) == pytest.approx([1, 1, 1])
    assert widths[:, 1] == pytest.approx([0.2, 0.2, 0.2, 0.4])
    legend = ax.get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == ["task 0", "task 1", "task 2", "free"]


def test_the_largest_of_many_groups() -> None:
    figure = plots.capacity_by_group(whole(3, groups=90))
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert len(labels) == 41
    assert labels[1] == "block.50 (60)"  # in the order of the network
    assert labels[-1] == "block.89 (99)"
    assert "the 40 largest of 90 groups" in figure.axes[0].get_xlabel()


def test_capacity_of_a_network() -> None:
    net = autoeidetic.convert(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 4)
    )
    net.prepare_for_task(0)
    net.prune(0.5)
    net.finish_task()
    now = net.capacity()
    figure = plots.capacity_by_group(now)
    free = [bar.get_width() for bar in figure.axes[0].containers[-1]]
    assert free == [now.free, *(group.free / group.size for group in now.groups)]
    assert plots.reuse(now).axes


def test_colours_are_told_apart() -> None:
    for count in range(1, 21):
        colours = [figures.colour_of(task, count) for task in range(count)]
        assert len({*colours, figures.FREE}) == count + 1


@pytest.mark.parametrize("seed", range(5))
def test_apart(seed: int) -> None:
    values = torch.rand(9, generator=torch.Generator().manual_seed(seed)).tolist()
    placed = curves.apart(values, 0.1, 0.0, 1.0)
    assert all(b - a > 0.0999 for a, b in itertools.pairwise(sorted(placed)))
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in placed)
    order = sorted(range(9), key=values.__getitem__)
    assert order == sorted(range(9), key=placed.__getitem__)


# -- files ----------------------------------------------------------------------------------------


def test_png_and_svg(tmp_path: Path) -> None:
    plots.accuracy_matrix(KEPT, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    plots.accuracy_matrix(KEPT, tmp_path / "below" / "a.SVG")
    assert ElementTree.parse(tmp_path / "below" / "a.SVG").getroot().tag.endswith("svg")
    with pytest.raises(InputError, match=r"ends in 'jpg', which is no format.*\n.*\.png or \.svg"):
        plots.accuracy_matrix(KEPT, tmp_path / "a.jpg")


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    names = [*HOSTILE[2:], "$\\frac{$", "a" * 200]
    rows = [[0.5] * (n + 1) for n in range(len(names))]
    matrix = AccuracyMatrix(rows, names)
    capacity = whole(len(names))
    capacity["groups"][0]["name"] = "$x_{$"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.accuracy_over_time(matrix, tmp_path / "a.png")
        plots.accuracy_matrix(matrix, tmp_path / "b.svg")
        plots.capacity_by_group(capacity, tmp_path / "c.svg", names=names)
        plots.reuse(capacity, tmp_path / "d.png", names=names)
    ElementTree.parse(tmp_path / "b.svg")
    ElementTree.parse(tmp_path / "c.svg")


def test_the_same_drawing_has_the_same_bytes() -> None:
    first, second = (figures.rendered(plots.reuse(whole(2)), "png") for _ in range(2))
    assert first == second


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="nothing to draw"):
        plots.accuracy_over_time(AccuracyMatrix([]))
    with pytest.raises(InputError, match="1 names for 3 tasks"):
        plots.capacity_by_group(whole(3), names=["a"])
    with pytest.raises(InputError, match="two of the same kind"):
        plots.accuracy_over_time(KEPT, compare={0: [(0.0, 1.0)]})


def test_a_run_draws(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.after_task(0, evaluation(math.nan), capacity(1))  # there is little to see
    run.after_task(1, evaluation(0.5, math.inf), capacity(2))
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {"accuracy.png", "matrix.png", "capacity.png", "reuse.png"}


# -- matplotlib -----------------------------------------------------------------------------------


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="plots need matplotlib") as raised:
        plots.accuracy_matrix(KEPT)
    assert raised.value.remedy == "pip install 'autoeidetic[plots]'"
    with pytest.raises(InputError, match="plots need matplotlib"):
        Run(tmp_path / "insists", draw=True)
    run = begin(tmp_path)
    run._files = Run(tmp_path)._files
    run.after_task(0, evaluation(0.5), capacity(1))
    assert not (tmp_path / "plots").exists()


@pytest.mark.slow
def test_nothing_of_the_users_is_touched() -> None:
    """Neither pyplot nor a backend is loaded, and no setting changes."""
    code = """
import sys, autoeidetic
assert "matplotlib" not in sys.modules
import matplotlib as mpl
before = mpl.rcParams.copy()
from autoeidetic.results import plots, figures, AccuracyMatrix
figures.rendered(plots.accuracy_matrix(AccuracyMatrix([[1.0]])), "png")
assert "matplotlib.pyplot" not in sys.modules
assert mpl.rcParams.copy() == before
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
