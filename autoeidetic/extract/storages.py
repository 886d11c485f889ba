"""Storages: writes through views become values again.

    y = x.clone(); y[:, 2:4].copy_(z)

    captured     flat = reshape(y, [16]);  flat_1 = storage_write(flat, z, [2, 2], [8, 1], 2)
                 y_1 = as_strided(flat_1, [2, 8], [8, 1], 0)
    here         y_1 = cat([y[:, :2], z, y[:, 4:]], 1)

A capture records them as writes to flat memory. Without those, all operators are stock ones,
sizes may vary, and channels can be cut. A flat value is followed as the tensor whose memory it was.
A view of that is a :class:`Block` where slices make it; else its elements are taken one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..capture.aliases import storage_write
from ..capture.graph import Capture

aten = torch.ops.aten
#: The end of a slice that goes up to the end.
_END = 2**63 - 1
#: Sizes, strides and offset of a view.
View = tuple[Sequence[int], Sequence[int], int]


@dataclass(frozen=True)
class Block:
    """A view that slices make: a range of each dimension, and the dimensions that it shows.

    ``order`` has the dimension for each of the view; None for one of size 1 that is inserted.
    Dimensions that are not in it have one position, which is selected.
    """

    ranges: tuple[tuple[int, int, int], ...]  # start, end, step
    order: tuple[int | None, ...]

    @property
    def selected(self) -> list[int]:
        return [dim for dim in range(len(self.ranges)) if dim not in self.order]

    @property
    def shown(self) -> list[int]:
        return [dim for dim in self.order if dim is not None]


def without_storages(capture: Capture) -> None:
    """Rewrite the graph of a capture so that no value is a flat memory."""
    found = _Storages(capture)
    for node in list(capture.graph.nodes):
        if node.op == "call_function":
            found.rewrite(node)
    capture.graph.eliminate_dead_code()


class _Storages:
    """Follows flat values: each is the tensor of another node, which has the same elements."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._tensors: dict[fx.Node, fx.Node] = {}

    def rewrite(self, node: fx.Node) -> None:
        """Replace a node that reads or writes memory."""
        at = _Place(self.capture, node)
        if node.target is aten.copy.default:
            node.replace_all_uses_with(_copied(at, *node.args[:2]))
        elif node.target is storage_write:
            flat, value, *view = node.args
            self._tensors[node] = self._written(at, flat, value, tuple(view))  # type: ignore[arg-type]
        elif node.target is aten.as_strided.default and self._is_plain(node.args[0]):
            source = self._tensor(node.args[0])
            size, stride, offset = (*node.args[1:], None)[:3]
            made = _read(at, source, (size, stride, offset or 0))  # type: ignore[arg-type]
            node.replace_all_uses_with(made)

    def _is_plain(self, source: Any) -> bool:
        """Do the elements of a value lie in memory as in the value?"""
        if source in self._tensors:
            return True
        shape, (strides, offset) = source.meta["shape"], source.meta["layout"]
        return not offset and tuple(strides) == _strides(shape)

    def _tensor(self, flat: Any) -> fx.Node:
        """The tensor whose elements a flat value has."""
        if flat not in self._tensors:
            if flat.target is not aten.reshape.default or len(flat.meta["shape"]) != 1:
                return flat
            flat = flat.args[0]
        return self._tensors.get(flat, flat)

    def _written(self, at: _Place, flat: fx.Node, value: fx.Node, view: View) -> fx.Node:
        size, stride, _ = view
        tensor = self._tensor(flat)
        if flat.op == "get_attr" and math.prod(size) == flat.meta["shape"][0]:
            # memory of which all is written; the tensor has its dimensions in another order
            order = sorted(range(len(size)), key=lambda dim: (-stride[dim], dim))
            if _strides([size[dim] for dim in order]) == tuple(stride[dim] for dim in order):
                return at.permuted(value, order)
        return _put(at, tensor, value, view)


def _copied(at: _Place, into: Any, value: Any) -> fx.Node:
    """The result of ``into.copy_(value)``."""
    if value.meta["dtype"] != into.meta["dtype"]:
        kind = {"dtype": into.meta["dtype"]}
        value = at.new(aten._to_copy.default, (value,), value.meta["shape"], kind)
    if value.meta["shape"] != into.meta["shape"]:
        shape = into.meta["shape"]
        value = at.new(aten.expand.default, (value, list(shape)), shape)
    return value


