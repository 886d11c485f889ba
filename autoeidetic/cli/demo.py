"""``autoeidetic demo``."""

from __future__ import annotations

import argparse
import time

from ..dependencies import Dependencies
from ..lookup import inspect_model

DEMO = ("torchvision:resnet18", "vit_tiny_patch16_224")
EXAMPLES = ""


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""


def run(options: argparse.Namespace) -> None:
    for name in DEMO:
        start = time.perf_counter()
        deps = inspect_model(name, None)
        seconds = time.perf_counter() - start
        print(f"== {name}, built and analysed in {seconds:.1f} s\n\n{deps}\n")
        print(f"{_divided(deps)}\n")


def _divided(deps: Dependencies) -> str:
    classes = sum(group.size for group in deps.groups)
    heads = ", ".join(head.layer for head in deps.heads) or "none"
    return (
        f"{classes:,} classes of channels in {len(deps.groups)} groups can be divided between "
        f"tasks; {deps.locked.share:.1%} of the backbone is locked; a head for each task: {heads}."
    )
