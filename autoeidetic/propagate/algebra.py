"""The algebra of tags: the few operations that every rule is made of.

A rule receives this as its first argument. Each operation takes and returns ``Value``s and
writes what it learns (new channels, joins, requirements, the channels of parameter elements, what
weights read) into the tables of the analysis.

    move        data movement       tags move with the elements
    pointwise   x + y, x * y        channels at one position are joined, or require each other
    scale       bias, norm weight   the parameter takes the channels of the value
    reduce      sum, mean, max      channels along the dimensions are mixed into one
    mix         softmax, norms      every channel along the dimensions requires all of them
    contract    products            both operands reduced over the contracted dimension
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .parameter_channels import ParameterChannels
from .tags import narrow
from .values import ZERO, ParameterView, Value, array, compress, constant, core, varies, vector


@dataclass
class Algebra(ParameterChannels):
    """Tables of one analysis, and the operations on values."""

    def result(self, tags: Tensor, shape: Sequence[int] | None = None) -> Value:
        shape = self.shape if shape is None else tuple(shape)
        return Value(shape, tags if tuple(tags.shape) == shape else tags.expand(shape))

    def constant(self, shape: Sequence[int] | None = None) -> Value:
        return constant(self.shape if shape is None else tuple(shape))

    def move(self, value: Value, function: Callable[[Tensor], Tensor]) -> Value:
        """Data movement: tags move like the elements."""
        # A parameter has no tags yet, so its coordinates move instead:
        #     weight (2, 3)        coords[0]  0 0 0     coords[1]  0 1 2
        #                                     1 1 1                0 1 2
        #     weight.t() (3, 2)    coords[0]  0 1       coords[1]  0 0
        #                                     0 1                  1 1
        #                                     0 1                  2 2
        view = value.parameter
        if view is not None:
            view = replace(
                view,
                coords=tuple(
                    None if c is None else compress(function(c)) for c in view.coordinates()
                ),
            )
        tags = None if value.tags is None else compress(function(value.tags))
        moved = function(ZERO.expand(value.shape)) if tags is None else tags
        return Value(tuple(moved.shape), tags, view)

    def pointwise(self, *values: Any, shape: Sequence[int] | None = None) -> Value:
        """Element by element: one-to-one joins, one against many is required by the many.

        Parameters that have no channels yet come last: they adopt what the others have.
        """
        shape = self.shape if shape is None else tuple(shape)
        operands = [v for v in values if isinstance(v, Value)]
        parameters = [v for v in operands if v.parameter is not None]
        if parameters and all(v.parameter is not None or v.is_constant for v in operands):
            return self._pointwise_parameters(parameters, shape)
        # values with channels are combined first, so that a new parameter can adopt them
        tags: Tensor | None = None
        waiting = []  # parameters with elements that have no channel yet
        for value in operands:
            if value.tags is None and self.shows_new(value.parameter):  # type: ignore[arg-type]
                waiting.append(value)
                continue
            other = self.tags(value)
            tags = other.expand(shape) if tags is None else self.combine(tags, other, shape)
        assert tags is not None
        for value in waiting:
            self.adopt(value, tags, shape)
            self.role(value, "free")
            tags = self.combine(tags, self.tags(value), shape)
        return Value(shape, tags)

    def _pointwise_parameters(self, values: list[Value], shape: tuple[int, ...]) -> Value:
        """An operation on parameters only: the result is still a weight, but a transformed one.

        Views of one parameter keep a coordinate only if all of them agree on it.
        """
        # w - w.mean(1, keepdim=True), w (out, in):     coords of w              row, column
        #                                               coords of the mean       row, None
        #                                               coords of the result     row, None
        largest = max(values, key=lambda v: math.prod(v.shape))
        view = largest.parameter
        assert view is not None
        names = {v.parameter.name for v in values if v.parameter is not None}
        coords = _expanded(view, shape)
        if len(names) == 1 and all(v.tags is None for v in values):
            for value in values:
                assert value.parameter is not None
                coords = tuple(map(_same_or_all, coords, _expanded(value.parameter, shape)))
            return Value(shape, None, replace(view, coords=coords, transformed=True))
        tags = self.tags(largest).expand(shape)
        for value in values:
            if value is not largest:
                if value.tags is None and not self.is_assigned(value.parameter):  # type: ignore[arg-type]
                    self.adopt(value, tags, shape)
                    self.role(value, "free")
                tags = self.combine(tags, self.tags(value), shape)
        return Value(shape, tags, replace(view, coords=coords, transformed=True))

    def scale(self, value: Value, parameter: Value | None, dim: int) -> Value:
        """A one-dimensional parameter applied along ``dim``: a bias, a norm's weight.

        value (batch, channels, h, w), parameter (channels,), dim 1: element i of the parameter
        gets the channel at position i. Constant positions of the value get fresh channels,
        because the result depends on the parameter there.
        """
        if parameter is None:
            return value
        tags = self.tags(value)
        view = parameter.parameter
        fresh = (
            parameter.tags is None
            and view is not None
            and view.coords is None
            and not self.is_assigned(view)
        )
        dim = dim % tags.dim()
        # the usual case without the general machinery, because a model has hundreds of these: a new
        # parameter, and channels along dim only
        if fresh and all(d == dim for d in varies(tags)):
            channels = core(tags).reshape(-1).expand(parameter.shape)
            if bool((channels == 0).any()):
                channels = channels.clone()
                blank = channels == 0
                channels[blank] = torch.from_numpy(self.channels.new(int(blank.sum())))
                tags = vector(channels.numpy(), dim, value.shape)
            self.channels_of[view.name] = channels  # type: ignore[union-attr]
            return Value(value.shape, tags)
        view_shape = [1] * tags.dim()
        view_shape[dim] = -1
        moved = self.move(parameter, lambda t: t.reshape(view_shape))
        return self.pointwise(Value(value.shape, tags), moved, shape=value.shape)

    def as_weight(self, value: Value) -> Value:
        """The value as a layer's weight, also if it is computed from the layer's parameters.

        A computation that mixes the elements of a weight (a spectral norm) does not mix the inputs
        of the layer: zeros in the computed weight still keep them out.
        """
        if value.parameter is not None or not value.source:
            return value
        shape = self.parameter_shapes[value.source]
        view = ParameterView(value.source, shape, (None,) * len(shape), transformed=True)
        return replace(value, parameter=view)

    def reduce(
        self, value: Value, dims: Sequence[int] | None, keepdim: bool = False, how: str = "auto"
    ) -> Value:
        """Sum, mean, max ... over dimensions: mixes the channels along them.

        ``how``: ``auto`` decides between the others; ``join`` makes them one unit; ``soft``
        derives a channel whose edges are dropped when the place is evaluated level by level;
        ``hard`` derives a channel that requires them all, always.
        """
        rank = len(value.shape)
        over = list(range(rank)) if not dims else sorted({d % rank for d in dims})
        if not rank:
            over = []
        if value.parameter is not None and value.tags is None:  # it stays a weight
            return self._reduce_parameter(value, over, keepdim)
        tags = self.reduce_tags(self.tags(value), over, how)
        if not keepdim:
            tags = tags.reshape([n for d, n in enumerate(tags.shape) if d not in over])
        return Value(tuple(tags.shape), tags)

    def _reduce_parameter(self, value: Value, over: list[int], keepdim: bool) -> Value:
        mixed = self._collapse(value, over).parameter
        assert mixed is not None
        assert mixed.coords is not None
        shape = [1 if d in over else n for d, n in enumerate(value.shape)]
        coords = [None if c is None else narrow(c, over) for c in mixed.coords]
        if not keepdim:
            shape = [n for d, n in enumerate(value.shape) if d not in over]
            coords = [None if c is None else c.reshape(shape) for c in coords]
        return Value(tuple(shape), None, replace(mixed, coords=tuple(coords)))

    def _collapse(self, value: Value, over: Sequence[int]) -> Value:
        """A parameter mixed along some dimensions of its current shape."""
        # a coordinate that varies along a mixed dimension becomes None: all positions along it
        view = value.parameter
        assert view is not None
        coords = tuple(
            None if c is None or set(varies(c)) & set(over) else c for c in view.coordinates()
        )
        return Value(value.shape, None, replace(view, coords=coords, transformed=True))

    def mix(self, value: Value, dims: Sequence[int], how: str = "auto") -> Value:
        """Every element along ``dims`` depends on all of them: softmax, norms, cumsum, ..."""
        rank = len(value.shape)
        over = [d % rank for d in dims] if rank else []
        if value.parameter is not None and value.tags is None:
            return self._collapse(value, over)
        tags = self.tags(value)
        if not set(varies(tags)) & set(over):
            return replace(value, const=None, buffer="")
        # softmax over channels 1 2 3: reduced to d, which requires them; then 1 2 3 with d d d, so
        # each requires d and thereby all. The edges of d are those that levels may drop
        return Value(
            value.shape, self.combine(tags, self.reduce_tags(tags, over, how), value.shape)
        )

    def mix_everything(self, values: Sequence[Any]) -> Tensor:
        """One tag that requires every channel in the values: always sound, never precise."""
        found = [np.zeros(1, np.int64)]
        for value in values:
            if isinstance(value, Value):
                tags = self.tags(value)
                found.append(np.unique(self.channels.find(array(tags))))
        row = np.unique(np.concatenate(found))[None]  # a single row: one set, one derived channel
        return torch.from_numpy(self._mix_rows(row, "hard"))[0]

    def resample(self, value: Value, space: int, shape: Sequence[int] | None = None) -> Value:
        """Pooling and interpolation: the last ``space`` dimensions are mixed and resized."""
        rank = len(value.shape)
        over = list(range(rank - space, rank))
        reduced = self.reduce(value, over, keepdim=True)
        shape = self.shape if shape is None else tuple(shape)
        if reduced.tags is None:
            return self.move(reduced, lambda t: t.expand(shape))
        return Value(shape, reduced.tags.expand(shape))

    def contract(
        self, left: Value, right: Value, over_left: int, over_right: int
    ) -> tuple[Tensor, Tensor]:
        """Both operands with the contracted dimension mixed down to size 1."""
        # (.., n, k) and (.., k, m)  ->  (.., n, 1) and (.., 1, m), which combine to (.., n, m).
        # "hard", because a product has no weight whose zeros could keep a channel out
        return (
            self.reduce_tags(self.tags(left), [over_left % len(left.shape)], "hard"),
            self.reduce_tags(self.tags(right), [over_right % len(right.shape)], "hard"),
        )


Coordinates = tuple[Tensor | None, ...]


def _expanded(view: ParameterView, shape: tuple[int, ...]) -> Coordinates:
    return tuple(None if c is None else c.expand(shape) for c in view.coordinates())


def _same_or_all(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """Where two views of one parameter differ, an element depends on more than one position."""
    if left is None or right is None or not torch.equal(left, right):
        return None
    return left
