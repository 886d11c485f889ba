"""SVG charts of an outcome. Colours are CSS classes, so they follow the page's colour scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...draw.picture.markup import escape, number, tag
from ...results.curves import apart
from ...tasks.capacity import Share
from ..benchmark.plots import Axis
from .outcome import Curves, Moment

WIDTH, HEIGHT = 880, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 132, 30, 36
CHANCE = 0.5
_LOWEST = 0.4  # start of the accuracy axis, so that chance lies above it
_LABEL_GAP = 15.0


def accuracy_chart(
    curves: Curves, boundaries: Sequence[int], names: Sequence[str], title: str
) -> str:
    """Accuracy of each task over all epochs."""
    across, up = _axes([y for points in curves.values() for _, y in points], boundaries, _LOWEST)
    body = [*_bands(across, boundaries, names), *_scales(across, up)]
    body.append(_line(LEFT, up(CHANCE), WIDTH - RIGHT, up(CHANCE), "chance"))
    body.append(_text(WIDTH - RIGHT - 6, up(CHANCE) + 13, "chance", "small end"))
    for task, points in curves.items():
        body.append(_curve(across, up, task, points, names[task]))
    ends = {task: points[-1][1] for task, points in curves.items()}
    said = {task: f"{names[task]}  {100 * end:.1f}%" for task, end in ends.items()}
    body += _end_labels({task: up(end) for task, end in ends.items()}, said)
    return _svg(body, WIDTH, HEIGHT, title)


def capacity_chart(
    moments: Sequence[Moment], boundaries: Sequence[int], names: Sequence[str], title: str
) -> str:
    """Shares of the network owned by each task over all epochs, stacked."""
    # The free share is the ground; areas of tasks are painted over it, from the bottom upwards.
    across, up = _axes([1.0], boundaries, 0.0)
    body = [_rectangle(LEFT, TOP, WIDTH - RIGHT - LEFT, HEIGHT - BOTTOM - TOP, "free")]
    middles: dict[int, float] = {}
    for task in range(len(names)):
        # A polygon between two cumulative shares: along the upper one and back along the lower one.
        lower = [(m.epoch, sum(m.tasks[:task])) for m in moments]
        upper = [(m.epoch, sum(m.tasks[: task + 1])) for m in moments]
        # Moments before the task has any unit have no area.
        shown = [n for n, (low, high) in enumerate(zip(lower, upper, strict=True)) if high > low]
        if not shown:
            continue
        points = [upper[n] for n in shown] + [lower[n] for n in reversed(shown)]
        # Two corners close the area on the left: an open task may use everything that is free.
        start = 0 if task == 0 else boundaries[task - 1]
        points += [(start, points[-1][1]), (start, 1.0)]  # the area begins at the task's boundary
        share = f"{names[task]}: {100 * moments[-1].tasks[task]:.1f}% of the network"
        body.append(
            tag(
                "polygon",
                tag("title", escape(share)),
                points=" ".join(_point(across(x), up(y)) for x, y in points),
                **{"class": f"area t{task}"},
            )
        )
        middles[task] = up((upper[-1][1] + lower[-1][1]) / 2)
    body += [*_bands(across, boundaries, names, tinted=False), *_scales(across, up)]
    said = {task: f"{names[task]}  {100 * moments[-1].tasks[task]:.1f}%" for task in middles}
    body += _end_labels(middles, said)
    body.append(
        _text(WIDTH - RIGHT + 24, up(1 - moments[-1].free / 2) + 4, _free(moments[-1]), "label")
    )
    return _svg(body, WIDTH, HEIGHT, title)


def group_chart(shares: Sequence[Share], title: str) -> str:
    """How one group of channels was divided after each task: one column per task."""
    wide, gap, high = 22, 5, 92
    body = []
    for after, share in enumerate(shares):
        left, top = after * (wide + gap), float(high)
        for task, count in enumerate(share.tasks):
            # From the bottom: y grows downwards, so top moves up by each part.
            tall = high * count / share.size
            top -= tall
            body.append(_rectangle(left, top, wide, tall, f"part t{task}"))
        body.append(_rectangle(left, 0, wide, top, "free"))
    return _svg(body, len(shares) * (wide + gap) - gap, high, title)


def heat_map(
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    title: str,
    *,
    lowest: float = 0.0,
    drops: bool = False,
) -> str:
    """Shares as shades between ``lowest`` and 1; ``drops`` adds the loss since the diagonal."""
    wide, tall, left, top = 70, 44, 62, 28
    body = [
        _text(left + (n + 0.5) * wide, top - 10, name, "label middle")
        for n, name in enumerate(names)
    ]
    for y, row in enumerate(rows):
        body.append(_text(left - 10, top + (y + 0.5) * tall + 4, names[y], "label end"))
        for x, value in enumerate(row):
            if math.isnan(value):
                continue
            # 0 at `lowest` (chance), 1 at a perfect value.
            level = max(0.0, min(1.0, (value - lowest) / (1 - lowest)))
            loss = 100 * (rows[x][x] - value) if drops and y > x else 0.0
            body.append(_cell(left + x * wide, top + y * tall, wide, tall, value, level, loss))
    return _svg(body, left + len(names) * wide, top + len(rows) * tall, title)


def digit(shades: Sequence[Sequence[float]], title: str) -> str:
    """An image of 8 by 8 shades."""
    body = [
        tag("rect", x=x, y=y, width=1.05, height=1.05, fill_opacity=opacity(shade))
        for y, row in enumerate(shades)
        for x, shade in enumerate(row)
        if shade
    ]
    return _svg(body, 8, 8, title)


def opacity(share: float) -> str:
    """A share with two digits, finer than the eye can see.

    >>> opacity(0.123)
    '0.12'
    """
    return f"{share:.2f}"


# -- parts of a chart ---------------------------------------------------------------------------


def _axes(values: Sequence[float], boundaries: Sequence[int], floor: float) -> tuple[Axis, Axis]:
    across = Axis([0.0, float(boundaries[-1])], LEFT, WIDTH - RIGHT)
    return across, Axis([*values, 1.0], HEIGHT - BOTTOM, TOP, floor=floor)


def _bands(
    across: Axis, boundaries: Sequence[int], names: Sequence[str], *, tinted: bool = True
) -> list[str]:
    """The span of epochs in which each task was learned."""
    body, start = [], 0
    for task, end in enumerate(boundaries):
        left, right = across(start), across(end)
        if tinted:
            body.append(_rectangle(left, TOP, right - left, HEIGHT - TOP - BOTTOM, f"band t{task}"))
        body.append(_rectangle(left + 1, TOP - 5, right - left - 2, 3, f"rail t{task}"))
        body.append(_text((left + right) / 2, TOP - 12, f"learning {names[task]}", "label middle"))
        body.append(_line(right, TOP - 5, right, HEIGHT - BOTTOM, "boundary"))
        start = end
    return body


def _scales(across: Axis, up: Axis) -> list[str]:
    body = []
    for tick in up.ticks():
        body.append(_line(LEFT, up(tick), WIDTH - RIGHT, up(tick), "grid"))
        body.append(_text(LEFT - 8, up(tick) + 4, f"{100 * tick:.0f}%", "small end"))
    for tick in across.ticks():
        body.append(_text(across(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "small middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*body, _text(middle, HEIGHT - 4, "epochs", "small middle")]


def _curve(
    across: Axis, up: Axis, task: int, points: Sequence[tuple[float, float]], name: str
) -> str:
    at = " ".join(_point(across(x), up(y)) for x, y in points)
    body = [tag("polyline", points=at)]
    for x, y in points:
        said = tag("title", escape(f"{name}: {100 * y:.1f}% after {x:g} epochs"))
        body.append(tag("circle", said, cx=across(x), cy=up(y), r=2.2))
    return tag("g", "".join(body), **{"class": f"curve t{task}"})


def _end_labels(heights: dict[int, float], said: dict[int, str]) -> list[str]:
    """Labels at the right, moved apart where they would overlap, with lines to their curves."""
    # Pixels, not shares: labels need a fixed distance on the page.
    placed = apart(list(heights.values()), _LABEL_GAP, TOP, HEIGHT - BOTTOM)
    body, right = [], WIDTH - RIGHT
    for (task, height), at in zip(heights.items(), placed, strict=True):
        path = f"M{right + 2} {number(height)}L{right + 20} {number(at)}"
        body.append(tag("path", d=path, **{"class": f"lead t{task}"}))
        body.append(_text(right + 24, at + 4, said[task], "label"))
    return body


def _free(moment: Moment) -> str:
    return f"free  {100 * moment.free:.1f}%"


def _cell(
    x: float, y: float, wide: float, tall: float, value: float, level: float, loss: float
) -> str:
    shade = tag(
        "rect",
        x=x + 1.5, y=y + 1.5, width=wide - 3, height=tall - 3, rx=5,
        fill_opacity=opacity(0.06 + 0.94 * level),
        **{"class": "heat"},
    )  # fmt: skip
    # Dark cells get light text.
    ink = "strong" if level > 0.5 else ""
    lost = round(loss, 1) > 0
    middle = y + tall / 2 + (-2 if lost else 4.5)
    body = [shade, _text(x + wide / 2, middle, f"{100 * value:.1f}", f"value middle {ink}")]
    if lost:
        text = f"\N{MINUS SIGN}{loss:.1f}"
        body.append(_text(x + wide / 2, y + tall / 2 + 13, text, f"loss middle {ink}"))
    return "".join(body)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return tag("text", escape(text), x=x, y=y, **{"class": kind.strip()})


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **{"class": kind})


def _rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    return tag("rect", x=x, y=y, width=max(width, 0), height=max(height, 0), **{"class": kind})


def _point(x: float, y: float) -> str:
    return f"{number(x)},{number(y)}"


def _svg(body: Sequence[str], width: float, height: float, title: str) -> str:
    return tag(
        "svg",
        tag("title", escape(title)) + "".join(body),
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
    )
