"""ParameterChannels: which channel every parameter element belongs to, and what a weight reads.

A parameter has no channels until it meets something. A layer's weight gets one channel for each of
its rows; a free parameter (a position embedding, a norm's scale) adopts the channels it is
combined with.

    weight (out, in)     channels_of: out numbers, stride 0 along in      own_rows
                         columns:     in numbers, stride 0 along out      read
    scale (channels,)    channels_of: the numbers of the value it scales  adopt
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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

    ``roles`` has the node that first used a parameter in a role. ``rests`` are channels that were
    given to the unused elements of a parameter when it was read as a whole.
    """

    channels_of: dict[str, Tensor] = field(default_factory=dict)
    parameter_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    roles: dict[tuple[str, str], int] = field(default_factory=dict)
    reads: list[WeightRead] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    rests: list[int] = field(default_factory=list)

    def role(self, value: Value, role: str) -> None:
        """Remember how a parameter is used: output, depthwise, norm, shared, ..."""
        if value.parameter is not None:
            self.roles.setdefault((value.parameter.name, role), self.index)

    def tags(self, value: Value) -> Tensor:
        """The tags of a value; a parameter that has met nothing yet gets channels of its own."""
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
        # transposed only: turn the tags back instead of scattering them element by element
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
        everything       offsets of the dimensions of which a position shows all elements
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
        # first come, first served: an element keeps the channel it has, and that one is joined
        # with the one that was to be written
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
        """Channels of a weight's rows, which lie along ``dims`` of its present shape.

        Without ``dims`` the whole weight is one channel: it serves many channels alike. Returns
        tags over those dimensions only, in the weight's shape (size 1 elsewhere).
        """
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

        False: there is no parameter whose zeros could keep a channel out, so that the rows must
        require what they read.
        """
        view = weight.parameter
        if view is None:
            return False
        columns = columns.expand(weight.shape)
        if is_zero(columns):
            return True
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
        """Note the channels of a buffer's elements, such as a running mean."""
        if buffer is not None and buffer.buffer:
            known = self.buffers.get(buffer.buffer)
            if known is not None:
                self.combine(known, channels, channels.shape)
            self.buffers[buffer.buffer] = channels

    def adopt(self, value: Value, tags: Tensor, shape: tuple[int, ...]) -> None:
        """Give the elements of a parameter the channels that they are combined with."""
        view = value.parameter
        assert view is not None
        if is_zero(tags):
            if not self.is_assigned(view):
                self._assign_default(view)
            return
        padded = (1,) * (len(shape) - len(value.shape)) + value.shape
        tags = tags.expand(shape)
        moving = varies(tags)
        if any(padded[d] == 1 for d in moving):  # one element for many channels: its own channel
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
        if self.is_assigned(view):  # only what has no channel yet gets one
            known = self._shown(view)
            channels = compress(torch.where(known > 0, known, channels).expand(value.shape))
        self.write_channels(view, channels)


def _without_whole_dimensions(
    view: ParameterView, told_apart: Sequence[int], shape: Sequence[int]
) -> ParameterView:
    """The view with size 1 along the dimensions of which every position shows all elements.

    A standardised weight is shown row by row: writing its rows is enough, and they are far fewer
    than its elements. Dimensions in ``told_apart``, along which channels differ already, stay.
    """
    assert view.coords is not None
    gone = [c is None and d not in told_apart for d, c in enumerate(view.coords)]
    zero = ZERO.expand(shape)
    return replace(
        view,
        shape=tuple(1 if drop else n for drop, n in zip(gone, view.shape, strict=True)),
        coords=tuple(zero if drop else c for drop, c in zip(gone, view.coords, strict=True)),
    )
