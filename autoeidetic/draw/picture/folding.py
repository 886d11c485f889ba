"""Folding: the reduced view of a drawing that a static picture shows.

- Of a run of equal blocks only the first is shown, with the number of blocks. Its nodes stand for
  those in the same positions of the later blocks.
- A module below the requested depth is shown as one card.
- A layer, the norm after it and the activation after that share one card, as long as no other arrow
  starts or ends between them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..elements import Drawing, Edge, Module, Node

#: Without a requested depth, modules are opened as long as there are at most this many cards.
MOST_CARDS = 260
_ALWAYS_ALONE = ("input", "output", "failure")


@dataclass(frozen=True)
class Card:
    """A box without inner boxes: a stack of nodes, or a closed module."""

    id: str
    frame: str
    nodes: tuple[Node, ...]
    closed: Module | None = None


@dataclass(frozen=True)
class Frame:
    """An open module; ``count`` is the number of equal blocks it stands for."""

    id: str
    parent: str | None
    module: Module
    count: int


@dataclass(frozen=True)
class Link:
    """An arrow between two cards."""

    source: str
    target: str
    kind: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """Everything that a picture shows."""

    drawing: Drawing
    frames: tuple[Frame, ...]
    cards: tuple[Card, ...]
    links: tuple[Link, ...]


def fold(drawing: Drawing, depth: int | None = None) -> View:
    """The view with modules opened to this depth; by default as deep as it stays readable."""
    tree = _Tree(drawing)
    if depth is not None:
        return tree.view(depth)
    # The number of cards grows with the depth, so the first depth with too many ends the search.
    view = tree.view(1)
    for deeper in range(2, tree.depth + 1):
        further = tree.view(deeper)
        if len(further.cards) > MOST_CARDS:
            break
        view = further
    return view


class _Tree:
    """The modules of a drawing with their nodes.

    ``hidden``: modules in later blocks of a run; ``stands_for``: node of a later block -> the node
    that is shown in its place.
    """

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.modules = {module.id: module for module in drawing.modules}
        self.level: dict[str, int] = {}
        for module in drawing.modules:
            self.level[module.id] = 0 if module.parent is None else self.level[module.parent] + 1
        self.depth = max(self.level.values(), default=0) + 1
        self.home = {node.id: node.module for node in drawing.nodes}
        self.hidden = self._hidden()
        self.stands_for = self._stand_ins()

    def _ancestors(self, module: str) -> list[str]:
        """A module and all modules around it, the innermost first."""
        found = []
        here: str | None = module
        while here is not None:
            found.append(here)
            here = self.modules[here].parent
        return found

    def _hidden(self) -> set[str]:
        """Modules that are, or lie in, a later block of a run."""
        hidden: set[str] = set()
        for module in self.drawing.modules:
            later = module.repeat is not None and module.repeat.index > 0
            if later or module.parent in hidden:
                hidden.add(module.id)
        return hidden

    def _stand_ins(self) -> dict[str, str]:
        """Node of a later block -> the node at the same position of the first block.

        Blocks of a run have equal structures, so nodes at equal positions correspond.
        """
        inside: dict[str, list[str]] = defaultdict(list)
        for node in self.drawing.nodes:
            for around in self._ancestors(node.module):
                inside[around].append(node.id)
        found: dict[str, str] = {}
        for module in self.drawing.modules:
            if module.repeat is not None and module.repeat.index > 0:
                found |= zip(inside[module.id], inside[module.repeat.of], strict=True)
        for own in found:  # the first block may lie in a later block of a run around it
            while found[own] in found:
                found[own] = found[found[own]]
        return found

    def _run(self, node: str) -> dict[str, int]:
        """First block of each run that contains a node -> the number of the node's block."""
        repeats = [self.modules[m].repeat for m in self._ancestors(self.home[node])]
        return {repeat.of: repeat.index for repeat in repeats if repeat is not None}

    def view(self, depth: int) -> View:
        """The view with modules opened to a depth."""
        closed = self._closed(depth)
        frames = tuple(
            Frame(m.id, m.parent, m, m.repeat.count if m.repeat else 1)
            for m in self.drawing.modules
            if m.id not in self.hidden and self.level[m.id] < depth
        )
        shown = [n for n in self.drawing.nodes if n.id not in self.stands_for]
        # Node -> what shows it: itself, or the closed module around it.
        place = {n.id: closed.get(n.module, n.id) for n in shown}
        links = self._links(place)
        stacks = _stacks([n for n in shown if place[n.id] == n.id], links)
        # Cards in the order of their first node; a stack is added with its first node.
        cards, card_of = [], {}
        for node in shown:
            at = place[node.id]
            if at in card_of:
                continue
            if at != node.id:
                module = self.modules[at]
                cards.append(Card(at, str(module.parent), (), module))
                card_of[at] = at
            else:
                stack = stacks[node.id]
                cards.append(Card(node.id, node.module, stack))
                card_of |= {part.id: node.id for part in stack}
        return View(self.drawing, frames, tuple(cards), _card_links(links, card_of))

    def _closed(self, depth: int) -> dict[str, str]:
        """Module that is not open -> the closed module that it is or lies in."""
        found = {}
        for module in self.drawing.modules:
            around = self._ancestors(module.id)
            # At most one: levels differ along a path to the root.
            closed = [m for m in around if self.level[m] == depth]
            if closed:
                found[module.id] = closed[0]
        return found

    def _links(self, place: dict[str, str]) -> list[Edge]:
        """Edges between shown nodes and closed modules, without those between blocks of a run.

        Edges of later blocks coincide with those of the first block. They determine the groups of
        an edge only if the first block has no such edge, as with the edge that leaves a run.
        """
        found: dict[tuple[str, str, str], dict[str, None]] = {}
        later: dict[tuple[str, str, str], dict[str, None]] = {}
        for edge in self.drawing.edges:
            # First to the shown block of a run, then to the closed module around it.
            source = place[self.stands_for.get(edge.source, edge.source)]
            target = place[self.stands_for.get(edge.target, edge.target)]
            # A closed module hides its inner edges; the count at a run stands for its inner edges.
            if source == target or self._within_a_run(edge):
                continue
            found.setdefault((source, target, edge.kind), {})
            of = later if edge.source in self.stands_for else found
            of.setdefault((source, target, edge.kind), {}).update(dict.fromkeys(edge.groups))
        return [
            Edge(*key, tuple(groups or later.get(key, ())), "", "") for key, groups in found.items()
        ]

    def _within_a_run(self, edge: Edge) -> bool:
        # Both ends in one run, but in different blocks.
        runs = self._run(edge.target)
        return any(runs.get(of, index) != index for of, index in self._run(edge.source).items())


