"""Torch modes: tracers and transforms around a pass, tensors and modules that cannot be divided.

A pass may be recorded (``torch.jit.trace``, ``torch.export``, ``make_fx``, fake tensors), and
the tensors of a network may be replaced by special ones (``DTensor`` of FSDP2, wrappers of
``torch.func``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import EnforcementError, with_article

#: The classes of nearly all tensors in models: known to be supported without a closer look.
PLAIN = frozenset({Tensor, nn.Parameter})
_MODES = torch._C._TorchDispatchModeKey
_DISABLED = torch._C._disabled_torch_dispatch_impl


def is_recording() -> bool:
    """Is the pass recorded by a tracer or compiler? Then nothing may look at its values."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._get_dispatch_mode(_MODES.PROXY) is not None
        or torch._C._get_dispatch_mode(_MODES.FAKE) is not None
    )


@contextmanager
def recording_paused() -> Iterator[None]:
    """Exclude the block from a recording: checks of the network are not part of its pass."""
    # the common case first: this runs in every pass
    trace = torch._C._get_tracing_state()
    if trace is None and not torch._C._len_torch_dispatch_stack():
        yield
        return
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._set_tracing_state(trace)  # type: ignore[attr-defined]


def same_gradients_in_traces() -> AbstractContextManager[Any]:
    """Record gradients in every ``torch.jit.trace``.

    It checks a trace against a second one made in ``no_grad``, and both must be the same.
    """
    return torch.enable_grad() if torch.jit.is_tracing() else nullcontext()


def script_error() -> EnforcementError:
    """The error for ``torch.jit.script``, which reads source code and sees no guards."""
    return EnforcementError(
        "torch.jit.script cannot read how the modules of a network are divided between tasks",
        remedy="use torch.jit.trace(net, inputs) or torch.export.export(net, (inputs,))",
    )


def is_transforming() -> bool:
    """Is a transform of ``torch.func`` (``grad``, ``vmap``, ...) active?"""
    return torch._C._functorch.peek_interpreter_stack() is not None


@dataclass(frozen=True)
class Unsupported:
    """A tensor or module whose values cannot be divided between tasks, and the remedy."""

    kind: str
    remedy: str


def unsupported_tensor(tensor: Tensor) -> Unsupported | None:
    """Why the elements of a tensor cannot be read and written in place; None if they can."""
    kind = type(tensor)
    if not _is_plain(kind):
        remedy = _REMEDIES.get(kind.__name__, "give the module its original tensor back")
        return Unsupported(with_article(kind.__name__), remedy)
    if is_transforming() and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return Unsupported("a tensor of a torch.func transform", _REMEDIES["torch.func"])
    return None


_REMEDIES = {
    "DTensor": "train the network in one process or with DistributedDataParallel: FSDP and tensor "
    "parallelism divide its tensors among processes",
    "FakeTensor": "make the network outside of the mode with fake tensors",
    "torch.func": "let torch.func transform the inputs and not the parameters; loss.backward() "
    "gives gradients of parameters",
}


def unsupported_module(module: nn.Module) -> Unsupported | None:
    """Why the weights of a module are not in its own parameters; None if they are."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # imported only if the program uses it
    if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
        return Unsupported("a FullyShardedDataParallel", "convert the model that it wraps")
    if isinstance(module, torch.jit.ScriptModule):
        # a script without parameters is a function: it runs as one
        if not any(True for _ in module.parameters()):
            return None
        remedy = "convert a model with the module that it was scripted from"
        return Unsupported("a torch.jit script with parameters", remedy)
    if any(isinstance(value, torch.ScriptObject) for value in vars(module).values()):
        kind = f"{type(module).__module__}.{type(module).__name__}"
        remedy = "convert the model as it was before it was quantized"
        return Unsupported(f"the packed weights of a {kind}", remedy)
    return None


@cache
def _is_plain(kind: type) -> bool:
    """Does a class of tensors use PyTorch's own operators, without ``__torch_dispatch__``?"""
    # a subclass that only overrides __torch_function__ still has ordinary memory under it
    return kind.__torch_dispatch__ is _DISABLED  # type: ignore[attr-defined]
