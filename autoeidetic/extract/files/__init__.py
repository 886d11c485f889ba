"""Files: a program in a file, in the format that the ending of its name tells.

.safetensors    tensors, and the graph as JSON; autoeidetic.load opens it and runs no code
.pt2            torch.export.load opens it
.onnx           runtimes of ONNX open it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...common import archive
from ...common.environment import versions
from ...common.undisturbed import undisturbed
from ...errors import CheckpointError, InputError
from ..program import KEY, ExtractReport, Program, report_of
from ..program import example as examples
from ..program.modules import checked as checked_modules
from .exported import write_onnx, write_pt2
from .graph_json import from_json, to_json

#: The kind of file; a saved network has none.
KIND = "program"
_AGAIN = "use an intact copy of the file, or save the program again"
_FIELDS = set("kind versions graph tensors same parameters report example modules".split())


def save(program: Program, path: Any) -> None:
    """Write a program to a file, all or nothing; see :meth:`Program.save`."""
    file = checked_path(path)
    with archive.about(path), undisturbed(trainable=True):
        _FORMATS[file.suffix.lower()](program, file)


def checked_path(path: Any) -> Path:
    """A path that a program can be written to.

    Raises:
        InputError: its ending is not that of a format.
        CheckpointError: its directory does not exist.
    """
    file = archive.as_path(path)
    if file.suffix.lower() not in _FORMATS:
        ending = f"ends in {file.suffix!r}" if file.suffix else "has no ending"
        raise InputError(
            f"'{path}' {ending}: that is no format of programs",
            remedy=f"use one of {', '.join(_FORMATS)}",
        )
    if not file.parent.is_dir():
        raise CheckpointError(
            f"'{path}' cannot be written: its directory does not exist",
            remedy="make the directory, or choose another one",
        )
    return file


def load(path: Any) -> Program:
    """The program in a ``.safetensors`` file, on the CPU. No code in the file is run.

    Raises:
        CheckpointError: there is no such file, it is damaged, or it holds something else.
    """
    file = archive.as_path(path)
    with archive.about(path), undisturbed(trainable=True):
        return _program(*archive.read(file))


def is_program(path: Any) -> bool:
    """Does a file say that it holds a program? Nothing is checked."""
    return archive.kind(archive.as_path(path)) == KIND


def _write(program: Program, file: Path) -> None:
    tensors = dict([*program.named_parameters(), *program.named_buffers()])
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise CheckpointError(
                f"the file cannot hold {name}: it has no values",
                remedy="save a program whose tensors are on a real device",
            )
    description = {
        "kind": KIND,
        "versions": versions(),
        "graph": to_json(program.graph),
        "tensors": {name: [str(t.dtype), list(t.shape)] for name, t in tensors.items()},
        "same": _ties(program, tensors),
        "parameters": {name: p.requires_grad for name, p in program.named_parameters()},
        **program.meta[KEY],
    }
    archive.write(file, description, tensors)


_FORMATS: dict[str, Callable[[Program, Path], None]] = {
    ".safetensors": _write,
    ".pt2": write_pt2,
    ".onnx": write_onnx,
}


def _ties(program: Program, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Second names of tensors -> their first names, which ``named_parameters`` gives."""
    first = {id(tensor): name for name, tensor in tensors.items()}
    every = [
        *program.named_parameters(remove_duplicate=False),
        *program.named_buffers(remove_duplicate=False),
    ]
    return {name: first[id(tensor)] for name, tensor in every if name not in tensors}


