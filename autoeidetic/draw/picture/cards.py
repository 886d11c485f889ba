"""Cards: draws the boxes of an SVG picture.

A card is a column of rows. Each row, from left to right:

    colour stripe | name  note ............ locked, nested |
    ownership bar below, if the row is a layer of a network with tasks
"""

from __future__ import annotations

from ..elements import Drawing, Node
from .card_rows import (
    BAR,
    MARK,
    NOTE,
    PADDING,
    ROW,
    TEXT,
    TITLE,
    Row,
    frame_title,
    is_faded,
    is_sign,
    rows_of,
    sign,
)
from .folding import Card, Frame
from .layout import Rectangle
from .markup import escape, number, tag
from .palette import FAILED, FRAMES, FREE, INK, LINE, PAPER, QUIET, task_colour
from .text import width

_STRIPE = 5.0
#: The opacity of what does not leave with the task that is drawn.
_FADED = "0.35"


def draw_frame(frame: Frame, at: Rectangle, level: int) -> str:
    """The background of an open module; a run of equal blocks is a pile of three."""
    # Painted from the back: shifted copies first, the frame itself last.
    pile = [
        tag(
            "rect",
            x=at.x + shift,
            y=at.y + shift,
            width=at.width,
            height=at.height,
            rx=8,
            fill=_fill(level),
            stroke="#b9c3cf",
        )
        for shift in ((7.0, 3.5, 0.0) if frame.count > 1 else (0.0,))
    ]
    tooltip = tag("title", escape(f"{frame.module.path}: {frame.module.type}"))
    return tag("g", tooltip + "".join(pile))


def _fill(level: int) -> str:
    return FRAMES[min(level - 1, len(FRAMES) - 1)]


def draw_title(frame: Frame, at: Rectangle, level: int) -> str:
    """The name of a module on a translucent ground, so that arrows below do not cross the text."""
    name, note = frame_title(frame)
    # 1.06: bold text is wider than the measured one.
    after = at.x + 18 + width(name, TITLE) * 1.06
    behind = tag(
        "rect",
        x=at.x + 7,
        y=at.y + 5,
        width=after - at.x - 5 + width(note, NOTE),
        height=16,
        fill=_fill(level),
        fill_opacity=0.85,
    )
    title = _text(name, at.x + 10, at.y + 17, TITLE, INK, bold=True)
    return behind + title + _text(note, after, at.y + 17, NOTE, QUIET)


def draw_card(card: Card, at: Rectangle, drawing: Drawing, colours: dict[str, str]) -> str:
    """A stack of nodes, an operator sign in a circle, or a closed module."""
    content = _circle(card, at, colours) if is_sign(card) else _card(card, at, drawing, colours)
    return tag("g", _tooltip(card) + content, opacity=_FADED if is_faded(card, drawing) else "")


def _card(card: Card, at: Rectangle, drawing: Drawing, colours: dict[str, str]) -> str:
    rows = rows_of(card, drawing)
    kind = card.nodes[0].kind if card.nodes else "closed"
    # Input and output are dark pills, a failure is red, a head has a heavy border.
    dark = kind in ("input", "output")
    stroke = FAILED if kind == "failure" else INK if kind == "head" else LINE
    outline = tag(
        "rect",
        x=at.x,
        y=at.y,
        width=at.width,
        height=at.height,
        rx=at.height / 2 if dark else 5,
        fill=INK if dark else "#fdecee" if kind == "failure" else PAPER,
        stroke=stroke,
        stroke_width=2 if kind in ("failure", "head") else 1,
    )
    parts, top = [outline], at.y + 2
    for position, row in enumerate(rows):
        node = card.nodes[position] if card.nodes else None
        ink = PAPER if dark else FAILED if kind == "failure" else INK
        parts.append(_row(row, node, at, top, ink, colours))
        if position:
            parts.append(_line(at.x + _STRIPE + 3, top, at.x + at.width - 6))
        top += row.height
    return "".join(parts)


def _tooltip(card: Card) -> str:
    if card.closed is not None:
        return tag("title", escape(f"{card.closed.path}: {card.closed.type}"))
    lines = [_about(node) for node in card.nodes]
    return tag("title", escape("; ".join(lines)))


