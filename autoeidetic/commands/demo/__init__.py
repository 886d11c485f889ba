"""``autoeidetic demo``: five tasks with a stock network, beside ordinary fine-tuning."""

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
A stock network of timm learns scikit-learn's digits as five tasks; the same network is fine-tuned
beside it and forgets. Takes a minute or two on two cores, and needs no connection. The folder gets
report.html, which opens in any browser; network.safetensors, for autoeidetic.load and autoeidetic
verify; demo.json with all figures. The code to copy from is autoeidetic/commands/demo/eidetic.py.
"""
REPORT, NETWORK, RECORD = "report.html", "network.safetensors", "demo.json"
#: The network is narrower than the one that timm makes by this name.
_MODEL = "autoeidetic.commands.demo.networks:stock_network"
_OTHER = "choose another --output"


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--output", metavar="DIR", default="autoeidetic-demo", help="for the report (%(default)s)"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="print the result and nothing else")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    folder = Path(options.output)
    check_folder(folder)
    from . import story  # timm and scikit-learn take seconds to import
    from .compare import compare
    from .data import digit_tasks, examples
    from .progress import ProgressPrinter
    from .report_page import to_html

    aloud = not (options.quiet or options.json)
    try:
        with closing(ProgressPrinter(aloud, not options.quiet and sys.stderr.isatty())) as listener:
            outcome, net = compare(digit_tasks(), options.seed, listener=listener)
    except KeyboardInterrupt:
        print("autoeidetic: stopped; the same command starts from the beginning", file=sys.stderr)
        return 130
    net.save(folder / NETWORK)
    page = to_html(outcome, net, examples(), verify=_verify(folder))
    files.write(folder / REPORT, page.encode())
    result = files.to_json(_result(outcome, folder))
    files.write(folder / RECORD, result)
    if options.json:
        print(result.decode().rstrip())
    else:
        print(f"\n{story.ending(outcome)}\n\n{_whereabouts(folder, outcome)}")
    return 0 if outcome.changed == 0 and outcome.scramble_proof else 1


def check_folder(folder: Path) -> None:
    """Better now than after a minute of training; what is not of a demo is not touched.

    Raises:
        InputError: it cannot be written to, or holds something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = any(folder.iterdir()) and not (folder / RECORD).exists()
        if not strange:
            (folder / RECORD).write_bytes(files.to_json({}))
    except OSError as error:
        raise InputError(
            f"'{folder}' cannot be written to: {error.strerror}", remedy=_OTHER
        ) from error
    if strange:
        raise InputError(f"'{folder}' holds something else than a demo", remedy=_OTHER)


def _verify(folder: Path) -> str:
    return shlex.join(["autoeidetic", "verify", str(folder / NETWORK), "--model", _MODEL])


def _result(outcome: Outcome, folder: Path) -> dict[str, Any]:
    return {
        **outcome.to_dict(),
        "report": str(folder / REPORT),
        "checkpoint": str(folder / NETWORK),
        "verify": _verify(folder),
    }


def _whereabouts(folder: Path, outcome: Outcome) -> str:
    return "\n".join(
        [
            f"Report, for a browser: {(folder / REPORT).resolve().as_uri()}",
            f"The network, to check for yourself: {_verify(folder)}",
            f"{outcome.seconds:.0f} seconds. The code to copy from: "
            "autoeidetic/commands/demo/eidetic.py",
        ]
    )
