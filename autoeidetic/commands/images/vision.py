"""Vision: a model for images by its name, the size of its images, and how they are prepared."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...common.inputs import BATCH, call_inputs
from ...convert import convert
from ...errors import CaptureError, InputError
from ...net import EideticNet
from .model_names import built, find_model

#: Ways of changing training images at random, as arguments of timm's ``create_transform``.
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "none": {"no_aug": True},
    "light": {"scale": (0.7, 1.0), "color_jitter": None},
    "full": {},
}


@dataclass(frozen=True)
class ImageModel:
    """A network for images, and timm's configuration of its data (size, mean, deviation, crop)."""

    net: EideticNet
    data: dict[str, Any]

    def transform(self, augment: str | None = None) -> Callable[[Any], Any]:
        """From an image to what the model reads; ``augment`` is for training."""
        from timm.data import create_transform

        if augment is None:
            return create_transform(**self.data)
        return create_transform(**self.data, is_training=True, **AUGMENTATIONS[augment])


@dataclass(frozen=True)
class _Source:
    """How to build a model, with pretrained values or without, and whether there are any.

    ``fetches``: these values come from elsewhere.
    """

    build: Callable[[bool], Any]
    has_values: bool = True
    fetches: bool = True


def image_model(name: str, size: int | None, pretrained: bool) -> ImageModel:
    """Build and convert a model: a timm name, ``torchvision:NAME``, ``package.module:factory``.

    With ``pretrained`` free units keep what they hold. Whether the model takes images of this size
    is found out before anything is fetched.

    Raises:
        InputError: there is no such model, it has no pretrained values, or it needs another size.
    """
    source = _source(name, size)
    if pretrained and not source.has_values:
        raise InputError(
            f"there are no pretrained values of {name}", remedy="leave --pretrained out"
        )
    made = _converted(name, built(name, lambda: source.build(False)), size, pretrained)
    if not (pretrained and source.fetches):
        return made
    try:
        with _hushed():
            model = source.build(True)
    except Exception as error:  # whatever a connection or a hub may raise
        raise InputError(
            f"the pretrained values of {name} cannot be had: {type(error).__name__}: {error}",
            remedy="check the connection, or leave --pretrained out",
        ) from error
    return _converted(name, model, size, pretrained)


@contextmanager
def _hushed() -> Iterator[None]:
    """Without what libraries log of every attempt, for an error says what came of them.

    What they print of their progress is for terminals.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _source(name: str, size: int | None) -> _Source:
    build = find_model(name)
    library, colon, rest = name.partition(":")
    if not colon:
        return _timm(name, size)
    if library == "torchvision":
        return _torchvision(rest, size)
    return _Source(lambda _: build(), fetches=False)


def _timm(name: str, size: int | None) -> _Source:
    import timm

    config = timm.get_pretrained_cfg(name)
    fixed = config is not None and config.fixed_input_size
    arguments: dict[str, Any] = {"img_size": size} if size is not None and fixed else {}
    return _Source(
        lambda pretrained: timm.create_model(name, pretrained=pretrained, **arguments),
        has_values=config is not None and bool(config.has_weights),
    )


def _torchvision(name: str, size: int | None) -> _Source:
    from torchvision import models

    arguments = {"image_size": size} if size is not None and name.startswith("vit_") else {}
    plain = find_model(f"torchvision:{name}")

    def build(pretrained: bool) -> nn.Module:
        if pretrained or arguments:
            weights = "DEFAULT" if pretrained else None
            return models.get_model(name, weights=weights, **arguments)
        return plain()

    return _Source(build, has_values=len(models.get_model_weights(name)) > 0)


def _converted(name: str, model: nn.Module, size: int | None, keep: bool) -> ImageModel:
    from timm.data import resolve_data_config

    shape = _shape(name, model, size)
    try:
        net = convert(
            model,
            torch.empty(BATCH, *shape, device="meta"),
            inplace=True,
            recycle="keep" if keep else "reinit",
        )
    except CaptureError as error:
        raise InputError(
            f"{name} does not take images of {shape[1]} x {shape[2]} pixels: "
            f"{error.fact.splitlines()[-1].strip()}",
            remedy="pass another --size, or none for the one it is made for",
        ) from error
    return ImageModel(net, resolve_data_config({"input_size": shape}, model=net.backbone))


def _shape(name: str, model: nn.Module, size: int | None) -> tuple[int, int, int]:
    """Channels, height and width of an image."""
    if size is not None:
        return 3, size, size
    try:
        example = call_inputs(model)
    except InputError as error:
        raise InputError(
            f"the size of the images that {name} takes is not known", remedy="pass --size"
        ) from error
    leaves = [*example.args, *example.kwargs.values()]
    if len(leaves) != 1 or not isinstance(leaves[0], Tensor) or leaves[0].dim() != 4:
        raise InputError(f"{name} is not a model for images", remedy="name another one")
    _, channels, height, width = leaves[0].shape
    if channels != 3:
        raise InputError(f"{name} takes {channels} channels, not 3", remedy="name another model")
    return channels, height, width
