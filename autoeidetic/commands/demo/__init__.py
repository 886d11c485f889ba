"""``autoeidetic demo``: a stock network learns five tasks, compared with fine-tuning."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common import files
from ...errors import InputError
from ..options import add_json

if TYPE_CHECKING:
    from .outcome import Outcome

EXAMPLES = """\
examples:
  autoeidetic demo
  autoeidetic demo --output elsewhere --seed 7
  autoeidetic demo --quiet --json > result.json
A stock timm network learns scikit-learn's digits as five tasks; for comparison the same network is
fine-tuned, and forgets. Takes a minute or two on two cores and needs no connection. Writes
report.html, which opens in any browser; network.safetensors, for autoeidetic.load and autoeidetic
verify; and demo.json with all figures. The code to copy is in autoeidetic/commands/demo/eidetic.py.
"""
REPORT, NETWORK, RECORD = "report.html", "network.safetensors", "demo.json"
#: A factory, not timm's name: the demo's network is narrower than timm's model of that name.
_MODEL = "autoeidetic.commands.demo.networks:stock_network"
_OTHER = "choose another --output"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="autoeidetic-demo",
        help="folder for the report (%(default)s)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="random seed (%(default)s)"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the result")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    folder = Path(options.output)
    check_folder(folder)
    from . import story  # imported late: timm and scikit-learn take seconds
    from .compare import compare
    from .data import digit_tasks, examples
    from .progress import ProgressPrinter
    from .report_page import to_html

    verbose = not (options.quiet or options.json)
    try:
        with closing(
            ProgressPrinter(verbose, not options.quiet and sys.stderr.isatty())
        ) as listener:
            outcome, net = compare(digit_tasks(), options.seed, listener=listener)
    except KeyboardInterrupt:
        print(
            "autoeidetic: stopped; the same command starts again from the beginning",
            file=sys.stderr,
        )
        return 130
    net.save(folder / NETWORK)
    page = to_html(outcome, net, examples(), verify=_verify(folder))
    files.write(folder / REPORT, page.encode())
    result = files.to_json(_result(outcome, folder))
    files.write(folder / RECORD, result)
    if options.json:
        print(result.decode().rstrip())
    else:
        print(f"\n{story.ending(outcome)}\n\n{_locations(folder, outcome)}")
    return 0 if outcome.changed == 0 and outcome.scramble_proof else 1


def check_folder(folder: Path) -> None:
    """Create the folder before training, and refuse one that holds other files.

    Raises:
        InputError: the folder cannot be written to, or holds files that are not of a demo.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = any(folder.iterdir()) and not (folder / RECORD).exists()
        if not foreign:
            # marks the folder as a demo's, so that an interrupted demo can be repeated in it
            (folder / RECORD).write_bytes(files.to_json({}))
    except OSError as error:
        raise InputError(
            f"'{folder}' cannot be written to: {error.strerror}", remedy=_OTHER
        ) from error
    if foreign:
        raise InputError(f"'{folder}' is not empty and holds no demo", remedy=_OTHER)


def _verify(folder: Path) -> str:
    return shlex.join(["autoeidetic", "verify", str(folder / NETWORK), "--model", _MODEL])


def _result(outcome: Outcome, folder: Path) -> dict[str, Any]:
    return {
        **outcome.to_dict(),
        "report": str(folder / REPORT),
        "checkpoint": str(folder / NETWORK),
        "verify": _verify(folder),
    }


def _locations(folder: Path, outcome: Outcome) -> str:
    return "\n".join(
        [
            f"Report: {(folder / REPORT).resolve().as_uri()}",
            f"Check the network: {_verify(folder)}",
            f"{outcome.seconds:.0f} seconds. The code to copy: "
            "autoeidetic/commands/demo/eidetic.py",
        ]
    )
