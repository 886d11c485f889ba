"""SVG: a static picture for papers and talks."""

from __future__ import annotations

from ..elements import Drawing
from ..picture.cards import draw_card, draw_frame, draw_title
from ..picture.folding import View, fold
from ..picture.layout import Layout, Path, place
from ..picture.legend import draw_legend
from ..picture.markup import escape, number, tag
from ..picture.palette import FAILED, INK, LINE, PAPER, QUIET, group_colours
from ..picture.styles import KINDS, marker_name, markers
from ..picture.text import count_text, shortened, width

_FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
_EDGE = 20.0
_TOP = 52.0
_LEAST = 460.0


def to_svg(drawing: Drawing, depth: int | None = None) -> str:
    """The drawing as SVG; modules deeper than ``depth`` stay closed.

    Without a depth, modules are opened as deep as the picture stays readable. Needs the ``viz``
    extra.

    Raises:
        MissingPackageError: the layout library's engine is not installed.
    """
    view = fold(drawing, depth)
    return _picture(view, place(view))


def _picture(view: View, layout: Layout) -> str:
    drawing = view.drawing
    colours = group_colours(drawing.groups)
    # The legend is broken to the width of the picture, but a single entry may be wider.
    inner = max(layout.width, _title_width(drawing), _LEAST)
    legend, legend_width, legend_height = draw_legend(view, inner)
    inner = max(inner, legend_width)
    full_width = inner + 2 * _EDGE
    full_height = _TOP + layout.height + legend_height + 2 * _EDGE
    levels = _levels(view)
    # Painted in this order: frames, arrows over frames, titles over arrows, cards on top.
    body = [draw_frame(f, layout.places[f.id], levels[f.id]) for f in view.frames[1:]]
    body += [_path(path, colours) for path in layout.paths]
    body += [draw_title(f, layout.places[f.id], levels[f.id]) for f in view.frames[1:]]
    body += [draw_card(c, layout.places[c.id], drawing, colours) for c in view.cards]
    # A narrow picture is centred under its title and over its legend.
    shift = (inner - layout.width) / 2
    below = _TOP + layout.height + _EDGE
    parts = [
        tag("title", escape(drawing.title)),
        tag("defs", markers((*colours.values(), LINE, INK, FAILED))),
        tag("rect", width="100%", height="100%", fill=PAPER),
        _title(drawing),
        tag("g", "\n".join(body), transform=f"translate({number(_EDGE + shift)} {number(_TOP)})"),
        tag("g", legend, transform=f"translate({number(_EDGE)} {number(below)})"),
    ]
    return (
        tag(
            "svg",
            "\n" + "\n".join(parts) + "\n",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {number(full_width)} {number(full_height)}",
            width=full_width,
            height=full_height,
            font_family=_FONT,
            role="img",
        )
        + "\n"
    )


def _levels(view: View) -> dict[str, int]:
    levels: dict[str, int] = {}
    for frame in view.frames:
        levels[frame.id] = 0 if frame.parent is None else levels[frame.parent] + 1
    return levels


def _summary(drawing: Drawing) -> str:
    known = drawing.summary
    parts = [f"{count_text(known.parameters)} parameters"]
    if known.groups:
        parts.append(f"{known.groups} groups of {known.units:,} units")
        parts.append(f"{known.locked_share:.1%} locked" if known.locked_share else "nothing locked")
    if drawing.failure is not None:
        parts.append(f"failed: {' '.join(drawing.failure.message.split())}")
    return shortened(" · ".join(parts), 160)


def _title_width(drawing: Drawing) -> float:
    return max(width(shortened(drawing.title, 80), 18), width(_summary(drawing), 11))


def _title(drawing: Drawing) -> str:
    name = tag(
        "text",
        escape(shortened(drawing.title, 80)),
        x=_EDGE,
        y=26,
        font_size=18,
        font_weight="bold",
        fill=INK,
    )
    fill = QUIET if drawing.failure is None else FAILED
    return name + tag("text", escape(_summary(drawing)), x=_EDGE, y=43, font_size=11, fill=fill)


def _path(path: Path, colours: dict[str, str]) -> str:
    """A piece of an arrow, in its group's colour if it carries a single group."""
    kind = KINDS[path.kind]
    known = [colours[group] for group in path.groups if group in colours]
    colour = known[0] if len(known) == 1 else LINE
    text = "M" + " L".join(f"{number(x)} {number(y)}" for x, y in path.points)
    return tag(
        "path",
        d=text,
        fill="none",
        stroke=colour,
        stroke_width=kind.width,
        stroke_linejoin="round",
        stroke_dasharray=kind.dash,
        marker_end=f"url(#{marker_name(colour)})" if path.ends else "",
    )
