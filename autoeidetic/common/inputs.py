"""Example inputs: those that the user passed, or those of timm, torchvision and transformers."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError

# two, because a batch of one hides the batch dimension: sizes of 1 broadcast
BATCH = 2
PLAIN = (int, float, bool, str, type(None), torch.dtype)


@dataclass(frozen=True)
class CallInputs:
    """The positional and keyword arguments of one call of the model.

    ``decisions`` holds what the model's code reads out of tensors in this call, if that is known
    (:mod:`autoeidetic.capture.decisions`). The analysis then takes the same path.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    decisions: tuple[Hashable, ...] | None = None


def check_module(model: Any) -> None:
    """Check that a model was passed.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model is a {type(model).__qualname__}, not a torch.nn.Module",
            remedy="pass the model itself, for instance timm.create_model('resnet18')",
        )


def check_loader(loader: Any, name: str) -> None:
    """Check that batches can be read from a loader, without reading any: that may start processes.

    Raises:
        InputError: they cannot.
    """
    # Python iterates over objects without __iter__, such as datasets, through __getitem__
    if not isinstance(loader, Iterable) and not hasattr(type(loader), "__getitem__"):
        raise InputError(
            f"{name} is a {type(loader).__qualname__}, which gives no batches",
            remedy="pass a DataLoader, or a list of pairs (inputs, targets)",
        )


def example_calls(model: nn.Module, example_inputs: Any = None) -> tuple[CallInputs, ...]:
    """Turn ``example_inputs`` into calls: a list holds several examples, anything else is one.

    Raises:
        InputError: nothing was passed and the model is of no known family, or a leaf is
            neither a tensor nor a plain Python value.
    """
    if not isinstance(example_inputs, list):
        return (call_inputs(model, example_inputs),)
    if not example_inputs:
        raise InputError(
            "example_inputs is an empty list",
            remedy="pass one example, or a list of several: [example, another]",
        )
    for number, example in enumerate(example_inputs):
        _check_leaves(example, f"example_inputs[{number}]")
    return tuple(call_inputs(model, example) for example in example_inputs)


def call_inputs(model: nn.Module, example_inputs: Any = None) -> CallInputs:
    """Turn one example into a call: a tensor, a tuple (positional) or a dict (keywords).

    Raises:
        InputError: nothing was passed and the model is of no known family, or a leaf is
            neither a tensor nor a plain Python value.
    """
    if isinstance(example_inputs, CallInputs):
        return example_inputs
    if example_inputs is None:
        return _default_inputs(model)
    _check_leaves(example_inputs, "example_inputs")
    if isinstance(example_inputs, Mapping):
        return CallInputs((), dict(example_inputs))
    if isinstance(example_inputs, (tuple, list)):
        return CallInputs(tuple(example_inputs), {})
    return CallInputs((example_inputs,), {})


def _check_leaves(value: Any, where: str) -> None:
    if isinstance(value, CallInputs):
        _check_leaves((value.args, value.kwargs), where)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_leaves(item, f"{where}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            _check_leaves(item, f"{where}[{index}]")
    elif not isinstance(value, (Tensor, *PLAIN)):
        raise InputError(
            f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be "
            "traced",
            remedy="pass tensors, or tuples, lists and dicts of tensors and plain Python values "
            "(torch.as_tensor turns a numpy array into a tensor)",
        )


def _default_inputs(model: nn.Module) -> CallInputs:
    for find in (_timm_inputs, _torchvision_inputs, _transformers_inputs):
        inputs = find(model)
        if inputs is not None:
            return inputs
    raise InputError(
        f"no example inputs were given and those of {type(model).__qualname__} are not known (they "
        "are for timm's models and for most of torchvision's and transformers')",
        remedy="pass example_inputs: a tensor, a tuple of positional arguments or a dict of "
        "keyword arguments, for instance analyze(model, torch.randn(2, 3, 32, 32))",
    )


def _image(*size: int) -> CallInputs:
    return CallInputs((torch.empty(BATCH, *size, device="meta"),), {})


def _timm_inputs(model: nn.Module) -> CallInputs | None:
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    # [C, H, W]; a model made with img_size= has its own in patch_embed
    size = config.get("input_size") if isinstance(config, Mapping) else None
    if size is None:
        return None
    embed = getattr(model, "patch_embed", None)
    grid = getattr(embed, "img_size", None)
    if isinstance(grid, (tuple, list)) and len(grid) == 2 and all(grid):
        size = (getattr(embed, "in_chans", size[0]), *grid)
    return _image(*size)


def _torchvision_inputs(model: nn.Module) -> CallInputs | None:
    module = type(model).__module__
    if not module.startswith("torchvision.models"):
        return None
    if ".video" in module:
        return _image(3, 16, 224, 224)
    # they take lists of images and look at data: no default would be right
    if ".detection" in module:
        return None
    if ".optical_flow" in module:
        image = torch.empty(BATCH, 3, 128, 128, device="meta")
        return CallInputs((image, image.clone()), {})
    size = getattr(model, "image_size", None)
    if not isinstance(size, int):
        size = 299 if type(model).__name__ == "Inception3" else 224
    return _image(3, size, size)


def _transformers_inputs(model: nn.Module) -> CallInputs | None:
    if not any(cls.__module__.startswith("transformers.") for cls in type(model).__mro__):
        return None
    config: Any = getattr(model, "config", None)
    main = getattr(model, "main_input_name", "input_ids")
    if main == "input_ids":
        return CallInputs((), {"input_ids": torch.ones(BATCH, 8, dtype=torch.long)})
    if main == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        channels = getattr(config, "num_channels", 3)
        return CallInputs((), {main: torch.empty(BATCH, channels, height, width, device="meta")})
    return None


def whole_number(value: Any) -> int | None:
    """An integer of any type as a plain int; None for anything else, booleans included.

    Example:
        >>> import numpy, torch
        >>> whole_number(numpy.int64(3)), whole_number(torch.tensor(3)), whole_number(True)
        (3, 3, None)
    """
    if isinstance(value, bool):
        return None
    try:
        # __index__ is what Python itself asks for: NumPy integers and 0-d integer tensors have it
        return int(operator.index(value))
    except TypeError:
        return None
