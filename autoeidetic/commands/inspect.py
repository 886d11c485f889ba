"""``autoeidetic inspect MODEL``: print the groups of channels and what is locked."""

from __future__ import annotations

import argparse

from .images.model_names import inspect_model
from .options import add_json, add_model, example_inputs

EXAMPLES = """\
examples:
  autoeidetic inspect resnet50
  autoeidetic inspect torchvision:swin_t --json
  autoeidetic inspect mypackage.models:make --input 2,3,64,64
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_model(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    deps = inspect_model(options.model, example_inputs(options))
    print(deps.to_json() if options.json else deps)
