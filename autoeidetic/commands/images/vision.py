"""Image models by name, with their input size and preprocessing."""

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
from .model_names import build_model, find_model

#: Augmentation of training images: name -> arguments of timm's ``create_transform``.
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "none": {"no_aug": True},
    "light": {"scale": (0.7, 1.0), "color_jitter": None},
    "full": {},
}


@dataclass(frozen=True)
class ImageModel:
    """A converted image model and timm's data configuration (size, mean, deviation, crop)."""

    net: EideticNet
    data: dict[str, Any]

    def transform(self, augment: str | None = None) -> Callable[[Any], Any]:
        """The preprocessing of images; ``augment`` names the augmentation for training."""
        from timm.data import create_transform

        if augment is None:
            return create_transform(**self.data)
        return create_transform(**self.data, is_training=True, **AUGMENTATIONS[augment])


@dataclass(frozen=True)
class _Source:
    """How to build a model with or without pretrained values (``build(pretrained)``).

    ``has_values``: pretrained values exist. ``fetches``: they are downloaded; a user's factory sets
    its own values instead.
    """

    build: Callable[[bool], Any]
    has_values: bool = True
    fetches: bool = True


def image_model(name: str, size: int | None, pretrained: bool) -> ImageModel:
    """Build and convert a model: a timm name, ``torchvision:NAME``, ``package.module:factory``.

    With ``pretrained``, free units keep their values. The model is converted once without them
    first, so that a wrong image size is reported before anything is downloaded.

    Raises:
        InputError: the model does not exist, has no pretrained values, or needs another size.
    """
    source = _source(name, size, pretrained)
    made = _converted(name, build_model(name, lambda: source.build(False)), size, pretrained)
    if not (pretrained and source.fetches):
        return made
    return _converted(name, _fetched(name, source), size, pretrained)


def plain_model(name: str, pretrained: bool) -> Any:
    """Build a model of one of these names, with pretrained values or without; for any input.

    Raises:
        InputError: the model does not exist, or has no pretrained values.
    """
    source = _source(name, None, pretrained)
    if pretrained and source.fetches:
        return _fetched(name, source)
    return build_model(name, lambda: source.build(False))


def _fetched(name: str, source: _Source) -> Any:
    try:
        with _quiet_download():
            return source.build(True)
    except Exception as error:  # a connection or a hub may raise anything
        raise InputError(
            f"the pretrained values of {name} cannot be loaded: {type(error).__name__}: {error}",
            remedy="check the connection, or omit --pretrained",
        ) from error


@contextmanager
def _quiet_download() -> Iterator[None]:
    """Silence the libraries' log of every download attempt; a failure is reported as an error.

    Progress bars are shown on a terminal only.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _source(name: str, size: int | None, pretrained: bool) -> _Source:
    build = find_model(name)
    library, colon, rest = name.partition(":")
    if not colon:
        found = _timm(name, size)
    elif library == "torchvision":
        found = _torchvision(rest, size)
    else:
        found = _Source(lambda _: build(), fetches=False)
    if pretrained and not found.has_values:
        raise InputError(f"{name} has no pretrained values", remedy="omit --pretrained")
    return found


def _timm(name: str, size: int | None) -> _Source:
    import timm

    config = timm.get_pretrained_cfg(name)
    fixed = config is not None and config.fixed_input_size
    # Only models with a fixed input size (transformers) are built for a size; others take any.
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
            f"{name} does not accept images of {shape[1]} x {shape[2]} pixels: "
            f"{error.fact.splitlines()[-1].strip()}",
            remedy="pass another --size, or omit it for the model's own size",
        ) from error
    return ImageModel(net, resolve_data_config({"input_size": shape}, model=net.backbone))


def _shape(name: str, model: nn.Module, size: int | None) -> tuple[int, int, int]:
    """Channels, height and width of an image."""
    if size is not None:
        return 3, size, size
    try:
        example = call_inputs(model)
    except InputError as error:
        raise InputError(f"the image size of {name} is not known", remedy="pass --size") from error
    leaves = [*example.args, *example.kwargs.values()]
    if len(leaves) != 1 or not isinstance(leaves[0], Tensor) or leaves[0].dim() != 4:
        raise InputError(f"{name} is not an image model", remedy="pass another model")
    _, channels, height, width = leaves[0].shape
    if channels != 3:
        raise InputError(f"{name} expects {channels} channels, not 3", remedy="pass another model")
    return channels, height, width
