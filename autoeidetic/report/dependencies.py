"""Dependencies: the result of an analysis, with groups, heads, locks and queries about layers."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..capture.graph import Capture
from ..capture.names import layer_of
from ..couple import layer_graph, ties
from ..couple.groups import Group
from ..couple.heads import Head
from ..couple.locks import Locked
from ..errors import InputError
from ..plan.analysis import Analysis
from ..plan.plan import Plan
from ..propagate.propagate import Unhandled
from . import export
from .drawable import Drawable

if TYPE_CHECKING:
    import networkx as nx


class Dependencies(Drawable):
    """Which channels of a model depend on which.

    ``analysis`` has the results of all stages behind it.

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
        >>> deps.coupled_with("stem"), deps.consumers("stem")
        (('branch',), ('branch', 'head'))
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    @property
    def plan(self) -> Plan:
        """The unit of every parameter element, what weights read, and what requires what."""
        return self.analysis.plan

    @property
    def capture(self) -> Capture:
        """The model as a graph of operators."""
        return self.analysis.capture

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of the backbone, in the order of the model's parameters."""
        return self.analysis.groups

    @property
    def heads(self) -> tuple[Head, ...]:
        """The layers that make the outputs."""
        return self.analysis.heads

    @property
    def locked(self) -> Locked:
        """What cannot be divided between tasks, where and why."""
        return self.analysis.structure.locked

    @property
    def unused(self) -> tuple[str, ...]:
        """Parameters that no output depends on in eval mode."""
        return self.analysis.structure.unused

    @property
    def operators(self) -> Counter[str]:
        """How often each operator occurs in the graph."""
        return self.analysis.operators

    @property
    def unhandled(self) -> tuple[Unhandled, ...]:
        """Operators without a rule: everything they read is mixed."""
        return self.analysis.unhandled

    @property
    def backbone_elements(self) -> int:
        """Parameter elements outside the heads that the outputs depend on."""
        return self.analysis.structure.backbone

    @property
    def largest_unit_share(self) -> float:
        """The part of the backbone's elements that its largest unit holds."""
        return self.analysis.structure.largest_unit / max(self.backbone_elements, 1)

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Layers and groups with typed edges; see :mod:`autoeidetic.couple.layer_graph`.

        A copy of the plan's graph, which users may change.

        Nodes: ``kind`` is ``layer``, ``head`` or ``group``. Edges: ``kind`` is ``writes``,
        ``normalises``, ``filters`` or ``parameter`` (layer to group), ``reads`` (group to layer) or
        ``requires`` (group to group), with the ``operator`` and ``line`` that caused it.
        """
        return self.analysis.graph.copy()

    @property
    def values(self) -> dict[str, Tensor]:
        """The units in the value of every node of ``capture.graph``, by node name."""
        return self.analysis.values

    # -- questions about layers ------------------------------------------------------------------

    def producers(self, layer: str) -> tuple[str, ...]:
        """The layers whose channels a layer reads: those that write, filter or normalise them.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
            >>> deps = autoeidetic.analyze(model, torch.randn(2, 4))
            >>> deps.producers("2")
            ('0', '1')

        Raises:
            InputError: the model has no such layer.
        """
        return tuple(layer_graph.producers(self.analysis.graph, self._layer(layer)))

    def consumers(self, layer: str) -> tuple[str, ...]:
        """The layers that read a layer's channels.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
            >>> deps = autoeidetic.analyze(model, torch.randn(2, 4))
            >>> deps.consumers("0")
            ('2',)

        Raises:
            InputError: the model has no such layer.
        """
        return tuple(layer_graph.consumers(self.analysis.graph, self._layer(layer)))

    def coupled_with(self, layer: str) -> tuple[str, ...]:
        """The other layers that own elements of the same units.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
            >>> deps = autoeidetic.analyze(model, torch.randn(2, 4))
            >>> deps.coupled_with("0")
            ('1',)

        Raises:
            InputError: the model has no such layer.
        """
        return tuple(layer_graph.coupled_with(self.analysis.graph, self._layer(layer)))

    def why(self, first: str, second: str) -> ties.Chain:
        """The operators and source lines that tie two layers together.

        Layers are tied when they share units, when one reads units of the other, when both read
        the same units, or when groups of theirs require each other. The chain is false when
        nothing ties them.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> class Block(nn.Module):
            ...     def __init__(self):
            ...         super().__init__()
            ...         self.stem, self.branch = nn.Linear(4, 8), nn.Linear(8, 8)
            ...     def forward(self, x):
            ...         x = self.stem(x)
            ...         return nn.functional.layer_norm(x + self.branch(x).relu(), (8,))
            >>> deps = autoeidetic.analyze(Block(), torch.randn(2, 4))
            >>> chain = deps.why("stem", "branch")
            >>> [(link.subject, link.kind) for link in chain]
            [('stem', 'writes'), ('aten.add', 'joins channels of'), ('branch', 'writes')]

        Raises:
            InputError: the model has no such layer.
        """
        return ties.why(self.analysis.structure, self._layer(first), self._layer(second))

    def _layer(self, name: str) -> str:
        """The node of a layer; a layer that shares the parameters of another has that one's node.

        Raises:
            InputError: there is none.
        """
        graph = self.graph
        known = {node: node for node, kind in graph.nodes(data="kind") if kind != "group"}
        # decoder.weight tied to embedding.weight: "decoder" has the node of "embedding"
        for alias, parameter in self.capture.aliases.items():
            known.setdefault(layer_of(alias), layer_of(parameter))
        if name in known:
            return known[name]
        # a layer without parameters (a ReLU) has no node either: its name is an error, too
        close = get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see deps.graph.nodes"
        raise InputError(f"the model has no layer {name!r} with parameters", remedy=hint)

    # -- exports -----------------------------------------------------------------------------------

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
