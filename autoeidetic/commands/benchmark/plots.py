"""Small SVG plots without a plotting library: points, bars and lines.

They appear in pages, in Markdown and in print, so each has its own background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 28, 48, 46
COLOURS = ("#1f6feb", "#d1495b", "#2a9d5c", "#b7791f", "#7048a8", "#5c6770")
GRID, INK, PAPER = "#d8dee4", "#24292f", "#ffffff"
Point = tuple[float, float]


class Axis:
    """Maps numbers to pixels in one direction; a linear axis starts at ``floor`` or below."""

    def __init__(
        self,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        floor: float = 0.0,
    ) -> None:
        self.log = log
        low, high = min(values, default=1.0), max(values, default=1.0)
        if log:  # from one power of ten to another; zeros count as 1e-9
            low, high = max(low, 1e-9), max(high, 1e-9)
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        else:
            low = min(low, floor)
        self.low, self.high = low, high if high > low else low + 1.0
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(v, 1e-9)) for v in (value, low, high))
        # start > end is allowed: pixels grow downwards, values upwards.
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Powers of ten on a logarithmic axis, else about five multiples of 1, 2 or 5."""
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        # rough: the step of exactly five ticks; rounded up to 1, 2, 5 or 10 times a power of ten.
        rough = (self.high - self.low) / 5
        power = 10 ** math.floor(math.log10(rough))
        step = power * next(n for n in (1, 2, 5, 10) if n * power >= rough)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def points(series: dict[str, list[tuple[float, float, str]]], title: str, x: str, y: str) -> str:
    """Dots whose names appear as tooltips; both axes are logarithmic."""
    every = [dot for dots in series.values() for dot in dots]
    across = Axis([dot[0] for dot in every], LEFT, WIDTH - RIGHT, log=True)
    up = Axis([dot[1] for dot in every], HEIGHT - BOTTOM, TOP, log=True)
    body = _frame(across, up, title, x, y)
    for (_, dots), colour in zip(series.items(), COLOURS, strict=False):
        body += [
            f'<circle cx="{across(a):.1f}" cy="{up(b):.1f}" r="3" fill="{colour}" '
            f'fill-opacity="0.55"><title>{escape(name)}</title></circle>'
            for a, b, name in dots
        ]
    return _svg([*body, *_legend(list(series))], WIDTH, HEIGHT)


def lines(series: dict[str, list[Point]], title: str, x: str, y: str) -> str:
    """Lines through points; both axes start at 0."""
    every = [point for line in series.values() for point in line]
    across = Axis([point[0] for point in every], LEFT, WIDTH - RIGHT, log=False)
    up = Axis([point[1] for point in every], HEIGHT - BOTTOM, TOP, log=False)
    body = _frame(across, up, title, x, y)
    for (_, line), colour in zip(series.items(), COLOURS, strict=False):
        at = [f"{across(a):.1f},{up(b):.1f}" for a, b in line]
        body.append(
            f'<polyline points="{" ".join(at)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        body += [
            f'<circle cx="{p.partition(",")[0]}" cy="{p.partition(",")[2]}" r="3" fill="{colour}"/>'
            for p in at
        ]
    return _svg([*body, *_legend(list(series))], WIDTH, HEIGHT)


def bars(rows: list[tuple[str, list[int], int]], kinds: Sequence[str], title: str) -> str:
    """One bar per row and kind, as a share of the row's total, with the counts beside it."""
    thick, gap, left, right = 6, 5, 190, 110
    # One row: a thin bar for each kind, then a gap.
    each = len(kinds) * thick + gap
    height = TOP + len(rows) * each + 8
    body = [_text(8, 18, title, size=14, bold=True), *_legend(list(kinds), 36)]
    for number, (name, counts, total) in enumerate(rows):
        top = TOP + number * each
        middle = top + each / 2
        body.append(_text(left - 8, middle + 2, name, anchor="end", size=10))
        body.append(
            f'<rect x="{left}" y="{top}" width="{WIDTH - left - right}" '
            f'height="{len(kinds) * thick}" fill="{GRID}" fill-opacity="0.5"/>'
        )
        for which, count in enumerate(counts):
            wide = (WIDTH - left - right) * count / max(total, 1)
            body.append(
                f'<rect x="{left}" y="{top + which * thick}" width="{wide:.1f}" '
                f'height="{thick}" fill="{COLOURS[which]}"/>'
            )
        said = ", ".join(f"{count}" for count in counts)
        body.append(_text(WIDTH - right + 8, middle + 2, f"{said} of {total}", size=10))
    return _svg(body, WIDTH, height)


def _frame(across: Axis, up: Axis, title: str, x: str, y: str) -> list[str]:
    body = [_text(8, 18, title, size=14, bold=True)]
    for tick in across.ticks():
        at = across(tick)
        body.append(_line(at, TOP, at, HEIGHT - BOTTOM))
        body.append(_text(at, HEIGHT - BOTTOM + 14, _number(tick), anchor="middle", size=10))
    for tick in up.ticks():
        at = up(tick)
        body.append(_line(LEFT, at, WIDTH - RIGHT, at))
        body.append(_text(LEFT - 6, at + 3, _number(tick), anchor="end", size=10))
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x, anchor="middle", size=11))
    turned = _text(0, 0, y, anchor="middle", size=11)
    return [*body, f'<g transform="translate(14 {HEIGHT / 2}) rotate(-90)">{turned}</g>']


def _legend(names: list[str], top: float = TOP - 8) -> list[str]:
    # 6 pixels per letter: an estimate, as SVG cannot measure text.
    body, left = [], float(LEFT)
    for name, colour in zip(names, COLOURS, strict=False):
        body.append(
            f'<rect x="{left}" y="{top - 8}" width="9" height="9" fill="{colour}"/>'
            + _text(left + 13, top, name, size=10)
        )
        left += 28 + 6 * len(name)
    return body if len(names) > 1 else []


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{GRID}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{weight} '
        f'fill="{INK}">{escape(text)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def _svg(body: list[str], width: float, height: float) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            *body,
            "</svg>",
        ]
    )
