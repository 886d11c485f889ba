"""Couple: from tags to units, groups and heads.

Joined channels and the strongly connected components of "requires" are the units. Units
with the same members in the same layers are a group: what is pruned by percentage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..capture.graph import operator_name
from ..errors import NoParametersError
from ..plan.plan import ParameterPlan, Plan, Read, layer_of
from ..propagate.algebra import Algebra
from ..propagate.propagate import Propagation, channel_numbers
from ..propagate.values import Value, array, compress, core
from .nesting import accepted_sites, nested_modules, structure

Array = np.ndarray
_ROUNDS = 32


@dataclass(frozen=True)
class Coupling:
    """Units of all channels, and which of them form a group."""

    propagation: Propagation
    plan: Plan
    unit_of_channel: Array
    group_of_unit: Array
    groups: int
    node_tags: dict[fx.Node, Tensor]
    nested_sites: dict[int, str]
    heads: tuple[str, ...]

    def units(self, tags: Tensor) -> Tensor:
        """Tags as units."""
        return _relabel(tags, self.unit_of_channel)


def couple(propagation: Propagation) -> Coupling:
    """Form units and groups, find the heads, and write the plan."""
    algebra = propagation.algebra
    unused = _own_unused(algebra)
    tags = _node_tags(propagation)
    outputs = _output_channels(propagation, tags)
    nested = accepted_sites(propagation)
    labels = _units(propagation, outputs, set(nested))
    relabel = lambda tags: _relabel(tags, labels)  # noqa: E731
    units_of = {name: relabel(algebra.channels_of[name]) for name in algebra.parameter_shapes}
    reads = _reads(propagation, units_of, relabel)
    units = lambda node: compress(relabel(tags[node])) if node in tags else None  # noqa: E731
    count = int(labels.max(initial=0))
    elements = _elements(units_of, count)
    edges = _edges(propagation, labels, set(nested))
    read_units = _read_units(reads, count)
    alive = _alive(elements, labels[outputs], edges, read_units)
    heads = _heads(propagation, units_of, labels[outputs], edges[alive], read_units, unused)
    plan = Plan(
        units=count,
        elements=elements,
        requires=edges,
        parameters={
            name: ParameterPlan(
                units=units_of[name],
                reads=tuple(reads[name]),
                head=name in heads,
                used=name not in unused,
            )
            for name in propagation.capture.parameters
        },
        buffers={name: relabel(channels) for name, channels in algebra.buffers.items()},
        nested=nested_modules(propagation, nested, units),
        outputs=structure(propagation.capture.outputs, units),
        unreached=_unreached(algebra, labels, count),
    )
    group_of_unit, groups = _groups(plan)
    return Coupling(
        propagation=propagation,
        plan=plan,
        unit_of_channel=labels,
        group_of_unit=group_of_unit,
        groups=groups,
        node_tags=tags,
        nested_sites=nested,
        heads=tuple(name for name in propagation.capture.parameters if name in heads),
    )


def _own_unused(algebra: Algebra) -> set[str]:
    """Give parameters, and parts of them, that no output reads a channel of their own."""
    unused = {name for name in algebra.parameter_shapes if name not in algebra.channels_of}
    for name in unused:
        channel = torch.from_numpy(algebra.channels.new(1)).reshape(())
        algebra.channels_of[name] = channel.expand(algebra.parameter_shapes[name])
    algebra.rests.clear()  # those of the analysis itself were read whole
    for name in algebra.parameter_shapes:
        algebra.complete(name)
    return unused


def _node_tags(propagation: Propagation) -> dict[fx.Node, Tensor]:
    """The channels in every node's value, looked up once: looking up may make new ones."""
    return {
        node: propagation.algebra.tags(value)
        for node, value in propagation.values.items()
        if isinstance(value, Value)
    }


def _output_channels(propagation: Propagation, tags: dict[fx.Node, Tensor]) -> Array:
    """Channels of the model's outputs.

    Raises:
        NoParametersError: there are none.
    """
    leaves = [n for n in pytree.tree_leaves(propagation.capture.outputs) if isinstance(n, fx.Node)]
    found = [channel_numbers(tags[node]) for node in leaves]
    channels = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
    if not len(channels):
        raise NoParametersError(
            "no output of the model depends on a parameter",
            remedy="pass a model with parameters whose forward returns tensors computed from them",
        )
    return channels


# -- units ----------------------------------------------------------------------------------


