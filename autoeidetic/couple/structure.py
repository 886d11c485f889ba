"""Structure: a coupling seen by whole layers: groups, heads, locks and the layer graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..propagate.values import array
from . import layer_graph
from .couple import Coupling
from .groups import Group, GroupTable, list_groups
from .heads import Head
from .locks import Locked, locked_units

if TYPE_CHECKING:
    import networkx as nx

Array = np.ndarray


@dataclass(frozen=True)
class Structure:
    """Groups, heads and locks of one model, and the graph of its layers and groups.

    ``outside`` marks the units of heads and of unused parameters: they are in no group of the
    backbone. ``locked_units`` marks the units that every task needs. ``backbone`` counts the
    elements of the backbone, ``largest_unit`` those of its largest unit.
    """

    coupling: Coupling
    table: GroupTable
    unused: tuple[str, ...]
    outside: Array
    locked_units: Array
    backbone: int
    largest_unit: int
    graph: nx.DiGraph

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of the backbone, in the order of the model's parameters."""
        return self.table.groups

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """The layers that make the outputs."""
        return layer_graph.heads(self.graph)

    @cached_property
    def locked(self) -> Locked:
        """What cannot be divided between tasks, and why."""
        return layer_graph.locks(self.graph, self.backbone)


def find_structure(coupling: Coupling) -> Structure:
    """Describe a coupling."""
    parameters = coupling.parameters
    unused = {name for name, entry in parameters.items() if not entry.used}
    heads = {name for name, entry in parameters.items() if entry.head}
    head_units = _owned_by(coupling, heads)
    outside = head_units | _owned_by(coupling, unused)
    table = list_groups(coupling, outside)
    locked = locked_units(coupling, table.kept, head_units)
    return Structure(
        coupling=coupling,
        table=table,
        unused=tuple(sorted(unused)),
        outside=outside,
        locked_units=locked,
        backbone=int(coupling.elements.sum())
        - sum(parameters[name].units.numel() for name in heads | unused),
        largest_unit=int(np.where(outside, 0, coupling.elements).max()),
        graph=layer_graph.build(coupling, table, locked),
    )


def _owned_by(coupling: Coupling, parameters: set[str]) -> Array:
    """The units that have elements in these parameters."""
    found = np.zeros(coupling.units + 1, bool)
    for name in parameters:
        found[array(coupling.parameters[name].units)] = True
    return found
