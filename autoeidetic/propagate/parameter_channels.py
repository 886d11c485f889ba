"""ParameterChannels: the channel of every parameter element, and the channels that weights read.

A parameter has no channels until an operator uses it. A layer's weight gets one channel for each of
its rows; a free parameter (a position embedding, a norm's scale) adopts the channels that it is
combined with.

    weight (out, in)     channels_of: out numbers, stride 0 along in      own_rows
                         columns:     in numbers, stride 0 along out      read
    scale (channels,)    channels_of: the numbers of the value it scales  adopt
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from .tags import Tags
from .values import ZERO, ParameterView, Value, compress, core, is_zero, varies, vector


@dataclass(frozen=True)
class WeightRead:
    """A weight's use: the channel that each of its elements multiplies (0: constant or none).

    ``rows`` are the channels the elements contribute to; None for the parameter's own.
    """

    parameter: str
    columns: Tensor
    rows: Tensor | None
    node: int


@dataclass
class ParameterChannels(Tags):
    """Channels of parameter elements; -1 marks an element that nothing has used yet.

    ``roles`` has the node that first used a parameter in a role. ``rests`` are the channels that
    :meth:`complete` gave to elements that nothing had used. ``followed`` are the buffers whose
    elements were used channel by channel, with the node; ``spread`` those whose elements serve
    several channels.
    """

    channels_of: dict[str, Tensor] = field(default_factory=dict)
    parameter_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    roles: dict[tuple[str, str], int] = field(default_factory=dict)
    reads: list[WeightRead] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    followed: set[tuple[str, int]] = field(default_factory=set)
    spread: set[str] = field(default_factory=set)
    rests: list[int] = field(default_factory=list)

    def role(self, value: Value, role: str) -> None:
        """Remember how a parameter is used: output, depthwise, norm, shared, ..."""
        if value.parameter is not None:
            self.roles.setdefault((value.parameter.name, role), self.index)

    def tags(self, value: Value) -> Tensor:
        """The tags of a value; a parameter that nothing has used yet gets new channels."""
        if value.tags is not None:
            return value.tags
        view = value.parameter
        assert view is not None
        if not self.is_assigned(view):
            self._assign_default(view)
        return self._channel_tags(view, value.shape)

    def is_assigned(self, view: ParameterView) -> bool:
        return view.name in self.channels_of

    def shows_new(self, view: ParameterView) -> bool:
        """Does the view show an element without a channel? (Another call may show only a part.)"""
        assigned = self.channels_of.get(view.name)
        if assigned is None or not bool((core(assigned) < 0).any()):
            return assigned is None
        return bool((self._shown(view) < 0).any())

    def _shown(self, view: ParameterView) -> Tensor:
        """The channels of the elements that a view shows, -1 where there is none (sizes 1 kept)."""
        assigned = self.channels_of[view.name]
        if view.coords is None:
            return assigned
        dims = varies(assigned)
        if any(view.coords[d] is None for d in dims):
            return torch.zeros(())  # the view depends on whole dimensions
        # advanced indexing: position p of the view shows element (coords[0][p], coords[1][p], ..)
        small = core(assigned)
        index = [core(view.coords[d]) if d in dims else 0 for d in range(assigned.dim())]  # type: ignore[arg-type]
        return small[tuple(index)]

    def _assign_default(self, view: ParameterView) -> None:
        """Give a parameter channels along the dimension that most likely holds channels."""
        coords = view.coordinates()
        long = [d for d, n in enumerate(view.shape) if n > 1 and coords[d] is not None]
        if not long:
            channel = torch.from_numpy(self.channels.new(1)).reshape(())
            self.channels_of[view.name] = channel.expand(view.shape)
            return
        dim = 0 if long[0] == 0 else long[-1]  # rows of a weight, or channels in the last place
        self.channels_of[view.name] = vector(self.channels.new(view.shape[dim]), dim, view.shape)

    def own_channels(self, value: Value, dim: int) -> None:
        """Give a parameter that a layer reads like an activation channels along ``dim``.

        A table of relative positions that goes through a layer: its rows are positions, its
        channels lie along the dimension that the layer contracts.
        """
        view = value.parameter
        if view is None or value.tags is not None or self.is_assigned(view):
            return
        along = [
            d
            for d, coordinate in enumerate(view.coordinates())
            if coordinate is not None and varies(coordinate) == [dim % len(value.shape)]
        ]
        if len(along) == 1:
            channels = self.channels.new(view.shape[along[0]])
            self.channels_of[view.name] = vector(channels, along[0], view.shape)

    def complete(self, name: str) -> Tensor:
        """The channels of a parameter, with one channel for all elements that have none yet."""
        assigned = self.channels_of[name]
        if bool((core(assigned) < 0).any()):
            rest = int(self.channels.new(1)[0])
            self.rests.append(rest)
            assigned = self.channels_of[name] = compress(torch.where(assigned < 0, rest, assigned))
        return assigned

    def _channel_tags(self, view: ParameterView, shape: tuple[int, ...]) -> Tensor:
        assigned = self.channels_of[view.name]
        if view.coords is None:
            return self.complete(view.name)
        # a view that depends on whole dimensions has the mixture of the channels along them
        dims = varies(assigned)
        whole = [d for d in dims if view.coords[d] is None]
        if whole:
            assigned = self.reduce_tags(self.complete(view.name), whole, "hard")
            dims = varies(assigned)
        if not dims:
            return core(assigned).reshape(-1)[0].expand(shape)
        small = core(assigned)
        index = tuple(
            core(view.coords[d]) if d in dims else 0  # type: ignore[arg-type]
            for d in range(assigned.dim())
        )
        found = small[index]
        if bool((found < 0).any()):  # a part of the parameter that was not used before
            missing = found < 0
            fresh = torch.from_numpy(self.channels.new(int(missing.sum())))
            found = found.clone()
            found[missing] = fresh
            self.write_channels(view, compress(found.expand(shape)))
        return compress(found.expand(shape))

    def write_channels(self, view: ParameterView, tags: Tensor) -> None:
        """Give the parameter's elements seen at each position of ``tags`` that channel."""
        if view.coords is None:
            self.channels_of[view.name] = tags
            return
        # transposed only: transpose the tags back instead of scattering them element by element,
        # which would make a dense tensor of a weight's size
        straight = self._undo_permutation(view, tags)
        if straight is not None and view.name not in self.channels_of:
            self.channels_of[view.name] = straight
            return
        old = self.channels_of.get(view.name)
        if old is None:
            old = torch.tensor(-1).expand(view.shape)
        part = _without_whole_dimensions(view, varies(old), tags.shape)
        inside = tuple(slice(n) for n in part.shape)
        dense = old[inside].reshape(-1).clone()
        self._scatter(part, tags, dense)
        self.channels_of[view.name] = compress(dense.view(part.shape)).expand(view.shape)

    def _scatter(self, view: ParameterView, tags: Tensor, dense: Tensor) -> None:
        """Write tags through the coordinates; where two meet at one element, join them.

        view.coords[d]   index along dimension d of the parameter, at each position of tags
        flat             sum of coords[d] * step[d]: the element that a position shows
        everything       offsets along the dimensions on which a position depends as a whole
        """
        assert view.coords is not None
        flat = torch.zeros((), dtype=torch.int64)
        step, steps = 1, []
        for size in reversed(view.shape):
            steps.append(step)
            step *= size
        everything = torch.zeros(1, dtype=torch.int64)
        for coordinate, size, step in zip(view.coords, view.shape, reversed(steps), strict=True):
            if coordinate is None:
                offsets = torch.arange(size) * step
                everything = (everything[:, None] + offsets[None]).reshape(-1)
            else:
                flat = flat + core(coordinate) * step
        flat, small = torch.broadcast_tensors(flat, core(tags))
        index = (flat.reshape(-1, 1) + everything[None]).reshape(-1)
        written = small.reshape(-1, 1).expand(-1, len(everything)).reshape(-1)
        # An element that has a channel keeps it, and the new one is joined with it. So is a second
        # channel for one element within this call: the last write stays, and `after` shows it.
        before = dense[index]
        dense[index] = torch.where(before > 0, before, written)
        after = dense[index].numpy()
        written = written.numpy()
        clash = (after != written) & (written > 0) & (after > 0)
        if clash.any():
            self.channels.join(after[clash], written[clash], self.index)

    @staticmethod
    def _undo_permutation(view: ParameterView, tags: Tensor) -> Tensor | None:
        """Tags in the parameter's own shape when it was only transposed or (un)squeezed."""
        assert view.coords is not None
        if tags.numel() != math.prod(view.shape):
            return None
        # permuted: coordinate d runs 0 .. size - 1 along one dimension of the view, order[d], and
        # no two along the same one
        order: list[int] = []
        for coordinate, size in zip(view.coords, view.shape, strict=True):
            if coordinate is None:
                return None
            if size == 1:
                continue
            dims = varies(coordinate)
            if len(dims) != 1 or coordinate.shape[dims[0]] != size or dims[0] in order:
                return None
            if not torch.equal(core(coordinate).reshape(-1), torch.arange(size)):
                return None
            order.append(dims[0])
        rest = [d for d in range(tags.dim()) if d not in order]
        if any(tags.shape[d] != 1 for d in rest):
            return None
        return tags.permute(order + rest).reshape(view.shape)

    def own_rows(self, weight: Value, dims: Sequence[int]) -> Tensor:
        """Channels of a weight's rows, which lie along ``dims`` of its current shape.

        Without ``dims`` the whole weight is one channel: it serves many channels alike. Returns
        tags over those dimensions only, in the weight's shape (size 1 elsewhere).
        """
        # weight (out, in, k, k), dims [0]: out new channels, returned as (out, 1, 1, 1). A weight
        # that is used a second time (tied, recurrent) keeps its channels, mixed over the others
        view = weight.parameter
        if weight.tags is None and view is not None and not self.is_assigned(view):
            size = [n if d in dims else 1 for d, n in enumerate(weight.shape)]
            channels = torch.from_numpy(self.channels.new(math.prod(size))).view(size)
            self.write_channels(view, channels.expand(weight.shape))
            return channels
        others = [d for d in range(len(weight.shape)) if d not in dims]
        return self.reduce_tags(self.tags(weight), others, "hard")

    def read(self, weight: Value, columns: Tensor) -> bool:
        """Note the channel that each weight element multiplies.

        Returns False if there is no parameter whose zeros could keep a channel out, so that the
        rows must require the channels that they read.
        """
        view = weight.parameter
        if view is None:
            return False
        columns = columns.expand(weight.shape)
        if is_zero(columns):
            return True
        # zeros are written into the parameter itself, so columns need its own shape: move them back
        # through the view. A transformed weight gets its zeros when it is computed, in its shape
        if not view.transformed and view.coords is not None:
            straight = self._undo_permutation(view, columns)
            if straight is None:
                if any(c is None for c in view.coords):  # elements of the weight are mixed
                    return False
                dense = torch.zeros(math.prod(view.shape), dtype=torch.int64)
                self._scatter(view, columns, dense)
                straight = compress(dense.view(view.shape))
            columns = straight
        rows = self.tags(weight) if view.transformed else None
        self.reads.append(WeightRead(view.name, columns, rows, self.index))
        return True

    def follow(self, buffer: Value | None, channels: Tensor) -> None:
        """Note the channels of a buffer's elements (a running mean)."""
        if buffer is not None and buffer.buffer:
            known = self.buffers.get(buffer.buffer)
            if known is not None:
                channels = self._required(buffer.buffer, known, channels)
            self.buffers[buffer.buffer] = channels
            self.followed.add((buffer.buffer, self.index))

    def _required(self, name: str, known: Tensor, channels: Tensor) -> Tensor:
        """The channels of elements that two calls use: of each pair the one that both require.

        An element is frozen as soon as a channel of either call is. Where a call has constants
        (0), every task needs the element.
        """
        #     first call   9 9 9     second call   4 5 6     4, 5 and 6 require 9    9 9 9
        #     first call   1 2 3     second call   4 5 6     joined                  1 2 3
        #     first call   1 1 2     second call   4 5 4     all four are one unit   1 1 1
        first, second = (self.channels.find(tags.numpy()) for tags in (known, channels))
        self.combine(known, channels, channels.shape)
        constant = (first == 0) | (second == 0)
        pairs = np.unique(np.stack([first, second])[:, (first != second) & ~constant], axis=1)
        one, other = (np.bincount(side, minlength=self.channels.count) for side in pairs)
        crossed = (one[pairs[0]] > 1) & (other[pairs[1]] > 1)
        self.channels.join(pairs[0, crossed], pairs[1, crossed], self.index)
        required = np.where(one[first] == 1, second, first)
        required[constant] = 0
        if not np.array_equal(self.channels.find(first), self.channels.find(second)):
            self.spread.add(name)
        return torch.from_numpy(self.channels.find(required))

    def adopt(self, value: Value, tags: Tensor, shape: tuple[int, ...]) -> None:
        """Give the elements of a parameter the channels that they are combined with."""
        view = value.parameter
        assert view is not None
        if is_zero(tags):
            if not self.is_assigned(view):
                self._assign_default(view)
            return
        # value (tokens, 1), shape (batch, tokens, CHANNELS): one element for many channels, so it
        #                     gets its own channel, which they will require
        # value (CHANNELS,)   one element for each channel, so it takes that channel; a constant
        #                     there (0) gets a new one, because the result depends on the parameter
        padded = (1,) * (len(shape) - len(value.shape)) + value.shape
        tags = tags.expand(shape)
        moving = varies(tags)
        if any(padded[d] == 1 for d in moving):
            size = [padded[d] if d in moving else 1 for d in range(len(shape))]
            channels = torch.from_numpy(self.channels.new(math.prod(size))).view(size)
        else:
            channels = core(tags)
            blank = channels == 0
            if bool(blank.any()):
                channels = channels.clone()
                channels[blank] = torch.from_numpy(self.channels.new(int(blank.sum())))
        drop = len(shape) - len(value.shape)
        channels = channels.reshape(channels.shape[drop:]).expand(value.shape)
        if self.is_assigned(view):  # only elements without a channel get one
            known = self._shown(view)
            channels = compress(torch.where(known > 0, known, channels).expand(value.shape))
        self.write_channels(view, channels)


def _without_whole_dimensions(
    view: ParameterView, distinguished: Sequence[int], shape: Sequence[int]
) -> ParameterView:
    """The view with size 1 along the dimensions on which every position depends as a whole.

    Every element of a standardised weight depends on its whole row: it is enough to write one
    channel per row. Dimensions in ``distinguished``, along which channels differ already, stay.
    """
    assert view.coords is not None
    gone = [c is None and d not in distinguished for d, c in enumerate(view.coords)]
    zero = ZERO.expand(shape)
    return replace(
        view,
        shape=tuple(1 if drop else n for drop, n in zip(gone, view.shape, strict=True)),
        coords=tuple(zero if drop else c for drop, c in zip(gone, view.coords, strict=True)),
    )
