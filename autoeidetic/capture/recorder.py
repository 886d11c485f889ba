"""The recorder: which tensor is which node, while the model runs.

Tensors are recognised by identity. Writes are recorded as their functional twins; a write
through a view is followed by the strides of the view, so that every other view of the same
storage sees it.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..common.trees import convert, leaves
from ..errors import CaptureError, EnforcementError, Place
from . import whole_operators
from .decisions import content, decides, outcome
from .graph import ABSENT, Capture, ModuleCall

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_HERE = f"{Path(__file__).parents[1]}{os.sep}"
_READS_DATA = {"_local_scalar_dense", "nonzero", "equal", "masked_select"}
_INDEXED = {"index", "index_put", "index_put_"}
_LARGEST_CONSTANT = 2**24


@dataclass(frozen=True)
class _Schema:
    """What the recorder needs to know of an operator, looked up once."""

    written: int | None
    functional: Any
    changes_view: bool
    makes_constant: bool
    takes_masks: bool
    reads_data: bool
    device_argument: bool


_SCHEMAS: dict[Any, _Schema] = {}
_LIKE = {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
_LIKE |= {"new_zeros", "new_ones", "new_full", "new_empty", "randint_like", "new_empty_strided"}


def _schema(func: Any) -> _Schema:
    known = _SCHEMAS.get(func)
    if known is None:
        known = _SCHEMAS[func] = _read_schema(func)
    return known


def _read_schema(func: Any) -> _Schema:
    name = func._schema.name.split("::")[1]
    arguments = func._schema.arguments
    written, functional = None, None
    if name.endswith("_") and not name.endswith("__"):
        written = 0
        functional = _functional_twin(func, name[:-1])
    elif name.startswith("__i") and name.endswith("__"):
        written = 0
        functional = _functional_twin(func, "__" + name[3:])
    elif any(a.kwarg_only for a in arguments if _is_written(a)):
        written = -1
    if func.namespace != "aten" and any(map(_is_written, arguments[0 if written is None else 1 :])):
        written = -1  # somebody's own operator, which no name explains
    return _Schema(
        written=written,
        functional=functional,
        changes_view=torch.Tag.inplace_view in func.tags,
        makes_constant=name in _LIKE,
        takes_masks=name in _INDEXED,
        reads_data=name in _READS_DATA,
        device_argument=any(a.name == "device" for a in arguments),
    )


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _functional_twin(func: Any, name: str) -> Any:
    packet = getattr(getattr(torch.ops, func.namespace), name, None)
    return getattr(packet, func._overloadname, None)


def storage_write(
    storage: Tensor, value: Tensor, size: list[int], stride: list[int], offset: int
) -> Tensor:
    """The flat ``storage`` after ``value`` was written through a view of it."""
    written = storage.clone()
    written.as_strided(size, stride, offset).copy_(value)
    return written


@dataclass
class Recorder:
    """The graph as it grows, and which tensor is which node.

    ``entrance`` is the code that calls the model: no line outside of it is one of the model's.
    """

    model: nn.Module
    way: str
    entrance: CodeType
    graph: fx.Graph = field(default_factory=fx.Graph)

    def __post_init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.types: dict[str, str] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.aliases: dict[str, str] = {}
        self.buffers: dict[str, Tensor] = {}
        self.parameter_names: dict[int, str] = {}
        self.buffer_names: dict[int, str] = {}
        self._name_everything()
        self.parameter_storages = {_storage(p): p for p in self.parameters.values()}
        self.constants: dict[str, Tensor] = {}
        self.constant_nodes: dict[int, fx.Node] = {}
        self.node_of: dict[int, fx.Node] = {}
        self.alive: list[Any] = []  # keeps ids unique for the time of the run
        self.stand_ins: dict[int, Tensor] = {}
        self.own_storages: set[int] = set()
        self.writes: dict[int, int] = {}  # storage -> how often it was written
        self.seen_writes: dict[int, int] = {}  # tensor -> how many of them its node includes
        self.live_storages: set[int] = set()  # made by an operator that is in the graph
        self.flat: dict[int, fx.Node] = {}  # storage -> its content after the last write
        self.base: dict[int, Tensor] = dict(self.parameter_storages)  # storage -> what made it
        self.birth: dict[int, tuple[int, ...]] = {}  # storage -> module calls around its making
        self.writing_calls: set[int] = set()  # calls that wrote to what existed before them
        self.scope: tuple[int, ...] = ()
        self.path_stack: list[str] = []
        self.calls: dict[int, ModuleCall] = {}
        self.next_call = 0
        self.recorded = 0  # how many operators so far
        self.inputs = 0  # how many tensors the calls were given
        self.decisions: Iterator[Hashable] | None = None  # what the code is known to read
        self.decided: list[Hashable] = []  # what it has read in this call
        self.paths_taken: list[tuple[Hashable, ...]] = []  # and in each of them
        self.busy = False

    def _name_everything(self) -> None:
        """Paths of modules, parameters and buffers by identity; the first name counts."""
        for path, module in self.model.named_modules(remove_duplicate=False):
            self.paths.setdefault(id(module), path)
            self.types[path] = type(module).__name__
            prefix = f"{path}." if path else ""
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                first = self.parameter_names.setdefault(id(parameter), prefix + name)
                if first == prefix + name:
                    self.parameters[first] = parameter
                else:
                    self.aliases[prefix + name] = first
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    first = self.buffer_names.setdefault(id(buffer), prefix + name)
                    self.buffers[first] = buffer

    # -- the model's calls -------------------------------------------------------------

    def placeholders(self, inputs: Any) -> Any:
        """Make a placeholder node for each tensor of the inputs; return what to call with."""
        items, spec = pytree.tree_flatten(inputs)
        tensors = [item for item in items if isinstance(item, Tensor)]
        self.busy = True  # stand-ins are no constants of the call
        try:
            stands = iter([self._placeholder(t) for t in tensors])
        finally:
            self.busy = False
        items = [next(stands) if isinstance(item, Tensor) else item for item in items]
        return pytree.tree_unflatten(items, spec)

    def _placeholder(self, given: Tensor) -> Tensor:
        if self.way == "meta":
            tensor = torch.empty_like(given, device="meta")
        elif given.is_meta:
            tensor = _random_like(given)
        else:
            tensor = given.detach().clone()
        node = self.graph.placeholder(f"input_{self.inputs}")
        self.inputs += 1
        node.meta.update(module="", line="", scope=())
        self._bind(tensor, node)
        return tensor

    def module_call(
        self, path: str, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        outer, ident = self.scope, self.next_call
        self.next_call += 1
        hooks = _Hooks(self, module) if _has_hooks(module) else nullcontext()
        nodes_in = (self.structure(args), self.structure(kwargs))
        self.scope = (*outer, ident)
        self.path_stack.append(path)
        try:
            with hooks as seen:
                output = original(module, *args, **kwargs)
            nodes_out = self.structure(output)
        except Exception as error:
            inner: Place = getattr(error, "_autoeidetic_place", Place(path))
            if not inner.line:  # raised by torch: the line that called it is further outside
                inner = replace(inner, line=_raising_line(error))
            error._autoeidetic_place = inner  # type: ignore[attr-defined]
            self.calls[ident] = ModuleCall(
                path, self.scope, *nodes_in, None, writes_outside=True, hooks_compute=False
            )
            raise
        finally:
            self.scope = outer
            self.path_stack.pop()
        self.calls[ident] = ModuleCall(
            path,
            (*outer, ident),
            *nodes_in,
            nodes_out,
            writes_outside=ident in self.writing_calls,
            hooks_compute=seen is not None and seen.compute(nodes_in, nodes_out),
        )
        return output

    def structure(self, value: Any) -> Any:
        """The same nesting with nodes for what tensors hold now, and None for the rest."""
        if isinstance(value, Tensor):
            return self._node(value) if id(value) in self.node_of else None
        if isinstance(value, (tuple, list)):
            return tuple(self.structure(item) for item in value)
        if isinstance(value, dict):
            return {key: self.structure(item) for key, item in value.items()}
        return None

    def finish(self, outputs: list[Any]) -> Capture:
        """The graph of all calls so far, with their outputs one after another."""
        items, spec = pytree.tree_flatten(tuple(outputs))
        nodes = [self._node(item) if isinstance(item, Tensor) else ABSENT for item in items]
        self.graph.output(tuple(None if node is ABSENT else node for node in nodes))
        return self._captured(pytree.tree_unflatten(nodes, spec))

    def unfinished(self) -> Capture:
        """What there is when the run has failed: a graph without an output."""
        return self._captured(())

    def _captured(self, outputs: tuple[Any, ...]) -> Capture:
        return Capture(
            graph=self.graph,
            way=self.way,
            parameters=self.parameters,
            aliases=self.aliases,
            buffers=self.buffers,
            constants=self.constants,
            calls=self.calls,
            types=self.types,
            outputs=outputs,
            roots=tuple(ident for ident, call in self.calls.items() if len(call.scope) == 1),
            decisions=tuple(self.paths_taken),
        )

    # -- one operator ------------------------------------------------------------------

    def operator(
        self, func: Any, args: Any, kwargs: dict[str, Any], whole: Callable[[], Any] | None = None
    ) -> Any:
        """Run an operator and, when it depends on an input or a parameter, record it."""
        self.busy = True
        try:
            return self._operator(func, args, kwargs, whole)
        finally:
            self.busy = False

    @contextmanager
    def deciding(self, decisions: tuple[Hashable, ...] | None) -> Iterator[None]:
        """What the code reads out of tensors while this lasts, if that is known beforehand.

        Raises:
            EnforcementError: the code reads something else.
        """
        self.decisions, self.decided = None if decisions is None else iter(decisions), []
        yield
        if self.way == "real" and self.decisions is not None:
            if next(self.decisions, None) is not None:
                raise self._decided_otherwise()
        self.paths_taken.append(tuple(self.decided) if decisions is None else decisions)
        self.decisions = None

    def _decided(self, func: Any, args: Any, output: Any) -> Any:
        """The result of an operator; where it may decide the path, as it is known to be."""
        if self.way != "real" or not decides(func, args):
            return output
        own = outcome(func, output)
        known = self._next_decision(own)
        if known == own:
            return output
        leaves, structure = pytree.tree_flatten(output)
        if known[:1] != own[:1] or len(known) != len(own):
            raise self._decided_otherwise()
        # of a tensor the shape is known, and of what it holds only that it is a place: zeros are
        same = [
            leaf.new_zeros(what) if isinstance(leaf, Tensor) else what
            for leaf, what in zip(leaves, known[1:], strict=True)
        ]
        return pytree.tree_unflatten(same, structure)

    def _next_decision(self, own: tuple[Hashable, ...]) -> Any:
        """What the code is known to read at this place; else what it has read now."""
        if self.decisions is None:
            self.decided.append(own)
            return own
        return next(self.decisions, ())

    def _read(self, func: Any, tensor: Tensor) -> None:
        """The content of a tensor is given away."""
        own = content(func, tensor)
        if self.way == "real" and self._next_decision(own) != own:
            raise self._decided_otherwise()

    def _decided_otherwise(self) -> EnforcementError:
        return EnforcementError(
            "the model's code looks at values that are others in a network with several tasks than "
            "in the model alone, so its path cannot be analysed",
            place=self._place(""),
            remedy="compute with tensors instead of numbers and sizes that depend on data "
            "(torch.where instead of if)",
        )

    def _operator(
        self, func: Any, args: Any, kwargs: dict[str, Any], whole: Callable[[], Any] | None
    ) -> Any:
        schema = _schema(func)
        tensors = leaves((args, kwargs), Tensor)
        if schema.makes_constant:
            return self._like(func, args, kwargs)
        if schema.takes_masks:
            args = (args[0], self._without_masks(args[1]), *args[2:])
        live = [t for t in tensors if self._is_live(t)]
        if schema.written is not None:
            return self._write(func, schema, args, kwargs, bool(live))
        if not live:
            return self._decided(func, args, self._constant(func, schema, args, kwargs))
        if schema.reads_data and self.way == "meta":
            raise RuntimeError(f"{func} looks at data that depends on the input or a parameter")
        output = self._decided(func, args, self._compute(func, args, kwargs, whole))
        if func is torch.ops.aten.as_strided.default:
            args = self._from_storage(*args, **kwargs)
            kwargs = {}
        node = self._create(func, args, kwargs)
        node.meta["read_by_python"] = schema.reads_data
        self._bind_outputs(node, output)
        return output

    def _from_storage(
        self, tensor: Tensor, size: Any, stride: Any, storage_offset: Any = None
    ) -> Any:
        """The arguments of ``as_strided``: it reads the storage, also beyond a view of it."""
        if _covers_storage(tensor) or _storage(tensor) not in self.live_storages:
            return tensor, size, stride, storage_offset
        start = tensor.storage_offset() if storage_offset is None else storage_offset
        return self._flat_node(tensor), size, stride, start

    def _without_masks(self, indices: Any) -> list[Any]:
        """Constant boolean masks as the integer indices they stand for, which have a size."""
        plain: list[Any] = []
        for index in indices:
            is_mask = index is not None and index.dtype is torch.bool
            known = is_mask and not index.is_meta and not self._is_live(index)
            plain.extend(index.nonzero(as_tuple=True) if known else [index])
        return plain

    def leave_torch(self, func: Any, tensor: Tensor) -> None:
        """A tensor is about to become a list or a numpy array, which cannot be followed."""
        if not self._is_live(tensor):
            self._read(func, tensor)
            return
        if self.way == "meta":
            raise RuntimeError(f"{func.__name__} reads a value that depends on input or parameters")
        self._read(func, tensor)
        node = self._create(torch.ops.aten._local_scalar_dense.default, (tensor,), {})
        node.meta.update(shape=(), read_by_python=True)

    def check_data(self, target: Tensor, value: Tensor) -> None:
        """``target.data = value`` makes another tensor of it, which no operator tells.

        Raises:
            CaptureError: one of them is computed in this run.
        """
        named = self.parameter_names.keys() | self.buffer_names.keys()
        if id(target) not in named and (self._is_live(target) or self._is_live(value)):
            raise CaptureError(
                "the data of a tensor is replaced, which cannot be followed",
                place=self._place("data.__set__"),
                remedy="use the value itself, or write it with copy_",
            )

    def _compute(
        self, func: Any, args: Any, kwargs: dict[str, Any], whole: Callable[[], Any] | None
    ) -> Any:
        if self.way == "meta":
            output = whole_operators.shortcut(func, args)
            if output is not None:
                return output
        elif whole is not None:
            return whole()
        return self._execute(func, args, kwargs)

    def _execute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = leaves((args, kwargs), Tensor)
        if self.way == "real":
            if not any(id(t) in self.stand_ins for t in tensors):
                return func(*args, **kwargs)
            swap = lambda t: self.stand_ins.get(id(t), t)  # noqa: E731
            args, kwargs = convert((args, kwargs), Tensor, swap)
            return func(*args, **kwargs)
        kwargs = dict(kwargs)
        if _schema(func).device_argument and not (tensors and all(t.is_meta for t in tensors)):
            if kwargs.get("device") is not None:
                kwargs["device"] = torch.device("meta")
        if tensors and not all(t.is_meta for t in tensors):
            if any(t.is_meta or id(t) in self.parameter_names for t in tensors):
                args, kwargs = convert((args, kwargs), Tensor, self._on_meta)
        return func(*args, **kwargs)

    def _constant(self, func: Any, schema: _Schema, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run for real: the value may decide which unit sits where."""
        if self.way == "meta" and schema.device_argument:
            args, kwargs = convert((args, kwargs), torch.device, _on_cpu)
        tensors = leaves(args, Tensor)
        if tensors and len({t.device for t in tensors}) > 1 and any(t.is_meta for t in tensors):
            args, kwargs = convert((args, kwargs), Tensor, self._on_meta)
        output = func(*args, **kwargs)
        for tensor in leaves(output, Tensor):
            self.alive.append(tensor)
            if not any(tensor is t for t in tensors):
                storage = _storage(tensor)
                if not any(_storage(t) == storage for t in tensors):
                    self.own_storages.add(storage)
                    self.base[storage] = tensor
                    self.birth[storage] = self.scope
        return output

    def _like(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """``zeros_like`` and friends read a shape only: the result is a constant."""
        if self.way == "real":
            output = func(*args, **kwargs)
        else:
            model = args[0]
            small = model.numel() <= _LARGEST_CONSTANT
            device = torch.device("cpu" if small else "meta")
            stand = torch.empty((), dtype=model.dtype, device=device).expand(model.shape)
            output = func(stand, *args[1:], **{**kwargs, "device": device})
        self.alive.append(output)
        storage = _storage(output)
        self.own_storages.add(storage)
        self.base[storage] = output
        self.birth[storage] = self.scope
        return output

    def _write(
        self, func: Any, schema: _Schema, args: Any, kwargs: dict[str, Any], live: bool
    ) -> Any:
        """An in-place operator: record its functional twin and follow the aliases."""
        if schema.written != 0 or schema.functional is None:
            raise CaptureError(
                f"{func} writes into its arguments and has no functional twin",
                place=self._place(func),
                remedy="use a form of it without side effects, which returns the result",
            )
        target = args[0]
        own = _storage(target) in self.own_storages
        if not live and own:
            return func(*args, **kwargs)
        if schema.changes_view:
            node = self._create(schema.functional, args, kwargs)
            func(*args, **kwargs)
            _describe(node, target)
            self._rebind(target, node)
            return target
        before = self._flat_node(target) if not _covers_storage(target) else None
        node = self._create(schema.functional, args, kwargs)
        _describe(node, target)
        if self.way == "real":
            if own:
                func(*args, **kwargs)
            else:
                stand = self.stand_ins.setdefault(id(target), target.detach().clone())
                func(stand, *args[1:], **kwargs)
        storage = _storage(target)
        self.writing_calls.update(set(self.scope) - set(self.birth.get(storage, ())))
        if before is not None:
            self.flat[storage] = self._after_write(before, node, target)
        else:
            self.flat.pop(storage, None)
            self.base[storage] = target
        self.writes[storage] = self.writes.get(storage, 0) + 1
        self._rebind(target, node)
        return target

    # -- tensors and nodes ---------------------------------------------------------------

    def _is_live(self, tensor: Tensor) -> bool:
        if id(tensor) in self.node_of or id(tensor) in self.parameter_names:
            return True
        storage = _storage(tensor)
        return (
            storage in self.writes
            or storage in self.parameter_storages
            or storage in self.live_storages  # an alias that no operator made: nn.Parameter(x)
        )

    def _node(self, tensor: Tensor) -> fx.Node:
        """The node that holds this tensor's value now."""
        if self.writes:
            writes = self.writes.get(_storage(tensor), 0)
            if writes and self.seen_writes.get(id(tensor), 0) != writes:
                return self._view_of_storage(tensor)
        known = self.node_of.get(id(tensor))
        if known is not None:
            return known
        name = self.parameter_names.get(id(tensor))
        if name is None:
            storage = _storage(tensor)  # a view kept as an attribute, or an unseen alias
            if storage in self.parameter_storages or storage in self.live_storages:
                return self._view_of_storage(tensor)
            return self._constant_node(tensor)
        node = self._attribute(name, tensor)
        self.node_of[id(tensor)] = node
        return node

    def _view_of_storage(self, tensor: Tensor) -> fx.Node:
        """Read a tensor from the present content of the storage under it."""
        view = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
        flat = self._flat_node(tensor)
        node = self._create(torch.ops.aten.as_strided.default, (flat, *view), {})
        _describe(node, tensor)
        self._rebind(tensor, node)
        self.alive.append(tensor)
        return node

    def _constant_node(self, tensor: Tensor) -> fx.Node:
        node = self.constant_nodes.get(id(tensor))
        if node is None:
            name = self.buffer_names.get(id(tensor))
            if name is None:
                name = f"_constant_{len(self.constants)}"
                self.constants[name] = tensor
            node = self._attribute(name, tensor)
            node.meta["const"] = tensor
            self.constant_nodes[id(tensor)] = node
            self.alive.append(tensor)
        return node

    def _attribute(self, name: str, tensor: Tensor) -> fx.Node:
        node = self.graph.create_node("get_attr", name, name=name.replace(".", "_"))
        _describe(node, tensor)
        node.meta.update(module=name.rpartition(".")[0], line="", scope=())
        return node

    def _create(self, func: Any, args: Any, kwargs: dict[str, Any]) -> fx.Node:
        node_args = convert(args, Tensor, self._node)
        node_kwargs = convert(kwargs, Tensor, self._node)
        name = getattr(func, "_opname", None) or func.__name__
        node = self.graph.create_node("call_function", func, tuple(node_args), node_kwargs, name)
        node.meta["module"] = self.path_stack[-1] if self.path_stack else ""
        node.meta["line"] = _user_line(self.entrance)
        node.meta["scope"] = self.scope
        self.recorded += 1
        return node

    def _bind_outputs(self, node: fx.Node, output: Any) -> None:
        if isinstance(output, Tensor):
            self._bind(output, node)
            return
        if not isinstance(output, (tuple, list)):  # a number, for Python to look at
            node.meta["shape"] = ()
            return
        for index, item in enumerate(output):
            if isinstance(item, Tensor):
                part = self.graph.create_node(
                    "call_function", operator.getitem, (node, index), name="part"
                )
                part.meta.update(
                    module=node.meta["module"], line=node.meta["line"], scope=node.meta["scope"]
                )
                self._bind(item, part)

    def _bind(self, tensor: Tensor, node: fx.Node) -> None:
        _describe(node, tensor)
        self.alive.append(tensor)
        storage = _storage(tensor)
        if storage not in self.base:
            self.base[storage] = tensor
            self.birth[storage] = self.scope
            self.own_storages.add(storage)
            self.live_storages.add(storage)
        self._rebind(tensor, node)

    def _rebind(self, tensor: Tensor, node: fx.Node) -> None:
        self.node_of[id(tensor)] = node
        if self.writes:
            self.seen_writes[id(tensor)] = self.writes.get(_storage(tensor), 0)

    def _flat_node(self, tensor: Tensor) -> fx.Node:
        """The whole storage under a tensor as a flat value."""
        storage = _storage(tensor)
        node = self.flat.get(storage)
        if node is not None:
            return node
        base = self.base.get(storage)
        if base is None or not _covers_storage(base):
            base = self._whole_storage(tensor, base)
        size = [base.numel()]
        node = self._create(
            torch.ops.aten.reshape.default, (self.node_of.get(id(base), base), size), {}
        )
        node.meta.update(shape=tuple(size), dtype=base.dtype, layout=((1,), 0))
        self.flat[storage] = node
        return node

    def _whole_storage(self, tensor: Tensor, base: Tensor | None) -> Tensor:
        """A contiguous stand-in for a storage that no known tensor covers."""
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = tensor.as_strided([count], [1], 0)
        if base is not None and id(base) in self.node_of:  # e.g. channels-last activations
            flat = self._create(
                storage_write,
                (
                    torch.zeros(count, dtype=tensor.dtype),
                    self.node_of[id(base)],
                    list(base.shape),
                    list(base.stride()),
                    base.storage_offset(),
                ),
                {},
            )
            flat.meta.update(shape=(count,), dtype=tensor.dtype, layout=((1,), 0))
            self.node_of[id(whole)] = flat
        else:
            whole = whole.detach().clone()
        self.alive.append(whole)
        return whole

    def _after_write(self, before: fx.Node, value: fx.Node, target: Tensor) -> fx.Node:
        view = (list(target.shape), list(target.stride()), target.storage_offset())
        node = self._create(storage_write, (before, value, *view), {})
        node.meta.update({key: before.meta[key] for key in ("shape", "dtype", "layout")})
        return node

    def _on_meta(self, tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return tensor
        stand = self.stand_ins.get(id(tensor))
        if stand is None or stand.shape != tensor.shape:
            stand = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
            )
            self.stand_ins[id(tensor)] = stand
            self.alive.append(tensor)
        return stand

    def _place(self, func: Any) -> Place:
        path = self.path_stack[-1] if self.path_stack else ""
        return Place(path, str(func), _user_line(self.entrance))


def _has_hooks(module: nn.Module) -> bool:
    shared = nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or shared._global_forward_hooks
        or shared._global_forward_pre_hooks
    )


