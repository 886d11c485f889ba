"""Shapes of a narrow copy: from the channels that stay to the sizes of all tensors.

    kept channels     1 1 0 0 0 0 1 1 0 0 0 0          two of each half of six

    value (2, 12)     tags 1 .. 12                     new shape (2, 4)
    weight (12, 3)    rows 1 .. 12, columns inputs     new shape (4, 3)

A position along a dimension stays if a channel that stays lies there. Only numbers matter for a
copy with fresh values, but what stays must be a product of positions along the dimensions: a
reshape that mixes channels of two kinds would otherwise have no narrow form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor, fx

from ...capture.graph import operator_name
from ...plan.analysis import Analysis
from ...propagate.rules.pointwise import POINTWISE
from ...propagate.values import compress, core

Array = np.ndarray
#: Positions that stay along each dimension; None where all do.
Positions = tuple[Array | None, ...]
_POINTWISE = frozenset(f"aten.{name}" for name in POINTWISE.split())
#: A size that is not predicted.
ANY = -1


@dataclass(frozen=True)
class Channels:
    """The channels of an analysis, under the number of the first one that each is joined with.

    Not units: these also hold what a task needs together, such as the queries and keys of a head,
    and a narrower network has fewer of them.
    """

    analysis: Analysis

    @cached_property
    def numbers(self) -> Array:
        """The number of every channel."""
        return self.analysis.coupling.propagation.algebra.channels.roots

    @property
    def count(self) -> int:
        return len(self.numbers)

    @cached_property
    def owning(self) -> Array:
        """Marks channels that have parameter elements which some call reads."""
        marked = np.zeros(self.count, bool)
        algebra = self.analysis.coupling.propagation.algebra
        for tags in algebra.channels_of.values():
            marked[self.numbers[flat(tags)]] = True
        # the rows of a position table that no call reads follow those that one reads
        marked[self._rests] = False
        marked[0] = False
        return marked

    @property
    def _rests(self) -> Array:
        rests = self.analysis.coupling.propagation.algebra.rests
        return self.numbers[np.asarray(rests, np.int64)]

    @cached_property
    def idle(self) -> Array:
        """Marks numbers that say nothing of a position: inputs, constants, parts nobody reads."""
        marked = np.zeros(self.count, bool)
        marked[self._rests] = True
        marked[0] = True
        return marked

    def of(self, tags: Tensor) -> Array:
        """The numbers in a tag tensor, with size 1 along dimensions in which nothing varies."""
        return np.asarray(self.numbers[core(compress(tags)).numpy()])

    @cached_property
    def values(self) -> dict[fx.Node, Array]:
        """The channels in the value of every node, except those of values without channels."""
        tags = self.analysis.coupling.propagation.tags
        found = {node: self.of(each) for node, each in tags.items()}
        return {node: each for node, each in found.items() if each.any()}

    @cached_property
    def weights(self) -> dict[str, list[Array]]:
        """The channels of every parameter's elements, and of the values that they multiply."""
        algebra = self.analysis.coupling.propagation.algebra
        found = {name: [self.of(tags)] for name, tags in algebra.channels_of.items()}
        for read in algebra.reads:
            columns = _placed(self.of(read.columns), algebra.parameter_shapes[read.parameter])
            if columns is not None:
                found[read.parameter].append(columns)
        return found

    @cached_property
    def buffers(self) -> dict[str, Array]:
        """The channels of buffers that follow some, such as running statistics."""
        algebra = self.analysis.coupling.propagation.algebra
        return {name: self.of(tags) for name, tags in algebra.buffers.items()}


def _placed(columns: Array, shape: tuple[int, ...]) -> Array | None:
    """Columns of a weight in the shape of its parameter; None if their place is not known.

    A weight that is computed from the parameter (rows gathered from a table) may have another
    shape; then columns lie along the only dimension of their size.
    """
    if columns.ndim == len(shape) and all(
        a in (1, b) for a, b in zip(columns.shape, shape, strict=True)
    ):
        return columns
    along = [size for size in columns.shape if size > 1]
    if len(along) != 1 or shape.count(along[0]) != 1:
        return None
    return columns.reshape([size if size == along[0] else 1 for size in shape])


def is_pointwise(node: fx.Node) -> bool:
    """Does an operator compute each element from the elements at its position?"""
    return node.op == "call_function" and operator_name(node) in _POINTWISE


def flat(tags: Tensor) -> Array:
    """The channels in a tag tensor."""
    return core(tags).reshape(-1).numpy()


