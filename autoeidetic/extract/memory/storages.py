"""Storages: writes through views become values again.

    y = x.clone(); y[:, 2:4].copy_(z)

    captured     flat = reshape(y, [16]);  flat_1 = storage_write(flat, z, [2, 2], [8, 1], 2)
                 y_1 = as_strided(flat_1, [2, 8], [8, 1], 0)
    here         y_1 = cat([y[:, :2], z, y[:, 4:]], 1)

A capture records them as writes to flat memory. Without those, all operators are stock ones,
sizes may vary, and channels can be cut. A flat value is followed as the tensor whose memory it was.
A view of that is a block (:mod:`.views`) where slices make it; else its elements are taken one by
one. Memory with gaps is followed as a tensor that has zeros there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ...capture.aliases import storage_write
from ...capture.graph import Capture
from .views import View, block_of, elements_of, index_of, rooms_of, strides_of

aten = torch.ops.aten
#: The end of a slice that goes up to the end.
_END = 2**63 - 1


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
        return not offset and tuple(strides) == strides_of(shape)

    def _tensor(self, flat: Any) -> fx.Node:
        """The tensor whose elements a flat value has."""
        if flat not in self._tensors:
            if flat.target is not aten.reshape.default or len(flat.meta["shape"]) != 1:
                return flat
            flat = flat.args[0]
        return self._tensors.get(flat, flat)

    def _written(self, at: _Place, flat: fx.Node, value: fx.Node, view: View) -> fx.Node:
        laid_out = self._laid_out(at, value, view, flat) if flat.op == "get_attr" else None
        return laid_out or _put(at, self._tensor(flat), value, view)

    def _laid_out(self, at: _Place, value: fx.Node, view: View, flat: fx.Node) -> fx.Node | None:
        """Memory that a value is the first to be written to, as a tensor; None where none fits.

        The tensor has the value's dimensions in the order of memory, and zeros in its gaps.
        """
        size, stride, offset = view
        found, count = rooms_of(size, stride), flat.meta["shape"][0]
        if found is None or offset or math.prod(found[1]) < count:
            return None
        if math.prod(size) < count and bool(self.capture.constants[str(flat.target)].any()):
            return None
        order, rooms = found
        value = at.permuted(value, order)
        if rooms[-1] > 1:
            value = at.unsqueezed(value, len(order))
        return at.padded(value, rooms if rooms[-1] > 1 else rooms[:-1])


def _copied(at: _Place, into: Any, value: Any) -> fx.Node:
    """The result of ``into.copy_(value)``."""
    if value.meta["dtype"] != into.meta["dtype"]:
        kind = {"dtype": into.meta["dtype"]}
        value = at.new(aten._to_copy.default, (value,), value.meta["shape"], kind)
    if value.meta["shape"] != into.meta["shape"]:
        shape = into.meta["shape"]
        value = at.new(aten.expand.default, (value, list(shape)), shape)
    return value


# -- reading and writing ---------------------------------------------------------------------------


def _read(at: _Place, tensor: fx.Node, view: View) -> fx.Node:
    """A view of a tensor's memory."""
    shape = tensor.meta["shape"]
    block = block_of(shape, view)
    if block is None:
        first, behind, places = index_of(shape, elements_of(shape, view))
        tensor = at.flattened(tensor, first, behind)
        left = [*shape[:first], len(places), *shape[behind:]]
        arguments = (tensor, first, at.constant(places))
        return at.shaped(at.new(aten.index_select.default, arguments, left), view[0])
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
    return tensor if block.size == tuple(view[0]) else at.shaped(tensor, view[0])


def _put(at: _Place, tensor: fx.Node, value: fx.Node, view: View) -> fx.Node:
    """A tensor after a value was written through a view of its memory."""
    shape = tensor.meta["shape"]
    block = block_of(shape, view)
    if block is None:
        return _put_places(at, tensor, value, *index_of(shape, elements_of(shape, view)))
    if block.size != tuple(view[0]):
        value = at.shaped(value, block.size)
    for dim in reversed(range(len(block.order))):
        if block.order[dim] is None:
            left = [n for d, n in enumerate(value.meta["shape"]) if d != dim]
            value = at.new(aten.select.int, (value, dim, 0), left)
    shown = block.shown
    value = at.permuted(value, [shown.index(dim) for dim in sorted(shown)])
    for dim in block.selected:
        value = at.unsqueezed(value, dim)
    return _put_block(at, tensor, value, block.ranges, 0)


def _put_places(
    at: _Place, tensor: fx.Node, value: fx.Node, first: int, behind: int, places: Tensor
) -> fx.Node:
    """Replace the places of an index along some dimensions of a tensor."""
    shape = tensor.meta["shape"]
    tensor = at.flattened(tensor, first, behind)
    flat = tensor.meta["shape"]
    value = at.shaped(value, (*shape[:first], len(places), *shape[behind:]))
    if len(flat) == 1:  # the places of a batch may be a progression, which holds for any size
        made = at.new(aten.index_copy.default, (tensor, 0, at.constant(places), value), flat)
    else:  # of channels, cat and index_select leave those that are needed
        both = [*shape[:first], flat[first] + len(places), *shape[behind:]]
        joined = at.new(aten.cat.default, ([tensor, value], first), both)
        chosen = torch.arange(flat[first])
        chosen[places] = flat[first] + torch.arange(len(places))
        made = at.new(aten.index_select.default, (joined, first, at.constant(chosen)), flat)
    return made if flat == shape else at.shaped(made, shape)


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
        node.meta.update(meta, shape=tuple(shape), dtype=kind, layout=(strides_of(shape), 0))
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

    def padded(self, tensor: fx.Node, rooms: Sequence[int]) -> fx.Node:
        """Zeros behind a tensor along each dimension, up to a shape."""
        more = [room - size for room, size in zip(rooms, tensor.meta["shape"], strict=True)]
        if not any(more):
            return tensor
        # from the last dimension on, zeros before and behind
        padding = [number for each in reversed(more) for number in (0, each)]
        return self.new(aten.constant_pad_nd.default, (tensor, padding), rooms)

    def flattened(self, tensor: fx.Node, first: int, behind: int) -> fx.Node:
        """Several dimensions of a tensor as one; one where there is none."""
        shape = tensor.meta["shape"]
        if behind - first == 1:
            return tensor
        return self.shaped(tensor, (*shape[:first], -1, *shape[behind:]))

    def shaped(self, tensor: fx.Node, shape: Sequence[int]) -> fx.Node:
        count = math.prod(tensor.meta["shape"])
        known = [size for size in shape if size != -1]
        sizes = [count // max(math.prod(known), 1) if size == -1 else size for size in shape]
        return self.new(aten.reshape.default, (tensor, list(shape)), sizes)
