"""The command line, one module for each command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from .. import __version__
from ..errors import AutoeideticError

#: The purpose of each. A module is imported when its command is called: torchvision takes seconds.
COMMANDS = {
    "demo": "learn five tasks beside ordinary fine-tuning, and make a page of it",
    "inspect": "print the channel structure of a model",
    "visualize": "draw how a model hangs together",
    "train": "learn a folder of images for each task, one task after another",
    "verify": "check that a saved network is what it was when its tasks were finished",
    "benchmark": "convert many models and report what came of it",
}


class _Parser(argparse.ArgumentParser):
    """What is wrong in one line, without all the options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when it worked; 1 when it found something wrong; 2, and one line on stderr, when the user
        can fix it; 130 when it was interrupted.
    """
    typed = list(sys.argv[1:] if argv is None else argv)
    options = _parser(called=typed[0] if typed else "").parse_args(typed)
    options.typed = typed[1:]
    try:
        code: int | None = options.command.run(options)
        sys.stdout.flush()
    except AutoeideticError as error:
        print(f"autoeidetic: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("autoeidetic: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code or 0


def _parser(called: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="autoeidetic",
        description="Networks that learn task after task and cannot forget.",
        epilog="autoeidetic COMMAND --help tells more, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"autoeidetic {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == called:
            module = import_module(f".{name}", __name__)
            command.epilog = module.EXAMPLES
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
