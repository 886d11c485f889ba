"""Initialise: fresh values for free units, from each module's own initialisation if it has one.

A module with ``reset_parameters`` draws new values on a stand-in of the same class. Any other
parameter (a position embedding, a layer scale) is drawn from a normal distribution with the mean
and the standard deviation it had when the model was converted. Only free elements are replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..enforce.guard import original_class

_RESETS = ("reset_parameters", "_reset_parameters")
#: Power iterations that torch runs for a new spectral norm.
_ITERATIONS = 15


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


@torch.no_grad()
def reset(module: nn.Module, spread: float) -> None:
    """Initialise a whole module in place.

    Version counters tell which parameters ``reset_parameters`` has written; the others are drawn.
    """
    for part in module.modules():
        before = {p: p._version for p in part._parameters.values() if p is not None}
        method = None if parametrize.is_parametrized(part) else _reset_method(part)
        if method is not None:
            method()
        for parameter, version in before.items():
            if parameter._version == version:
                parameter.normal_(std=spread or 0.02)
    for part in module.modules():
        if parametrize.is_parametrized(part):
            _reset_parametrized(part)
    _settle_computed_weights(module)


def _reset_parametrized(module: nn.Module) -> None:
    """Give parametrised tensors the values that the plain module would start with."""
    plain: nn.Module = nn.Module.__new__(parametrize.type_before_parametrizations(module))
    plain.__dict__ = dict(module.__dict__)
    values = {
        name: nn.Parameter(torch.empty_like(getattr(module, name)))
        for name in module.parametrizations  # type: ignore[union-attr]
    }
    plain._modules, plain._parameters = {}, {**module._parameters, **values}
    method = _reset_method(plain)
    if method is None:
        return
    method()
    for name, value in values.items():
        with suppress(NotImplementedError):  # no right_inverse: the random values stay
            setattr(module, name, value.detach())


def _settle_computed_weights(module: nn.Module) -> None:
    """Iterate what training passes would: the vectors of a spectral norm must fit the weights."""
    for _ in range(_ITERATIONS):
        for part in module.modules():
            if parametrize.is_parametrized(part):
                for name in part.parametrizations:  # type: ignore[union-attr]
                    getattr(part, name)
            for hook in part._forward_pre_hooks.values():
                if type(hook).__module__.startswith("torch.nn.utils."):  # spectral and weight norm
                    hook(part, ())


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
    """A module of the same class whose tensors, and those of its children, are copies."""
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
