"""The tree of modules: boxes inside boxes, one for each call.

Each call of a module has its own box, so that values flow in one direction only. A list of modules
is a box if no other operator runs between the calls of its members. A box that would contain a
single item is removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .boxes import Boxes

Key = tuple[str | int, ...]


@dataclass
class Branch:
    """A module in the tree: its boxes and inner branches, in order of use.

    ``called`` is False for a list of modules, which is never called itself; ``order`` is the number
    of its first box.
    """

    path: str
    called: bool
    parent: Branch | None
    order: int
    boxes: list[int] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    def all_boxes(self) -> list[int]:
        """The boxes in this branch and all inner ones, in the order of their operators."""
        inner = [box for branch in self.branches for box in branch.all_boxes()]
        return sorted(self.boxes + inner)

    def items(self) -> list[int | Branch]:
        """Boxes and branches in order of use."""
        # A branch is as early as its first box; numbers of boxes are the order of execution.
        keyed: list[tuple[int, int | Branch]] = [(box, box) for box in self.boxes]
        keyed += [(branch.order, branch) for branch in self.branches]
        return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]

    def relative(self, path: str) -> str:
        """A path relative to this module."""
        prefix = f"{self.path}."
        return path.removeprefix(prefix) if self.path else path


def build_tree(found: Boxes) -> Branch:
    """The root of the tree of a model's modules."""
    root = Branch("", True, None, -1)
    known: dict[tuple[int, Key], Branch] = {}
    calls = found.capture.calls
    for index, box in enumerate(found.boxes):
        # Descend from the root through the calls around the box. The key of a call has its id, so a
        # second call of a module gets a second branch; a list of modules is the same for all calls.
        branch = root
        for ident in box.scope:
            path = calls[ident].path
            if path:
                branch = _through_lists(known, branch, path, index)
                branch = _inner(known, branch, path, (path, ident), True, index)
        if box.path and box.kind not in ("input", "output"):
            branch = _through_lists(known, branch, box.path, index)
        branch.boxes.append(index)
    _dissolve(root)
    return root


def _through_lists(
    known: dict[tuple[int, Key], Branch], branch: Branch, path: str, index: int
) -> Branch:
    """Descend through the lists of modules between a module and one that is called in it."""
    # A module that is called by one it is not inside of, such as a shared layer.
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
    # By parent as well: the same module may be called in two branches.
    branch = known.get((id(parent), key))
    if branch is None:
        branch = known[id(parent), key] = Branch(path, called, parent, index)
        parent.branches.append(branch)
    return branch


def _dissolve(branch: Branch) -> None:
    """Remove boxes with a single item, and lists that other operators interrupt.

    Boxes are numbered in order, so a list is interrupted if its numbers have a gap.
    """
    for inner in list(branch.branches):
        _dissolve(inner)
        # After the recursion: what was inside may have been dissolved into this branch.
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
