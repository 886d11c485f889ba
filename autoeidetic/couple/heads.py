"""Heads: the layers that make the outputs. This is the only place that finds them.

A head's parameters are marked in the tables (``ParameterUnits.head``), and its layer in the layer
graph: everything later asks :func:`autoeidetic.couple.layer_graph.heads`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..capture.names import layer_of
from ..propagate.propagate import Propagation
from ..propagate.values import array

Array = np.ndarray


@dataclass(frozen=True)
class Head:
    """A layer that makes an output and feeds nothing else; each task gets its own.

    ``size`` is the number of its units, ``elements`` of its parameter elements.
    """

    layer: str
    parameters: tuple[str, ...]
    size: int
    elements: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "parameters": list(self.parameters),
            "size": self.size,
            "elements": self.elements,
        }


def head_parameters(
    propagation: Propagation,
    units_of: dict[str, Tensor],
    outputs: Array,
    elements: Array,
    requires: Array,
    read: Array,
) -> set[str]:
    """Parameters of the layers that make the outputs and feed nothing else.

    Args:
        propagation: the roles of parameters.
        units_of: the unit of every element of every parameter.
        outputs: the units in the model's outputs.
        elements: how many elements each unit has.
        requires: rows (unit, unit it requires).
        read: the units that some weight reads.
    """
    edges = requires[_alive(elements, outputs, requires, read)]
    # final: in an output, read by no weight, required by nothing but final units
    #     stem -> head -> output           head is final
    #     stem -> head -> output           a gate reads head's units: head is not final
    #               '---> gate -> output
    final = np.zeros(len(read), bool)
    final[outputs] = True
    final &= ~read
    final[edges[~final[edges[:, 0]], 1]] = False
    roles = propagation.algebra.roles
    layers = {layer_of(name) for name, role in roles if role in ("output", "bias")}
    left_out = {name for name, role in roles if role == "norm"} | propagation.unused
    made = {name for name in units_of if layer_of(name) in layers and name not in left_out}
    # a unit that also has elements in a norm or an embedding is not the head's alone: a model that
    # ends in linear and norm ends in features
    for name, units in units_of.items():
        if name not in made:
            final[array(units)] = False
    return {name for name in made if final[array(units_of[name])].all()}


def _alive(elements: Array, outputs: Array, requires: Array, read: Array) -> Array:
    """Marks the edges of units that something depends on; an unused mixture requires nothing."""
    of_use = read | (elements > 0)
    of_use[outputs] = True
    while not of_use[requires[of_use[requires[:, 0]], 1]].all():
        of_use[requires[of_use[requires[:, 0]], 1]] = True
    return of_use[requires[:, 0]]
