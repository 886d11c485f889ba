"""The layout of a static picture: coordinates of frames, cards and arrows, computed by ELK.

Each module is laid out separately, and arrows cross its border through ports. So one module can
run downwards and the one around it to the right, which gives pictures of deep networks a shape that
fits a page. Three steps:

1. estimate the size of every frame from the inside out, and choose its direction (down or right)
   and the number of lines it is broken into (:class:`_Builder`);
2. cut every arrow into segments, one for each frame it passes through (``_route``);
3. let ELK place everything, and convert its relative coordinates to absolute ones (``_read``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .card_rows import card_size, title_width
from .elk import lay_out
from .folding import Link, View

Point = tuple[float, float]
_MARGIN = 12.0
_HEAD = 28.0
_GAP = 26.0
#: Desired width / height of a module, and of the whole picture.
_ASPECT_INSIDE = 0.6
_ASPECT = 1.7
#: A longer line of modules is broken into several lines.
_LONGEST = 1500.0
#: The factor by which the aspect of a picture may be off before a second layout is tried.
_TOLERANCE = 2.0


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Path:
    """A piece of an arrow; the last piece (``ends``) has the arrow head."""

    kind: str
    groups: tuple[str, ...]
    points: tuple[Point, ...]
    ends: bool


@dataclass(frozen=True)
class Layout:
    """Coordinates of frames and cards by id, and the arrows."""

    width: float
    height: float
    places: dict[str, Rectangle]
    paths: tuple[Path, ...]


def place(view: View) -> Layout:
    """Lay out everything in a view.

    Directions are chosen from estimated sizes. If the aspect of the picture is far off, they are
    chosen once more from the sizes that ELK computed, and the better picture is returned.
    """
    layout = _placed(_Builder(view))
    if _distance((layout.width, layout.height), _ASPECT) < math.log(_TOLERANCE):
        return layout
    sizes = {item: (at.width, at.height) for item, at in layout.places.items()}
    again = _placed(_Builder(view, measured=sizes))
    return min(layout, again, key=lambda each: _distance((each.width, each.height), _ASPECT))


def _placed(builder: _Builder) -> Layout:
    return _read(lay_out(builder.graph()), builder)


@dataclass
class _Segment:
    kind: str
    groups: tuple[str, ...]
    ends: bool


@dataclass
class _Builder:
    """Builds the graph for ELK from a view.

    Items are cards, frames, and lines (invisible frames that hold one line of a broken frame).
    ``around``: item -> the frame that contains it; ``inner``: frame -> its items in order;
    ``ports``: frame -> port -> whether arrows enter there; ``edges``: frame -> its segments.
    """

    view: View
    measured: dict[str, Point] = field(default_factory=dict)
    segments: dict[str, _Segment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frames = {frame.id: frame for frame in self.view.frames}
        self.around = {card.id: card.frame for card in self.view.cards}
        self.around |= {f.id: f.parent for f in self.view.frames if f.parent is not None}
        self.sizes = {card.id: card_size(card, self.view.drawing) for card in self.view.cards}
        self.inner: dict[str, list[str]] = defaultdict(list)
        for item in self._in_order():
            self.inner[self.around[item]].append(item)
        self.root = self.view.frames[0].id
        self.downwards: dict[str, bool] = {}
        self.lines: set[str] = set()
        # Before the arrows: breaking a frame adds lines, whose borders arrows have to cross.
        self._estimate(self.root)
        self.ports: dict[str, dict[str, bool]] = defaultdict(dict)
        self.edges: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        for link in self.view.links:
            self._route(link)

    def _in_order(self) -> list[str]:
        """Cards and frames in the order of their first node, so that layouts are reproducible."""
        order: dict[str, int] = {}
        for position, card in enumerate(self.view.cards):
            item: str | None = card.id
            while item is not None:
                order.setdefault(item, position)
                item = self.around.get(item)
        return [item for item in sorted(order, key=lambda i: order[i]) if item in self.around]

    def _estimate(self, frame: str) -> Point:
        """Choose the direction of a frame from the sizes of its items; returns its size."""
        items = self.inner[frame]
        # Inner frames are estimated even if measured, because this chooses their directions.
        guessed = [self.sizes.get(item) or self._estimate(item) for item in items]
        sizes = [self.measured.get(*pair) for pair in zip(items, guessed, strict=True)]
        aspect = _ASPECT if self._is_deep(frame) else _ASPECT_INSIDE
        # Both directions are tried; ties go to down, the usual direction of a network.
        down, right = _in_line(sizes, True), _in_line(sizes, False)
        self.downwards[frame] = _distance(down, aspect) <= _distance(right, aspect)
        size = down if self.downwards[frame] else right
        # n lines make it n times shorter and n times thicker, which changes the aspect by n * n.
        rows = round(math.sqrt(math.exp(_distance(size, aspect))))
        if rows > 1 and max(size) > _LONGEST and self._is_deep(frame):
            size = self._break(frame, sizes, rows)
        return size[0] + 2 * _MARGIN, size[1] + _HEAD + _MARGIN

    def _is_deep(self, frame: str) -> bool:
        """Whether it contains frames inside frames; simple blocks read best from top to bottom."""
        if frame == self.root:
            return True
        return any(self._is_nested(item) for item in self.inner[frame] if item not in self.sizes)

    def _break(self, frame: str, sizes: list[Point], rows: int) -> Point:
        """Distribute the items of a frame over lines of about equal length, invisible frames.

        The lines run in the direction of the frame and are placed side by side.
        """
        down = self.downwards[frame]
        items, self.inner[frame] = self.inner[frame], []
        # Item i goes to the line in which the middle of the item lies, if all items form one line.
        lengths = [height if down else width for width, height in sizes]
        whole, done = sum(lengths), 0.0
        content: list[list[int]] = [[] for _ in range(rows)]
        for position, length in enumerate(lengths):
            content[min(int((done + length / 2) / whole * rows), rows - 1)].append(position)
            done += length
        line_sizes = []
        for number, positions in enumerate(line for line in content if line):
            line = f"{frame}/{number}"
            self.lines.add(line)
            self.around[line] = frame
            self.inner[frame].append(line)
            self.inner[line] = [items[position] for position in positions]
            self.around |= dict.fromkeys(self.inner[line], line)
            self.downwards[line] = down
            line_sizes.append(_in_line([sizes[position] for position in positions], down))
        # The lines stand side by side, across the direction in which each of them runs.
        self.downwards[frame] = not down
        return _in_line(line_sizes, not down)

    # -- arrows through borders ----------------------------------------------------------------

    def _frames_around(self, item: str) -> list[str]:
        found = []
        here: str | None = self.around.get(item)
        while here is not None:
            found.append(here)
            here = self.around.get(here)
        return found

    def _route(self, link: Link) -> None:
        """Cut an arrow at the borders between its ends: outwards, then inwards.

        A port is named after the source and kind of the value, so all arrows that carry the same
        value across a border share one port.
        """
        # For an arrow from card a in frame A to card b in frame C, which lies in frame B:
        #
        #      A [ a ---|A>a ]      B [ B<a|--- C [ C<a|---> b ] ]
        #
        # one segment in A, one between A and B, one in B, one in C.
        out, into = self._frames_around(link.source), self._frames_around(link.target)
        shared = next(frame for frame in out if frame in into)
        steps = [(link.source, "")]
        for frame in out[: out.index(shared)]:
            steps.append((frame, f"{frame}>{link.source}:{link.kind}"))
            self.ports[frame][steps[-1][1]] = False
        for frame in reversed(into[: into.index(shared)]):
            steps.append((frame, f"{frame}<{link.source}:{link.kind}"))
            self.ports[frame][steps[-1][1]] = True
        steps.append((link.target, ""))
        for (item, port), (other, other_port) in pairwise(steps):
            self._segment(link, item, port, other, other_port)

    def _segment(self, link: Link, item: str, port: str, other: str, other_port: str) -> None:
        """Add a segment to the frame that contains it; equal segments of several arrows merge."""
        # Inwards from a port, the segment lies in the item itself; otherwise in the frame around.
        if self.around.get(other) == item:
            level = item
        else:
            level = self.around[item]
        start, end = port or item, other_port or other
        # Arrows of the same kind on the same way share one line.
        key = f"{start}|{end}|{link.kind}"
        known = self.segments.get(key)
        # dict.fromkeys: unique, in the order of first use, so that pictures are reproducible.
        groups = tuple(dict.fromkeys((*(known.groups if known else ()), *link.groups)))
        self.segments[key] = _Segment(link.kind, groups, ends=not other_port)
        self.edges[level][key] = (start, end)

    # -- the graph -----------------------------------------------------------------------------

    def graph(self) -> dict[str, Any]:
        return self._frame(self.root)

    def _is_block(self, frame: str) -> bool:
        """Whether it contains only cards, or simple frames one below the other."""
        if frame in self.lines:
            return not self._is_nested(frame)
        return not self._is_nested(frame) or (self.downwards[frame] and not self._is_deep(frame))

    def _is_nested(self, frame: str) -> bool:
        return any(item not in self.sizes for item in self.inner[frame])

    def _item(self, item: str) -> dict[str, Any]:
        if item not in self.sizes:
            return self._frame(item)
        width, height = self.sizes[item]
        return {"id": item, "width": width, "height": height}

    def _frame(self, ident: str) -> dict[str, Any]:
        down = self.downwards[ident]
        parent = self.around.get(ident)
        outside = down if parent is None else self.downwards[parent]
        # Ports lie on the sides that the direction of the frame around it runs through.
        sides = ("NORTH", "SOUTH") if outside else ("WEST", "EAST")
        return {
            "id": ident,
            "layoutOptions": _options(down, self._is_block(ident)) | self._border(ident),
            "ports": [
                {
                    "id": port,
                    "width": 0,
                    "height": 0,
                    "layoutOptions": {"elk.port.side": sides[0 if entering else 1]},
                }
                for port, entering in self.ports[ident].items()
            ],
            "children": [self._item(item) for item in self.inner[ident]],
            "edges": [
                {"id": key, "sources": [start], "targets": [end]}
                for key, (start, end) in self.edges[ident].items()
            ],
        }

    def _border(self, ident: str) -> dict[str, str]:
        if ident in self.lines or ident == self.root:
            return {"elk.padding": "[top=4,left=4,bottom=4,right=4]"}
        return {
            "elk.nodeSize.constraints": "MINIMUM_SIZE",
            "elk.nodeSize.minimum": f"({title_width(self.frames[ident])},{_HEAD})",
            "elk.padding": f"[top={_HEAD},left={_MARGIN},bottom={_MARGIN},right={_MARGIN}]",
        }


def _in_line(sizes: Sequence[Point], down: bool) -> Point:
    """The size of items in one line, with gaps between them."""
    gaps = _GAP * len(sizes)
    widths, heights = [width for width, _ in sizes], [height for _, height in sizes]
    if down:
        return max(widths), sum(heights) + gaps
    return sum(widths) + gaps, max(heights)


def _distance(size: Point, aspect: float) -> float:
    """How far an aspect is off: 0 if right, the same for twice as wide and twice as high."""
    # A logarithm: twice as wide and half as wide are equally far off.
    return abs(math.log(size[0] / size[1] / aspect))


def _options(down: bool, block: bool) -> dict[str, str]:
    # NETWORK_SIMPLEX prefers straight arrows. Between large modules these would shift each module
    # sideways against the one before, like a staircase.
    placement = "NETWORK_SIMPLEX" if block else "SIMPLE"
    return {
        "elk.algorithm": "layered",
        "elk.direction": "DOWN" if down else "RIGHT",
        "elk.edgeRouting": "ORTHOGONAL",
        "elk.portConstraints": "FIXED_SIDE",
        "elk.spacing.nodeNode": "14",
        "elk.spacing.edgeNode": "10",
        "elk.spacing.edgeEdge": "8",
        "elk.layered.spacing.nodeNodeBetweenLayers": str(_GAP),
        "elk.layered.spacing.edgeNodeBetweenLayers": "12",
        "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
        "elk.layered.nodePlacement.strategy": placement,
        "elk.layered.nodePlacement.favorStraightEdges": "true",
        "elk.randomSeed": "1",
    }


def _read(graph: dict[str, Any], builder: _Builder) -> Layout:
    """Convert ELK's coordinates, which are relative to the parent, to absolute ones."""
    places: dict[str, Rectangle] = {}
    paths: list[Path] = []
    # (item, left, top): the absolute corner of the frame around the item.
    waiting: list[tuple[dict[str, Any], float, float]] = [(graph, 0.0, 0.0)]
    while waiting:
        item, left, top = waiting.pop()
        # Edges are relative to the frame that holds them, as its items are.
        x, y = left + item.get("x", 0.0), top + item.get("y", 0.0)
        places[item["id"]] = Rectangle(x, y, item["width"], item["height"])
        waiting += [(child, x, y) for child in item.get("children", ())]
        for edge in item.get("edges", ()):
            segment = builder.segments[edge["id"]]
            for section in edge.get("sections", ()):
                points = _points(section, x, y)
                paths.append(Path(segment.kind, segment.groups, points, segment.ends))
    return Layout(graph["width"], graph["height"], places, tuple(paths))


def _points(section: dict[str, Any], x: float, y: float) -> tuple[Point, ...]:
    bends: Sequence[dict[str, float]] = section.get("bendPoints", ())
    points = (section["startPoint"], *bends, section["endPoint"])
    return tuple((x + point["x"], y + point["y"]) for point in points)
