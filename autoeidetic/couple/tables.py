"""Tables: the units of parameters, of their uses as weights, and of nested modules.

All tensors hold unit numbers. They are mostly expanded views (stride 0): a weight of shape
(out, in) whose rows are channels is stored as one vector of ``out`` numbers.

    weight (out, in)      units[i, j]    = unit of row i          the same along j
                          columns[i, j]  = unit of input j        the same along i
                          rows[i, j]     = unit that the product contributes to
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Read:
    """One use of a weight: the unit whose value each of its elements multiplies.

    ``columns`` has the weight's shape (mostly with stride 0); 0 means constant or not used.
    ``rows`` gives the unit that each element contributes to. ``transformed``: the weight is
    computed from the parameter (weight standardisation). Then both have the shape of the computed
    weight, and zeros are written into that one.
    """

    columns: Tensor
    rows: Tensor
    transformed: bool
    module: str
    operator: str
    line: str


@dataclass(frozen=True)
class ParameterUnits:
    """The unit of every element of one parameter, and its uses as a weight."""

    units: Tensor
    reads: tuple[Read, ...]
    head: bool
    used: bool


@dataclass(frozen=True)
class NestedCall:
    """The units of the inputs and outputs of one call of a nested module."""

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
    """A module that mixes channels and is evaluated level by level.

    ``examples`` has, for each of its calls, the number of the analysed call of the model around it.
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
        """The module as one of the analysed calls of the model calls it."""
        own = [n for n, each in enumerate(self.examples) if each == example]
        norms = None if self.norms is None else tuple(self.norms[n] for n in own)
        calls = tuple(self.calls[n] for n in own)
        return replace(self, calls=calls, norms=norms, examples=(example,) * len(own))
