"""``autoeidetic benchmark``: convert many models and report the results."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import command

EXAMPLES = """\
examples:
  autoeidetic benchmark --models 'resnet*' 'vit_*' --max-params 3e7
  autoeidetic benchmark --families --verify --workers 2     # smallest of each timm family
  autoeidetic benchmark --all --only analyze                # every timm model
Prints a table, and writes CSV, JSON, Markdown and an HTML page to the folder --into. The same
command resumes a run that was stopped.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    command.add_arguments(parser, Path("autoeidetic-benchmark"))


def run(options: argparse.Namespace) -> int:
    return command.run(options, "autoeidetic benchmark", options.typed)
