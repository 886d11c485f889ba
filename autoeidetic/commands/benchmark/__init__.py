"""``autoeidetic benchmark``: convert many models and report what came of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import command

EXAMPLES = """\
examples:
  autoeidetic benchmark --models 'resnet*' 'vit_*' --max-params 3e7
  autoeidetic benchmark --families --verify --workers 2     # the smallest of each timm family
  autoeidetic benchmark --all --only analyze                # every name that timm has
A table, CSV, JSON, Markdown and a page for the browser go into --into. A run that was stopped
goes on when the same command is given again.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_arguments(parser, Path("autoeidetic-benchmark"))


def run(options: argparse.Namespace) -> int:
    return command.run(options, "autoeidetic benchmark", options.typed)
