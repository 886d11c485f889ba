"""Units: from channels to the numbers of the units they belong to.

Channels that were joined are one unit, and so are the strongly connected components of
"requires": each member needs all the others. Units that are useless without each other are merged
as well, until nothing changes.

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
#: The most rounds of merging. Stopping early is sound: units stay finer than they could be.
_ROUNDS = 32


def unit_numbers(propagation: Propagation, outputs: Array, nested: set[int]) -> Array:
    """The unit number of every channel; 0 for channel 0."""
    # labels[channel] is the number of its unit, at first the smallest channel joined with it. The
    # steps below only ever merge labels, so that their order cannot lose a coupling
    channels = propagation.algebra.channels
    labels = channels.roots
    left, right = _raw_edges(propagation, nested)
    labels = _compact(_strong(labels, left, right))
    read = np.zeros(channels.count, bool)
    read[outputs] = True
    for use in propagation.algebra.reads:
        read[array(use.columns)] = True
    signature = _layer_signature(propagation.algebra)
    several = len(propagation.capture.roots) > 1  # several analysed calls
    owning = np.concatenate([array(units) for units in propagation.algebra.channels_of.values()])
    # each merge can make others possible: a unit that two units required is now required by one.
    # Every round that goes on merges at least two units, so that the loop would end by itself
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
    # 0 is the input: an edge to it asks for nothing, and a cycle through it would join everything
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
    # scipy numbers components in the order of its search, which another version may change, and
    # saved files hold unit numbers: name each component by its smallest member
    #     component   0 1 1 2 1          first   0 1 3          first[component]   0 1 1 3 1
    first = np.full(component.max() + 1, size, np.int64)
    np.minimum.at(first, component, np.arange(size))
    return first[component][labels]


def _compact(labels: Array) -> Array:
    """Consecutive numbers in the same order; 0 stays 0."""
    # labels 0 3 3 7    present 1 0 0 1 0 0 0 1    cumsum - 1: 3 -> 1, 7 -> 2    0 1 1 2
    present = np.zeros(int(labels.max()) + 1, np.int64)
    present[labels] = 1
    present[0] = 1
    return (np.cumsum(present) - 1)[labels]


def _layer_signature(algebra: Algebra) -> Array:
    """A random number per layer, for each channel that has elements in it; 0: derived channels."""
    random = np.random.default_rng(0)
    signature = np.zeros(algebra.channels.count, np.uint64)
    layers: dict[str, np.uint64] = {}
    for name, units in algebra.channels_of.items():
        # not `layer_of`: unit numbers in saved files depend on this definition of a layer
        layer = name.rpartition(".")[0]
        if layer not in layers:
            layers[layer] = random.integers(1, 1 << 63, dtype=np.uint64)
        signature[array(units)] = layers[layer]
    return signature


def _merge_equal_mixtures(labels: Array, left: Array, right: Array, owning: Array) -> Array:
    """Join units without elements that require the same units.

    Each analysed call makes its own derived channels. Where two calls mix the same channels, units
    must not differ only because one of them is required by the derived channels of one more call.
    """
    # A set of units is compared by the sum of its members' random keys, modulo 2^64: one vectorised
    # addition per edge, where Python sets would take a loop over millions of them. Two different
    # sets have equal sums with a chance of about 2^-64. `pairs` has each edge once, because a sum
    # counts repeated members and a set does not.
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
    """Join units that are useless without each other.

    A unit that no weight and no output reads is of use only to the units that require it. If
    exactly one unit requires it, the two are one. If two such units of the same layers are required
    by the same units, losing one makes the other useless: they are one, too (the queries and keys
    of an attention head).

    Returns None when there is nothing to merge.
    """
    #     a1 -> b          only a1 requires b, nothing reads b     b joins a1
    #     a1, a2 -> b, c   both require b and c, nothing reads     b joins c
    #     a1 -> b, w reads b                                       b is of use by itself: stays
    size = int(labels.max()) + 1
    seen = np.zeros(size, bool)
    seen[labels[read]] = True
    a, b = labels[left], labels[right]
    apart = (a != b) & (b != 0)
    pairs = np.unique(a[apart] * size + b[apart])
    a, b = pairs // size, pairs % size
    keep = ~seen[b]  # b: units that only other units need; a: the units that need them
    a, b = a[keep], b[keep]
    if not len(a):
        return None
    random = np.random.default_rng(1)
    key = random.integers(1, 1 << 63, size, dtype=np.uint64)
    # the set of units that require b, as the sum of their random keys, see above
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
    # b -> a, a -> top: follow the chain to its end. It has one: a target requires its unit or is
    # the first of its set, and requires has no cycles between units
    while True:
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
