"""Tree: the modules as boxes in boxes, as they are called.

Each call of a module has its own box, so that values flow one way only. A list of modules is a
box when nothing happens between the calls of its members. A box with a single thing in it is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .boxes import Boxes

Key = tuple[str | int, ...]


@dataclass
class Branch:
    """A module while the tree is made: its boxes and the branches in it, in order of use."""

    path: str
    called: bool
    parent: Branch | None
    order: int
    boxes: list[int] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    def all_boxes(self) -> list[int]:
        """The boxes in it and in everything inside, in the order of their operators."""
        inner = [box for branch in self.branches for box in branch.all_boxes()]
        return sorted(self.boxes + inner)

    def items(self) -> list[int | Branch]:
        """Boxes and branches in order of use."""
        keyed: list[tuple[int, int | Branch]] = [(box, box) for box in self.boxes]
        keyed += [(branch.order, branch) for branch in self.branches]
        return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]

    def relative(self, path: str) -> str:
        """A path as seen from inside."""
        prefix = f"{self.path}."
        return path.removeprefix(prefix) if self.path else path


def build_tree(found: Boxes) -> Branch:
    """The root of the tree of a model's modules."""
    root = Branch("", True, None, -1)
    known: dict[tuple[int, Key], Branch] = {}
    calls = found.capture.calls
    for index, box in enumerate(found.boxes):
        branch = root
        for ident in box.scope:
            path = calls[ident].path
            if path:
                branch = _lists(known, branch, path, index)
                branch = _inner(known, branch, path, (path, ident), True, index)
        if box.path and box.kind not in ("input", "output"):
            branch = _lists(known, branch, box.path, index)
        branch.boxes.append(index)
    _dissolve(root)
    return root


def _lists(known: dict[tuple[int, Key], Branch], branch: Branch, path: str, index: int) -> Branch:
    """The branches for what lies between a module and one called in it: lists of modules."""
    if branch.path and not path.startswith(f"{branch.path}."):
        return branch
    between = branch.relative(path).split(".")[:-1]
    here = branch.path
    for name in between:
        here = f"{here}.{name}" if here else name
        branch = _inner(known, branch, here, (here,), False, index)
    return branch


def _inner(
    known: dict[tuple[int, Key], Branch],
    parent: Branch,
    path: str,
    key: Key,
    called: bool,
    index: int,
) -> Branch:
    branch = known.get((id(parent), key))
    if branch is None:
        branch = known[id(parent), key] = Branch(path, called, parent, index)
        parent.branches.append(branch)
    return branch


def _dissolve(branch: Branch) -> None:
    """Take out boxes that say nothing: of one thing, or of a list that others come between."""
    for inner in list(branch.branches):
        _dissolve(inner)
        inside = inner.all_boxes()
        interrupted = inside[-1] - inside[0] + 1 != len(inside)
        if len(inner.items()) == 1 or (not inner.called and interrupted):
            branch.branches.remove(inner)
            branch.boxes += inner.boxes
            for moved in inner.branches:
                moved.parent = branch
            branch.branches += inner.branches
    branch.boxes.sort()
    branch.branches.sort(key=lambda inner: inner.order)
