"""Initialise: fresh values for free units, each module's own initialisation first.

A module with ``reset_parameters`` is asked for new values on a stand-in of the same class; any
other parameter (a position embedding, a layer scale) is drawn from a normal distribution with the
mean and the spread it had when the model was converted. Only free elements are replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .layers.guard import original_class

_RESETS = ("reset_parameters", "_reset_parameters")


def spreads(model: nn.Module) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of every parameter."""
    result = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().float()
        if parameter.is_meta or not parameter.numel():
            result[name] = (0.0, 0.02)
        else:
            spread = float(values.std()) if values.numel() > 1 else 0.0
            result[name] = (float(values.mean()), spread)
    return result


def reset(module: nn.Module, spread: float) -> None:
    """Initialise a whole module in place."""
    for part in module.modules():
        method = _reset_method(part)
        if method is not None:
            method()
            continue
        with torch.no_grad():
            for parameter in part._parameters.values():
                if parameter is not None:
                    parameter.normal_(std=spread or 0.02)


@torch.no_grad()
def fresh_values(
    module: nn.Module, spreads: Mapping[str, tuple[float, float]]
) -> dict[str, Tensor]:
    """New values for a module's own parameters and running statistics, by name.

    ``spreads``: mean and spread of each parameter, for a module that cannot initialise itself.
    """
    if _reset_method(module) is not None:
        stand_in = _stand_in(module)
        method = _reset_method(stand_in)
        assert method is not None
        method()
        return {**_present(stand_in._parameters), **_present(stand_in._buffers)}
    values = {}
    for name, parameter in _present(module._parameters).items():
        mean, spread = spreads[name]
        fresh = torch.empty_like(parameter, requires_grad=False)
        values[name] = fresh.normal_(mean, spread) if spread > 0 else fresh.fill_(mean)
    return values


def _present(tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in tensors.items() if t is not None}


def _stand_in(module: nn.Module) -> nn.Module:
    """A module of the same class with tensors of its own, and so are its children's."""
    stand_in: nn.Module = nn.Module.__new__(original_class(module))
    stand_in.__dict__ = dict(module.__dict__)
    stand_in.__dict__.pop("_guard", None)
    stand_in._parameters = {
        name: None if p is None else nn.Parameter(p.detach().clone(), requires_grad=False)
        for name, p in module._parameters.items()
    }
    stand_in._buffers = {
        name: None if b is None else b.clone() for name, b in module._buffers.items()
    }
    stand_in._modules = {
        name: None if child is None else _stand_in(child) for name, child in module._modules.items()
    }
    return stand_in


def _reset_method(module: nn.Module) -> Callable[[], Any] | None:
    for name in _RESETS:
        method = getattr(module, name, None)
        if callable(method) and not inspect.signature(method).parameters:
            return method
    return None
