"""Channels: a table of which channels are joined and which require others.

A channel is a positive integer; 0 is "input or constant, available to every task". Channels are
joined into one unit (union-find), or one *requires* another (an edge). A *derived* channel has
no parameters: it stands for a value computed from several channels, and requires them all.

    x + y, channel by channel       joined    x[i] -- y[i]           one unit
    x * gate, one gate for all      requires  x[i] -> gate           the gate serves every x[i]
    x.sum(channels)                 derived   d -> x[0], x[1], ...   d has no parameters

All operations work on whole vectors of channels: a Python loop over channels is too slow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Event:
    """What one operator did to pairs of channels ``left[i]``, ``right[i]``.

    ``kind`` is ``joined`` (same unit) or ``requires`` (left requires right). ``mixing`` is the
    index of the channel-mixing site that caused a requires edge, or -1.
    """

    kind: str
    left: Array
    right: Array
    node: int
    mixing: int = -1


@dataclass
class Channels:
    """A growing table of channels: union-find in arrays, and the list of events."""

    count: int = 1
    events: list[Event] = field(default_factory=list)
    _parent: Array = field(default_factory=lambda: np.zeros(1024, np.int64))
    _mixing: Array = field(default_factory=lambda: np.full(1024, -1, np.int32))

    def new(self, number: int) -> Array:
        """``number`` fresh channels, consecutive."""
        start, stop = self.count, self.count + number
        if stop > len(self._parent):
            size = max(stop, 2 * len(self._parent))  # doubling: amortised constant time
            self._parent = np.resize(self._parent, size)
            self._mixing = np.concatenate(
                [self._mixing, np.full(size - len(self._mixing), -1, np.int32)]
            )
        channels = np.arange(start, stop, dtype=np.int64)
        self._parent[start:stop] = channels
        self._mixing[start:stop] = -1
        self.count = stop
        return channels

    def find(self, channels: Array) -> Array:
        """The representative of each channel's unit.

        Invariant: a parent is never larger than its channel, so that the representative is the
        smallest channel of the unit and this loop ends.
        """
        roots = self._parent[channels]
        while True:
            above = self._parent[roots]
            if np.array_equal(above, roots):
                return roots
            roots = above

    def join(self, left: Array, right: Array, node: int) -> None:
        """Put ``left[i]`` and ``right[i]`` into one unit."""
        left, right = left.ravel(), right.ravel()
        different = self.find(left) != self.find(right)
        if not different.any():
            return
        left, right = left[different], right[different]
        self.events.append(Event("joined", left, right, node))
        # pairs (5, 1) and (5, 3): both assign parent[5], and only the last assignment survives. So
        # repeat until no pair is apart; each round lowers some parent, so that it ends. The smaller
        # root becomes the parent, which keeps the invariant of `find`
        while True:
            low, high = self.find(left), self.find(right)
            low, high = np.minimum(low, high), np.maximum(low, high)
            apart = low != high
            if not apart.any():
                return
            self._parent[high[apart]] = low[apart]

    def require(self, left: Array, right: Array, node: int, mixing: int = -1) -> None:
        """Let ``left[i]`` require ``right[i]``."""
        if left.size:
            self.events.append(Event("requires", left.ravel(), right.ravel(), node, mixing))

    def derive(self, sets: list[Array], node: int, mixing: int = -1) -> Array:
        """One derived channel for each set of channels; it requires every member.

        With ``mixing`` the edges belong to a channel-mixing site, and may be dropped when
        that site is evaluated level by level.
        """
        channels = self.new(len(sets))
        left = np.repeat(channels, [len(members) for members in sets])
        self.require(left, np.concatenate(sets), node, mixing)
        if mixing >= 0:
            self._mixing[channels] = mixing
        return channels

    def mixing_sites(self, channels: Array) -> Array:
        """The mixing sites that have a derived channel in one of the units of ``channels``."""
        mixed = np.flatnonzero(self._mixing[: self.count] >= 0)
        found = np.isin(self.find(mixed), self.find(channels))
        return np.unique(self._mixing[mixed[found]])

    @property
    def roots(self) -> Array:
        """The representative of every channel, by channel number."""
        return self.find(np.arange(self.count, dtype=np.int64))
