"""DOT: the drawing for Graphviz, with modules as clusters."""

from __future__ import annotations

from ..elements import Drawing
from ..picture.card_rows import frame_title, rows_of
from ..picture.folding import Card, Frame, View, fold
from ..picture.markup import printable
from ..picture.palette import FAILED, INK, LINE, group_colours

_STYLES = {"consumes": "solid", "coupled": "bold", "gates": "dashed", "normalises": "dotted"}
_SHAPES = {"input": "oval", "output": "oval", "head": "doubleoctagon", "failure": "octagon"}


def to_dot(drawing: Drawing, depth: int | None = None) -> str:
    """The drawing for Graphviz; repeated blocks are folded as in the pictures."""
    view = fold(drawing, depth)
    colours = group_colours(drawing.groups)
    lines = [
        "digraph drawing {",
        f"  label={_quoted(drawing.title)}; labelloc=t; compound=true;",
        '  graph [fontname="Helvetica", style=rounded, color="#b9c3cf"];',
        '  node [fontname="Helvetica", fontsize=10, shape=box, style=rounded];',
        '  edge [arrowsize=0.6, fontname="Helvetica", fontsize=8];',
    ]
    lines += _inside(view, view.frames[0], colours, "  ")
    for link in view.links:
        known = [colours[group] for group in link.groups if group in colours]
        colour = known[0] if len(known) == 1 else LINE
        style = f'style={_STYLES[link.kind]}, color="{colour}", tooltip={_quoted(link.kind)}'
        lines.append(f"  {link.source} -> {link.target} [{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def _inside(view: View, frame: Frame, colours: dict[str, str], indent: str) -> list[str]:
    cards = [card for card in view.cards if card.frame == frame.id]
    lines = [f"{indent}{_node(card, view.drawing, colours)}" for card in cards]
    for inner in view.frames:
        if inner.parent == frame.id:
            title = _quoted("  ".join(frame_title(inner)))
            lines.append(f"{indent}subgraph cluster_{inner.id} {{")
            lines.append(f"{indent}  label={title};")
            lines += _inside(view, inner, colours, f"{indent}  ")
            lines.append(f"{indent}}}")
    return lines


def _node(card: Card, drawing: Drawing, colours: dict[str, str]) -> str:
    rows = rows_of(card, drawing)
    label = "\n".join(f"{row.name}  {row.note}".strip() for row in rows)
    if any(row.locked for row in rows):
        label += "\n(locked)"
    kind = card.nodes[0].kind if card.nodes else "module"
    known = [colours[group] for row in rows for group in row.groups if group in colours]
    colour = FAILED if kind == "failure" else known[0] if known else INK
    path = card.closed.path if card.closed else card.nodes[0].path
    return (
        f"{card.id} [label={_quoted(label)}, shape={_SHAPES.get(kind, 'box')}, "
        f'color="{colour}", tooltip={_quoted(path or kind)}];'
    )


def _quoted(text: str) -> str:
    """A quoted DOT string; backslashes are literal."""
    # Backslashes first, or those of the escaped quotes would be doubled.
    plain = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + plain.replace("\r", " ").replace("\t", " ").replace("\n", "\\n") + '"'
