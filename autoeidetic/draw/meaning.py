"""Meaning: the groups of values and the kinds of edges, taken from the analysis."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property

import numpy as np
from torch import fx

from ..capture.graph import operator_name
from ..propagate.values import array
from ..report.dependencies import Dependencies
from .boxes import Box, Flow

_NORMS = {
    f"aten.{name}"
    for name in "batch_norm layer_norm group_norm rms_norm instance_norm native_batch_norm".split()
}
_READS = {"output", "recurrent", "embedding"}


class Meaning:
    """The groups in each value, and the kinds of edges.

    Group numbers are positions in ``deps.groups``.
    """

    def __init__(self, deps: Dependencies) -> None:
        self.deps = deps
        self._analysis = deps.analysis
        self._coupling = deps.analysis.coupling
        self._seen: dict[fx.Node, tuple[tuple[int, ...], int]] = {}

    # -- values --------------------------------------------------------------------------------

    def groups(self, value: fx.Node) -> tuple[int, ...]:
        """The groups whose channels a value holds; for a mixture, those it is computed from."""
        return self._look(value)[0]

    def units(self, value: fx.Node) -> int:
        """The number of different units in a value."""
        return self._look(value)[1]

    def _look(self, value: fx.Node) -> tuple[tuple[int, ...], int]:
        known = self._seen.get(value)
        if known is None:
            tags = self._coupling.propagation.tags.get(value)
            if tags is None:  # several results: those of its parts
                known = self._look_at_parts(value)
            else:
                known = self._of_units(array(self._coupling.as_units(tags)))
            self._seen[value] = known
        return known

    def _look_at_parts(self, value: fx.Node) -> tuple[tuple[int, ...], int]:
        parts = [self._look(user) for user in value.users if operator_name(user) == "getitem"]
        groups = tuple(sorted({g for found, _ in parts for g in found}))
        return groups, max((count for _, count in parts), default=0)

    def _of_units(self, units: np.ndarray) -> tuple[tuple[int, ...], int]:
        # 0 is no unit: an input or a constant.
        present = np.unique(units)
        present = present[present > 0]
        return self._groups_of(self._sources(present)), len(present)

    def _groups_of(self, units: np.ndarray) -> tuple[int, ...]:
        groups = np.unique(self._group_of_unit[units])
        return tuple(int(g) for g in groups if g >= 0)

    @cached_property
    def _group_of_unit(self) -> np.ndarray:
        """The position in ``deps.groups`` of each unit; -1 for heads and mixtures."""
        # [units + 1], as units are numbered from 1; 0 is input or constant.
        result = np.full(self.deps.plan.units + 1, -1, np.int64)
        for position, group in enumerate(self.deps.groups):
            result[list(group.units)] = position
        return result

    def _sources(self, units: np.ndarray) -> np.ndarray:
        """The same units, with mixtures replaced by the units with parameters that they require."""
        plan = self.deps.plan
        mixed = plan.elements[units] == 0
        if not mixed.any():
            return units
        required, starts = self._required
        found, waiting = units[~mixed], units[mixed]
        seen = waiting
        while len(waiting):
            # A breadth-first search: a mixture may be computed from other mixtures.
            ranges = [required[starts[c] : starts[c + 1]] for c in waiting]
            needed = np.unique(np.concatenate(ranges))
            mixed = plan.elements[needed] == 0
            found = np.union1d(found, needed[~mixed])
            waiting = np.setdiff1d(needed[mixed], seen)
            seen = np.union1d(seen, waiting)
        return found

    @cached_property
    def _required(self) -> tuple[np.ndarray, np.ndarray]:
        """The units that each unit requires: one flat array, and the start of each unit in it."""
        requires = self.deps.plan.requires
        # requires: [edges, 2], pairs (unit, required unit), compressed to rows: unit u requires
        # right[starts[u] : starts[u + 1]].
        order = np.argsort(requires[:, 0], kind="stable") if len(requires) else np.zeros(0, int)
        left = requires[order, 0] if len(requires) else np.zeros(0, np.int64)
        right = requires[order, 1] if len(requires) else np.zeros(0, np.int64)
        return right, np.searchsorted(left, np.arange(self.deps.plan.units + 2))

    # -- operators -----------------------------------------------------------------------------

    @cached_property
    def gated(self) -> dict[fx.Node, frozenset[int]]:
        """For each operator the groups that its result requires because of it."""
        return self._groups_by_operator("requires")

    @cached_property
    def joined(self) -> dict[fx.Node, frozenset[int]]:
        """For each operator the groups whose units it joins."""
        return self._groups_by_operator("joined")

    def _groups_by_operator(self, kind: str) -> dict[fx.Node, frozenset[int]]:
        coupling = self._coupling
        found: dict[fx.Node, set[int]] = defaultdict(set)
        for event in coupling.propagation.algebra.channels.events:
            # Mixtures inside nested modules have no edges in the plan, so none are drawn.
            if event.kind != kind or event.mixing in coupling.nested_sites:
                continue
            node = coupling.propagation.nodes[event.node]
            units = np.unique(coupling.unit_of_channel[event.right])
            found[node].update(self._groups_of(units[units > 0]))
        return {node: frozenset(groups) for node, groups in found.items()}

    @cached_property
    def _roles(self) -> dict[str, set[str]]:
        """Parameter -> the roles it has in operators."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, role in self._analysis.roles:
            found[name].add(role)
        return found

    @property
    def weights(self) -> set[str]:
        """Parameters whose rows make new channels from the channels they read."""
        return {name for name, roles in self._roles.items() if roles & _READS}

    # -- edges ---------------------------------------------------------------------------------

    def kind(self, flow: Flow, target: Box, parameters: list[str]) -> str:
        """The kind of an edge; ``parameters`` are those of its target."""
        if target.kind == "output":
            return "coupled"
        if parameters:
            # A layer with several parameters: one that reads makes the whole layer read.
            roles = {role for name in parameters for role in self._roles[name]}
            if roles & _READS or any(self.deps.plan.parameters[n].reads for n in parameters):
                return "consumes"
            return "normalises" if "norm" in roles else "coupled"
        if self._has_weight(flow):
            return "consumes"
        if operator_name(flow.step) in _NORMS:
            return "normalises"
        if operator_name(flow.step) == "aten.mul" and _is_broadcast(flow):
            return "gates"
        # A gate is required by the result but not part of it.
        own = set(self.groups(flow.value))
        if own & self.gated.get(flow.step, frozenset()) and target.value is not None:
            if not own & set(self.groups(target.value)):
                return "gates"
        return "coupled"

    def _has_weight(self, flow: Flow) -> bool:
        """Is the value multiplied with a parameter that the operator is given as a weight?"""
        names = [str(n.target) for n in flow.step.all_input_nodes if n.op == "get_attr"]
        plans = self.deps.plan.parameters
        reads = [read for name in names if name in plans for read in plans[name].reads]
        is_data = flow.value.op != "get_attr"
        return is_data and any(read.operator == operator_name(flow.step) for read in reads)


def _is_broadcast(flow: Flow) -> bool:
    """Is one value of the operand multiplied with many? Not a parameter: that is a scale."""
    whole, part = flow.step.meta.get("shape", ()), flow.value.meta.get("shape", ())
    return flow.value.op != "get_attr" and 0 < math.prod(part) < math.prod(whole)
