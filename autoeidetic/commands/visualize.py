"""``autoeidetic visualize MODEL``: draw the channel dependencies as a page or a picture."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from torch import Tensor

from ..draw import FORMATS, Drawing, describe, save
from ..draw.failure import attempt
from ..errors import AutoeideticError, InputError
from .images.model_names import build_model, find_model, inspect_model
from .options import add_model, at_least, example_inputs

EXAMPLES = """\
examples:
  autoeidetic visualize resnet50                            # resnet50.html, opens offline
  autoeidetic visualize vit_tiny_patch16_224 -o vit.svg     # needs the extra viz
  autoeidetic visualize torchvision:swin_t -o swin.dot --depth 2
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="file ending in .html (the default), .svg, .png, .dot, .mmd, .graphml or .json",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="format, if the file name does not end in it"
    )
    parser.add_argument(
        "--depth",
        type=at_least(1, "levels"),
        metavar="N",
        help="open modules N levels deep in .svg, .png, .dot and .mmd; by default as deep as the "
        "drawing stays readable",
    )


def run(options: argparse.Namespace) -> None:
    name = re.sub(r"[^\w.-]+", "_", options.model)
    path = Path(options.output or f"{name}.{options.format or 'html'}")
    format = options.format or path.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise InputError(
            f"the file name {str(path)!r} does not end in a drawing format",
            remedy=f"end it in one of {', '.join(f'.{f}' for f in FORMATS)}, or pass --format",
        )
    drawing = draw_model(options.model, example_inputs(options))
    print(save(drawing, path, format, options.depth))
    if drawing.failure is not None:
        fact = " ".join(drawing.failure.message.split())
        print(f"autoeidetic: drawn in part: {fact}", file=sys.stderr)


def draw_model(name: str, inputs: tuple[Tensor, ...] | None) -> Drawing:
    """Draw a model; one that cannot be analysed is drawn up to the point of failure.

    The first attempt builds the model without memory for its weights, the second one with them.
    """
    try:
        return describe(inspect_model(name, inputs), title=name)
    except InputError:
        raise
    except AutoeideticError:
        return attempt(build_model(name, find_model(name)), inputs, title=name)
