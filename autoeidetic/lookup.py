"""Lookup: models by name, and what can be said of them without memory for their weights.

A name is timm's own, ``torchvision:NAME`` or ``package.module:factory``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .analysis import analyze
from .dependencies import Dependencies
from .errors import InputError


def inspect_model(name: str, inputs: tuple[Tensor, ...] | None) -> Dependencies:
    """Build a model without memory for its weights and analyse it.

    Code that looks at its parameters' values cannot do without them: then the model is built
    a second time, with its weights.
    """
    build = find_model(name)
    try:
        with parameters_on_meta():
            model = build()
        return analyze(model, inputs)
    except InputError:
        raise
    except Exception:  # whatever a constructor or a forward may raise without data
        return analyze(built(name, build), inputs)


def find_model(name: str) -> Callable[[], Any]:
    """A function that builds the model of this name.

    Raises:
        InputError: there is no such model.
    """
    source, colon, rest = name.partition(":")
    if not colon:
        return _timm_model(name)
    if source == "torchvision":
        return _torchvision_model(rest)
    return _factory(source, rest)


def _timm_model(name: str) -> Callable[[], nn.Module]:
    import timm

    if not timm.is_model(name):
        raise InputError(
            f"timm has no model {name!r}",
            remedy="see timm.list_models(); other models are torchvision:NAME or "
            "package.module:factory",
        )
    return lambda: timm.create_model(name, pretrained=False)


def _torchvision_model(name: str) -> Callable[[], nn.Module]:
    from torchvision import models

    if name not in models.list_models():
        raise InputError(
            f"torchvision has no model {name!r}", remedy="see torchvision.models.list_models()"
        )
    backbone = {"weights_backbone": None} if _has_backbone(name) else {}
    return lambda: models.get_model(name, weights=None, **backbone)


def _has_backbone(name: str) -> bool:
    from torchvision import models

    builder = models.get_model_builder(name)
    return builder.__module__.startswith(("torchvision.models.seg", "torchvision.models.det"))


def _factory(module: str, function: str) -> Callable[[], Any]:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: a console script does not see the directory
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"cannot import {module!r}: {error}",
            remedy="name a module that python can import from here",
        ) from error
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InputError(
            f"{module!r} has no function or class {function!r}",
            remedy="write package.module:factory",
        )
    factory: Callable[[], Any] = found
    return factory


def built(name: str, build: Callable[[], Any]) -> Any:
    """The model, with its weights.

    Raises:
        InputError: the function fails.
    """
    try:
        return build()
    except Exception as error:  # the user's own code
        raise InputError(
            f"{name} cannot be built: {type(error).__name__}: {error}",
            remedy="call it without arguments in Python to see where it fails",
        ) from error


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Give parameters no memory, while buffers keep their values.

    Under ``torch.device("meta")`` the index tables that some models hold in buffers would be
    lost, and with them the knowledge which unit they pick.
    """
    original = nn.Module.register_parameter
    moved: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if type(param) is nn.Parameter and not param.is_meta:
            if id(param) not in moved:  # the first one is kept, so that its id stays taken
                meta = nn.Parameter(param.detach().to("meta"), param.requires_grad)
                moved[id(param)] = (param, meta)
            param = moved[id(param)][1]
        original(module, name, param)

    nn.Module.register_parameter = register  # type: ignore
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]
