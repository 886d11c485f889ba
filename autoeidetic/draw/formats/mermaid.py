"""Mermaid: the drawing as a flow chart, with modules as subgraphs."""

from __future__ import annotations

import re

from ..elements import Drawing
from ..picture.card_rows import frame_title, rows_of
from ..picture.folding import Card, Frame, View, fold
from ..picture.palette import FAILED, INK, group_colours
from ..picture.text import TIMES

_ARROWS = {
    "consumes": "-->",
    "coupled": "==>",
    "gates": "-. gates .->",
    "normalises": "-. normalises .->",
}
_FRAMES = {"input": ("([", "])"), "output": ("([", "])"), "head": ("[[", "]]")}
#: Characters that are safe in a quoted label; all others are written as character codes.
_PLAIN = re.compile(f"[A-Za-z0-9 _.,:/·+…{TIMES}]")


def to_mermaid(drawing: Drawing, depth: int | None = None) -> str:
    """The drawing for Mermaid; repeated blocks are folded as in the pictures."""
    view = fold(drawing, depth)
    colours = group_colours(drawing.groups)
    lines = ["flowchart TB", *_inside(view, view.frames[0], "  ")]
    lines += [f"  {link.source} {_ARROWS[link.kind]} {link.target}" for link in view.links]
    lines += [f"  style {card.id} {_style(card, view, colours)}" for card in view.cards]
    return "\n".join(lines) + "\n"


def _inside(view: View, frame: Frame, indent: str) -> list[str]:
    lines = [
        f"{indent}{_node(card, view.drawing)}" for card in view.cards if card.frame == frame.id
    ]
    for inner in view.frames:
        if inner.parent == frame.id:
            title = _text("  ".join(frame_title(inner)))
            lines.append(f'{indent}subgraph {inner.id}["{title}"]')
            lines += _inside(view, inner, f"{indent}  ")
            lines.append(f"{indent}end")
    return lines


def _node(card: Card, drawing: Drawing) -> str:
    rows = rows_of(card, drawing)
    texts = [_text(f"{row.name}  {row.note}".strip()) for row in rows]
    if any(row.locked for row in rows):
        texts.append("locked")
    opening, closing = _FRAMES.get(card.nodes[0].kind if card.nodes else "", ("[", "]"))
    return f'{card.id}{opening}"{"<br>".join(texts)}"{closing}'


def _style(card: Card, view: View, colours: dict[str, str]) -> str:
    if card.nodes and card.nodes[0].kind == "failure":
        return f"stroke:{FAILED},stroke-width:3px"
    rows = rows_of(card, view.drawing)
    known = [colours[group] for row in rows for group in row.groups if group in colours]
    return f"stroke:{known[0] if known else INK},stroke-width:2px"


def _text(text: str) -> str:
    """Escape a label, so that neither Mermaid nor a browser reads it as syntax."""
    flat = " ".join(text.split()) or " "
    return "".join(c if _PLAIN.match(c) else f"#{ord(c)};" for c in flat)
