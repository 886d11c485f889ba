"""Runs of consecutive blocks of the same structure, which can be drawn as one block.

Two neighbours are in one run if their structures are equal (:func:`_structure`), the second reads
the first, and their names differ only in a number."""

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
    """Branch number ``index`` of a run of ``count`` branches, of which ``first`` is the first."""

    first: Branch
    index: int
    count: int


def find_repeats(root: Branch, found: Boxes, arrows: Iterable[Arrow]) -> dict[int, Run]:
    """``id`` of each branch in a run -> its place in the run.

    ``arrows`` are all edges as (source, target, kind).
    """
    outgoing: dict[int, list[Arrow]] = defaultdict(list)
    reading = set()  # boxes whose weights read something: these set the size of their result
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
        for item in [*branch.items(), None]:  # None ends the last run
            if isinstance(item, Branch):
                # Compared with the last block only: a run is a chain of equal neighbours.
                structure = _structure(item, found, outgoing, reading)
                if run and structure == last and _follows(run[-1], item, outgoing):
                    run.append(item)
                    continue
                last = structure
            if len(run) > 1:
                runs |= {id(b): Run(run[0], i, len(run)) for i, b in enumerate(run)}
            run = [item] if isinstance(item, Branch) else []
    return runs


def _follows(before: Branch, branch: Branch, outgoing: dict[int, list[Arrow]]) -> bool:
    """Whether a block reads the one before it and its name differs only in a number."""
    # Equal structure is not enough: two stages of a network may look alike.
    names = [re.sub(r"\d+", "#", each.path) for each in (before, branch)]
    inside = set(branch.all_boxes())
    reads = any(arrow[1] in inside for box in before.all_boxes() for arrow in outgoing[box])
    return names[0] == names[1] and reads


def _structure(
    branch: Branch, found: Boxes, outgoing: dict[int, list[Arrow]], reading: set[int]
) -> Hashable:
    """Everything in which two blocks of a run must be equal.

    Types, names and arrows inside, and the sizes that weights give to their results. The input of
    a block may have another size: in a DenseNet it grows from layer to layer.
    """
    # Boxes are renumbered from 0, so that the arrows of two blocks can be compared.
    inside = branch.all_boxes()
    number = {box: position for position, box in enumerate(inside)}
    boxes = tuple(
        _box_structure(branch, found.boxes[box], sized=box in reading and box in number)
        for box in inside
    )
    inner = tuple(
        (number[source], number[target], kind)
        for box in inside
        for source, target, kind in outgoing[box]
        if target in number
    )
    return found.capture.types.get(branch.path, ""), boxes, inner


def _box_structure(branch: Branch, box: Box, sized: bool) -> Hashable:
    size = tuple(box.value.meta.get("shape", ())) if sized and box.value is not None else None
    return box.kind, box.type, branch.relative(box.path), size
