"""Analysis: the whole pipeline from a model to its plan.

capture     model + example calls  ->  graph of operators
propagate   graph                  ->  channels, joined or requiring each other
couple      channels               ->  units, groups, heads, layer graph
plan        units                  ->  one immutable plan
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..capture.capture import capture
from ..capture.graph import Capture
from ..common.inputs import example_calls
from ..couple.couple import Coupling, couple
from ..couple.groups import Group
from ..couple.heads import Head
from ..couple.structure import Structure, find_structure
from ..propagate.propagate import Unhandled, propagate
from .plan import Plan

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Analysis:
    """The results of all stages for one model and its example calls."""

    structure: Structure
    plan: Plan

    @property
    def coupling(self) -> Coupling:
        """Units of all channels."""
        return self.structure.coupling

    @property
    def capture(self) -> Capture:
        """The model as a graph of operators."""
        return self.coupling.propagation.capture

    @property
    def graph(self) -> nx.DiGraph:
        """Layers and groups; see :mod:`autoeidetic.couple.layer_graph`."""
        return self.structure.graph

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of the backbone."""
        return self.structure.groups

    @property
    def heads(self) -> tuple[Head, ...]:
        """The layers that make the outputs."""
        return self.structure.heads

    @property
    def operators(self) -> Counter[str]:
        """How often each operator occurs in the graph."""
        return self.coupling.propagation.operators

    @property
    def roles(self) -> dict[tuple[str, str], int]:
        """(parameter, role) -> number of the operator that first used it in that role."""
        return self.coupling.propagation.algebra.roles

    @property
    def unhandled(self) -> tuple[Unhandled, ...]:
        """Operators without a rule: everything they read is mixed."""
        return tuple(self.coupling.propagation.unhandled)

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """The units in the value of every node of ``capture.graph``, by node name."""
        coupling = self.coupling
        return {
            node.name: coupling.as_units(tags) for node, tags in coupling.propagation.tags.items()
        }


def run_analysis(model: nn.Module, example_inputs: Any = None) -> Analysis:
    """Run all stages on a model; see :func:`autoeidetic.analyze` for ``example_inputs``.

    Raises:
        InputError: inputs are missing or cannot be traced.
        CaptureError: the model runs neither on meta tensors nor on real ones.
        NoParametersError: no output depends on a parameter.
    """
    # in inference mode models dispatch to other operators, and no version counters are kept
    with torch.inference_mode(False), _tags_on_cpu():
        captured = capture(model, *example_calls(model, example_inputs))
        structure = find_structure(couple(propagate(captured)))
        return Analysis(structure, Plan.of(structure))


def _tags_on_cpu() -> AbstractContextManager[Any]:
    """Keeps tags on the CPU, whatever default device the caller has set."""
    if torch.get_default_device().type == "cpu":
        return nullcontext()
    return torch.device("cpu")