@dataclass(frozen=True)
class Shapes:
    """The sizes of all tensors when only the channels in ``kept`` stay."""

    channels: Channels
    kept: Array

    def positions(self, numbers: Array) -> tuple[Positions, Array]:
        """What stays along each dimension, and the channels that stand against a product of these.

        A channel stands against it when it has to go, while other elements at its positions stay.
        """
        stays, counts = self.kept[numbers], ~self.channels.idle[numbers]
        if stays.all():
            return (None,) * numbers.ndim, np.zeros(0, np.int64)
        along: list[Array | None] = []
        product = np.ones(numbers.shape, bool)
        for dim, size in enumerate(numbers.shape):
            others = tuple(d for d in range(numbers.ndim) if d != dim)
            # positions that hold nothing but inputs and constants stay
            here = (stays & counts).any(axis=others) | ~counts.any(axis=others)
            along.append(None if size == 1 or here.all() else here)
            product &= here.reshape([-1 if d == dim else 1 for d in range(numbers.ndim)])
        wrong = counts & ~stays & (product if product.any() else True)
        return tuple(along), np.unique(numbers[wrong])

    def size(self, shape: Iterable[int], positions: Positions) -> tuple[int, ...]:
        """A shape, cut to positions."""
        return tuple(
            size if here is None else int(here.sum())
            for size, here in zip(shape, positions, strict=True)
        )

    @cached_property
    def guesses(self) -> dict[fx.Node, tuple[int, ...]]:
        """The new shape of every node with channels.

        Of what is computed from parameters alone it is a guess: the columns of a weight are known
        where an input meets it.
        """
        return {
            node: self.size(node.meta["shape"], self.positions(numbers)[0])
            for node, numbers in self.channels.values.items()
        }

    @cached_property
    def nodes(self) -> dict[fx.Node, tuple[int, ...]]:
        """The new shape of every node that depends on an input; ``ANY`` for sizes not known.

        One channel that is expanded to meet many shows nothing of their number.
        """
        live: dict[fx.Node, tuple[int, ...]] = {}
        waiting: set[fx.Node] = set()  # nodes with several results have no shape
        for node in self.channels.analysis.capture.graph.nodes:
            inputs = node.all_input_nodes
            if node.op == "placeholder" or any(n in live or n in waiting for n in inputs):
                if "shape" in node.meta:
                    shape = self.guesses.get(node, node.meta["shape"])
                    unsure = self._expanded(node, live)
                    live[node] = tuple(ANY if d in unsure else n for d, n in enumerate(shape))
                else:
                    waiting.add(node)
        return live

    def _expanded(self, node: fx.Node, live: dict[fx.Node, tuple[int, ...]]) -> set[int]:
        """The dimensions of a value along which it only repeats itself."""
        shape: tuple[int, ...] = node.meta["shape"]
        numbers = self.channels.values.get(node)
        found = set()
        for each in node.all_input_nodes:
            before, after = each.meta.get("shape", ()), live.get(each, ())
            makes = "expand" in str(node.target)
            for back in range(1, min(len(shape), len(before), len(after)) + 1):
                repeats = makes and before[-back] == 1 < shape[-back]
                if repeats or (after[-back] == ANY and before[-back] == shape[-back]):
                    if numbers is None or numbers.shape[-back] == 1:
                        found.add(len(shape) - back)
        return found

    @cached_property
    def parameters(self) -> dict[str, Positions]:
        """What stays of every parameter."""
        return {
            name: _both(self.positions(numbers)[0] for numbers in found)
            for name, found in self.channels.weights.items()
        }

    def groups_of(self, name: str) -> int | None:
        """The groups that a convolution has with the rows that stay; None if that is not known."""
        found, rows = self.channels.weights.get(name, []), self.parameters.get(name, (None,))[0]
        # (out, in / groups, ...): rows of one group read the same columns
        if len(found) < 2 or found[1].ndim < 3 or min(found[1].shape[:2]) == 1:
            return None
        columns = found[1].reshape(*found[1].shape[:2], -1)[..., 0]
        return len(np.unique(columns if rows is None else columns[rows], axis=0))

    @property
    def narrowed(self) -> set[str]:
        """The parameters of which less than all stays."""
        return {
            name
            for name, positions in self.parameters.items()
            if any(here is not None for here in positions)
        }

    @cached_property
    def buffers(self) -> dict[str, Positions]:
        """What stays of every buffer that follows channels."""
        return {name: self.positions(numbers)[0] for name, numbers in self.channels.buffers.items()}

    def irregular(self) -> Array:
        """The channels that make this no product of positions in some tensor."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self._irregular()]))

    def _irregular(self) -> Iterator[Array]:
        seen: set[bytes] = set()
        weights = (each for found in self.channels.weights.values() for each in found)
        for numbers in (*self.channels.values.values(), *weights):
            # residual streams show the same channels at many nodes
            key = repr(numbers.shape).encode() + numbers.tobytes()
            if numbers.size > 1 and key not in seen:
                seen.add(key)
                yield self.positions(numbers)[1]
        for found in self.channels.weights.values():
            yield self._disagreement(found)
        for node in self.channels.values:
            if is_pointwise(node):
                yield from self._smaller_operands(node)

    def _smaller_operands(self, node: fx.Node) -> Iterator[Array]:
        """The channels that must go from an operand with fewer positions than another one.

            attention (2, HEADS, 12, 12) times temperature (HEADS, 1, 1)

        All heads stay when each of them is narrower, so that all temperatures have to.
        """
        inputs = [each for each in node.all_input_nodes if each in self.guesses]
        for back in range(1, len(node.meta["shape"]) + 1):
            sizes = {
                each: self.guesses[each][-back]
                for each in inputs
                if len(each.meta["shape"]) >= back
                and each.meta["shape"][-back] == node.meta["shape"][-back] > 1
            }
            for each, size in sizes.items():
                if size < max(sizes.values()):
                    numbers = self.channels.values[each]
                    yield np.unique(numbers[~self.kept[numbers] & ~self.channels.idle[numbers]])

    def _disagreement(self, found: list[Array]) -> Array:
        """The channels that must go, if the uses of one weight do not agree on where they are."""
        along = [self.positions(numbers)[0] for numbers in found]
        for several in zip(*along, strict=True):
            first, *others = [here for here in several if here is not None] or [None]
            if any(not np.array_equal(first, other) for other in others):
                numbers = np.concatenate([each.ravel() for each in found])
                return np.unique(numbers[~self.kept[numbers] & ~self.channels.idle[numbers]])
        return np.zeros(0, np.int64)


def _both(several: Iterable[Positions]) -> Positions:
    """The positions that stay for all."""
    first, *others = several
    for other in others:
        first = tuple(
            a if b is None else b if a is None else a & b for a, b in zip(first, other, strict=True)
        )
    return first
