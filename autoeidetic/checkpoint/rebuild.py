"""Rebuild: build the bare model of a network again, by its name in timm or torchvision.

A recipe is a name and a few numbers. It is accepted only if a model built from it, without values,
has the same description, line by line, as the model itself.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from ..common.process_state import recipes
from ..enforce.guard import original_class
from ..errors import CheckpointError

Recipe = dict[str, Any]
#: The libraries that a recipe may name, and the only arguments it may have: a file runs no code.
_ARGUMENTS = {
    "timm": ("num_classes", "in_chans", "img_size"),
    "torchvision": ("num_classes", "image_size"),
}
#: Attributes that do not affect what a model computes.
_IRRELEVANT = frozenset(
    "training _guard _compiled_call_impl pretrained_cfg default_cfg num_classes".split()
)
#: The most models of a torchvision family to try, nearest in size first.
_MOST_CANDIDATES = 4
_VERSION = "install the version of the library it was saved with, or pass model="


def recipe(model: nn.Module, classes: int) -> Recipe:
    """How to build the model; ``{"why_not": ...}`` if no known model is the same.

    ``classes``: the size of its output layer.
    """
    wanted = describe(model)
    key = hash((classes, _architecture(model), *wanted))
    if key not in recipes:  # a network is saved many times, and candidates take time to build
        recipes[key] = _find(model, classes, wanted)
    return recipes[key]


def _find(model: nn.Module, classes: int, wanted: list[str]) -> Recipe:
    why_not = f"{original_class(model).__qualname__} is not a model of timm or torchvision"
    for candidate in filter(_plain_arguments, _candidates(model, classes)):
        try:
            # On meta first: no memory and no initialisation, so a candidate takes milliseconds.
            built = _build_without_data(candidate)
        except Exception as error:  # a constructor may raise anything for a wrong argument
            why_not = f"{candidate['library']}'s {candidate['name']} cannot be built: {error}"
            continue
        different = _difference(wanted, describe(built))
        if different is None:
            return candidate
        why_not = f"{candidate['library']}'s {candidate['name']} is different: {different}"
    return {"why_not": why_not}


def build(recipe: Recipe) -> nn.Module:
    """The model of a recipe, with initial values.

    Raises:
        CheckpointError: the file has no recipe, or it names an unknown model.
    """
    if "why_not" in recipe:
        raise CheckpointError(
            f"the file does not tell how to build the model ({recipe['why_not']})",
            remedy="pass model= (--model on the command line), a new model built as the saved one "
            "was; its values do not matter",
        )
    if not _known_name(recipe) or not _plain_arguments(recipe):
        name, library = recipe.get("name"), recipe.get("library")
        raise CheckpointError(
            f"the file is of a model {name!r} of {library!r}, which is not known here",
            remedy=_VERSION,
        )
    try:
        return _build(recipe, "cpu")
    except Exception as error:  # a constructor may raise anything
        raise CheckpointError(
            f"the file is of {recipe['name']} with {recipe['arguments']}, which cannot be built: "
            f"{error}",
            remedy=_VERSION,
        ) from error


def _known_name(recipe: Recipe) -> bool:
    library, name = recipe.get("library"), recipe.get("name")
    if not isinstance(library, str) or library not in _ARGUMENTS:
        return False
    return name in _names(library)


def _plain_arguments(recipe: Recipe) -> bool:
    arguments = recipe.get("arguments")
    if not isinstance(arguments, dict):
        return False
    numbers = [n for v in arguments.values() for n in (v if isinstance(v, list) else [v])]
    return set(arguments) <= set(_ARGUMENTS[recipe["library"]]) and all(
        type(n) is int for n in numbers
    )


def _names(library: str) -> list[str]:
    if library == "timm":
        import timm

        return timm.list_models()
    import torchvision

    return torchvision.models.list_models()


def _build_without_data(recipe: Recipe) -> nn.Module:
    try:
        return _build(recipe, "meta")
    except (NotImplementedError, RuntimeError):  # its constructor computes with tensors
        return _build(recipe, "cpu")


def _build(recipe: Recipe, device: str) -> nn.Module:
    """Build without pretrained values: nothing is downloaded."""
    name, arguments = recipe["name"], recipe["arguments"]
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")  # about initialisation; the values are replaced anyway
        if recipe["library"] == "timm":
            import timm

            return timm.create_model(name, pretrained=False, **arguments)
        import torchvision

        # Both None explicitly: some builders download a backbone by default.
        takes = inspect.signature(torchvision.models.get_model_builder(name)).parameters
        none = {key: None for key in ("weights", "weights_backbone") if key in takes}
        return torchvision.models.get_model(name, **none, **arguments)


# -- candidates --------------------------------------------------------------------------------


def _candidates(model: nn.Module, classes: int) -> Iterator[Recipe]:
    # timm:         the model carries its architecture's name; arguments are read off the model
    # torchvision:  the model carries no name; builders that return its class are tried, those
    #               whose published number of parameters is nearest first
    # A candidate is a guess. ``_find`` builds it without data and compares it line by line.
    kind = original_class(model)
    if _architecture(model) in _names("timm"):
        yield from _timm_candidates(model, classes)
    if kind.__module__.startswith("torchvision.models"):
        for name in _torchvision_names(model, kind, classes)[:_MOST_CANDIDATES]:
            arguments = {"num_classes": classes} if classes else {}
            if isinstance(size := getattr(model, "image_size", None), int):  # a ViT
                arguments["image_size"] = size
            yield {"library": "torchvision", "name": name, "arguments": arguments}


def _torchvision_names(model: nn.Module, kind: type, classes: int) -> list[str]:
    """Names of torchvision models of this class, the nearest in size first."""
    import torchvision

    # Published sizes are for the classes of the published weights. The difference of the head is
    # corrected for, so that the right member of a family (resnet50, not resnet101) comes first.
    size = sum(parameter.numel() for parameter in model.parameters())
    heads = [p.numel() for p in model.parameters() if p.dim() > 1 and p.shape[0] == classes]
    per_class = heads[-1] // classes + 1 if heads else 0
    distance = {}
    for name in _names("torchvision"):
        builder = torchvision.models.get_model_builder(name)
        if inspect.signature(builder).return_annotation is kind:
            known = [weights.meta for weights in torchvision.models.get_model_weights(name)]
            sizes = [_size(meta, per_class, classes) for meta in known]
            distance[name] = min((abs(other - size) for other in sizes), default=0)
    return sorted(distance, key=lambda name: distance[name])


def _size(meta: Mapping[str, Any], per_class: int, classes: int) -> int:
    """The number of parameters that a published model would have with these classes."""
    return meta.get("num_params", 0) + per_class * (classes - len(meta.get("categories") or ()))


def _config(model: nn.Module) -> Mapping[str, Any]:
    """The configuration that timm attaches to models."""
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    return config if isinstance(config, Mapping) else {}


def _architecture(model: nn.Module) -> str:
    return str(_config(model).get("architecture", ""))


def _timm_candidates(model: nn.Module, classes: int) -> Iterator[Recipe]:
    """Recipes with the visible differences from the architecture's defaults."""
    channels, *size = _config(model).get("input_size") or (3,)
    image = getattr(getattr(model, "patch_embed", None), "img_size", None)
    resized = list(image) if isinstance(image, (tuple, list)) and list(image) != size else None
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    # The first convolution need not be on the image, so the default channels are tried first.
    for inputs in dict.fromkeys((channels, first.in_channels if first else channels)):
        # A replaced output layer has another size than ``model.num_classes`` says.
        for outputs in dict.fromkeys((getattr(model, "num_classes", classes), classes)):
            arguments: dict[str, Any] = {"num_classes": outputs}
            if inputs != channels:
                arguments["in_chans"] = inputs
            if resized is not None:
                arguments["img_size"] = resized
            yield {"library": "timm", "name": _architecture(model), "arguments": arguments}


