"""``autoeidetic extract FILE --task NAME -o FILE``: write the program of a task."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..common import files
from ..errors import InputError
from ..extract.files import checked_path
from ..extract.program import Program
from ..load import load
from .images.model_names import build_model, find_model
from .options import add_json

EXAMPLES = """\
examples:
  autoeidetic extract run/network.safetensors --task pets -o pets.pt2
  autoeidetic extract run/network.safetensors --task pets --task cars -o both.onnx
  autoeidetic extract run/network.safetensors --task all -o everything.safetensors
  autoeidetic extract net.safetensors --task 0 -o first.pt2 --model mypackage.models:make
The ending tells the format: .safetensors (autoeidetic.load opens it), .pt2 (torch.export.load) or
.onnx (needs autoeidetic[deploy]). With several tasks the program answers with a list; --task all
of a network with a router gives the task, the label and the scores of each input.
"""
ALL = "all"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("network", metavar="FILE", help="a network that net.save wrote")
    parser.add_argument(
        "--task",
        metavar="TASK",
        action="append",
        required=True,
        help="name or number of a finished task (repeat for several), or all",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="package.module:factory, a timm name or torchvision:NAME: builds a model of the same "
        "structure, with any values; not needed if timm or torchvision build it by name",
    )
    add_output(parser)
    add_json(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add -o."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the file to write: .safetensors, .pt2 or .onnx",
    )


def run(options: argparse.Namespace) -> None:
    checked_path(options.output)  # before minutes of work
    name = options.model
    net = load(options.network, None if name is None else build_model(name, find_model(name)))
    if isinstance(net, Program):
        raise InputError(
            f"'{options.network}' holds a program, not a network",
            remedy="pass a file that net.save wrote",
        )
    write(net.extract(_tasks(options.task, [task.name for task in net.tasks])), options)


def _tasks(given: list[str], names: list[str]) -> Any:
    """The argument of ``extract``: one task or a list, each a name or a number."""
    tasks = [int(t) if t.isdecimal() and t not in names else t for t in given]
    if ALL in tasks and ALL not in names and len(tasks) > 1:
        raise InputError("--task all is given beside other tasks", remedy="pass --task all alone")
    return tasks[0] if len(tasks) == 1 else tasks


def write(program: Program, options: argparse.Namespace) -> None:
    """Write a program to --output and print its report."""
    program.save(options.output)
    size = Path(options.output).stat().st_size
    if options.json:
        found = {**program.report.to_dict(), "file": options.output, "bytes": size}
        print(files.to_json(found).decode().rstrip())
    else:
        print(f"{program.report}\n{options.output}: {size:,} bytes")