def _stacks(nodes: list[Node], links: list[Edge]) -> dict[str, tuple[Node, ...]]:
    """First node of each card -> all nodes that are stacked on it."""
    leaving: dict[str, list[Edge]] = defaultdict(list)
    arriving: dict[str, list[Edge]] = defaultdict(list)
    for link in links:
        leaving[link.source].append(link)
        arriving[link.target].append(link)
    by_id = {node.id: node for node in nodes}
    stacks: dict[str, list[Node]] = {}
    home: dict[str, str] = {}
    for node in nodes:
        above = arriving[node.id]
        # Nodes come in the order of execution, so the source is on a card already.
        if len(above) == 1 and _may_stack(node, by_id.get(above[0].source), above[0], leaving):
            first = home[above[0].source]
            home[node.id] = first
            stacks[first].append(node)
        else:
            home[node.id] = node.id
            stacks[node.id] = [node]
    return {first: tuple(stack) for first, stack in stacks.items()}


def _may_stack(node: Node, above: Node | None, link: Edge, leaving: dict[str, list[Edge]]) -> bool:
    """Whether a node goes on the card of its only source, which has no other reader."""
    if above is None or len(leaving[above.id]) > 1 or node.module != above.module:
        return False
    if node.kind in _ALWAYS_ALONE or above.kind in _ALWAYS_ALONE or above.type == "Parameter":
        return False
    # A weight ("consumes") or a gate starts a card of its own.
    return link.kind in ("coupled", "normalises")


def _card_links(links: list[Edge], card_of: dict[str, str]) -> tuple[Link, ...]:
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for link in links:
        source, target = card_of[link.source], card_of[link.target]
        if source != target:
            found.setdefault((source, target, link.kind), {}).update(dict.fromkeys(link.groups))
    return tuple(Link(s, t, kind, tuple(groups)) for (s, t, kind), groups in found.items())
