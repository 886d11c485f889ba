"""The legend: the colours, lines and marks that occur in a picture."""

from __future__ import annotations

from .cards import draw_levels, draw_lock
from .folding import View
from .markup import escape, tag
from .palette import FREE, INK, LINE, PAPER, QUIET, task_colour
from .styles import KINDS, marker_name
from .text import shortened, width

_SIZE = 10.5
_SPACE = 24.0
_SAMPLE = 34.0
_LINE = 22.0


def draw_legend(view: View, most: float) -> tuple[str, float, float]:
    """The legend with its upper left corner at the origin, its width and its height.

    A row is at most ``most`` wide; further entries go to the next row.
    """
    parts: list[str] = []
    widest, y = 0.0, -_LINE
    for entries in (_edges(view), _marks(view), _tasks(view)):
        x = most  # so that each kind of entries starts a new row
        for sample, sample_width, words in entries:
            length = sample_width + 6 + width(words, _SIZE)
            if x + length > most:
                x, y = 0.0, y + _LINE
            parts.append(tag("g", sample, transform=f"translate({x:.1f} {y:.1f})"))
            start = x + sample_width + 6
            parts.append(tag("text", escape(words), x=start, y=y + 12, font_size=_SIZE, fill=QUIET))
            widest = max(widest, x + length)
            x += length + _SPACE
    return "".join(parts), widest, y + _LINE


Entry = tuple[str, float, str]


def _edges(view: View) -> list[Entry]:
    found = {link.kind for link in view.links}
    return [
        (_sample(kind), _SAMPLE, f"{kind}: {style.words}")
        for kind, style in KINDS.items()
        if kind in found
    ]


def _sample(kind: str) -> str:
    style = KINDS[kind]
    return tag(
        "path",
        d=f"M0 8 H{_SAMPLE:.0f}",
        stroke=LINE,
        stroke_width=style.width,
        stroke_dasharray=style.dash,
        marker_end=f"url(#{marker_name(LINE)})",
    )


def _marks(view: View) -> list[Entry]:
    nodes = [node for card in view.cards for node in card.nodes]
    entries: list[Entry] = []
    if view.drawing.groups:
        colours = "".join(
            tag("rect", x=7 * i, y=2, width=5, height=12, fill=colour)
            for i, colour in enumerate(("#2f6fb5", "#d9822b"))
        )
        entries.append((colours, 13, "one colour for each group of channels"))
    if any(node.nested for node in nodes):
        entries.append((draw_levels(0, 4), 9, "evaluated level by level"))
    if any(node.locked for node in nodes):
        entries.append((draw_lock(0, 2), 9, "locked: cannot be divided"))
    if any(node.kind == "head" for node in nodes):
        box = tag(
            "rect", x=1, y=2, width=16, height=12, rx=3, fill=PAPER, stroke=INK, stroke_width=2
        )
        entries.append((box, 18, "head: one for each task"))
    return entries


def _tasks(view: View) -> list[Entry]:
    if not view.drawing.tasks:
        return []
    colours = [task_colour(task.index) for task in view.drawing.tasks]
    words = [f"{shortened(task.name)} ({task.classes} classes)" for task in view.drawing.tasks]
    if "leaving" in view.drawing.ownership:
        words, rest = [f"leaves with {word}" for word in words], "stays"
    else:
        rest = "free"
    return [
        (tag("rect", x=0, y=3, width=12, height=10, fill=colour), 12, text)
        for colour, text in zip([*colours, FREE], [*words, rest], strict=True)
    ]