def _units(propagation: Propagation, outputs: Array, nested: set[int]) -> Array:
    """The unit number of every channel; 0 for channel 0."""
    channels = propagation.algebra.channels
    labels = channels.roots
    left, right = _raw_edges(propagation, nested)
    labels = _compact(_strong(labels, left, right))
    read = np.zeros(channels.count, bool)
    read[outputs] = True
    for use in propagation.algebra.reads:
        read[array(use.columns)] = True
    signature = _layer_signature(propagation.algebra)
    several = len(propagation.capture.roots) > 1
    owning = np.concatenate([array(units) for units in propagation.algebra.channels_of.values()])
    for _ in range(_ROUNDS):
        if several:
            labels = _merge_equal_mixtures(labels, left, right, owning)
        merged = _merge_useless_apart(labels, left, right, read, signature)
        if merged is None:
            break
        labels = _compact(_strong(merged, left, right))
    return labels


def _raw_edges(propagation: Propagation, nested: set[int]) -> tuple[Array, Array]:
    events = [
        e
        for e in propagation.algebra.channels.events
        if e.kind == "requires" and (e.mixing < 0 or e.mixing not in nested)
    ]
    if not events:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([e.left for e in events]), np.concatenate([e.right for e in events])


def _strong(labels: Array, left: Array, right: Array) -> Array:
    """Labels with strongly connected components of left -> right joined."""
    a, b = labels[left], labels[right]
    apart = (a != b) & (a != 0) & (b != 0)
    if not apart.any():
        return labels
    a, b = a[apart], b[apart]
    size = int(labels.max()) + 1
    graph = coo_matrix((np.ones(len(a), np.int8), (a, b)), shape=(size, size)).tocsr()
    _, component = connected_components(graph, directed=True, connection="strong")
    # components are numbered in no useful order: name each by its smallest member
    first = np.full(component.max() + 1, size, np.int64)
    np.minimum.at(first, component, np.arange(size))
    return first[component][labels]


def _compact(labels: Array) -> Array:
    """Consecutive numbers, 0 kept for channel 0."""
    present = np.zeros(int(labels.max()) + 1, np.int64)
    present[labels] = 1
    present[0] = 1
    return (np.cumsum(present) - 1)[labels]


def _layer_signature(algebra: Algebra) -> Array:
    """A random number per channel that tells in which layer it has elements."""
    random = np.random.default_rng(0)
    signature = np.zeros(algebra.channels.count, np.uint64)
    layers: dict[str, np.uint64] = {}
    for name, units in algebra.channels_of.items():
        layer = name.rpartition(".")[0]
        if layer not in layers:
            layers[layer] = random.integers(1, 1 << 63, dtype=np.uint64)
        signature[array(units)] = layers[layer]
    return signature