# -- views -----------------------------------------------------------------------------------------


def block_of(shape: Sequence[int], view: View) -> Block | None:
    """The slices of a contiguous tensor that make a view of it; None where none do.

    >>> block_of([2, 8], ([2, 2], [8, 1], 2))
    Block(ranges=((0, 2, 1), (2, 4, 1)), order=(0, 1))
    """
    size, stride, offset = view
    strides = _strides(shape)
    starts = [offset // step % count for step, count in zip(strides, shape, strict=True)]
    ranges = [(start, start + 1, 1) for start in starts]
    order: list[int | None] = []
    for count, step in zip(size, stride, strict=True):
        # the dimension that has this stride, or the largest part of it
        fits = [
            dim
            for dim, own in enumerate(strides)
            if dim not in order
            and step
            and step % own == 0
            and starts[dim] + (count - 1) * (step // own) < shape[dim]
            and (shape[dim] > 1 or step == own)
        ]
        dim = max(fits, key=lambda dim: (strides[dim], shape[dim]), default=None)
        order.append(dim)
        if dim is not None:
            every = step // strides[dim] if count > 1 else 1
            ranges[dim] = (starts[dim], starts[dim] + (count - 1) * every + 1, every)
    found = Block(tuple(ranges), tuple(order))
    numbered = torch.arange(math.prod(shape))
    if not _shows(found, numbered.view(tuple(shape)), numbered.as_strided(size, stride, offset)):
        return None
    return found


def _shows(block: Block, numbered: Tensor, wanted: Tensor) -> bool:
    for dim, (start, end, step) in enumerate(block.ranges):
        numbered = numbered[(slice(None),) * dim + (slice(start, end, step),)]
    numbered = numbered.permute([*block.selected, *block.shown])
    # [1, ..., shown] -> [shown], and dimensions of size 1 between them
    numbered = numbered.reshape(numbered.shape[len(block.selected) :])
    for dim, shown in enumerate(block.order):
        numbered = numbered.unsqueeze(dim) if shown is None else numbered
    return numbered.shape == wanted.shape and torch.equal(numbered, wanted)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _rows(shape: Sequence[int], view: View) -> tuple[int, Tensor]:
    """Rows of memory (inputs of a batch) in which a view shows the same elements, and those."""
    size, stride, offset = view
    numbered = torch.arange(math.prod(shape))
    rows = shape[0] if shape else 1
    shown = numbered.as_strided(size, stride, offset)
    if size and rows > 1 and size[0] == rows:
        width = len(numbered) // rows
        own = shown.reshape(rows, -1) - width * torch.arange(rows)[:, None]
        if bool((own == own[:1]).all()) and bool(((own >= 0) & (own < width)).all()):
            return rows, own[0]
    return 1, shown.reshape(-1)


# -- reading and writing ---------------------------------------------------------------------------


def _read(at: _Place, tensor: fx.Node, view: View) -> fx.Node:
    """A view of a tensor's memory."""
    shape = tensor.meta["shape"]
    block = block_of(shape, view)
    if block is None:
        rows, places = _rows(shape, view)
        taken = at.new(
            aten.index_select.default,
            (at.shaped(tensor, (rows, -1)), 1, at.constant(places)),
            (rows, len(places)),
        )
        return at.shaped(taken, tuple(view[0]))
    for dim, (start, end, step) in enumerate(block.ranges):
        if dim in block.order:
            tensor = at.sliced(tensor, dim, start, end, step)
    for dim in reversed(block.selected):
        left = [n for d, n in enumerate(tensor.meta["shape"]) if d != dim]
        tensor = at.new(aten.select.int, (tensor, dim, block.ranges[dim][0]), left)
    shown = block.shown
    tensor = at.permuted(tensor, [sorted(shown).index(dim) for dim in shown])
    for dim, each in enumerate(block.order):
        if each is None:
            tensor = at.unsqueezed(tensor, dim)
    return tensor


def _put(at: _Place, tensor: fx.Node, value: fx.Node, view: View) -> fx.Node:
    """A tensor after a value was written through a view of its memory."""
    shape = tensor.meta["shape"]
    block = block_of(shape, view)
    if block is None:
        rows, places = _rows(shape, view)
        written = at.new(
            aten.index_copy.default,
            (at.shaped(tensor, (rows, -1)), 1, at.constant(places), at.shaped(value, (rows, -1))),
            (rows, math.prod(shape) // rows),
        )
        return at.shaped(written, shape)
    for dim in reversed(range(len(block.order))):
        if block.order[dim] is None:
            left = [n for d, n in enumerate(value.meta["shape"]) if d != dim]
            value = at.new(aten.select.int, (value, dim, 0), left)
    shown = block.shown
    value = at.permuted(value, [shown.index(dim) for dim in sorted(shown)])
    for dim in block.selected:
        value = at.unsqueezed(value, dim)
    return _put_block(at, tensor, value, block.ranges, 0)


def _put_block(
    at: _Place, tensor: fx.Node, value: fx.Node, ranges: Sequence[tuple[int, int, int]], dim: int
) -> fx.Node:
    """Replace ranges of a tensor, from a dimension on."""
    shape = tensor.meta["shape"]
    if dim == len(shape):
        return value
    start, end, step = ranges[dim]
    inner = at.sliced(tensor, dim, start, end, step)
    inner = _put_block(at, inner, value, ranges, dim + 1)
    if step > 1:
        arguments = (tensor, inner, dim, start, end, step)
        return at.new(aten.slice_scatter.default, arguments, shape)
    parts = [inner]
    if start > 0:
        parts.insert(0, at.sliced(tensor, dim, 0, start, 1))
    if end < shape[dim]:
        parts.append(at.sliced(tensor, dim, end, shape[dim], 1))
    return inner if len(parts) == 1 else at.new(aten.cat.default, (parts, dim), shape)


class _Place:
    """Writes nodes before another one, as if they came from the same line."""

    def __init__(self, capture: Capture, origin: fx.Node) -> None:
        self.capture = capture
        self.origin = origin

    def new(
        self, target: Callable[..., Any], args: Any, shape: Sequence[int], kwargs: Any = None
    ) -> fx.Node:
        with self.capture.graph.inserting_before(self.origin):
            node = self.capture.graph.call_function(target, tuple(args), kwargs or {})
        operand = args[0][0] if isinstance(args[0], list) else args[0]
        meta = {key: self.origin.meta[key] for key in ("module", "line", "scope")}
        kind = (kwargs or {}).get("dtype", operand.meta["dtype"])
        node.meta.update(meta, shape=tuple(shape), dtype=kind, layout=(_strides(shape), 0))
        return node

    def constant(self, value: Tensor) -> fx.Node:
        constants = self.capture.constants
        name = f"_constant_{len(constants)}"
        constants[name] = value
        with self.capture.graph.inserting_before(self.origin):
            node = self.capture.graph.create_node("get_attr", name, name=name)
        node.meta.update(module="", line="", scope=(), const=value)
        node.meta.update(shape=tuple(value.shape), dtype=value.dtype, layout=(value.stride(), 0))
        return node

    def sliced(self, tensor: fx.Node, dim: int, start: int, end: int, step: int) -> fx.Node:
        shape = list(tensor.meta["shape"])
        if (start, step) == (0, 1) and end == shape[dim]:
            return tensor
        # open where it goes to the end: then the number does not depend on a size
        last = _END if end == shape[dim] else end
        arguments = (tensor, dim, start, last, step) if step > 1 else (tensor, dim, start, last)
        shape[dim] = -(-(end - start) // step)
        return self.new(aten.slice.Tensor, arguments, shape)

    def permuted(self, tensor: fx.Node, order: Sequence[int]) -> fx.Node:
        if list(order) == sorted(order):
            return tensor
        shape = [tensor.meta["shape"][dim] for dim in order]
        return self.new(aten.permute.default, (tensor, list(order)), shape)

    def unsqueezed(self, tensor: fx.Node, dim: int) -> fx.Node:
        shape = list(tensor.meta["shape"])
        shape.insert(dim, 1)
        return self.new(aten.unsqueeze.default, (tensor, dim), shape)

    def shaped(self, tensor: fx.Node, shape: Sequence[int]) -> fx.Node:
        count = math.prod(tensor.meta["shape"])
        known = [size for size in shape if size != -1]
        sizes = [count // max(math.prod(known), 1) if size == -1 else size for size in shape]
        return self.new(aten.reshape.default, (tensor, list(shape)), sizes)
