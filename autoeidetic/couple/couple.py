"""Couple: from channels to units, groups and heads.

    propagation           channels, joined or requiring each other at operators
      -> units            units.py: channels that live and die together
      -> tables           the unit of every parameter element, what every weight reads
      -> heads            heads.py: the layers that make the outputs
      -> groups           units with the same members in the same layers: pruned by percentage

The propagation is only read, not changed: it has given every parameter element a channel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..capture.graph import operator_name
from ..errors import NoParametersError
from ..propagate.algebra import Algebra
from ..propagate.propagate import Propagation, channel_numbers
from ..propagate.values import array, compress, core
from .heads import head_parameters
from .nesting import accepted_sites, nested_modules, structure
from .tables import Nested, ParameterUnits, Read
from .units import requires_edges, unit_numbers

Array = np.ndarray


@dataclass(frozen=True)
class Coupling:
    """The units of a model, and which of them form a group.

    ``units`` is the number of units; they are numbered from 1, and 0 is the input and constants.
    ``elements`` counts the parameter elements of each unit, ``requires`` has a row (unit, unit it
    cannot live without) for each edge. ``unreached`` marks units of elements that no analysed call
    reads. ``outputs`` has the units in the output of each analysed call.
    ``nested_sites``: the mixing sites inside modules that are evaluated level by level.
    """

    propagation: Propagation
    units: int
    elements: Array
    requires: Array
    parameters: dict[str, ParameterUnits]
    buffers: dict[str, Tensor]
    nested: tuple[Nested, ...]
    outputs: tuple[Any, ...]
    unreached: Array
    unit_of_channel: Array
    group_of_unit: Array
    group_count: int
    nested_sites: dict[int, str]

    def as_units(self, tags: Tensor) -> Tensor:
        """Tags (channel numbers) as unit numbers."""
        return _relabel(tags, self.unit_of_channel)


def couple(propagation: Propagation) -> Coupling:
    """Form units and groups and find the heads.

    Raises:
        NoParametersError: no output depends on a parameter.
    """
    # in this order: a mixing site in a module that is evaluated level by level binds nothing, so
    # these are found before units are formed; heads need the units of all reads
    algebra = propagation.algebra
    outputs = _output_channels(propagation)
    nested = accepted_sites(propagation)
    labels = unit_numbers(propagation, outputs, set(nested))
    relabel = lambda tags: _relabel(tags, labels)  # noqa: E731
    units_of = {name: relabel(algebra.channels_of[name]) for name in algebra.parameter_shapes}
    reads = _reads(propagation, units_of, relabel)
    count = int(labels.max(initial=0))
    elements = _elements(units_of, count)
    requires = requires_edges(propagation, labels, set(nested))
    read = _read_units(reads, count)
    heads = head_parameters(propagation, units_of, labels[outputs], elements, requires, read)
    parameters = {
        name: ParameterUnits(
            units=units_of[name],
            reads=tuple(reads[name]),
            head=name in heads,
            used=name not in propagation.unused,
        )
        for name in propagation.capture.parameters
    }
    group_of_unit, group_count = _groups(parameters, elements)
    tags = propagation.tags
    units = lambda node: compress(relabel(tags[node])) if node in tags else None  # noqa: E731
    return Coupling(
        propagation=propagation,
        units=count,
        elements=elements,
        requires=requires,
        parameters=parameters,
        buffers={name: relabel(channels) for name, channels in algebra.buffers.items()},
        nested=nested_modules(propagation, nested, units),
        outputs=structure(propagation.capture.outputs, units),
        unreached=_unreached(algebra, labels, count),
        unit_of_channel=labels,
        group_of_unit=group_of_unit,
        group_count=group_count,
        nested_sites=nested,
    )


def _output_channels(propagation: Propagation) -> Array:
    """Channels of the model's outputs.

    Raises:
        NoParametersError: there are none.
    """
    leaves = [n for n in pytree.tree_leaves(propagation.capture.outputs) if isinstance(n, fx.Node)]
    found = [channel_numbers(propagation.tags[node]) for node in leaves]
    channels = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
    if not len(channels):
        raise NoParametersError(
            "no output of the model depends on a parameter",
            remedy="pass a model with parameters whose forward returns tensors computed from them",
        )
    return channels


def _relabel(tags: Tensor, labels: Array) -> Tensor:
    """``labels[tags]``, computed on the distinct part only: tags stay expanded (stride 0)."""
    small = core(tags)
    units = torch.from_numpy(labels[small.reshape(-1).numpy()])
    return units.view(small.shape).expand(tags.shape)


def _unreached(algebra: Algebra, labels: Array, count: int) -> Array:
    """The units of the elements to which :meth:`ParameterChannels.complete` gave a channel."""
    found = np.zeros(count + 1, bool)
    found[labels[algebra.rests]] = True
    return found


def _reads(
    propagation: Propagation, units_of: dict[str, Tensor], relabel: Callable[[Tensor], Tensor]
) -> dict[str, list[Read]]:
    """The uses of each weight. A use that several analysed calls have in common counts once."""
    reads: dict[str, list[Read]] = defaultdict(list)
    kept: Counter[Hashable] = Counter()
    seen: Counter[Hashable] = Counter()
    several = len(propagation.capture.roots) > 1
    for use in propagation.algebra.reads:
        node = propagation.nodes[use.node]
        read = Read(
            columns=relabel(use.columns),
            rows=units_of[use.parameter] if use.rows is None else relabel(use.rows),
            transformed=use.rows is not None,
            module=node.meta["module"],
            operator=operator_name(node),
            line=node.meta["line"],
        )
        if several:
            # a weight that one call reads twice in the same way has two reads, in total as many as
            # the call with most of them: `seen` counts per call, `kept` over all
            key = (use.parameter, *_about(read))
            seen[propagation.capture.example_of(node.meta["scope"]), key] += 1
            if seen[propagation.capture.example_of(node.meta["scope"]), key] <= kept[key]:
                continue
            kept[key] += 1
        reads[use.parameter].append(read)
    return reads


def _about(read: Read) -> tuple[Hashable, ...]:
    """Everything about a read, without the sizes of dimensions along which nothing varies."""
    small = [core(compress(units)) for units in (read.columns, read.rows)]
    units = [(tuple(each.shape), each.numpy().tobytes()) for each in small]
    return read.module, read.operator, read.transformed, *units


def _read_units(reads: dict[str, list[Read]], count: int) -> Array:
    """The units that some weight reads, as a boolean vector."""
    seen = np.zeros(count + 1, bool)
    for uses in reads.values():
        for use in uses:
            seen[array(use.columns)] = True
    seen[0] = False
    return seen


def _elements(units_of: dict[str, Tensor], count: int) -> Array:
    """How many parameter elements each unit has."""
    elements = np.zeros(count + 1, np.int64)
    for units in units_of.values():
        small = array(units)
        np.add.at(elements, small, units.numel() // max(len(small), 1))
    return elements


def _groups(parameters: dict[str, ParameterUnits], elements: Array) -> tuple[Array, int]:
    """Number the sets of units that have the same number of elements in the same parameters.

    A random number per parameter, times the elements that the unit has in it, summed: units with
    equal sums are one group. Groups are numbered in the order of their first parameters.
    """
    #              stem.weight   stem.bias   norm.weight      signature
    # unit 1            4             1           1           4 k1 + 1 k2 + 1 k3      one group
    # unit 2            4             1           1           4 k1 + 1 k2 + 1 k3
    # unit 3            4             1           0           4 k1 + 1 k2             another one
    # backwards, so that `order` ends with the first parameter of each unit
    random = np.random.default_rng(2)
    signature = np.zeros(len(elements), np.uint64)
    order = np.full(len(elements), len(parameters), np.int64)
    for position, parameter in reversed(list(enumerate(parameters.values()))):
        small = array(parameter.units)
        each = np.uint64(parameter.units.numel() // max(len(small), 1))
        with np.errstate(over="ignore"):
            key = random.integers(1, 1 << 63, dtype=np.uint64) * each
        np.add.at(signature, small, key)
        order[small] = position
    owning = elements > 0
    _, first, inverse = np.unique(signature[owning], return_index=True, return_inverse=True)
    # np.unique sorts by random signatures: order the groups by parameter and first unit instead
    rank = np.argsort(np.lexsort((first, order[owning][first])))
    groups = np.full(len(elements), -1, np.int64)
    groups[owning] = rank[inverse.reshape(-1)]
    return groups, len(first)