class _Hooks:
    """Tells what a module's hooks do from what its ``forward`` does, for the time of one call."""

    def __init__(self, recorder: Recorder, module: nn.Module) -> None:
        self.recorder = recorder
        self.module = module
        self.inside = 0
        self.border: Any = None

    def __enter__(self) -> _Hooks:
        self.start = self.recorder.recorded
        self.own = self.module.__dict__.get("forward")
        self.forward = self.module.forward
        self.module.__dict__["forward"] = self._run
        return self

    def __exit__(self, *_: Any) -> None:
        if self.own is None:
            del self.module.__dict__["forward"]
        else:
            self.module.__dict__["forward"] = self.own
        self.total = self.recorder.recorded - self.start

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        structure, before = self.recorder.structure, self.recorder.recorded
        nodes_in = (structure(args), structure(kwargs))
        output = self.forward(*args, **kwargs)
        self.border = (nodes_in, structure(output))
        self.inside += self.recorder.recorded - before
        return output

    def compute(self, nodes_in: Any, nodes_out: Any) -> bool:
        """Do they record operators, or put other values in place of those they are given?"""
        return self.total != self.inside or self.border != (nodes_in, nodes_out)


def _random_like(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return torch.rand(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _describe(node: fx.Node, tensor: Tensor) -> None:
    node.meta["shape"] = tuple(tensor.shape)
    node.meta["dtype"] = tensor.dtype
    node.meta["layout"] = (tensor.stride(), tensor.storage_offset())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _covers_storage(tensor: Tensor) -> bool:
    if not tensor.is_contiguous() or not tensor.numel():  # every part of nothing covers it
        return False
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _on_cpu(device: torch.device) -> torch.device:
    """Constants are made on the CPU even when the code asks for the input's device."""
    return torch.device("cpu") if device.type == "meta" else device


def _user_line(entrance: CodeType) -> str:
    """The innermost source line of the model's outside torch and this package, if there is one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not entrance:
        if _is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _raising_line(error: BaseException) -> str:
    """The innermost line of the user's that an error passed."""
    line, trace = "", error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if _is_users(filename):
            line = f"{filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _is_users(filename: str) -> bool:
    return not filename.startswith((_TORCH, _HERE, "<"))
