"""Couple: from tags to classes, groups and heads.

Joined units and the strongly connected components of "requires" are the classes. Classes
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
from ..propagate.propagate import Propagation, unit_numbers
from ..propagate.values import Value, array, compress, core
from .nesting import accepted_sites, nested_modules, structure

Array = np.ndarray
_ROUNDS = 32


@dataclass(frozen=True)
class Coupling:
    """Classes of all units, and which of them form a group."""

    propagation: Propagation
    plan: Plan
    class_of_unit: Array
    group_of_class: Array
    groups: int
    node_tags: dict[fx.Node, Tensor]
    nested_sites: dict[int, str]
    heads: tuple[str, ...]

    def classes(self, tags: Tensor) -> Tensor:
        """Tags as classes."""
        return _relabel(tags, self.class_of_unit)


def couple(propagation: Propagation) -> Coupling:
    """Form classes and groups, find the heads, and write the plan."""
    algebra = propagation.algebra
    unused = _own_unused(algebra)
    tags = _node_tags(propagation)
    outputs = _output_units(propagation, tags)
    nested = accepted_sites(propagation)
    labels = _classes(propagation, outputs, set(nested))
    relabel = lambda tags: _relabel(tags, labels)  # noqa: E731
    owners = {name: relabel(algebra.owners[name]) for name in algebra.parameter_shapes}
    reads = _reads(propagation, owners, relabel)
    classes = lambda node: compress(relabel(tags[node])) if node in tags else None  # noqa: E731
    count = int(labels.max(initial=0))
    elements = _elements(owners, count)
    edges = _edges(propagation, labels, set(nested))
    read_classes = _read_classes(reads, count)
    alive = _alive(elements, labels[outputs], edges, read_classes)
    heads = _heads(propagation, owners, labels[outputs], edges[alive], read_classes, unused)
    plan = Plan(
        classes=count,
        elements=elements,
        requires=edges,
        parameters={
            name: ParameterPlan(
                owner=owners[name],
                reads=tuple(reads[name]),
                head=name in heads,
                used=name not in unused,
            )
            for name in propagation.capture.parameters
        },
        buffers={name: relabel(units) for name, units in algebra.buffers.items()},
        nested=nested_modules(propagation, nested, classes),
        outputs=structure(propagation.capture.outputs, classes),
        unreached=_unreached(algebra, labels, count),
    )
    group_of_class, groups = _groups(plan)
    return Coupling(
        propagation=propagation,
        plan=plan,
        class_of_unit=labels,
        group_of_class=group_of_class,
        groups=groups,
        node_tags=tags,
        nested_sites=nested,
        heads=tuple(name for name in propagation.capture.parameters if name in heads),
    )


def _own_unused(algebra: Algebra) -> set[str]:
    """Give parameters, and parts of them, that no output reads a unit of their own."""
    unused = {name for name in algebra.parameter_shapes if name not in algebra.owners}
    for name in unused:
        unit = torch.from_numpy(algebra.units.new(1)).reshape(())
        algebra.owners[name] = unit.expand(algebra.parameter_shapes[name])
    algebra.rests.clear()  # those of the analysis itself were read whole
    for name in algebra.parameter_shapes:
        algebra.complete(name)
    return unused


def _node_tags(propagation: Propagation) -> dict[fx.Node, Tensor]:
    """The units in every node's value, looked up once: a mixed parameter may yet make new ones."""
    return {
        node: propagation.algebra.tags(value)
        for node, value in propagation.values.items()
        if isinstance(value, Value)
    }


def _output_units(propagation: Propagation, tags: dict[fx.Node, Tensor]) -> Array:
    """Units of the model's outputs.

    Raises:
        NoParametersError: there are none.
    """
    leaves = [n for n in pytree.tree_leaves(propagation.capture.outputs) if isinstance(n, fx.Node)]
    found = [unit_numbers(tags[node]) for node in leaves]
    units = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
    if not len(units):
        raise NoParametersError(
            "no output of the model depends on a parameter",
            remedy="pass a model with parameters whose forward returns tensors computed from them",
        )
    return units


# -- classes ----------------------------------------------------------------------------------


def _classes(propagation: Propagation, outputs: Array, nested: set[int]) -> Array:
    """The class number of every unit; 0 for unit 0."""
    units = propagation.algebra.units
    labels = units.roots
    left, right = _raw_edges(propagation, nested)
    labels = _compact(_strong(labels, left, right))
    read = np.zeros(units.count, bool)
    read[outputs] = True
    for use in propagation.algebra.reads:
        read[array(use.columns)] = True
    signature = _layer_signature(propagation.algebra)
    several = len(propagation.capture.roots) > 1
    owning = np.concatenate([array(owner) for owner in propagation.algebra.owners.values()])
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
        for e in propagation.algebra.units.events
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
    """Consecutive numbers, 0 kept for unit 0."""
    present = np.zeros(int(labels.max()) + 1, np.int64)
    present[labels] = 1
    present[0] = 1
    return (np.cumsum(present) - 1)[labels]


