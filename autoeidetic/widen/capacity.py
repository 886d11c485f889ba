"""Capacity of a widened network: shares of all its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..tasks.capacity import Capacity, Share
from ..tasks.network import Network


@dataclass(frozen=True)
class WideCapacity(Capacity):
    """Fractions of the parameter elements of all columns.

    ``free`` is what the newest column has left; ``hidden`` is free in an earlier one, where nothing
    learns any more. Names of groups and layers begin with the column. ``reuse`` is that within each
    column; what a column reads of earlier ones is not in it.
    """

    hidden: float = 0.0
    columns: tuple[Capacity, ...] = ()

    @property
    def used(self) -> float:
        """The fraction that tasks own."""
        return 1.0 - self.free - self.hidden

    def __str__(self) -> str:
        return f"{super().__str__()}\nhidden in earlier columns: {self.hidden:.1%}"


def wide_capacity(columns: Sequence[Network], found: Sequence[Capacity]) -> WideCapacity:
    """Put the capacities of columns together."""
    sizes = [
        int(column.call_plan.plan.elements[~column.owners.outside].sum()) for column in columns
    ]
    parts = [size / max(sum(sizes), 1) for size in sizes]
    starts = [sum(len(each.tasks) for each in found[:number]) for number in range(len(found))]
    count = starts[-1] + len(found[-1].tasks)

    def placed(values: Sequence[Share], number: int) -> list[Share]:
        """Shares of one column in a table of all tasks."""
        before, last = (0,) * starts[number], number == len(found) - 1
        return [
            replace(
                share,
                name=f"columns.{number}.{share.name}",
                tasks=(*before, *share.tasks, *(0,) * (count - len(before) - len(share.tasks))),
                free=share.free if last else 0,
            )
            for share in values
        ]

    reuse = [
        (*(0.0,) * start, *row, *(0.0,) * (count - start - len(row)))
        for start, each in zip(starts, found, strict=True)
        for row in each.reuse
    ]
    return WideCapacity(
        free=found[-1].free * parts[-1],
        tasks=tuple(t * p for each, p in zip(found, parts, strict=True) for t in each.tasks),
        groups=tuple(s for n, each in enumerate(found) for s in placed(each.groups, n)),
        layers=tuple(s for n, each in enumerate(found) for s in placed(each.layers, n)),
        reuse=tuple(reuse),
        hidden=sum(each.free * p for each, p in zip(found[:-1], parts[:-1], strict=True)),
        columns=tuple(found),
    )
