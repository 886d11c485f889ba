"""Locks: the units that every task needs, and why.

A unit is locked if all units of some group, or of a head, require it: whichever of them a task
keeps, it needs the unit. The only unit of a group is locked, too, and so is every unit that locked
units require.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..capture.graph import operator_name, place
from ..errors import Place
from ..propagate.values import array
from .couple import Coupling

Array = np.ndarray
#: The transitive closure of requires is cut off here: a larger one does not fit into memory. Fewer
#: units are then listed as locked; a task still gets all that its units require.
_MOST_PAIRS = 20_000_000


@dataclass(frozen=True)
class Lock:
    """Units of a group that every task needs; they are frozen with the first task."""

    group: str
    elements: int
    share: float
    reason: str
    place: Place

    def __str__(self) -> str:
        where = f" ({self.place})" if str(self.place) else ""
        return f"{self.group}: {self.share:.2%} of the backbone: {self.reason}{where}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "elements": self.elements,
            "share": self.share,
            "reason": self.reason,
            "operator": self.place.operator,
            "module": self.place.module,
            "line": self.place.line,
        }


@dataclass(frozen=True)
class Locked(Sequence[Lock]):
    """Everything that cannot be divided between tasks; ``share`` is its share of the backbone."""

    locks: tuple[Lock, ...]
    share: float

    def __len__(self) -> int:
        return len(self.locks)

    def __getitem__(self, index: Any) -> Any:
        return self.locks[index]

    def __iter__(self) -> Iterator[Lock]:
        return iter(self.locks)

    def __str__(self) -> str:
        if not self.locks:
            return "nothing is locked"
        return "\n".join([f"locked: {self.share:.2%} of the backbone", *map(str, self.locks)])

    def to_dict(self) -> dict[str, Any]:
        return {"share": self.share, "locks": [lock.to_dict() for lock in self.locks]}


def locked_units(coupling: Coupling, kept: Sequence[int], head_unit: Array) -> Array:
    """Units that every task must own: all units of some group, or of a head, require them."""
    group, elements = coupling.group_of_unit, coupling.elements
    pairs_needed = reach(coupling.requires, len(elements))
    in_backbone = np.zeros(coupling.group_count, bool)
    in_backbone[list(kept)] = True
    # source: the group that a unit stands for as a requirer; -1: unused parameters, mixtures
    source = np.where((group >= 0) & in_backbone[np.maximum(group, 0)], group, -1)
    source[head_unit] = group[head_unit]
    sizes = np.bincount(source[source >= 0], minlength=coupling.group_count)
    locked = np.zeros(len(elements), bool)
    locked[(source >= 0) & ~head_unit] = sizes[source[(source >= 0) & ~head_unit]] == 1
    if len(pairs_needed):
        # for each (group, unit): how many units of the group require the unit? All: it is locked
        #     pairs (1, 9) (2, 9) (1, 8), group 0 = {1, 2}     (0, 9) twice: locked    (0, 8) once
        from_group = source[pairs_needed[:, 0]]
        valid = from_group >= 0
        pairs = np.unique(
            from_group[valid] * (len(elements)) + pairs_needed[valid, 1], return_counts=True
        )
        needed_by, needed = np.divmod(pairs[0], len(elements))
        locked[needed[pairs[1] == sizes[needed_by]]] = True
        locked[pairs_needed[locked[pairs_needed[:, 0]], 1]] = True
    return (locked | coupling.unreached) & ~head_unit & (elements > 0)


def reach(requires: Array, size: int) -> Array:
    """All (unit, unit it requires, directly or not), without itself."""
    if not len(requires):
        return requires
    from scipy.sparse import csr_matrix

    step = csr_matrix((np.ones(len(requires), bool), tuple(requires.T)), shape=(size, size))
    # step[i, j]: unit i requires unit j (units x units, sparse)
    # total[i, j]: j is reached from i in at most n steps; total @ step: in one step more
    # When no pair is new, the closure is complete. Chains are short, so it takes few rounds.
    total = step
    while total.nnz < _MOST_PAIRS:
        further = (total + total @ step).astype(bool)
        if further.nnz == total.nnz:
            break
        total = further
    found = total.tocoo()
    return np.stack([found.row, found.col], axis=1).astype(np.int64)


def lock_reason(coupling: Coupling, chosen: Array) -> tuple[str, Place]:
    """Why a set of units (a boolean vector) cannot be divided, and the operator that causes it."""
    # the most specific reason first: a shared weight, units joined with each other, units that
    # others require
    propagation = coupling.propagation
    for (name, role), node in propagation.algebra.roles.items():
        if role == "shared" and chosen[array(coupling.parameters[name].units)].any():
            text = "one weight serves all channels alike"
            return text, place(propagation.nodes[node])
    joined = required = None
    for event in propagation.algebra.channels.events:
        if event.mixing in coupling.nested_sites:
            continue
        right = chosen[coupling.unit_of_channel[event.right]]
        if not right.any():
            continue
        left = chosen[coupling.unit_of_channel[event.left]]
        if (left & right).any():
            joined = joined or event
        if event.kind == "requires" and (right & ~left).any():
            required = required or event
    if joined is not None:
        where = propagation.nodes[joined.node]
        text = f"{operator_name(where)} mixes its channels and no module could be evaluated "
        text = text + "level by level" if joined.mixing >= 0 else "its units cannot be separated"
        return text, place(where)
    if required is not None:
        return "every channel it acts on needs it", place(propagation.nodes[required.node])
    return "it has a single unit", Place()
