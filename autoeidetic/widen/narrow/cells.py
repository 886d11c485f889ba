"""Cells and blocks: the channels of a model by what a narrow copy has to treat alike.

cell      channels with elements in the same parameters that occur in the same values: the
          stream of a stage, the queries of an attention, one half of a split
block     the part of a cell that lies in one group of a convolution, or in one attention head

queries (2, 197, 6, 64)      one cell of 384 channels, six blocks of 64
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import fx

from ...capture.graph import operator_name
from .shapes import Array, Channels, is_pointwise


@dataclass(frozen=True)
class Cells:
    """The cells and blocks of a model's channels."""

    channels: Channels

    @cached_property
    def members(self) -> list[Array]:
        """The channels of each cell, in the order of their first places: rows of a layer, heads."""
        signature, place = self._occurrences()
        movable = np.flatnonzero(self.channels.owning & ~self.fixed)
        movable = movable[np.argsort(place[movable], kind="stable")]
        signature = signature[movable]
        order = np.argsort(signature, kind="stable")
        starts = np.flatnonzero(np.diff(signature[order], prepend=signature[order][:1] + 1))
        return [part for part in np.split(movable[order], starts[1:]) if len(part)]

    @cached_property
    def fixed(self) -> Array:
        """Marks channels of output layers, of unused parameters, and those that meet an input."""
        marked = self._beside_inputs()
        for name, parameter in self.channels.analysis.plan.parameters.items():
            if parameter.head or not parameter.used:
                marked[np.unique(self.channels.weights[name][0])] = True
        return marked

    def _beside_inputs(self) -> Array:
        """Marks channels that are combined with an input element by element: its size stays."""
        marked = np.zeros(self.channels.count, bool)
        values = self.channels.values
        plain: set[fx.Node] = set()  # values that depend on an input and on no parameter
        for node in self.channels.analysis.capture.graph.nodes:
            inputs = node.all_input_nodes
            if node.op == "placeholder" or any(each in plain for each in inputs):
                if node not in values:
                    plain.add(node)
                elif is_pointwise(node):
                    for each in (each for each in inputs if each in plain):
                        marked[_along(values[node], each.meta["shape"])] = True
        return marked

    def _occurrences(self) -> tuple[Array, Array]:
        """A number for each channel, the same for those in the same tensors; its first place."""
        random = np.random.default_rng(0)
        total = np.zeros(self.channels.count, np.uint64)
        parameters = [found[0] for found in self.channels.weights.values()]
        seen: set[bytes] = set()
        place = np.full(self.channels.count, -1, np.int64)
        for number, numbers in enumerate((*parameters, *self.channels.values.values())):
            found, first, counts = np.unique(numbers, return_index=True, return_counts=True)
            owning = self.channels.owning[found]
            found, first, times = found[owning], first[owning], counts[owning].astype(np.uint64)
            new = place[found] < 0
            place[found[new]] = (number << 40) + first[new]
            key = found.tobytes() + times.tobytes()
            if key not in seen:
                seen.add(key)
                with np.errstate(over="ignore"):
                    total[found] += random.integers(1, 1 << 63, dtype=np.uint64) * times
        return total, place

    @property
    def groups(self) -> Array:
        """The group of a convolution that each channel passes through; 0: none."""
        return self._groups[0]

    def group_width(self, channel: int) -> int:
        """The smaller of the numbers of inputs and outputs in the group of a channel."""
        number = abs(int(self.groups[channel]))
        return next((width for start, width in reversed(self._groups[1]) if start < number), 0)

    @cached_property
    def _groups(self) -> tuple[Array, list[tuple[int, int]]]:
        """Numbers of groups, and the width of those from each number on.

        Numbers below 0 are groups with one input channel (depthwise) and several output channels.
        """
        widths: list[tuple[int, int]] = []
        found = np.zeros(self.channels.count, np.int64)
        for rows, *reads in self.channels.weights.values():
            for columns in reads:
                # (out, in / groups, ...); a dense layer has the same columns in all rows
                if columns.ndim < 3 or columns.shape[0] == 1:
                    continue
                inputs = columns.reshape(*columns.shape[:2], -1)[..., 0]
                _, group = np.unique(inputs, axis=0, return_inverse=True)
                group = group.reshape(-1) + 1
                outputs = rows.reshape(len(rows), -1)[:, 0]
                if len(outputs) != len(group) or group.max() == 1:
                    continue
                start = int(np.abs(found).max())
                if inputs.shape[1] > 1:
                    _number(found, inputs, np.broadcast_to(group[:, None], inputs.shape), start)
                    _number(found, outputs, group, start)
                    widths.append((start, min(inputs.shape[1], len(group) // int(group.max()))))
                elif group.max() < len(group):
                    _number(found, outputs, -group, -start)
                    widths.append((start, 1))
        return found, widths

    @cached_property
    def heads(self) -> Array:
        """The attention head of each channel, or another set of channels that are mixed; 0: none.

        A product of two values makes derived channels, which require those that they are made of.
        Derived channels of one head are connected with each other.
        """
        from scipy.sparse import coo_matrix  # it takes long to import
        from scipy.sparse.csgraph import connected_components

        owning, count = self.channels.owning, self.channels.count
        edges = [np.zeros((2, 0), np.int64), *self._mixtures()]
        left, right = np.concatenate(edges, axis=1)
        between = ~owning[left] & ~owning[right]
        graph = coo_matrix(
            (np.ones(int(between.sum()), bool), (left[between], right[between])),
            shape=(count, count),
        )
        component = connected_components(graph, directed=False)[1]
        outer = np.concatenate([left[owning[left]], right[owning[right]]])
        inner = np.concatenate([right[owning[left]], left[owning[right]]])
        pairs = np.unique(outer * count + component[inner])
        outer, inner = pairs // count, pairs % count
        outer, inner = outer[~owning[inner]], inner[~owning[inner]]
        key = np.random.default_rng(1).integers(1, 1 << 62, count)
        found = np.zeros(count, np.int64)
        with np.errstate(over="ignore"):
            np.add.at(found, outer, key[inner])
        return found

    def _mixtures(self) -> Iterator[Array]:
        """The edges of requires that are not of a norm, which mixes channels of all heads."""
        propagation = self.channels.analysis.coupling.propagation
        numbers = self.channels.numbers
        for event in propagation.algebra.channels.events:
            if event.kind == "requires" and "norm" not in operator_name(
                propagation.nodes[event.node]
            ):
                edges = np.stack([numbers[event.left], numbers[event.right]])
                yield edges[:, (edges != 0).all(axis=0) & (edges[0] != edges[1])]

    @cached_property
    def grids(self) -> Array:
        """The row of each channel, where all of its cell lie in a grid: (batch, ROW, COLUMN)."""
        cell_of = self.cell_of
        found = np.zeros(self.channels.count, np.int64)
        done: set[int] = set()
        for numbers in self.channels.values.values():
            if sum(size > 1 for size in numbers.shape) < 2:
                continue
            inside, first = np.unique(numbers, return_index=True)
            for cell in set(np.unique(cell_of[inside]).tolist()) - done - {0}:
                members = self.members[cell - 1]
                if (cell_of[inside] == cell).sum() == len(members):
                    where = first[np.searchsorted(inside, members)]
                    rows = _rows(np.stack(np.unravel_index(where, numbers.shape), axis=1))
                    if rows is not None:
                        done.add(cell)
                        found[members] = rows + 1
        return found

    def blocks(self, members: Array) -> tuple[list[Array], bool]:
        """The blocks of a cell, and whether whole ones may go."""
        for of, are_heads in ((self.groups, False), (self.heads, True), (self.grids, True)):
            labels = of[members]
            _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
            sizes = np.bincount(inverse.reshape(-1))
            # blocks of one channel (a gate for each), or of different sizes, are no blocks
            if len(sizes) > 1 and sizes.min() > 1 and sizes.min() == sizes.max():
                order = np.argsort(first)
                parts = [members[inverse.reshape(-1) == each] for each in order]
                return parts, are_heads or bool(labels.max() < 0)
        return [members], False

    @cached_property
    def partners(self) -> Array:
        """The one channel that each channel meets in many-to-one, such as a gate; 0: none.

        A stream may meet channels of several cells; those of the first one count.
        """
        owning = self.channels.owning
        edges = np.concatenate([np.zeros((2, 0), np.int64), *self._mixtures()], axis=1)
        left, right = np.unique(edges[:, owning[edges].all(axis=0)], axis=1)
        cell = self.cell_of[right]
        _, pair, counts = np.unique(
            np.stack([left, cell]), axis=1, return_inverse=True, return_counts=True
        )
        single = (counts[pair.reshape(-1)] == 1) & (cell > 0)
        left, right, cell = left[single], right[single], cell[single]
        order = np.argsort(-cell, kind="stable")  # the first cell is written last
        found = np.zeros(self.channels.count, np.int64)
        found[left[order]] = right[order]
        return found

    @cached_property
    def cell_of(self) -> Array:
        """The number of each channel's cell, from 1; 0: none."""
        found = np.zeros(self.channels.count, np.int64)
        for number, members in enumerate(self.members, 1):
            found[members] = number
        return found

    @cached_property
    def head_counts(self) -> set[int]:
        """The different numbers of heads in the model."""
        found = (self.blocks(members) for members in self.members)
        return {len(blocks) for blocks, may_go in found if may_go}

    @cached_property
    def block_sizes(self) -> set[int]:
        """The different sizes of blocks in the model."""
        return {len(self.blocks(members)[0][0]) for members in self.members}


def _along(numbers: Array, shape: tuple[int, ...]) -> Array:
    """The channels in a value that vary along a dimension in which another one is not expanded."""
    pairs = zip(reversed(numbers.shape), reversed(shape), strict=False)
    meets = any(here > 1 and there > 1 for here, there in pairs)
    return np.unique(numbers) if meets else np.zeros(0, np.int64)


def _number(found: Array, channels: Array, blocks: Array, start: int) -> None:
    """Number channels by their blocks, if they have no number yet and are in one block each."""
    pairs = np.unique(np.stack([channels.ravel(), blocks.ravel()]), axis=1)
    if not found[pairs[0]].any() and len(np.unique(pairs[0])) == pairs.shape[1]:
        found[pairs[0]] = pairs[1] + start


def _rows(at: Array) -> Array | None:
    """The outer one of two coordinates that make a full grid; None if they make none."""
    moving = [column for column in at.T if column.min() != column.max()]
    if len(moving) != 2:
        return None
    sizes = [len(np.unique(column)) for column in moving]
    if sizes[0] * sizes[1] != len(at) or len(np.unique(np.stack(moving), axis=1).T) != len(at):
        return None
    for column in moving:
        if (np.diff(column) >= 0).all():
            return column
    return None
