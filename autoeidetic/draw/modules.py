"""The tree of module boxes as a list, parents before children, with repeated blocks marked."""

from __future__ import annotations

from collections.abc import Iterable

from .boxes import Boxes
from .elements import Module, Repeat
from .layers import Layers
from .repeats import Arrow, Run, find_repeats
from .tree import Branch, build_tree


def list_modules(
    found: Boxes, layers: Layers, arrows: Iterable[Arrow]
) -> tuple[tuple[Module, ...], dict[int, Module]]:
    """All modules, and box -> the innermost module around it."""
    root = build_tree(found)
    runs = find_repeats(root, found, arrows)
    branches: list[Branch] = []
    _in_order(root, branches)
    # Parents before children: readers can build the tree in one pass.
    ids = {id(branch): f"m{number}" for number, branch in enumerate(branches)}
    modules, home = [], {}
    for branch in branches:
        parent = branch.parent
        module = Module(
            id=ids[id(branch)],
            path=branch.path,
            name=parent.relative(branch.path) if parent else "",
            type=found.capture.types.get(branch.path, ""),
            parent=ids[id(parent)] if parent else None,
            parameters=layers.elements(branch.path),
            repeat=_repeat(runs.get(id(branch)), ids),
        )
        modules.append(module)
        home.update(dict.fromkeys(branch.boxes, module))
    return tuple(modules), home


def _in_order(branch: Branch, into: list[Branch]) -> None:
    into.append(branch)
    for inner in branch.branches:
        _in_order(inner, into)


def _repeat(run: Run | None, ids: dict[int, str]) -> Repeat | None:
    return None if run is None else Repeat(ids[id(run.first)], run.index, run.count)
