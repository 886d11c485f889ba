"""Units: from channels to the numbers of the units they belong to.

Channels that were joined are one unit, and so are the strongly connected components of
"requires": each member needs all the others. Units that are of no use without each other are
merged on top of that, until nothing changes.

    channel   1  2  3  4  5  6         joined: 1-4      requires: 2 -> 5, 5 -> 2
    unit      1  2  3  1  2  4         numbered by the smallest channel of each unit

The numbers depend only on the order in which channels were made, so that two analyses of one
model agree: saved files hold unit numbers.
"""

from __future__ import annotations

import numpy as np

from ..propagate.algebra import Algebra
from ..propagate.propagate import Propagation
from ..propagate.values import array

Array = np.ndarray
#: Merging stops after so many rounds; each is sound by itself.
_ROUNDS = 32


def unit_numbers(propagation: Propagation, outputs: Array, nested: set[int]) -> Array:
    """The unit number of every channel; 0 for channel 0."""
    channels = propagation.algebra.channels
    labels = channels.roots  # joined channels have one root
    left, right = _raw_edges(propagation, nested)
    labels = _compact(_strong(labels, left, right))
    read = np.zeros(channels.count, bool)
    read[outputs] = True
    for use in propagation.algebra.reads:
        read[array(use.columns)] = True
    signature = _layer_signature(propagation.algebra)
    several = len(propagation.capture.roots) > 1  # several analysed calls
    owning = np.concatenate([array(units) for units in propagation.algebra.channels_of.values()])
    # each merge can make others possible: units that were required by two are now required by one
    for _ in range(_ROUNDS):
        if several:
            labels = _merge_equal_mixtures(labels, left, right, owning)
        merged = _merge_useless_apart(labels, left, right, read, signature)
        if merged is None:
            break
        labels = _compact(_strong(merged, left, right))
    return labels


def _raw_edges(propagation: Propagation, nested: set[int]) -> tuple[Array, Array]:
    """All (left requires right) between channels, without those of ``nested`` mixing sites."""
    events = [
        e
        for e in propagation.algebra.channels.events
        if e.kind == "requires" and (e.mixing < 0 or e.mixing not in nested)
    ]
    if not events:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([e.left for e in events]), np.concatenate([e.right for e in events])


def _strong(labels: Array, left: Array, right: Array) -> Array:
    """Labels with the strongly connected components of left -> right merged."""
    a, b = labels[left], labels[right]
    apart = (a != b) & (a != 0) & (b != 0)
    if not apart.any():
        return labels
    a, b = a[apart], b[apart]
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

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
    """A random number per channel: equal for channels that have elements in the same layer."""
    random = np.random.default_rng(0)
    signature = np.zeros(algebra.channels.count, np.uint64)
    layers: dict[str, np.uint64] = {}
    for name, units in algebra.channels_of.items():
        # not `layer_of`: the numbers of units in saved files follow from this
        layer = name.rpartition(".")[0]
        if layer not in layers:
            layers[layer] = random.integers(1, 1 << 63, dtype=np.uint64)
        signature[array(units)] = layers[layer]
    return signature


def _merge_equal_mixtures(labels: Array, left: Array, right: Array, owning: Array) -> Array:
    """Join units without elements that require the same units.

    Each analysed call makes derived channels of its own. Where two calls mix the same channels,
    two units must not differ only because a derived channel of one more call requires them.

    Sets are compared by sums of random keys: a set of units has the sum of its members' keys.
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


def _merge_useless_apart(
    labels: Array, left: Array, right: Array, read: Array, signature: Array
) -> Array | None:
    """Join units of which neither is of use without the other.

    A unit that no weight and no output reads is of use only to those that require it. When
    exactly one unit does, the two are one. When two such units of the same layers are
    required by the same units, losing one makes the other useless: they are one, too (the
    queries and keys of an attention head).

    Returns None when there is nothing to merge.
    """
    size = int(labels.max()) + 1
    seen = np.zeros(size, bool)
    seen[labels[read]] = True
    a, b = labels[left], labels[right]
    apart = (a != b) & (b != 0)
    pairs = np.unique(a[apart] * size + b[apart])
    a, b = pairs // size, pairs % size
    keep = ~seen[b]  # b: units that nothing but other units needs; a: the units that do
    a, b = a[keep], b[keep]
    if not len(a):
        return None
    random = np.random.default_rng(1)
    key = random.integers(1, 1 << 63, size, dtype=np.uint64)
    # the set of units that require b, as the sum of their random keys
    requirers = np.zeros(size, np.uint64)
    np.add.at(requirers, b, key[a])
    count = np.bincount(b, minlength=size)
    target = np.arange(size)
    single = count[b] == 1  # required by one unit only: merge with that one
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
    while True:  # follow chains; they end, because requires has no cycles between units
        above = target[target]
        if np.array_equal(above, target):
            break
        target = above
    return target[labels]


def requires_edges(propagation: Propagation, labels: Array, nested: set[int]) -> Array:
    """Requires edges between units, each once."""
    left, right = _raw_edges(propagation, nested)
    a, b = labels[left], labels[right]
    apart = (a != b) & (a != 0) & (b != 0)
    size = int(labels.max(initial=0)) + 1
    pairs = np.unique(a[apart] * size + b[apart])
    return np.stack([pairs // size, pairs % size], axis=1)