def _about(node: Node) -> str:
    parts = [node.path or node.label, node.type, node.line, f"locked: {node.locked}"]
    return ", ".join(part for part in parts if part and part != "locked: ")


def _row(
    row: Row, node: Node | None, at: Rectangle, top: float, ink: str, colours: dict[str, str]
) -> str:
    # SVG places text by its baseline: 4 below the middle of the row.
    base = top + ROW / 2 + 4
    plain = node is not None and (node.kind == "operator" or node.type == "Parameter")
    parts = [_stripe(row, at.x, top, colours)]
    parts.append(_text(row.name, at.x + PADDING, base, TEXT, ink, bold=not plain, italic=plain))
    note = PAPER if ink == PAPER else QUIET
    after = at.x + PADDING + width(row.name, TEXT) * 1.06 + 8
    if row.note:
        parts.append(_text(row.note, after, base, NOTE, note))
    right = at.x + at.width - MARK
    if row.locked:
        parts.append(draw_lock(right, top + 5))
        right -= MARK
    if row.nested:
        parts.append(draw_levels(right, top + 6))
    if row.shares:
        parts.append(_bar(row, at.x + PADDING, top + ROW - 1, at.width - 2 * PADDING))
    return "".join(parts)


def _stripe(row: Row, x: float, top: float, colours: dict[str, str]) -> str:
    """The colours of up to six groups, stacked at the left edge."""
    shown = [colours[group] for group in row.groups if group in colours][:6]
    each = (row.height - 4) / max(len(shown), 1)
    return "".join(
        tag("rect", x=x + 2, y=top + 2 + i * each, width=_STRIPE, height=each, fill=colour)
        for i, colour in enumerate(shown)
    )


def _bar(row: Row, x: float, y: float, length: float) -> str:
    """The share that each task owns; the rest is free."""
    parts = [tag("rect", x=x, y=y, width=length, height=BAR, fill=FREE)]
    for task, share in enumerate(row.shares):
        parts.append(
            tag("rect", x=x, y=y, width=length * share, height=BAR, fill=task_colour(task))
        )
        x += length * share
    return "".join(parts)


def _circle(card: Card, at: Rectangle, colours: dict[str, str]) -> str:
    node = card.nodes[0]
    # One group: its colour. Several: the neutral one, as no single colour would be right.
    known = [colours[group] for group in node.carries if group in colours]
    colour = known[0] if len(known) == 1 else LINE
    x, y, radius = at.x + at.width / 2, at.y + at.height / 2, at.width / 2 - 1
    circle = tag("circle", cx=x, cy=y, r=radius, fill=PAPER, stroke=colour, stroke_width=2.5)
    text = _text(sign(card), x, y + 5.5, 16, INK, bold=True, middle=True)
    return circle + text


def _line(x: float, y: float, right: float) -> str:
    return tag("path", d=f"M{number(x)} {number(y)} H{number(right)}", stroke="#e3e7ec")


def _text(
    text: str,
    x: float,
    y: float,
    size: float,
    fill: str,
    bold: bool = False,
    italic: bool = False,
    middle: bool = False,
) -> str:
    return tag(
        "text",
        escape(text),
        x=x,
        y=y,
        font_size=size,
        fill=fill,
        font_weight="bold" if bold else "",
        font_style="italic" if italic else "",
        text_anchor="middle" if middle else "",
    )


def draw_lock(x: float, y: float) -> str:
    """A padlock of 8 by 10 units."""
    shackle = f"M{number(x + 2)} {number(y + 5)} v-2 a2 2 0 0 1 4 0 v2"
    return tag("path", d=shackle, fill="none", stroke=INK, stroke_width=1.3) + tag(
        "rect", x=x, y=y + 4.5, width=8, height=6, rx=1, fill=INK
    )


def draw_levels(x: float, y: float) -> str:
    """Three steps of 8 by 8 units, the mark of evaluation level by level."""
    return "".join(
        tag("rect", x=x, y=y + 3 * i, width=4 + 2 * i, height=2, fill=QUIET) for i in range(3)
    )
