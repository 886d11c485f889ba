"""Plan: which unit every parameter element belongs to, and what keeps units apart.

Plain, immutable data: everything that comes after the analysis reads this and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor


def layer_of(parameter: str) -> str:
    """The module that a parameter belongs to; the parameter itself when the root holds it.

    For a parameter that a weight is computed from, the module that has the weight.
    """
    layer, parametrised, _ = parameter.partition(".parametrizations.")
    return layer if parametrised else parameter.rpartition(".")[0] or parameter


@dataclass(frozen=True)
class Read:
    """One use of a weight: the unit whose value each of its elements multiplies.

    ``columns`` has the weight's shape (mostly with stride 0); 0 means constant or not used.
    ``rows`` gives the unit that each element contributes to. ``transformed`` tells that the
    weight used is computed from the parameter (weight standardisation): then both have the
    shape of the computed weight, and that is where a zero belongs.
    """

    columns: Tensor
    rows: Tensor
    transformed: bool
    module: str
    operator: str
    line: str


@dataclass(frozen=True)
class ParameterPlan:
    """The unit of every element of one parameter, and its uses as a weight."""

    units: Tensor
    reads: tuple[Read, ...]
    head: bool
    used: bool


@dataclass(frozen=True)
class NestedCall:
    """Units of everything that goes into and comes out of one call of a nested module."""

    args: Any
    kwargs: Any
    outputs: Any


@dataclass(frozen=True)
class Norm:
    """One stock norm inside a nested module: the unit of each channel before and after it."""

    operator: str
    groups: int
    inputs: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class Nested:
    """A module that mixes channels and is to be evaluated level by level.

    ``examples`` tells of each of its calls in which of the analysed calls of the model it was.
    ``norms`` lists, for each call, the layer, RMS and group norms in it when nothing else in the
    module mixes channels: then statistics per level do the work. None: the module is a black box.
    ``enclosed``: another such module is around it.
    """

    module: str
    operators: tuple[str, ...]
    lines: tuple[str, ...]
    calls: tuple[NestedCall, ...]
    examples: tuple[int, ...]
    norms: tuple[tuple[Norm, ...], ...] | None
    enclosed: bool

    def within(self, example: int) -> Nested:
        """As it is called in one of the analysed calls of the model."""
        own = [n for n, each in enumerate(self.examples) if each == example]
        norms = None if self.norms is None else tuple(self.norms[n] for n in own)
        calls = tuple(self.calls[n] for n in own)
        return replace(self, calls=calls, norms=norms, examples=(example,) * len(own))


@dataclass(frozen=True)
class Plan:
    """Units are numbered from 1; 0 is the input and constants, available to every task.

    ``unreached`` marks the units of elements that no analysed call reads, in parameters of which
    other elements are read (the last rows of a position table). ``outputs`` has the units in the
    output of each analysed call of the model.
    """

    units: int
    elements: np.ndarray
    requires: np.ndarray
    parameters: dict[str, ParameterPlan]
    buffers: dict[str, Tensor]
    nested: tuple[Nested, ...]
    outputs: tuple[Any, ...]
    unreached: np.ndarray

    def __deepcopy__(self, memo: Any) -> Plan:
        return self  # immutable: copies of a network share it

    def closure(self, kept: np.ndarray) -> np.ndarray:
        """The smallest superset of a set of units (a boolean vector) closed under requires."""
        kept = kept.copy()
        kept[0] = True
        while True:
            needed = self.requires[kept[self.requires[:, 0]], 1]
            if kept[needed].all():
                return kept
            kept[needed] = True
