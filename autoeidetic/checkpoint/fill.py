"""Fill: replace a model's values by those of a file, after checking that they fit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..enforce.guard import Guarded
from ..enforce.slots import Slot, tensor_slots
from ..errors import CheckpointError, Place

FRESH = "pass a new model, built with the same code and arguments as the saved one"


def distinct(slots: Mapping[str, Slot]) -> dict[str, Tensor]:
    """Every tensor once, by its first name: a rebuilt model restores ties by its structure."""
    seen: set[int] = set()
    result = {}
    for name, (home, leaf) in slots.items():
        if id(home[leaf]) not in seen:
            seen.add(id(home[leaf]))
            result[name] = home[leaf]
    return result


def filled(
    model: nn.Module, tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]
) -> nn.Module:
    """A copy of a model with these values instead of its own, some converted to another type.

    Raises:
        CheckpointError: the values do not fit, or the model cannot be copied.
    """
    if any(isinstance(module, Guarded) for module in model.modules()):
        fact = "the file needs a model that is not part of a network"
        raise CheckpointError(fact, remedy=FRESH)
    own = check_places(model, "backbone", tensors)
    # deepcopy takes the entries of its memo for copies already made: every place that refers to an
    # old tensor gets the new one, ties included, and no value of the model is copied.
    memo: dict[int, Any] = {}
    for name, tensor in own.items():
        if name in tensors and tensors[name].shape == tensor.shape:
            value = tensors[name]
            value = value.to(dtypes.get(name, value.dtype))
            memo[id(tensor)] = _parameter(value) if isinstance(tensor, nn.Parameter) else value
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # a model's own code may raise anything
        raise CheckpointError(
            f"the file needs a copy of the model, which cannot be made: {error}", remedy=FRESH
        ) from error


def _parameter(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=value.is_floating_point() or value.is_complex())


def _caches(module: nn.Module, prefix: str) -> set[str]:
    """Names of non-persistent buffers, whose shape may change with every input."""
    return {
        f"{path}.{name}"
        for path, part in module.named_modules(prefix=prefix, remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }


def check_places(
    module: nn.Module, prefix: str, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors of a module, after checking that the file has the same names and shapes.

    Raises:
        CheckpointError: names or shapes differ.
    """
    own, caches = distinct(tensor_slots(module, prefix)), _caches(module, prefix)
    saved = {name: t for name, t in tensors.items() if name.startswith(f"{prefix}.")}
    # Caches may be on one side only, or have another shape: they are made again when needed.
    missing = [name for name in own if name not in saved and name not in caches]
    extra = [name for name in saved if name not in own and name not in caches]
    if missing:
        raise CheckpointError(
            f"the file has nothing for {missing[0]}, which the network has",
            place=_holder(missing[0]),
            remedy=FRESH,
        )
    if extra:
        raise CheckpointError(
            f"the file has {extra[0]}, for which the network has no place",
            place=_holder(extra[0]),
            remedy=FRESH,
        )
    for name, tensor in own.items():
        if name not in caches and _kind(saved[name]) != _kind(tensor):
            raise CheckpointError(
                f"the file has {name} of shape {_kind(saved[name])}, and the network has it of "
                f"shape {_kind(tensor)}",
                place=_holder(name),
                remedy=FRESH,
            )
    return own


def _kind(tensor: Tensor) -> str:
    """Shape, and the type unless it is floating-point: the precision may differ."""
    number = "" if tensor.is_floating_point() else f" of {tensor.dtype}"
    return f"{list(tensor.shape)}{number}"


def _holder(name: str) -> Place:
    return Place(module=name.removeprefix("backbone.").rpartition(".")[0])
