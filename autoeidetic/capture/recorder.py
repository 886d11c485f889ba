"""The recorder: takes every operator that the model calls, runs it and writes it into the graph.

It decides how to treat an operator: computed at once (nothing in it depends on an input or a
parameter), recorded, or recorded as its functional twin (in-place writes). The parts do the rest:
names (:class:`Names`), module calls (:class:`ModuleCalls`), tensors and their memory
(:class:`Aliases`), nodes (:class:`GraphWriter`), running (:class:`Execution`) and what the code
reads out of tensors (:class:`DecisionLog`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..common.trees import leaves
from ..errors import CaptureError
from .aliases import Aliases
from .call_stack import CallStack
from .decisions import DecisionLog
from .execution import Execution
from .graph import ABSENT, Capture
from .graph_writer import GraphWriter, describe
from .module_calls import ModuleCalls
from .names import Names
from .schemas import Schema, schema_of


class Recorder:
    """Records calls of a model in one graph.

    ``way`` is "meta" or "real" (:class:`Execution`), ``entrance`` the code that calls the model.
    """

    def __init__(self, model: nn.Module, way: str, entrance: CodeType) -> None:
        self.way = way
        self.busy = False  # whether operators are the recorder's own and not the model's
        stack = CallStack()
        self.names = Names(model)
        self._writer = GraphWriter(self.names, stack, entrance)
        self._aliases = Aliases(self._writer, self.names, stack)
        self.module_calls = ModuleCalls(stack, self._writer, self._aliases)
        self.decisions = DecisionLog(way == "real", self._writer.place)
        self._execution = Execution(way, self.names)
        self._folded: set[str] = set()

    # -- calls of the model ------------------------------------------------------------

    def placeholders(self, inputs: Any) -> Any:
        """Make a placeholder node for each tensor of the inputs; return what to call with."""
        items, spec = pytree.tree_flatten(inputs)
        self.busy = True  # stand-ins are no constants of the call
        try:
            items = [self._placeholder(i) if isinstance(i, Tensor) else i for i in items]
        finally:
            self.busy = False
        return pytree.tree_unflatten(items, spec)

    def _placeholder(self, given: Tensor) -> Tensor:
        tensor = self._execution.placeholder(given)
        self._aliases.bind(tensor, self._writer.placeholder())
        return tensor

    def finish(self, outputs: list[Any]) -> Capture:
        """The graph of all calls so far, with their outputs one after another."""
        items, spec = pytree.tree_flatten(tuple(outputs))
        node = self._aliases.node
        # every example ends in the same output node; Capture.outputs keeps their structures apart
        nodes = [node(item) if isinstance(item, Tensor) else ABSENT for item in items]
        self._writer.graph.output(tuple(None if node is ABSENT else node for node in nodes))
        return self._captured(pytree.tree_unflatten(nodes, spec))

    def unfinished(self) -> Capture:
        """The capture of a run that has failed: a graph without an output."""
        return self._captured(())

    def _captured(self, outputs: tuple[Any, ...]) -> Capture:
        calls = self.module_calls.calls
        return Capture(
            graph=self._writer.graph,
            way=self.way,
            parameters=self.names.parameters,
            aliases=self.names.aliases,
            buffers=self.names.buffers,
            constants=self._writer.constants,
            folded=frozenset(self._folded),
            calls=calls,
            types=self.names.types,
            outputs=outputs,
            roots=tuple(number for number, call in calls.items() if len(call.scope) == 1),
            decisions=tuple(self.decisions.taken),
        )

    # -- one operator ------------------------------------------------------------------

    def operator(
        self, func: Any, args: Any, kwargs: dict[str, Any], whole: Callable[[], Any] | None = None
    ) -> Any:
        """Run an operator and, when it depends on an input or a parameter, record it.

        ``whole`` runs a function that is recorded as one operator (:mod:`.whole_operators`).
        """
        self.busy = True
        try:
            return self._operator(func, args, kwargs, whole)
        finally:
            self.busy = False

    def _operator(
        self, func: Any, args: Any, kwargs: dict[str, Any], whole: Callable[[], Any] | None
    ) -> Any:
        schema = schema_of(func)
        tensors = leaves((args, kwargs), Tensor)
        # zeros_like(x) has no value of x in it, even where x depends on an input
        if schema.makes_constant:
            output = self._execution.like(func, args, kwargs)
            self._aliases.add_constant(output, [])
            return output
        if schema.takes_masks:
            args = (args[0], self._without_masks(args[1]), *args[2:])
        # live: depends on an input or parameter, so it is in the graph; anything else is a constant
        live = any(self._aliases.is_live(t) for t in tensors)
        if schema.written is not None:
            return self._write(func, schema, args, kwargs, live)
        if not live:
            return self.decisions.result(func, args, self._constant(func, schema, args, kwargs))
        # ends the run on meta tensors; the next one has data (capture.capture)
        if schema.reads_data and self.way == "meta":
            raise RuntimeError(f"{func} looks at data that depends on the input or a parameter")
        computed = self._execution.compute(func, args, kwargs, whole)
        output = self.decisions.result(func, args, computed)
        # as_strided ignores the view that it is given and reads the storage under it
        if func is torch.ops.aten.as_strided.default:
            args = self._aliases.from_storage(*args, **kwargs)
            kwargs = {}
        node = self._aliases.call(func, args, kwargs)
        node.meta["read_by_python"] = schema.reads_data
        self._bind_outputs(node, output)
        return output

    def _without_masks(self, indices: Any) -> list[Any]:
        """Constant boolean masks as the integer indices they stand for, which have a size."""
        plain: list[Any] = []
        for index in indices:
            is_mask = index is not None and index.dtype is torch.bool
            known = is_mask and not index.is_meta and not self._aliases.is_live(index)
            plain.extend(index.nonzero(as_tuple=True) if known else [index])
        return plain

    def _constant(self, func: Any, schema: Schema, args: Any, kwargs: dict[str, Any]) -> Any:
        output = self._execution.constant(func, schema, args, kwargs)
        sources = leaves(args, Tensor)
        named = self.names.buffer_names
        self._folded |= {named[id(t)] for t in leaves((args, kwargs), Tensor) if id(t) in named}
        for tensor in leaves(output, Tensor):
            self._aliases.add_constant(tensor, sources)
        return output

    def _bind_outputs(self, node: fx.Node, output: Any) -> None:
        if isinstance(output, Tensor):
            self._aliases.bind(output, node)
            return
        if not isinstance(output, (tuple, list)):  # a number, which Python code looks at
            node.meta["shape"] = ()
            return
        for index, item in enumerate(output):
            if isinstance(item, Tensor):
                self._aliases.bind(item, self._writer.part(node, index))

    def _write(
        self, func: Any, schema: Schema, args: Any, kwargs: dict[str, Any], live: bool
    ) -> Any:
        """An in-place operator: record its functional twin and follow the aliases."""
        if schema.written != 0 or schema.functional is None:
            raise CaptureError(
                f"{func} writes into its arguments and has no functional twin",
                place=self._writer.place(func),
                remedy="use a form of it without side effects, which returns the result",
            )
        target = args[0]
        own = self._aliases.is_own(target)
        # constants into a constant of this run (a mask that is filled row by row): just do it
        if not live and own:
            self._writer.keep_constants(target)
            return func(*args, **kwargs)
        if schema.changes_view:  # t_() and the like: other strides, the same memory
            node = self._aliases.call(schema.functional, args, kwargs)
            func(*args, **kwargs)
            describe(node, target)
            self._aliases.rebind(target, node)
            return target
        # A graph has values and no memory: x.add_(y) is recorded as add(x, y), and from here on the
        # tensor x is that node. A write to a buffer or parameter is recorded, too: later reads in
        # this pass see it. Order: the old content is read before the write is carried out.
        before = self._aliases.before_write(target)
        node = self._aliases.call(schema.functional, args, kwargs)
        describe(node, target)
        self._writer.keep_constants(target)
        self._execution.write(func, args, kwargs, own)
        self._aliases.written(target, node, before)
        return target

    # -- without an operator -----------------------------------------------------------

    def leave_torch(self, func: Any, tensor: Tensor) -> None:
        """Record that a tensor becomes a list or a NumPy array, which cannot be followed."""
        if not self._aliases.is_live(tensor):
            self.decisions.read(func, tensor)
            return
        if self.way == "meta":
            raise RuntimeError(f"{func.__name__} reads a value that depends on input or parameters")
        self.decisions.read(func, tensor)
        node = self._aliases.call(torch.ops.aten._local_scalar_dense.default, (tensor,), {})
        node.meta.update(shape=(), read_by_python=True)

    def check_data(self, target: Tensor, value: Tensor) -> None:
        """Check ``target.data = value``, which exchanges memory without an operator.

        Raises:
            CaptureError: one of them is computed in this run.
        """
        live = self._aliases.is_live
        if not self.names.is_named(target) and (live(target) or live(value)):
            raise CaptureError(
                "the data of a tensor is replaced, which cannot be followed",
                place=self._writer.place("data.__set__"),
                remedy="use the value itself, or write it with copy_",
            )
