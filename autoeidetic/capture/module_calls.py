"""Module calls: the inputs and outputs of every call of a module, and the effect of its hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch import nn

from ..errors import Place
from .aliases import Aliases
from .call_stack import CallStack
from .graph import ModuleCall
from .graph_writer import GraphWriter
from .source_lines import raising_line


class ModuleCalls:
    """Runs the modules of the model and notes each call."""

    def __init__(self, stack: CallStack, writer: GraphWriter, aliases: Aliases) -> None:
        self.calls: dict[int, ModuleCall] = {}
        self._stack = stack
        self._writer = writer
        self._aliases = aliases
        # by id; the error itself is kept so that no other one gets the same id
        self._failures: dict[int, tuple[Exception, Place]] = {}

    def run(
        self, path: str, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Call a module as ``original`` does, and note the call."""
        number = self._stack.new()
        structure = self._aliases.structure
        watched = _has_hooks(module)
        hooks = _Hooks(self._writer, self._aliases, module) if watched else nullcontext()
        # before the call is entered: what these nodes read belongs to the caller
        nodes_in = (structure(args), structure(kwargs))
        self._stack.enter(number, path)
        scope = self._stack.scope
        try:
            with hooks as seen:
                output = original(module, *args, **kwargs)
            nodes_out = structure(output)
        except Exception as error:
            self._note_failure(error, path)
            # the caller may catch the error and go on; nothing is known about this call then
            self.calls[number] = ModuleCall(
                path, scope, *nodes_in, None, writes_outside=True, hooks_compute=False
            )
            raise
        finally:
            self._stack.leave()
        self.calls[number] = ModuleCall(
            path,
            scope,
            *nodes_in,
            nodes_out,
            writes_outside=number in self._aliases.writing_calls,
            hooks_compute=seen is not None and seen.compute(nodes_in, nodes_out),
        )
        return output

    def _note_failure(self, error: Exception, path: str) -> None:
        """Note the innermost module that an error passes as its place."""
        place = self.place_of(error) or Place(path)
        if not place.line:  # raised by torch: the line that called it is further outside
            place = replace(place, line=raising_line(error))
        self._failures[id(error)] = (error, place)

    def place_of(self, error: Exception) -> Place | None:
        """The place of an error; None if it was not raised in a module of the model."""
        failure = self._failures.get(id(error))
        return failure[1] if failure is not None else None

    def forget_failures(self) -> None:
        """Break the cycle of errors, the frames they passed, and this object in those frames."""
        self._failures.clear()


def _has_hooks(module: nn.Module) -> bool:
    shared = nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or shared._global_forward_hooks
        or shared._global_forward_pre_hooks
    )


class _Hooks:
    """Separates what a module's hooks compute from what its ``forward`` does, during one call.

    Hooks run between ``__call__`` and ``forward``. So ``forward`` is wrapped for this call: what
    is recorded outside of the wrapper, and values that differ at its border, come from hooks.
    """

    def __init__(self, writer: GraphWriter, aliases: Aliases, module: nn.Module) -> None:
        self.writer = writer
        self.aliases = aliases
        self.module = module
        self.inside = 0
        self.border: Any = None

    def __enter__(self) -> _Hooks:
        self.start = self.writer.recorded
        self.own = self.module.__dict__.get("forward")
        self.forward = self.module.forward
        # nn.Module.__call__ looks up self.forward, so an instance attribute is found first
        self.module.__dict__["forward"] = self._run
        return self

    def __exit__(self, *_: Any) -> None:
        if self.own is None:
            del self.module.__dict__["forward"]
        else:
            self.module.__dict__["forward"] = self.own
        self.total = self.writer.recorded - self.start

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        structure, before = self.aliases.structure, self.writer.recorded
        nodes_in = (structure(args), structure(kwargs))
        output = self.forward(*args, **kwargs)
        self.border = (nodes_in, structure(output))
        self.inside += self.writer.recorded - before
        return output

    def compute(self, nodes_in: Any, nodes_out: Any) -> bool:
        """Do the hooks record operators, or replace the values that they are given?"""
        return self.total != self.inside or self.border != (nodes_in, nodes_out)
