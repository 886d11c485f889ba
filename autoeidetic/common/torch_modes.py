"""Surroundings: what else of PyTorch is at work around a pass of a network.

A pass may be recorded (``torch.jit.trace``, ``torch.export``, ``make_fx``, fake tensors), and
tensors of a network may stop to be plain ones (``DTensor`` of FSDP2, those of ``torch.func``).
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

#: The classes of nearly all tensors in models.
PLAIN = frozenset({Tensor, nn.Parameter})
_MODES = torch._C._TorchDispatchModeKey
_DISABLED = torch._C._disabled_torch_dispatch_impl


def recording() -> bool:
    """Is the pass written down rather than computed? Then nothing may look at its values."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._get_dispatch_mode(_MODES.PROXY) is not None
        or torch._C._get_dispatch_mode(_MODES.FAKE) is not None
    )


@contextmanager
def unrecorded() -> Iterator[None]:
    """What is done to look after a network is no part of what is recorded."""
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


def same_trace() -> AbstractContextManager[Any]:
    """``torch.jit.trace`` checks a trace against one made in ``no_grad``: both must be the same."""
    return torch.enable_grad() if torch.jit.is_tracing() else nullcontext()


def not_scriptable() -> EnforcementError:
    return EnforcementError(
        "torch.jit.script cannot read how the modules of a network are divided between tasks",
        remedy="use torch.jit.trace(net, inputs) or torch.export.export(net, (inputs,))",
    )


def transforming() -> bool:
    """Is a transform of ``torch.func`` at work?"""
    return torch._C._functorch.peek_interpreter_stack() is not None


@dataclass(frozen=True)
class Strangeness:
    """What a tensor is that is not a plain one, and what to do about it."""

    kind: str
    remedy: str


def strangeness(tensor: Tensor) -> Strangeness | None:
    """Why elements of a tensor cannot be read and written in place; None when they can."""
    kind = type(tensor)
    if not _is_plain(kind):
        remedy = _REMEDIES.get(kind.__name__, "give the module the tensor back that it had")
        return Strangeness(with_article(kind.__name__), remedy)
    if transforming() and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return Strangeness("a tensor of a torch.func transform", _REMEDIES["torch.func"])
    return None


_REMEDIES = {
    "DTensor": "train the network in one process or with DistributedDataParallel: FSDP and tensor "
    "parallelism divide its tensors among processes",
    "FakeTensor": "make the network outside of the mode with fake tensors",
    "torch.func": "let torch.func transform the inputs and not the parameters; loss.backward() "
    "gives gradients of parameters",
}


def keeps_weights_away(module: nn.Module) -> Strangeness | None:
    """Does a module hold its weights elsewhere than in parameters of its own?"""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not there: nobody has used it
    if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
        return Strangeness("a FullyShardedDataParallel", "convert the model that it wraps")
    if isinstance(module, torch.jit.ScriptModule):
        if not any(True for _ in module.parameters()):
            return None
        remedy = "convert a model with the module that it was scripted from"
        return Strangeness("a torch.jit script with parameters", remedy)
    if any(isinstance(value, torch.ScriptObject) for value in vars(module).values()):
        kind = f"{type(module).__module__}.{type(module).__name__}"
        remedy = "convert the model as it was before it was quantized"
        return Strangeness(f"the packed weights of a {kind}", remedy)
    return None


@cache
def _is_plain(kind: type) -> bool:
    """Does a class of tensors leave all operators to PyTorch?"""
    return kind.__torch_dispatch__ is _DISABLED  # type: ignore[attr-defined]
