"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and --input."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a timm name, torchvision:NAME, or package.module:factory (a function without "
        "required arguments that returns an nn.Module)",
    )
    parser.add_argument(
        "--input",
        metavar="SHAPE",
        action="append",
        type=_shape,
        help="shape of an input tensor, such as 2,3,32,32 (repeat for several inputs); not needed "
        "for timm, torchvision and transformers models",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def example_inputs(options: argparse.Namespace) -> tuple[Tensor, ...] | None:
    """Meta tensors of the shapes given by --input; None without --input."""
    shapes = options.input
    return None if not shapes else tuple(torch.empty(s, device="meta") for s in shapes)


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 2,3,32,32")
    return shape


def at_least(least: int, unit: str) -> Callable[[str], int]:
    """An argparse type for whole numbers of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} such as 2")
        return int(text)

    return parse
