"""Guards: what a module must respect while it runs, without being another module.

A guarded module keeps its parameters, its name and its place; its class becomes a subclass of its
own class whose ``forward`` goes through a :class:`Guard`. Everything in a guard is derived from the
plan and the owners, and made anew at every step in the life of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..common.torch_modes import script_error
from ..errors import EnforcementError, Place

Forward = Callable[..., Any]
#: Where a ``forward`` that somebody gave to the one module is kept: it would pass the guard by.
_ASIDE = "_forward_aside"
#: One that was put around the guarded ``forward`` later (a compiled one) is noted here, and stays.
_AROUND = "_forward_around"


@dataclass
class Runtime:
    """What one forward pass of the network is for; shared by all its guards.

    ``tasks``: the heads that answer. ``restrict``: frozen units need no gradient. ``level``: the
    one that a module around this one is being run for; ``settled``: nothing trains in it.
    ``inside``: the innermost module with norms per level, or run level by level, that is running.
    ``counting``: runs of guarded modules are counted, also in parts of the model that are compiled.
    """

    tasks: tuple[int, ...] = ()
    restrict: bool = True
    level: int | None = None
    settled: bool = False
    inside: str | None = None
    counting: bool = True
    features: dict[str, torch.Tensor] | None = None


@dataclass
class CallCounter:
    """Which of its calls a module is in, when it is called several times on different channels."""

    path: str
    calls: int
    done: int = 0
    current: int = 0

    def next(self) -> int:
        if self.calls == 1:
            return 0
        if torch._C._current_graph_task_id() != -1:
            raise EnforcementError(
                f"module '{self.path}', which is called several times in a pass, is run again "
                "during the backward pass",
                place=Place(module=self.path),
                remedy="leave it out of activation checkpointing",
            )
        self.current = self.done % self.calls
        self.done += 1
        return self.current


class Treatment(Protocol):
    """What is done differently when a guarded module calls certain functions."""

    functions: ClassVar[frozenset[Any]]

    def wanted(self, module: nn.Module) -> bool:
        """Is there something to do in this mode?"""

    def applies(self) -> bool:
        """Is a call of one of the functions this treatment's business?"""

    def call(self, module: nn.Module, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Do it: ``number`` counts the calls of these functions in this run of the module."""

    def finish(self, module: nn.Module, calls: int) -> None:
        """Called after the run with the number of calls; raises if something passed by."""


class Whole(Protocol):
    """Something that takes over the whole call of a module."""

    def run(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any: ...


@dataclass
class Guard:
    """The treatments of one module; ``whole`` goes around all of them.

    With a ``counter`` the module must not be passed by: ``runs`` is compared with its calls.
    """

    path: str
    runtime: Runtime | None = None
    treatments: list[Treatment] = field(default_factory=list)
    whole: Whole | None = None
    counter: CallCounter | None = None
    runs: int = 0

    def run(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        counted = self.runtime is not None and self.runtime.counting
        if counted or not torch.compiler.is_compiling():
            self.runs += 1

        def inner(*args: Any, **kwargs: Any) -> Any:
            return self._intercepted(module, forward, args, kwargs)

        if self.runtime is None:
            return self._whole(module, inner, args, kwargs)
        around, self.runtime.inside = self.runtime.inside, self.path
        try:
            return self._whole(module, inner, args, kwargs)
        finally:
            self.runtime.inside = around

    def _whole(self, module: nn.Module, inner: Forward, args: Any, kwargs: Any) -> Any:
        if self.whole is not None:
            return self.whole.run(module, inner, args, kwargs)
        return inner(*args, **kwargs)

    def _intercepted(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        wanted = [t for t in self.treatments if t.wanted(module)]
        if not wanted:
            return forward(*args, **kwargs)
        interception = Interception(module, wanted)
        with interception:
            result = forward(*args, **kwargs)
        for treatment, calls in zip(wanted, interception.calls, strict=True):
            treatment.finish(module, calls)
        return result


class Interception(TorchFunctionMode):
    """Sends the calls of certain functions to treatments."""

    def __init__(self, module: nn.Module, treatments: list[Treatment]) -> None:
        super().__init__()
        self.module = module
        self.treatments = treatments
        self.calls = [0] * len(treatments)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for position, treatment in enumerate(self.treatments):
            if func in treatment.functions and treatment.applies():
                number = self.calls[position]
                self.calls[position] = number + 1
                return treatment.call(self.module, number, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class Guarded:
    """Mixed into the class of a guarded module."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        guard: Guard | None = self.__dict__.get("_guard")
        if guard is None:  # somebody has kept this method, and the module has no guard any more
            return original_class(self).forward(self, *args, **kwargs)  # type: ignore
        forward = self.__dict__.get(_ASIDE, super().forward)  # type: ignore[misc]
        return guard.run(self, forward, args, kwargs)  # type: ignore[arg-type]

    def __prepare_scriptable__(self) -> NoReturn:  # what torch.jit.script asks for
        raise script_error()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (original_class(self),), self.__getstate__()  # type: ignore


@cache
def _guarded_class(base: type) -> type:
    names: dict[str, Any] = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (Guarded, base), names)


def _rebuild(base: type) -> nn.Module:
    module: nn.Module = nn.Module.__new__(base)
    module.__class__ = _guarded_class(base)
    return module


def original_class(module: nn.Module) -> type:
    """The class a module has without its guard."""
    kind = type(module)
    return kind.__mro__[2] if issubclass(kind, Guarded) else kind


def guard(module: nn.Module, guard: Guard | None) -> None:
    """Put a guard on a module, or take it away."""
    base, own = original_class(module), module.__dict__
    if isinstance(module, Guarded) and "forward" in own:
        own[_AROUND] = own["forward"]
    if guard is None:
        if isinstance(module, Guarded):
            module.__class__ = base
            del own["_guard"]
            if _ASIDE in own:
                own.setdefault("forward", own.pop(_ASIDE))
        return
    own["_guard"] = guard
    if "forward" in own and own["forward"] is not own.get(_AROUND):
        own[_ASIDE] = own.pop("forward")
    module.__class__ = _guarded_class(base)
