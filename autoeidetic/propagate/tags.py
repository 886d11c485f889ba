"""Tags: operations on tag tensors, element by element and along dimensions.

combine       left   1 2 3 4       one to one: 1-5, 2-6, 3-7, 4-8 are joined
              right  5 6 7 8

              left   1 2 3 4       one against many: 1, 2, 3 and 4 require 5
              right  5 5 5 5

reduce_tags   1 2 3                one tag for each row: a derived channel that requires the
              4 5 6                members of the row, or the members joined into one unit
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, fx

from .channels import Array, Channels
from .values import core, varies

#: Many against many makes a derived channel per pair, up to this many pairs.
_MOST_PAIRS = 1 << 20
#: A sum over at most this many members, and over no more than there are rows, sums branches.
_FEW_BRANCHES = 4


@dataclass
class Tags:
    """The channels of one analysis, and the node whose rule is running.

    ``mixing_nodes[site]`` is the number of the node that made a channel-mixing site.
    """

    channels: Channels = field(default_factory=Channels)
    mixing_nodes: list[int] = field(default_factory=list)
    node: fx.Node = None  # type: ignore[assignment]
    index: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the node's result."""
        return self.node.meta["shape"]

    # -- pointwise ----------------------------------------------------------------------

    def combine(self, left: Tensor, right: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Element by element: one-to-one joins, one against many is required by the many."""
        shape = self.shape if shape is None else tuple(shape)
        left, right = left.expand(shape), right.expand(shape)
        # left (64, 256, 56, 56) with channels along 1, right the same: 256 pairs, not 51 million
        small_left, small_right = core(left), core(right)
        if small_right.numel() == 1 and int(small_right) == 0:
            return left
        if small_left.numel() == 1 and int(small_left) == 0:
            return right
        small_left, small_right = torch.broadcast_tensors(small_left, small_right)
        size = small_left.shape
        a = self.channels.find(small_left.reshape(-1).numpy())
        b = self.channels.find(small_right.reshape(-1).numpy())
        out = self._combine_arrays(a, b)
        return torch.from_numpy(out).view(size).expand(shape)

    def _combine_arrays(self, a: Array, b: Array) -> Array:
        """:meth:`combine` for flat arrays of representatives.

        The treatment of a pair depends on the number of different partners that each side has in
        this operation:

            left has   right has
            1          1           joined
            1          many        left requires right, the result is left
            many       1           right requires left, the result is right
            many       many        a derived channel requires both
        """
        # residual sum    1 2 3  with  4 5 6                1-4, 2-5, 3-6 joined        1 2 3
        # gate            1 2 3  with  9 9 9                1, 2, 3 require 9           1 2 3
        # outer product   1 1 2 2  with  3 4 3 4            d1 .. d4 require 1+3, ..    d1 d2 d3 d4
        # constant        1 2 3  with  0 0 0                nothing                     1 2 3
        out = np.where(a == 0, b, a)
        both = (a != 0) & (b != 0) & (a != b)
        if not both.any():
            return out
        # a pair of channels as one number: np.unique on numbers is much faster than on rows
        left, right = a[both], b[both]
        pairs, inverse = np.unique(left * self.channels.count + right, return_inverse=True)
        pair_left, pair_right = pairs // self.channels.count, pairs % self.channels.count
        partners_of_left = _multiplicity(pair_left)
        partners_of_right = _multiplicity(pair_right)
        one_to_one = (partners_of_left == 1) & (partners_of_right == 1)
        self.channels.join(pair_left[one_to_one], pair_right[one_to_one], self.index)
        tag = pair_left.copy()
        many_left = (partners_of_left == 1) & (partners_of_right > 1)
        self.channels.require(pair_left[many_left], pair_right[many_left], self.index)
        many_right = (partners_of_left > 1) & (partners_of_right == 1)
        self.channels.require(pair_right[many_right], pair_left[many_right], self.index)
        tag[many_right] = pair_right[many_right]
        crossed = (partners_of_left > 1) & (partners_of_right > 1)
        if crossed.any():
            tag[crossed] = self._pair_channels(pair_left[crossed], pair_right[crossed])
        out[both] = tag[inverse]
        return out

    def _pair_channels(self, left: Array, right: Array) -> Array:
        """Many against many: a derived channel for each pair, or one unit if there are too many."""
        # too many: all of left becomes one unit, which every channel of right requires. Sound, and
        # coarser than needed
        if len(left) > _MOST_PAIRS:
            self.channels.join(left[:-1], left[1:], self.index)
            self.channels.require(right, left, self.index)
            return right
        derived = self.channels.new(len(left))
        self.channels.require(derived, left, self.index)
        self.channels.require(derived, right, self.index)
        return derived

    # -- mixing -------------------------------------------------------------------------

    def reduce_tags(self, tags: Tensor, dims: Sequence[int], how: str) -> Tensor:
        """Tags with size 1 along ``dims``; ``how`` is explained in :meth:`Algebra.reduce`.

            tags   (a, b, c), reduced over b    rows: (a * c, b)  ->  one tag each  ->  (a, 1, c)

        Only dimensions along which tags vary are mixed; along the others any position will do.
        """
        over = [d for d in varies(tags) if d in dims]
        small = narrow(tags, [d for d in dims if d not in over])
        if not over:
            return small
        compact = core(small)
        kept = [d for d in range(tags.dim()) if d not in over]
        size = [compact.shape[d] for d in kept]
        rows = self.channels.find(compact.permute(kept + over).reshape(math.prod(size), -1).numpy())
        mixed = self._mix_rows(rows, how)
        shape = [1 if d in over else compact.shape[d] for d in range(tags.dim())]
        target = [1 if d in dims else n for d, n in enumerate(tags.shape)]
        return torch.from_numpy(mixed).view(shape).expand(target)

    def _mix_rows(self, rows: Array, how: str) -> Array:
        """One tag for each row of channels: the only one in it, or what mixing makes of them."""
        # a row with one channel, and perhaps constants (0), keeps it: 0 3 3 -> 3
        highest = rows.max(axis=1)
        several = ((rows != highest[:, None]) & (rows != 0)).any(axis=1)
        if not several.any():
            return highest
        chosen = rows[several]
        # equal rows share one derived channel: a sum over channels has the same row for each sample
        if len(chosen) == 1:
            distinct, inverse = chosen, np.zeros(1, np.int64)
        else:
            _, first, inverse = np.unique(
                _row_hashes(chosen), return_index=True, return_inverse=True
            )
            distinct = chosen[first]
        sets = [np.unique(row[row != 0]) for row in distinct]
        highest = highest.copy()
        if how == "auto":
            how = "join" if self._are_branches(sets) else "soft"
        if how == "join":
            for members in sets:
                self.channels.join(members[:-1], members[1:], self.index)
            derived = np.array([members[0] for members in sets])
        else:
            derived = self.channels.derive(sets, self.index, self._site() if how == "soft" else -1)
        highest[several] = derived[inverse.reshape(-1)]
        return highest

    @staticmethod
    def _are_branches(sets: list[Array]) -> bool:
        """Are a few branches summed channel by channel, and not channels mixed with each other?"""
        # stack([x, y]).sum(0)    rows 1 5, 2 6, 3 7, 4 8    narrow, many, no channel twice: joined
        # x.sum(channels)         row  1 2 3 4               wide: a derived channel requires them
        width = max(len(members) for members in sets)
        if width > _FEW_BRANCHES or width > len(sets):
            return False
        flat = np.concatenate(sets)
        return len(np.unique(flat)) == len(flat)

    def _site(self) -> int:
        """The number of the current node's mixing site."""
        if not self.mixing_nodes or self.mixing_nodes[-1] != self.index:
            self.mixing_nodes.append(self.index)
        return len(self.mixing_nodes) - 1

    # -- weights ------------------------------------------------------------------------

    def columns(self, tags: Tensor, keep: Sequence[int]) -> Tensor:
        """One channel per position along ``keep``: a weight is shared over all other dimensions."""
        others = [d for d in range(tags.dim()) if d not in keep]
        return self.reduce_tags(tags, others, "join")

    def is_shared(self, tags: Tensor, contracted: Sequence[int]) -> bool:
        """Does the weight mix positions, while the channels lie along other dimensions?

            x (batch, channels, tokens) times a weight over tokens: its rows serve all channels
            alike. x (batch, tokens, channels) times a weight over channels: a layer.

        When channels vary along both, the treatment that mixes less is chosen.
        """
        moving = varies(tags)
        along = [d for d in moving if d in contracted]
        across = [d for d in moving if d not in contracted]
        if not across:
            return False
        # rows: one per position across, with the channels along the contracted dimensions
        compact = core(tags).permute(across + [d for d in range(tags.dim()) if d not in across])
        rows = self.channels.find(
            compact.reshape(math.prod([tags.shape[d] for d in across]), -1).numpy()
        )
        if not along:
            return len(np.unique(rows[rows != 0])) > 1
        # as a shared weight each row is mixed, as a layer each column is joined: which is smaller?
        return _distinct(rows) < _distinct(rows.T)


def _distinct(rows: Array) -> int:
    """The largest number of different channels in one row."""
    ordered = np.sort(rows, axis=1)
    fresh = (ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] != 0)
    return int(fresh.sum(axis=1).max(initial=0)) + 1


def _row_hashes(rows: Array) -> Array:
    """A number per row that is the same for rows with the same elements in any order."""
    # splitmix64 per element, then a sum: order does not matter, and different sets collide with a
    # chance of about 2^-64. Plain sums would not do: 1 + 4 = 2 + 3
    mixed = rows.astype(np.uint64)
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        return mixed.sum(axis=1, dtype=np.uint64)


def _multiplicity(items: Array) -> Array:
    """How often each item occurs, item by item."""
    _, inverse, counts = np.unique(items, return_inverse=True, return_counts=True)
    return counts[inverse]


def narrow(tags: Tensor, dims: Iterable[int]) -> Tensor:
    """Tags with size 1 along ``dims``, along which they do not vary."""
    over = set(dims)
    small = core(tags)
    for dim in over:
        if small.shape[dim] > 1:
            small = small.narrow(dim, 0, 1)
    return small.expand([1 if d in over else n for d, n in enumerate(tags.shape)])
