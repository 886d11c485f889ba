"""``autoeidetic verify CHECKPOINT``: is every finished task what it was when it was finished?"""

from __future__ import annotations

import argparse

from ..common import files
from ..load import audit
from .images.model_names import built, find_model
from .options import add_json

EXAMPLES = """\
examples:
  autoeidetic verify run/network.safetensors
  autoeidetic verify net.safetensors --json
  autoeidetic verify net.safetensors --model mypackage.models:make
  autoeidetic verify net.safetensors --digest 3fe470cd...   # as printed by an earlier check
Compares digests of all frozen values, the owners of units and the answers to reference inputs with
the seals that finish_task took, and names the tasks and tensors that are not as sealed. Exit code
0: all in order. 1: something was changed, outputs differ, or a task has no seal that applies.
2: no such file, not a saved network, or no model for it.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a file that net.save wrote")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="package.module:factory, a timm name or torchvision:NAME: a model built as the saved "
        "one was, with any values; may be left out if timm or torchvision build it by name",
    )
    parser.add_argument(
        "--digest",
        metavar="HEX",
        help="the digest that an earlier check printed: the seals, the tasks that answer and the "
        "router must still be those",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    name = options.model
    model = None if name is None else built(name, find_model(name))
    report = audit(options.checkpoint, model, digest=options.digest)
    print(files.to_json(report.to_dict()).decode().rstrip() if options.json else report)
    return 0 if report.ok else 1
