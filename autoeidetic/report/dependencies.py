"""The result of an analysis: groups, heads, what is locked, and the graph people look at."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any

import networkx as nx
from torch import Tensor

from ..capture.graph import Capture
from ..couple.couple import Coupling
from ..couple.structure import Group, Head, Locked, Structure, build
from ..plan.plan import Plan
from ..propagate.propagate import Unhandled
from . import export
from .drawable import Drawable


class Dependencies(Drawable):
    """Which channels of a model depend on which.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.stem, self.branch = nn.Linear(4, 8), nn.Linear(8, 8)
        ...         self.head = nn.Linear(8, 3)
        ...     def forward(self, x):
        ...         x = self.stem(x)
        ...         return self.head(x + self.branch(x).relu())
        >>> deps = autoeidetic.analyze(Block(), torch.randn(2, 4))
        >>> stream = deps.groups[0]
        >>> stream.size, stream.layers
        (8, ('stem', 'branch'))
        >>> stream.bonds[0].place.operator
        'aten.add'
        >>> sorted(deps.graph.successors("stem"))
        ['group:stem']
    """

    def __init__(self, coupling: Coupling) -> None:
        self._coupling = coupling
        self.plan: Plan = coupling.plan
        self.capture: Capture = coupling.propagation.capture
        self._structure: Structure = build(coupling)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of the backbone, in the order of the model's parameters."""
        return self._structure.groups

    @property
    def heads(self) -> tuple[Head, ...]:
        """The layers that make the outputs."""
        return self._structure.heads

    @property
    def locked(self) -> Locked:
        """What cannot be divided between tasks, where and why."""
        return self._structure.locked

    @property
    def unused(self) -> tuple[str, ...]:
        """Parameters that no output depends on in eval mode."""
        return self._structure.unused

    @property
    def operators(self) -> Counter[str]:
        """How often each operator occurs in the graph."""
        return self._coupling.propagation.operators

    @property
    def unhandled(self) -> tuple[Unhandled, ...]:
        """Operators that could only be dealt with by mixing everything they read."""
        return tuple(self._coupling.propagation.unhandled)

    @property
    def backbone_elements(self) -> int:
        """Parameter elements outside the heads that the outputs depend on."""
        return self._structure.backbone

    @property
    def largest_unit_share(self) -> float:
        """The part of the backbone's elements that its largest unit holds."""
        return self._structure.largest_unit / max(self._structure.backbone, 1)

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Layers and groups with typed edges; see :func:`autoeidetic.report.export.graph`."""
        return export.graph(self._structure, self.capture)

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """The units in the value of every node of ``capture.graph``, by node name."""
        coupling = self._coupling
        return {node.name: coupling.units(tags) for node, tags in coupling.node_tags.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything but the plan as plain data."""
        return export.to_dict(self)

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON."""
        return export.to_json(self)

    def __str__(self) -> str:
        return export.table(self)

    def __repr__(self) -> str:
        return (
            f"Dependencies({len(self.groups)} groups, {self.plan.units} units, "
            f"{self.locked.share:.1%} locked)"
        )
