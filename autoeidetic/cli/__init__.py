"""The command line, one module for each command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from ..errors import AutoeideticError
from . import benchmark, demo, inspect, train, verify, visualize

COMMANDS: dict[str, tuple[ModuleType, str]] = {
    "demo": (demo, "analyse a stock ResNet-18 and a ViT-tiny"),
    "inspect": (inspect, "print the channel structure of a model"),
    "visualize": (visualize, "draw how a model hangs together"),
    "train": (train, "learn a folder of images for each task, one task after another"),
    "verify": (verify, "check that a saved network is what it was when its tasks were finished"),
    "benchmark": (benchmark, "convert many models and report what came of it"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 2 (and one line on stderr) when the user can fix it."""
    typed = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(typed)
    options.typed = typed[1:]
    try:
        code: int | None = options.command.run(options)
        sys.stdout.flush()
    except AutoeideticError as error:
        print(f"autoeidetic: {_one_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autoeidetic",
        description="Networks that learn task after task and cannot forget.",
        epilog="autoeidetic COMMAND --help tells more, with examples.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, purpose) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add(command)
        command.set_defaults(command=module)
    return parser


def _one_line(error: AutoeideticError) -> str:
    parts = [" ".join(error.fact.split())]
    if str(error.place):
        parts.append(str(error.place))
    if error.remedy:
        parts.append(error.remedy)
    return "; ".join(parts)
