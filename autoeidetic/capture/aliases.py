"""Aliases: the node that holds the value of a tensor, also after writes through views of it.

A graph has no memory, only values. So a storage that is written through a view becomes a value
itself: a flat tensor, of which each write makes a new version.

    x = torch.zeros(2, 3)       %x    = zeros
    row = x[0]                  %row  = select(%x, 0, 0)
    row.add_(y)                 %new  = add(%row, %y)
                                %flat = storage_write(reshape(%x, [6]), %new, [3], [1], 0)
    x.sum()                     %x2   = as_strided(%flat, [2, 3], [3, 1], 0)
                                        sum(%x2)

Versions are counted: a tensor whose node includes fewer writes than its storage has seen is read
from the flat value again when it is next used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..common.trees import convert
from .call_stack import CallStack
from .graph_writer import GraphWriter, describe
from .names import Names


def storage_write(
    storage: Tensor, value: Tensor, size: list[int], stride: list[int], offset: int
) -> Tensor:
    """The flat ``storage`` after ``value`` was written through a view of it."""
    written = storage.clone()
    written.as_strided(size, stride, offset).copy_(value)
    return written


class Aliases:
    """Maps tensors, by identity, to nodes, and storages to their content."""

    def __init__(self, writer: GraphWriter, names: Names, stack: CallStack) -> None:
        # by id(tensor), not by storage: two views of one storage are two values
        self.node_of: dict[int, fx.Node] = {}
        self.writing_calls: set[int] = set()  # calls that wrote to what existed before them
        self._writer = writer
        self._names = names
        self._stack = stack
        self._alive: list[Tensor] = []  # keeps ids unique for the time of the run
        self._parameter_storages = {storage_of(p): p for p in names.parameters.values()}
        self._own_storages: set[int] = set()  # made in this run, so they may be written for real
        self._live_storages: set[int] = set()  # made by an operator that is in the graph
        self._writes: dict[int, int] = {}  # storage -> how often it was written
        self._seen_writes: dict[int, int] = {}  # tensor -> how many of them its node includes
        self._flat: dict[int, fx.Node] = {}  # storage -> its content after the last write
        self._base: dict[int, Tensor] = dict(self._parameter_storages)  # -> what made it
        self._birth: dict[int, tuple[int, ...]] = {}  # storage -> module calls around its making

    # -- tensors and nodes ---------------------------------------------------------------

    def is_live(self, tensor: Tensor) -> bool:
        """Does its value depend on an input or a parameter?"""
        if id(tensor) in self.node_of or self._names.is_parameter(tensor):
            return True
        storage = storage_of(tensor)
        return (
            storage in self._writes
            or storage in self._parameter_storages
            or storage in self._live_storages  # an alias that no operator made: nn.Parameter(x)
        )

    def is_own(self, tensor: Tensor) -> bool:
        """Was its memory made in this run?"""
        return storage_of(tensor) in self._own_storages

    def node(self, tensor: Tensor) -> fx.Node:
        """The node that holds this tensor's value now."""
        # most models write nothing in place, and then no storage needs to be looked up
        if self._writes:
            writes = self._writes.get(storage_of(tensor), 0)
            if writes and self._seen_writes.get(id(tensor), 0) != writes:
                return self._view_of_storage(tensor)
        known = self.node_of.get(id(tensor))
        if known is not None:
            return known
        name = self._names.parameter_names.get(id(tensor))
        if name is None:
            storage = storage_of(tensor)  # a view kept as an attribute, or an unseen alias
            if storage in self._parameter_storages or storage in self._live_storages:
                return self._view_of_storage(tensor)
            return self._writer.constant(tensor)
        node = self._writer.attribute(name, tensor)
        self.node_of[id(tensor)] = node
        return node

    def structure(self, value: Any) -> Any:
        """The same nesting with the current nodes of tensors, and None for other leaves."""
        if isinstance(value, Tensor):
            return self.node(value) if id(value) in self.node_of else None
        if isinstance(value, (tuple, list)):
            return tuple(self.structure(item) for item in value)
        if isinstance(value, dict):
            return {key: self.structure(item) for key, item in value.items()}
        return None

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> fx.Node:
        """A node that calls an operator on the current values of tensors."""
        node_args = convert(args, Tensor, self.node)
        node_kwargs = convert(kwargs, Tensor, self.node)
        return self._writer.call(func, node_args, node_kwargs)

    def bind(self, tensor: Tensor, node: fx.Node) -> None:
        """Register a new tensor as the value of a node."""
        describe(node, tensor)
        self._alive.append(tensor)
        storage = storage_of(tensor)
        # the first tensor in a storage is its base: later ones are views of it
        if storage not in self._base:
            self._made(storage, tensor)
            self._live_storages.add(storage)
        self.rebind(tensor, node)

    def rebind(self, tensor: Tensor, node: fx.Node) -> None:
        """Register a known tensor as the value of another node."""
        self.node_of[id(tensor)] = node
        if self._writes:
            self._seen_writes[id(tensor)] = self._writes.get(storage_of(tensor), 0)

    def add_constant(self, tensor: Tensor, sources: list[Tensor]) -> None:
        """Note a constant that was computed from others; it may share their memory."""
        self._alive.append(tensor)
        if any(tensor is source for source in sources):
            return
        storage = storage_of(tensor)
        if not any(storage_of(source) == storage for source in sources):
            self._made(storage, tensor)

    def _made(self, storage: int, tensor: Tensor) -> None:
        self._own_storages.add(storage)
        self._base[storage] = tensor
        self._birth[storage] = self._stack.scope

    # -- writes --------------------------------------------------------------------------

    def before_write(self, target: Tensor) -> fx.Node | None:
        """The content of the storage under a view; None for a tensor that covers its storage."""
        return self._flat_node(target) if not _covers_storage(target) else None

    def written(self, target: Tensor, node: fx.Node, before: fx.Node | None) -> None:
        """Register a write: ``target`` now has the value of ``node``.

        ``before`` is the result of :meth:`before_write`.
        """
        storage = storage_of(target)
        # calls that are running now but were not when the memory was made: it is not theirs
        self.writing_calls.update(set(self._stack.scope) - set(self._birth.get(storage, ())))
        if before is not None:
            self._flat[storage] = self._after_write(before, node, target)
        else:  # everything in the storage was overwritten: the target is its new base
            self._flat.pop(storage, None)
            self._base[storage] = target
        self._writes[storage] = self._writes.get(storage, 0) + 1
        self.rebind(target, node)

    def _after_write(self, before: fx.Node, value: fx.Node, target: Tensor) -> fx.Node:
        # size, stride and offset of the view say which elements of the flat value are new
        node = self.call(storage_write, (before, value, *_view(target)), {})
        node.meta.update({key: before.meta[key] for key in ("shape", "dtype", "layout")})
        return node

    # -- storages as flat values -----------------------------------------------------------

    def from_storage(
        self, tensor: Tensor, size: Any, stride: Any, storage_offset: Any = None
    ) -> Any:
        """Arguments of ``as_strided`` on the storage, which it reads even beyond a view."""
        # a tensor that covers its storage holds all that as_strided can reach
        if _covers_storage(tensor) or storage_of(tensor) not in self._live_storages:
            return tensor, size, stride, storage_offset
        start = tensor.storage_offset() if storage_offset is None else storage_offset
        return self._flat_node(tensor), size, stride, start

    def _view_of_storage(self, tensor: Tensor) -> fx.Node:
        """Read a tensor from the present content of the storage under it."""
        view = _view(tensor)
        flat = self._flat_node(tensor)
        node = self.call(torch.ops.aten.as_strided.default, (flat, *view), {})
        describe(node, tensor)
        self.rebind(tensor, node)
        self._alive.append(tensor)
        return node

    def _flat_node(self, tensor: Tensor) -> fx.Node:
        """The whole storage under a tensor as a flat value."""
        storage = storage_of(tensor)
        node = self._flat.get(storage)
        if node is not None:
            return node
        base = self._base.get(storage)
        if base is None or not _covers_storage(base):
            base = self._whole_storage(tensor, base)
        # [...] contiguous -> [numel], element i of the value is element i of the memory
        size = [base.numel()]
        node = self.call(
            torch.ops.aten.reshape.default, (self.node_of.get(id(base), base), size), {}
        )
        node.meta.update(shape=tuple(size), dtype=base.dtype, layout=((1,), 0))
        self._flat[storage] = node
        return node

    def _whole_storage(self, tensor: Tensor, base: Tensor | None) -> Tensor:
        """A contiguous stand-in for a storage that no known tensor covers."""
        # [count]: every element of the memory, also those that no view shows
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = tensor.as_strided([count], [1], 0)
        if base is not None and id(base) in self.node_of:  # e.g. channels-last activations
            # base [N, C, H, W] with strides (H*W*C, 1, W*C, C): lay it out as its storage has it
            zeros = torch.zeros(count, dtype=tensor.dtype)
            flat = self.call(storage_write, (zeros, self.node_of[id(base)], *_view(base)), {})
            flat.meta.update(shape=(count,), dtype=tensor.dtype, layout=((1,), 0))
            self.node_of[id(whole)] = flat
        else:
            whole = whole.detach().clone()
        self._alive.append(whole)
        return whole


def storage_of(tensor: Tensor) -> int:
    """The identity of the memory under a tensor."""
    # not data_ptr(): meta tensors have no address, and all of them would be one storage
    return tensor.untyped_storage()._cdata


def _view(tensor: Tensor) -> tuple[list[int], list[int], Any]:
    """(size, stride, offset): which elements of its storage a tensor shows."""
    return list(tensor.shape), list(tensor.stride()), tensor.storage_offset()


def _covers_storage(tensor: Tensor) -> bool:
    if not tensor.is_contiguous() or not tensor.numel():  # an empty view would cover anything
        return False
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
