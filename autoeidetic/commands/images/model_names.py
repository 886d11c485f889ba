"""Models by name, built and analysed without memory for their weights where possible.

A name is timm's own, ``torchvision:NAME`` or ``package.module:factory``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from ...analyze import analyze
from ...errors import InputError
from ...report.dependencies import Dependencies


def inspect_model(name: str, inputs: tuple[Tensor, ...] | None) -> Dependencies:
    """Build a model without memory for its weights and analyse it.

    A model whose code reads parameter values fails this way; it is then built a second time,
    with its weights.
    """
    build = find_model(name)
    try:
        with parameters_on_meta():
            model = build()
        return analyze(model, inputs)
    # A wrong name or input is the user's mistake: weights would not change it.
    except InputError:
        raise
    except Exception:  # a constructor or a forward may raise anything without data
        return analyze(build_model(name, build), inputs)


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
        from torchvision import models

        elsewhere = name in models.list_models()
        near = f"did you mean 'torchvision:{name}'? " if elsewhere else ""
        raise InputError(
            f"timm has no model {name!r}",
            remedy=f"{near or did_you_mean(name, timm.list_models())}timm.list_models() lists all "
            "names; other models are torchvision:NAME or package.module:factory",
        )
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        raise InputError(
            f"timm has no model {name!r}: {error}",
            remedy=f"{did_you_mean(name, tags)}omit the tag after the dot",
        ) from error
    return lambda: timm.create_model(name, pretrained=False)


def _torchvision_model(name: str) -> Callable[[], nn.Module]:
    from torchvision import models

    if name not in models.list_models():
        raise InputError(
            f"torchvision has no model {name!r}",
            remedy=f"{did_you_mean(name, models.list_models())}torchvision.models.list_models() "
            "lists all names",
        )
    backbone = {"weights_backbone": None} if _has_backbone(name) else {}
    return lambda: models.get_model(name, weights=None, **backbone)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the closest known names; empty when none is close.

    >>> did_you_mean("Resnet_18", ["vgg11", "resnet18", "resnet34"])
    "did you mean 'resnet18' or 'resnet34'? "
    >>> did_you_mean("vit_tiny", ["vit_tiny_patch16_224"]), did_you_mean("vit_tiny", [])
    ("did you mean 'vit_tiny_patch16_224'? ", '')
    """
    # Names that start with the given one come first: a forgotten suffix is the usual mistake.
    by_lower = {each.lower(): each for each in known}
    name = name.lower()
    longer = sorted((each for each in by_lower if name and each.startswith(name)), key=len)
    near = (longer or get_close_matches(name, by_lower))[:3]
    if not near:
        return ""
    *first, last = (repr(by_lower[each]) for each in near)
    return f"did you mean {', '.join(first)}{' or ' if first else ''}{last}? "


def _has_backbone(name: str) -> bool:
    from torchvision import models

    builder = models.get_model_builder(name)
    return builder.__module__.startswith(("torchvision.models.seg", "torchvision.models.det"))


def _factory(module: str, function: str) -> Callable[[], Any]:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does; a console script lacks the current directory
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"the module {module!r} cannot be imported: {error}",
            remedy="pass a module that Python can import from the current directory",
        ) from error
    except Exception as error:  # user code, or not a module name at all
        raise InputError(
            f"the module {module!r} cannot be imported: {type(error).__name__}: {error}",
            remedy="import it in Python to see where it fails",
        ) from error
    names = [name for name, value in vars(found).items() if callable(value)]
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InputError(
            f"{module!r} has no function or class {function!r}",
            remedy=f"{did_you_mean(function, names)}write package.module:factory",
        )
    factory: Callable[[], Any] = found
    return factory


def build_model(name: str, build: Callable[[], Any]) -> Any:
    """The model, built with its weights.

    Raises:
        InputError: ``build`` raises an exception.
    """
    try:
        return build()
    except Exception as error:  # user code
        raise InputError(
            f"{name} cannot be built: {type(error).__name__}: {error}",
            remedy="call it without arguments in Python to see where it fails",
        ) from error


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Create parameters on the meta device, while buffers keep their values.

    Under ``torch.device("meta")`` index tables in buffers would lose their values, and the analysis
    needs them to know which channels they select.
    """
    original = nn.Module.register_parameter
    moved: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        # Exact type: lazy and other special parameters are left alone.
        if type(param) is nn.Parameter and not param.is_meta:
            if id(param) not in moved:  # `moved` keeps `param` alive, so that its id is not reused
                meta = nn.Parameter(param.detach().to("meta"), param.requires_grad)
                moved[id(param)] = (param, meta)
            param = moved[id(param)][1]
        original(module, name, param)

    nn.Module.register_parameter = register  # type: ignore
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]
