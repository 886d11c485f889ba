"""Colours of groups: different for groups that share a node, equal across repeated blocks.

A greedy graph colouring. Groups whose names differ only in numbers (``blocks.3.fc1`` and
``blocks.4.fc1``) and that have the same size are of one kind and share a colour where they can."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

#: How many colours a palette is expected to have.
COLOURS = 12


def choose_colours(
    names: Sequence[str], sizes: Sequence[int], touching: Sequence[set[int]], weight: Sequence[int]
) -> list[int]:
    """A colour number for each group.

    ``touching[g]``: the groups that g shares a node with. ``weight[g]``: how much of the drawing g
    fills; the largest groups choose first.
    """
    # Greedy, not optimal: a node touches few groups, so twelve colours nearly always suffice.
    chosen: dict[int, int] = {}
    of_kind: dict[tuple[str, int], int] = {}
    used: Counter[int] = Counter()
    # Sorting by number breaks ties, so that the same model always gets the same colours.
    for group in sorted(range(len(names)), key=lambda g: (-weight[g], g)):
        # blocks.3.fc1 and blocks.4.fc1 become blocks.#.fc1: one kind if the sizes agree.
        kind = (re.sub(r"\d+", "#", names[group]), sizes[group])
        taken = {chosen[other] for other in touching[group] if other in chosen}
        colour = of_kind.get(kind)
        if colour is None or colour in taken:
            # the least used colour that no neighbour has; any colour if the neighbours have all
            free = [c for c in range(COLOURS) if c not in taken] or list(range(COLOURS))
            colour = min(free, key=lambda c: (used[c], c))
            of_kind.setdefault(kind, colour)
        chosen[group] = colour
        used[colour] += 1
    return [chosen[group] for group in range(len(names))]
