"""Guards: how a module of the user's model is made to run differently, without being replaced.

A guarded module keeps its identity, its parameters and its path. Only its class changes, to a
subclass of its own class with the same name:

    before      Conv2d                          module.forward = Conv2d.forward
    guarded     Conv2d(Guarded, Conv2d)         module.forward = Guarded.forward
                                                  -> guard.run(module, Conv2d.forward, ...)

A wrapper module would change paths and the ``state_dict``, and ``isinstance`` checks in the model
would fail; a hook could not intercept functions called inside ``forward``. A ``forward`` set on the
instance would hide that of the class, so it is set aside and called by the guard instead.

Inside ``guard.run`` two things may happen: ``whole`` takes over the call (it may call the module
once per level), and *treatments* intercept single functions that ``forward`` calls (``F.linear``,
``F.layer_norm``, ...). Guards are derived from the plan and the owners, and made anew at every step
in the life of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..common.inputs import PLAIN
from ..common.process_state import guarded_classes
from ..common.torch_modes import script_error
from ..errors import EnforcementError, Place
from ..plan.call_plan import CallPlan

Forward = Callable[..., Any]
#: The attribute with an instance-level ``forward`` override, set aside while the module is guarded.
_SET_ASIDE = "_forward_aside"
#: The attribute with an override that was set while the module was guarded
#: (``module.forward = torch.compile(module.forward)``). It calls the guard itself, so it stays.
_AROUND_GUARD = "_forward_around"


@dataclass
class Runtime:
    """The state of one forward pass of the network, shared by all its guards."""

    tasks: tuple[int, ...] = ()  # whose heads answer
    restrict: bool = True  # frozen units pass no gradient on: no input wants one
    level: int | None = None  # the level that a module around this one is being run for
    settled: bool = False  # nothing trains in that level
    inside: str | None = None  # innermost running module with norms per level or run per level
    counting: bool = True  # runs of guarded modules are counted, also in compiled parts
    features: dict[str, torch.Tensor] | None = None
    stock_norms: bool = False  # norms per level are computed by stock operators, up to rounding
    prepared: bool = False  # guards and pinned values are in place for the passes that come


@dataclass
class CallCounter:
    """Which call of a module in this pass is running.

    A module may be called several times in a pass, on other channels each time. The number of
    the call selects the masks. ``calls``: how many the analysis saw.
    """

    path: str
    calls: int
    done: int = 0
    current: int = 0

    def next(self) -> int:
        """The number of the call that begins."""
        if self.calls == 1:
            return 0
        if torch._C._current_graph_task_id() != -1:  # autograd is running: checkpointing
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
    """Replaces calls of certain functions inside the ``forward`` of a guarded module."""

    functions: ClassVar[frozenset[Any]]

    def wanted(self, module: nn.Module) -> bool:
        """Is there something to replace in this run of the module?"""

    def applies(self) -> bool:
        """Does a call of one of the functions belong to this treatment's module?"""

    def call(self, module: nn.Module, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Make the call; ``number`` counts such calls in this run of the module, from 0."""

    def finish(self, module: nn.Module, calls: int) -> None:
        """Called after the run with the number of calls; raises when one was missed."""


class Whole(Protocol):
    """Takes over the whole call of a module; ``forward`` is the call that it replaces."""

    def run(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any: ...


@dataclass
class Guard:
    """The treatments of one module; ``whole`` goes around all of them.

    A module with a ``counter`` must run as often as the analysis saw: see :func:`check_runs`.
    A guard with a ``runtime`` is a border: norms inside belong to this module.
    """

    path: str
    runtime: Runtime | None = None
    treatments: list[Treatment] = field(default_factory=list)
    whole: Whole | None = None
    counter: CallCounter | None = None
    runs: int = 0

    def run(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Call the module: ``forward`` is its own, without the guard."""
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
    """Sends calls of certain functions to treatments.

    While ``__torch_function__`` runs, torch disables the mode: a treatment may call the functions.
    """

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
        if guard is None:  # a bound method that outlived the guard: the module has none any more
            return original_class(self).forward(self, *args, **kwargs)  # type: ignore
        forward = self.__dict__.get(_SET_ASIDE, super().forward)  # type: ignore[misc]
        return guard.run(self, forward, args, kwargs)  # type: ignore[arg-type]

    def __prepare_scriptable__(self) -> NoReturn:  # called by torch.jit.script
        raise script_error()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # pickle finds classes by name, and the name of a guarded class is that of its base
        return _rebuild, (original_class(self),), self.__getstate__()  # type: ignore


def _guarded_class(base: type) -> type:
    """The guarded subclass of a class, the same one each time."""
    if base not in guarded_classes:
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
        # setdefault: of two threads that come here at once, both get the first one's class
        guarded_classes.setdefault(base, type(base.__name__, (Guarded, base), names))
    return guarded_classes[base]


def _rebuild(base: type) -> nn.Module:
    module: nn.Module = nn.Module.__new__(base)
    module.__class__ = _guarded_class(base)
    return module


def original_class(module: nn.Module) -> type:
    """The class a module has without its guard."""
    kind = type(module)
    # the order of a guarded class: itself, Guarded, the original class, ...
    return kind.__mro__[2] if issubclass(kind, Guarded) else kind


def guard(module: nn.Module, guard: Guard | None) -> None:
    """Put a guard on a module, or (None) take it away."""
    base, own = original_class(module), module.__dict__
    if isinstance(module, Guarded) and "forward" in own:
        own[_AROUND_GUARD] = own["forward"]
    if guard is None:
        if isinstance(module, Guarded):
            module.__class__ = base
            del own["_guard"]
            if _SET_ASIDE in own:
                own.setdefault("forward", own.pop(_SET_ASIDE))
        return
    own["_guard"] = guard
    if "forward" in own and own["forward"] is not own.get(_AROUND_GUARD):
        own[_SET_ASIDE] = own.pop("forward")
    module.__class__ = _guarded_class(base)


# -- around a pass -----------------------------------------------------------------------------


def start_runs(guards: dict[str, Guard]) -> None:
    """Before a pass: no module has been called yet."""
    for guard in guards.values():
        guard.runs = 0
        if guard.counter is not None:
            guard.counter.done = 0


def check_runs(guards: dict[str, Guard]) -> None:
    """After a pass: every module that is evaluated level by level must have been called.

    Raises:
        EnforcementError: one was not, so its channels were mixed in some other way.
    """
    for path, guard in guards.items():
        if guard.counter is not None and guard.runs < guard.counter.calls:
            raise EnforcementError(
                f"module '{path}' ran {guard.runs} times where the analysis saw "
                f"{guard.counter.calls}: the model took another path, or a fused kernel passed it "
                "by",
                place=Place(module=path),
                remedy="convert the model with example inputs of the kind it is used with",
            )


def check_outputs(leaves: list[Any], call_plan: CallPlan) -> None:
    """After a pass: the model must return what the analysis of the call saw.

    Raises:
        EnforcementError: it returns another number of values, or an object that may hide some.
    """
    if len(leaves) != len(call_plan.outputs):
        raise EnforcementError(
            f"the model returned {len(leaves)} values where the analysis saw "
            f"{len(call_plan.outputs)}",
            remedy="call the model as it was analysed, or convert it with this call among the "
            "examples: convert(model, [example, another])",
        )
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *PLAIN)):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise EnforcementError(
                f"the model returned a {kind}, whose content cannot be divided between tasks",
                remedy="switch that output off (use_cache=False, for a cache), or let the model "
                "return tensors in tuples, lists and dicts",
            )