def _merge_equal_mixtures(labels: Array, left: Array, right: Array, owning: Array) -> Array:
    """Join units without elements that require the same units.

    Each analysed call makes derived channels of its own. Where two calls mix the same channels, a
    unit must not be told from another because one call more requires it.
    """
    random = np.random.default_rng(3)
    while True:
        size = int(labels.max()) + 1
        derived = np.ones(size, bool)
        derived[labels[owning]] = False
        derived[0] = False
        a, b = labels[left], labels[right]
        apart = (a != b) & (b != 0) & derived[a]
        pairs = np.unique(a[apart] * size + b[apart])
        key = random.integers(1, 1 << 63, size, dtype=np.uint64)
        required = np.zeros(size, np.uint64)
        np.add.at(required, pairs // size, key[pairs % size])
        several = np.flatnonzero(derived & (required != 0))
        _, first, inverse = np.unique(required[several], return_index=True, return_inverse=True)
        target = np.arange(size)
        target[several] = several[first[inverse.reshape(-1)]]
        if np.array_equal(target, np.arange(size)):
            return labels
        labels = _compact(_strong(target[labels], left, right))


def _unreached(algebra: Algebra, labels: Array, count: int) -> Array:
    """The units of what :meth:`ParameterChannels.complete` has found without a channel."""
    found = np.zeros(count + 1, bool)
    found[labels[algebra.rests]] = True
    return found


def _merge_useless_apart(
    labels: Array, left: Array, right: Array, read: Array, signature: Array
) -> Array | None:
    """Join units of which neither is of use without the other.

    A unit that no weight and no output reads is of use only to those that require it. When
    exactly one unit does, the two are one. When two such units of the same layers are
    required by the same units, losing one makes the other useless: they are one, too (the
    queries and keys of an attention head).
    """
    size = int(labels.max()) + 1
    seen = np.zeros(size, bool)
    seen[labels[read]] = True
    a, b = labels[left], labels[right]
    apart = (a != b) & (b != 0)
    pairs = np.unique(a[apart] * size + b[apart])
    a, b = pairs // size, pairs % size
    keep = ~seen[b]
    a, b = a[keep], b[keep]
    if not len(a):
        return None
    random = np.random.default_rng(1)
    key = random.integers(1, 1 << 63, size, dtype=np.uint64)
    requirers = np.zeros(size, np.uint64)
    np.add.at(requirers, b, key[a])
    count = np.bincount(b, minlength=size)
    target = np.arange(size)
    single = count[b] == 1
    target[b[single]] = a[single]
    layers = np.zeros(size, np.uint64)
    layers[labels] = signature
    several = np.unique(b[count[b] > 1])
    if len(several):
        same = np.stack([requirers[several], layers[several]], 1)
        _, first, inverse = np.unique(same, axis=0, return_index=True, return_inverse=True)
        target[several] = several[first[inverse.reshape(-1)]]
    if np.array_equal(target, np.arange(size)):
        return None
    while True:  # follow chains; cycles cannot arise, for requires is acyclic here
        above = target[target]
        if np.array_equal(above, target):
            break
        target = above
    return target[labels]


def _edges(propagation: Propagation, labels: Array, nested: set[int]) -> Array:
    """Requires edges between units, each once."""
    left, right = _raw_edges(propagation, nested)
    a, b = labels[left], labels[right]
    apart = (a != b) & (a != 0) & (b != 0)
    size = int(labels.max(initial=0)) + 1
    pairs = np.unique(a[apart] * size + b[apart])
    return np.stack([pairs // size, pairs % size], axis=1)


def _relabel(tags: Tensor, labels: Array) -> Tensor:
    small = core(tags)
    units = torch.from_numpy(labels[small.reshape(-1).numpy()])
    return units.view(small.shape).expand(tags.shape)


# -- heads, reads, groups -----------------------------------------------------------------------


def _reads(
    propagation: Propagation, units_of: dict[str, Tensor], relabel: Callable[[Tensor], Tensor]
) -> dict[str, list[Read]]:
    """The uses of each weight. What several analysed calls have in common counts once."""
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
            key = (use.parameter, *_about(read))
            seen[propagation.capture.example_of(node.meta["scope"]), key] += 1
            if seen[propagation.capture.example_of(node.meta["scope"]), key] <= kept[key]:
                continue
            kept[key] += 1
        reads[use.parameter].append(read)
    return reads


def _about(read: Read) -> tuple[Hashable, ...]:
    """Everything about a read, without the sizes of dimensions in which nothing varies."""
    small = [core(compress(units)) for units in (read.columns, read.rows)]
    units = [(tuple(each.shape), each.numpy().tobytes()) for each in small]
    return read.module, read.operator, read.transformed, *units


def _read_units(reads: dict[str, list[Read]], count: int) -> Array:
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


def _alive(elements: Array, outputs: Array, edges: Array, read: Array) -> Array:
    """Edges of units that something depends on; a mixture that is not used requires in vain."""
    of_use = read | (elements > 0)
    of_use[outputs] = True
    while not of_use[edges[of_use[edges[:, 0]], 1]].all():
        of_use[edges[of_use[edges[:, 0]], 1]] = True
    return of_use[edges[:, 0]]


def _heads(
    propagation: Propagation,
    units_of: dict[str, Tensor],
    outputs: Array,
    edges: Array,
    read: Array,
    unused: set[str],
) -> set[str]:
    """Parameters of the layers that make the outputs and feed nothing else."""
    final = np.zeros(len(read), bool)
    final[outputs] = True
    final &= ~read
    final[edges[~final[edges[:, 0]], 1]] = False
    roles = propagation.algebra.roles
    layers = {layer_of(name) for name, role in roles if role in ("output", "bias")}
    normed = {name for name, role in roles if role == "norm"}
    made = {name for name in units_of if layer_of(name) in layers and name not in normed | unused}
    for name, units in units_of.items():  # what ends in a norm, say, is a feature and not a head
        if name not in made:
            final[array(units)] = False
    return {name for name in made if final[array(units_of[name])].all()}


def _groups(plan: Plan) -> tuple[Array, int]:
    """Number the sets of units that have the same number of elements in the same parameters."""
    random = np.random.default_rng(2)
    signature = np.zeros(plan.units + 1, np.uint64)
    order = np.full(plan.units + 1, len(plan.parameters), np.int64)
    for position, parameter in reversed(list(enumerate(plan.parameters.values()))):
        small = array(parameter.units)
        each = np.uint64(parameter.units.numel() // max(len(small), 1))
        with np.errstate(over="ignore"):
            key = random.integers(1, 1 << 63, dtype=np.uint64) * each
        np.add.at(signature, small, key)
        order[small] = position
    owning = plan.elements > 0
    _, first, inverse = np.unique(signature[owning], return_index=True, return_inverse=True)
    rank = np.argsort(np.lexsort((first, order[owning][first])))
    groups = np.full(plan.units + 1, -1, np.int64)
    groups[owning] = rank[inverse.reshape(-1)]
    return groups, len(first)
