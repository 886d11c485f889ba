"""Plan: the unit of every parameter element, what each weight reads, and what requires what.

Plain, immutable data, the same for all analysed calls. Everything after the analysis reads this and
:mod:`autoeidetic.plan.call_plan`, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..capture.graph import Capture
from ..couple.groups import Group
from ..couple.structure import Structure
from ..couple.tables import Nested, ParameterUnits
from .blocks import blocks_of

if TYPE_CHECKING:
    import networkx as nx

Array = np.ndarray


@dataclass(frozen=True)
class Plan:
    """Units are numbered from 1; 0 is the input and constants, available to every task.

    Vectors over units have ``units + 1`` entries. ``elements`` counts the parameter elements of
    each unit, ``requires`` has a row (unit, unit it cannot live without) for each edge.
    ``unreached`` marks the units of elements that no analysed call reads, in parameters that are
    read in part (the last rows of a position table). ``outputs`` has the units in the
    output of each analysed call of the model.

    ``groups`` are those of the backbone. ``outside`` marks the units of heads and of unused
    parameters, ``locked`` those that every task needs. ``constants`` are buffers that follow no
    unit, ``spread`` those whose elements serve several units, ``aliases`` the other names of shared
    parameters. ``graph`` is the layer graph, ``blocks`` the group of a convolution that each unit
    passes through.
    """

    units: int
    elements: Array
    requires: Array
    parameters: dict[str, ParameterUnits]
    buffers: dict[str, Tensor]
    nested: tuple[Nested, ...]
    outputs: tuple[Any, ...]
    unreached: Array
    groups: tuple[Group, ...]
    outside: Array
    locked: Array
    constants: tuple[str, ...]
    spread: frozenset[str]
    aliases: dict[str, str]
    graph: nx.DiGraph
    blocks: Array

    @staticmethod
    def of(structure: Structure) -> Plan:
        """The plan of a coupling and its structure."""
        coupling = structure.coupling
        capture = coupling.propagation.capture
        return Plan(
            units=coupling.units,
            elements=coupling.elements,
            requires=coupling.requires,
            parameters=coupling.parameters,
            buffers=coupling.buffers,
            nested=coupling.nested,
            outputs=coupling.outputs,
            unreached=coupling.unreached,
            groups=structure.groups,
            outside=structure.outside,
            locked=structure.locked_units,
            constants=_constants(capture, coupling.buffers),
            spread=frozenset(coupling.propagation.algebra.spread),
            aliases=dict(capture.aliases),
            graph=structure.graph,
            blocks=blocks_of(coupling.parameters.values(), coupling.units),
        )

    def __deepcopy__(self, memo: Any) -> Plan:
        return self  # immutable: copies of a network share it

    def closure(self, kept: Array) -> Array:
        """The smallest superset of a set of units (a boolean vector) closed under requires."""
        # one pass over all edges per level of requires; chains are short, and edges are few
        kept = kept.copy()
        kept[0] = True
        while True:
            needed = self.requires[kept[self.requires[:, 0]], 1]
            if kept[needed].all():
                return kept
            kept[needed] = True


def _constants(capture: Capture, buffers: dict[str, Tensor]) -> tuple[str, ...]:
    """Buffers that follow no unit: frozen with the first task.

    The graph does not show whether an output reads them, because values computed from constants
    alone are not in it. Only a batch norm's counter is known to play no part in eval mode.
    """
    return tuple(
        name
        for name in capture.buffers
        if name not in buffers and not name.endswith("num_batches_tracked")
    )
