"""``autoeidetic slim MODEL --keep X -o FILE``: write a smaller model."""

from __future__ import annotations

import argparse

from ..errors import InputError
from ..extract.files import checked_path
from ..slim import KINDS, slim
from .extract import add_output, write
from .images.vision import plain_model
from .options import add_json, add_model, example_inputs

EXAMPLES = """\
examples:
  autoeidetic slim resnet18 --pretrained --keep 0.5 -o small.safetensors
  autoeidetic slim torchvision:resnet50 --pretrained --keep 0.5 --of multiply-adds -o small.onnx
  autoeidetic slim mypackage.models:make --input 2,3,64,64 --keep 0.3 -o small.pt2
The ending tells the format: .safetensors (autoeidetic.load opens it), .pt2 (torch.export.load) or
.onnx (needs autoeidetic[deploy]). Train the smaller model further to recover its accuracy.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_model(parser)
    parser.add_argument(
        "--keep",
        metavar="X",
        type=float,
        required=True,
        help="the part to keep, above 0 and up to 1",
    )
    parser.add_argument(
        "--of", choices=KINDS, default=KINDS[0], help="what --keep is a part of (%(default)s)"
    )
    parser.add_argument(
        "--by",
        metavar="SCORE",
        default="l2",
        help="score of units: those with the lowest go; l1, l2 or random (%(default)s)",
    )
    parser.add_argument("--pretrained", action="store_true", help="start from pretrained values")
    add_output(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    checked_path(options.output)  # before minutes of work
    if not 0 < options.keep <= 1:
        raise InputError(
            f"--keep {options.keep:g} is not a part", remedy="pass a number such as 0.5"
        )
    model = plain_model(options.model, options.pretrained)
    inputs = example_inputs(options)
    write(slim(model, options.keep, inputs, of=options.of, by=options.by), options)
