"""Untouched: everything about a network and its process that an extraction must leave as it is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autoeidetic import EideticNet

#: Containers of a module that hooks are kept in.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks")


def _tensor(tensor: Tensor) -> tuple[Any, ...]:
    bits = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    where = (id(tensor), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
    return (*where, tensor.requires_grad, bits)


def of_module(module: nn.Module) -> dict[str, Any]:
    """Tensors, gradients, modes, classes, hooks and attributes of a model."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    found: dict[str, Any] = {f"tensor {name}": _tensor(tensor) for name, tensor in tensors}
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        found[f"gradient {name}"] = None if grad is None else _tensor(grad)
    for name, each in module.named_modules():
        hooks = [list(getattr(each, kind).items()) for kind in _HOOKS]
        # by identity: equality of an attribute may be anything
        items = {key: id(value) for key, value in vars(each).items() if key not in _CHANGING}
        found[f"module {name}"] = (id(each), type(each), each.training, hooks, items)
    return found


#: Attributes of networks that are looked at by what is in them, or that any pass changes.
_CHANGING = {"training", "calls", "runtime", "guards", "_protections", "call", "visible", "unfit"}


def of_network(net: EideticNet) -> dict[str, Any]:
    """The same, and what a network knows."""
    calls = net.calls
    return {
        **of_module(net),
        "tasks": net.tasks,
        "owners": id(net.owners),
        "call": id(net.call),
        "guards": {path: id(guard) for path, guard in net.guards.items()},
        "calls": [list(table) for table in (calls.known, calls.paths, calls.general)],
        "refused": list(calls.refused),
        "counted": dict(calls.single),
        "stock norms": net.runtime.stock_norms,
        "features": net.runtime.features,
    }


def of_process() -> dict[str, Any]:
    """Generators and settings."""
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": random.getstate(),
        "numpy": repr(np.random.get_state()),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "type": torch.get_default_dtype(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "call": nn.Module.__call__,
    }


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Nothing inside may change the model, a network or not, or the process."""
    look = of_network if isinstance(model, EideticNet) else of_module
    before, process = look(model), of_process()  # type: ignore[arg-type]
    try:
        yield
    finally:
        after = look(model)  # type: ignore[arg-type]
        changed = [key for key in before | after if before.get(key) != after.get(key)]
        assert not changed, changed
        now = of_process()
        different = [key for key in process if process[key] != now[key]]
        assert not different, different