def _layer_signature(algebra: Algebra) -> Array:
    """A random number per unit that tells in which layer it has elements."""
    random = np.random.default_rng(0)
    signature = np.zeros(algebra.units.count, np.uint64)
    layers: dict[str, np.uint64] = {}
    for name, owner in algebra.owners.items():
        layer = name.rpartition(".")[0]
        if layer not in layers:
            layers[layer] = random.integers(1, 1 << 63, dtype=np.uint64)
        signature[array(owner)] = layers[layer]
    return signature


def _merge_equal_mixtures(labels: Array, left: Array, right: Array, owning: Array) -> Array:
    """Join classes without elements that require the same classes.

    Each analysed call makes derived units of its own. Where two calls mix the same channels, a
    class must not be told from another because one call more requires it.
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
    """The classes of what :meth:`Ownership.complete` has found without a unit."""
    found = np.zeros(count + 1, bool)
    found[labels[algebra.rests]] = True
    return found


def _merge_useless_apart(
    labels: Array, left: Array, right: Array, read: Array, signature: Array
) -> Array | None:
    """Join classes of which neither is of use without the other.

    A class that no weight and no output reads is of use only to those that require it. When
    exactly one class does, the two are one. When two such classes of the same layers are
    required by the same classes, losing one makes the other useless: they are one, too (the
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
    """Requires edges between classes, each once."""
    left, right = _raw_edges(propagation, nested)
    a, b = labels[left], labels[right]
    apart = (a != b) & (a != 0) & (b != 0)
    size = int(labels.max(initial=0)) + 1
    pairs = np.unique(a[apart] * size + b[apart])
    return np.stack([pairs // size, pairs % size], axis=1)


def _relabel(tags: Tensor, labels: Array) -> Tensor:
    small = core(tags)
    classes = torch.from_numpy(labels[small.reshape(-1).numpy()])
    return classes.view(small.shape).expand(tags.shape)


# -- heads, reads, groups -----------------------------------------------------------------------


def _reads(
    propagation: Propagation, owners: dict[str, Tensor], relabel: Callable[[Tensor], Tensor]
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
            rows=owners[use.parameter] if use.rows is None else relabel(use.rows),
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
    small = [core(compress(classes)) for classes in (read.columns, read.rows)]
    classes = [(tuple(each.shape), each.numpy().tobytes()) for each in small]
    return read.module, read.operator, read.transformed, *classes


def _read_classes(reads: dict[str, list[Read]], count: int) -> Array:
    seen = np.zeros(count + 1, bool)
    for uses in reads.values():
        for use in uses:
            seen[array(use.columns)] = True
    seen[0] = False
    return seen


def _elements(owners: dict[str, Tensor], count: int) -> Array:
    """How many parameter elements each class has."""
    elements = np.zeros(count + 1, np.int64)
    for owner in owners.values():
        small = array(owner)
        np.add.at(elements, small, owner.numel() // max(len(small), 1))
    return elements


def _alive(elements: Array, outputs: Array, edges: Array, read: Array) -> Array:
    """Edges of classes that something depends on; a mixture that is not used requires in vain."""
    of_use = read | (elements > 0)
    of_use[outputs] = True
    while not of_use[edges[of_use[edges[:, 0]], 1]].all():
        of_use[edges[of_use[edges[:, 0]], 1]] = True
    return of_use[edges[:, 0]]


def _heads(
    propagation: Propagation,
    owners: dict[str, Tensor],
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
    made = {name for name in owners if layer_of(name) in layers and name not in normed | unused}
    for name, owner in owners.items():  # what ends in a norm, say, is a feature and not a head
        if name not in made:
            final[array(owner)] = False
    return {name for name in made if final[array(owners[name])].all()}


def _groups(plan: Plan) -> tuple[Array, int]:
    """Number the sets of classes that have the same number of elements in the same parameters."""
    random = np.random.default_rng(2)
    signature = np.zeros(plan.classes + 1, np.uint64)
    order = np.full(plan.classes + 1, len(plan.parameters), np.int64)
    for position, parameter in reversed(list(enumerate(plan.parameters.values()))):
        small = array(parameter.owner)
        each = np.uint64(parameter.owner.numel() // max(len(small), 1))
        with np.errstate(over="ignore"):
            key = random.integers(1, 1 << 63, dtype=np.uint64) * each
        np.add.at(signature, small, key)
        order[small] = position
    owning = plan.elements > 0
    _, first, inverse = np.unique(signature[owning], return_index=True, return_inverse=True)
    rank = np.argsort(np.lexsort((first, order[owning][first])))
    groups = np.full(plan.classes + 1, -1, np.int64)
    groups[owning] = rank[inverse.reshape(-1)]
    return groups, len(first)
