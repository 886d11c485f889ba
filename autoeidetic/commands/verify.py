"""``autoeidetic verify CHECKPOINT``: check that no finished task has changed."""

from __future__ import annotations

import argparse

from ..common import files
from ..load import audit
from .images.model_names import build_model, find_model
from .options import add_json

EXAMPLES = """\
examples:
  autoeidetic verify run/network.safetensors
  autoeidetic verify net.safetensors --json
  autoeidetic verify net.safetensors --model mypackage.models:make
  autoeidetic verify net.safetensors --digest 3fe470cd...   # as printed by an earlier check
Compares digests of all frozen values, the owners of units and the outputs for reference inputs with
the seals taken by finish_task, and names the tasks and tensors that differ. Exit code 0: everything
matches. 1: something was changed, outputs differ, or a task has no applicable seal. 2: the file
does not exist, is not a saved network, or its model cannot be built.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a file written by net.save")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="package.module:factory, a timm name or torchvision:NAME: builds a model of the same "
        "structure, with any values; not needed if timm or torchvision build it by name",
    )
    parser.add_argument(
        "--digest",
        metavar="HEX",
        help="the digest printed by an earlier check: the seals, the answering tasks and the "
        "router must still match it",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    name = options.model
    model = None if name is None else build_model(name, find_model(name))
    report = audit(options.checkpoint, model, digest=options.digest)
    print(files.to_json(report.to_dict()).decode().rstrip() if options.json else report)
    return 0 if report.ok else 1
