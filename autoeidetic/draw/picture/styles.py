"""The line style of each kind of edge in SVG."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .markup import tag


@dataclass(frozen=True)
class Style:
    """A line style: ``dash`` as in SVG, empty for a solid line; ``words`` for the legend."""

    width: float
    dash: str
    words: str


KINDS = {
    "consumes": Style(1.3, "", "a weight reads it"),
    "coupled": Style(3.0, "", "goes on channel by channel"),
    "normalises": Style(1.6, "1.5 3", "is normalised"),
    "gates": Style(1.6, "6 4", "gates without a weight"),
}


def marker_name(colour: str) -> str:
    return f"head-{colour.removeprefix('#')}"


def markers(colours: Iterable[str]) -> str:
    """Arrow heads, one for each colour."""
    return "".join(
        tag(
            "marker",
            tag("path", d="M0 0 L8 3.5 L0 7 z", fill=colour),
            id=marker_name(colour),
            viewBox="0 0 8 7",
            refX="7",
            refY="3.5",
            markerWidth="8",
            markerHeight="7",
            markerUnits="userSpaceOnUse",
            orient="auto",
        )
        for colour in sorted(set(colours))
    )
