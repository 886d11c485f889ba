"""The command line: one module or package for each command.

Each has ``EXAMPLES`` (the end of its help text), ``add(parser)`` (its options) and
``run(options)``, which returns the exit code or None for 0.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from .. import __version__
from ..errors import AutoeideticError

#: Command -> its purpose. A command's module is imported only when that command is called, because
#: torchvision and timm take seconds to import.
COMMANDS = {
    "demo": "learn five tasks, compare with ordinary fine-tuning, and write a report page",
    "inspect": "print the channel structure of a model",
    "visualize": "draw the channel dependencies of a model",
    "train": "learn a folder of images for each task, one task after another",
    "verify": "check that a saved network is unchanged since its tasks were finished",
    "extract": "write the program of a task: a small, dense, ordinary PyTorch module",
    "slim": "write a smaller model, which keeps a part of the units",
    "benchmark": "convert many models and report the results",
}


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 on success; 1 when a check failed; 2, with one line on stderr, for an error that the user
        can fix; 130 when interrupted.
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
    except BrokenPipeError:  # the reader, for instance `head`, has closed the pipe
        # Python flushes stdout once more at exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code or 0


def _parser(called: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="autoeidetic",
        description="Networks that learn task after task and cannot forget.",
        epilog="See autoeidetic COMMAND --help for options and examples.",
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
        if name == called:  # only this command's module is imported
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
