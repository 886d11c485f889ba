"""Repeats: runs of consecutive blocks of the same structure, which can be shown as one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from .boxes import Box, Boxes
from .tree import Branch

Arrow = tuple[int, int, str]


@dataclass(frozen=True)
class Run:
    """Branch number ``index`` of a run of ``count`` that begins with ``first``."""

    first: Branch
    index: int
    count: int


def find_repeats(root: Branch, found: Boxes, arrows: Iterable[Arrow]) -> dict[int, Run]:
    """For each branch in a run, by its ``id``, its place in it.

    ``arrows`` are (source, target, kind) of all edges.
    """
    outgoing: dict[int, list[Arrow]] = defaultdict(list)
    reading = set()
    for arrow in arrows:
        outgoing[arrow[0]].append(arrow)
        if arrow[2] == "consumes":
            reading.add(arrow[1])
    runs: dict[int, Run] = {}
    last: Hashable = None
    waiting = [root]
    while waiting:
        branch = waiting.pop()
        waiting += branch.branches
        run: list[Branch] = []
        for item in [*branch.items(), None]:
            if isinstance(item, Branch):
                shape = _shape(item, found, outgoing, reading)
                if run and shape == last and _follows(run[-1], item, outgoing):
                    run.append(item)
                    continue
                last = shape
            if len(run) > 1:
                runs |= {id(b): Run(run[0], i, len(run)) for i, b in enumerate(run)}
            run = [item] if isinstance(item, Branch) else []
    return runs


def _follows(before: Branch, branch: Branch, outgoing: dict[int, list[Arrow]]) -> bool:
    """Does a block read the one before, and have its name but for the number?"""
    names = [re.sub(r"\d+", "#", each.path) for each in (before, branch)]
    inside = set(branch.all_boxes())
    reads = any(arrow[1] in inside for box in before.all_boxes() for arrow in outgoing[box])
    return names[0] == names[1] and reads


def _shape(
    branch: Branch, found: Boxes, outgoing: dict[int, list[Arrow]], reading: set[int]
) -> Hashable:
    """All that two blocks must have in common to be shown as one.

    Types, names and arrows inside, and the sizes that weights give to their results. What comes
    from outside may have another size, for it grows from layer to layer in a DenseNet.
    """
    inside = branch.all_boxes()
    number = {box: position for position, box in enumerate(inside)}
    boxes = tuple(
        _part(branch, found.boxes[box], sized=box in reading and box in number) for box in inside
    )
    inner = tuple(
        (number[source], number[target], kind)
        for box in inside
        for source, target, kind in outgoing[box]
        if target in number
    )
    return found.capture.types.get(branch.path, ""), boxes, inner


def _part(branch: Branch, box: Box, sized: bool) -> Hashable:
    size = tuple(box.value.meta.get("shape", ())) if sized and box.value is not None else None
    return box.kind, box.type, branch.relative(box.path), size
