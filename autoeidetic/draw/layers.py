"""Layers: the parameters of each box, and the boxes that show each member of a group."""

from __future__ import annotations

from collections import defaultdict

from ..capture.graph import Capture
from ..capture.names import layer_of
from ..couple.groups import Member
from .boxes import Box


class Layers:
    """Parameters by the path of every module around them, and boxes by their path."""

    def __init__(self, capture: Capture, boxes: list[Box]) -> None:
        self.capture = capture
        self._inside: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._other_names: dict[str, list[str]] = defaultdict(list)
        for name in capture.parameters:
            self._note(name, name)
        for alias, first in capture.aliases.items():
            self._note(alias, first)
            self._other_names[first].append(alias)
        self._boxes: dict[str, list[int]] = defaultdict(list)
        for index, box in enumerate(boxes):
            if box.kind == "layer":
                self._boxes[box.path].append(index)

    def _note(self, name: str, first: str) -> None:
        path, _, leaf = name.rpartition(".")
        while path:
            # a.b.weight is listed under a.b as "weight" and under a as "b.weight"
            self._inside[path].append((leaf, first))
            path, _, outer = path.rpartition(".")
            leaf = f"{outer}.{leaf}"

    def elements(self, path: str) -> int:
        """The number of parameter elements in a module; a shared parameter counts once."""
        known = self.capture.parameters
        names = known if not path else dict.fromkeys(first for _, first in self._inside[path])
        return sum(known[name].numel() for name in names)

    def parameters(self, box: Box) -> dict[str, str]:
        """The parameters of a layer: the name inside it, and the name the graph has for it."""
        if box.kind != "layer":
            return {}
        if box.type == "Parameter":
            return {box.path.rpartition(".")[2]: box.path}
        return dict(self._inside[box.path])

    def boxes_of(self, member: Member) -> list[int]:
        """The boxes of a member of a group: all layers that share the parameter."""
        found: list[int] = []
        for name in (member.parameter, *self._other_names[member.parameter]):
            found += self._boxes.get(name) or self._nearest(layer_of(name))
        return list(dict.fromkeys(found))

    def _nearest(self, path: str) -> list[int]:
        """The boxes of a module, or of the innermost one around it that is drawn as a layer."""
        while path:
            if path in self._boxes:
                return self._boxes[path]
            path = path.rpartition(".")[0]
        return []
