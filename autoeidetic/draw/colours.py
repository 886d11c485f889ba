"""Colours: groups that meet get different ones, and alike groups of repeated blocks the same."""

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

    ``touching[g]``: the groups that g shares a node with. ``weight``: how much of the drawing a
    group fills, for the largest choose first.
    """
    chosen: dict[int, int] = {}
    of_kind: dict[tuple[str, int], int] = {}
    used: Counter[int] = Counter()
    for group in sorted(range(len(names)), key=lambda g: (-weight[g], g)):
        kind = (re.sub(r"\d+", "#", names[group]), sizes[group])
        taken = {chosen[other] for other in touching[group] if other in chosen}
        colour = of_kind.get(kind)
        if colour is None or colour in taken:
            free = [c for c in range(COLOURS) if c not in taken] or list(range(COLOURS))
            colour = min(free, key=lambda c: (used[c], c))
            of_kind.setdefault(kind, colour)
        chosen[group] = colour
        used[colour] += 1
    return [chosen[group] for group in range(len(names))]