def _program(description: Any, tensors: dict[str, Tensor]) -> Program:
    if not isinstance(description, dict) or description.get("kind") != KIND:
        raise CheckpointError(
            "the file holds a network, not a program",
            remedy="open it with autoeidetic.load, and extract a program from it",
        )
    if description.keys() != _FIELDS:
        fields = ", ".join(sorted(description.keys() ^ _FIELDS))
        raise CheckpointError(f"the file lacks or adds {fields:.200}", remedy=_AGAIN)
    graph = from_json(description["graph"])
    _check_tensors(description["tensors"], tensors)
    attributes = _tied(description["same"], tensors)
    _check_used({str(node.target) for node in graph.find_nodes(op="get_attr")}, set(attributes))
    parameters = _parameters(description["parameters"], tensors)
    inputs = [str(node.target) for node in graph.find_nodes(op="placeholder")]
    example = examples.checked(description["example"], inputs)
    report = _report(description["report"])
    modules = checked_modules(description["modules"], attributes)
    try:
        program = Program.of(attributes, graph, report, set(parameters), examples.blank(example))
    except Exception as error:  # a tensor where another has a module, names of the same meaning
        raise CheckpointError(
            f"the file has a program that cannot be made ({error!r:.200})", remedy=_AGAIN
        ) from error
    if program.state_dict().keys() != attributes.keys():
        fact = "the file has a program that cannot be made: one tensor is inside of another"
        raise CheckpointError(fact, remedy=_AGAIN)
    program.meta[KEY].update(example=example, modules=modules)
    for name, parameter in program.named_parameters():
        parameter.requires_grad_(parameters[name])
    return program


def _check_tensors(data: Any, tensors: Mapping[str, Tensor]) -> None:
    """Check that the tensors are those that the description has."""
    if not isinstance(data, dict) or data.keys() != tensors.keys():
        other = sorted(tensors.keys() ^ (data.keys() if isinstance(data, dict) else ()))
        raise CheckpointError(f"the file lacks or adds tensors: {other!r:.200}", remedy=_AGAIN)
    for name, tensor in tensors.items():
        if data[name] != [str(tensor.dtype), list(tensor.shape)]:
            raise CheckpointError(
                f"the file has {name} as {tensor.dtype} {list(tensor.shape)}, and its program "
                f"expects {data[name]!r:.80}",
                remedy=_AGAIN,
            )


def _tied(data: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by all their names."""
    if (
        not isinstance(data, dict)
        or data.keys() & tensors.keys()
        or not all(isinstance(first, str) and first in tensors for first in data.values())
    ):
        raise CheckpointError("the file has second names of tensors that are none", remedy=_AGAIN)
    return {**tensors, **{name: tensors[first] for name, first in data.items()}}


def _check_used(used: set[str], present: set[str]) -> None:
    if used != present:
        lacks, adds = sorted(used - present), sorted(present - used)
        words = f"lacks {lacks}" if lacks else f"adds {adds}"
        raise CheckpointError(f"the file has a graph that {words:.200}", remedy=_AGAIN)


def _parameters(data: Any, tensors: Mapping[str, Tensor]) -> dict[str, bool]:
    """Which tensors are parameters, and which of them take gradients."""
    real = {n for n, t in tensors.items() if t.is_floating_point() or t.is_complex()}
    if (
        not isinstance(data, dict)
        or not data.keys() <= real
        or not all(type(flag) is bool for flag in data.values())
    ):
        raise CheckpointError("the file has parameters that can be none", remedy=_AGAIN)
    return data


def _report(data: Any) -> ExtractReport:
    try:
        report = report_of(data)
        numbers = [report.parameters_before, report.parameters_after]
        numbers += [report.multiply_adds_before, report.multiply_adds_after]
        numbers += [size for shape in report.compared_at for size in shape]
        words = [*report.tasks, *report.dynamic, *report.fixed, *report.limits]
        words.append(report.compared_in)
        if (
            any(type(number) is not int for number in numbers)
            or any(type(word) is not str for word in words)
            or type(report.difference) is not float
            or data.keys() != report.to_dict().keys()
        ):
            raise TypeError(f"{data!r:.80}")
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the file has a report that is none ({error!r:.200})", remedy=_AGAIN
        ) from error
    return report