# -- descriptions ------------------------------------------------------------------------------


def describe(model: nn.Module) -> list[str]:
    """A model without its values, as lines: types, settings, hooks, shapes and ties."""
    lines: list[str] = []
    first: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        kind = original_class(module)  # guards replace the class of a module
        lines.append(f"'{path}' is {kind.__module__}.{kind.__qualname__}({module.extra_repr()})")
        for name, value in sorted(module.__dict__.items()):
            if name not in _IRRELEVANT and (text := _setting(name, value)) is not None:
                lines.append(f"'{path}' has {name} = {text}")
        # Non-persistent buffers are caches, which may not be there before the first call.
        persistent = {
            name: buffer
            for name, buffer in module._buffers.items()
            if name not in module._non_persistent_buffers_set
        }
        for name, tensor in {**module._parameters, **persistent}.items():
            if tensor is not None:
                own = f"{path}.{name}"
                # "is" names the first place of the tensor, so tied parameters show as ties.
                lines.append(f"{own} {list(tensor.shape)} is {first.setdefault(id(tensor), own)}")
    return lines


def _difference(wanted: list[str], found: list[str]) -> str | None:
    """The first line that differs."""
    for ours, theirs in zip_longest(wanted, found, fillvalue="nothing"):
        if ours != theirs:
            return f"{ours}, not {theirs}"
    return None


def _setting(name: str, value: Any) -> str | None:
    """A setting as text; None for values that may be a cache: tensors, dictionaries, None."""
    if name.endswith("_hooks"):
        return repr([_function(hook) for hook in value.values()]) if value else None
    if isinstance(value, (bool, int, float, str, torch.Size)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        parts = ["None" if item is None else _setting("", item) for item in value]
        return repr(parts) if parts and None not in parts else None
    if isinstance(value, (type, partial, types.FunctionType, types.BuiltinFunctionType)):
        return _function(value)
    return None


def _function(value: Any) -> str:
    if isinstance(value, partial):
        return f"{_function(value.func)} with {value.args} {value.keywords}"
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
