"""Exported files: programs for ``torch.export.load`` and for runtimes of ONNX."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from ...common.files import replacing
from ...common.undisturbed import undisturbed
from ...errors import CheckpointError, MissingPackageError, warn_user
from ..program import Program, inputs_of

_ELSEWHERE = "choose a file in a directory that exists, may be written to and has room"
#: Packages that write ONNX.
_PACKAGES = ("onnx", "onnxscript")
#: A file of protocol buffers cannot be larger.
_MOST_BYTES = 2**31


def write_pt2(program: Program, file: Path) -> None:
    """Write a file for ``torch.export.load``.

    Raises:
        CheckpointError: torch cannot export the program, or the file cannot be written.
    """
    made = exported(program)
    try:
        with replacing(file) as temporary, open(temporary, "wb") as stream:
            torch.export.save(made, stream)
    except OSError as error:
        raise CheckpointError(f"the file cannot be written: {error}", remedy=_ELSEWHERE) from error


def write_onnx(program: Program, file: Path) -> None:
    """Write an ONNX file.

    Raises:
        MissingPackageError: the packages that write it are not installed.
        CheckpointError: torch cannot export the program, or the file cannot be written.
    """
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise MissingPackageError(
            f"ONNX files are written by {' and '.join(_PACKAGES)}, and {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed",
            remedy='pip install "autoeidetic[deploy]", or write .pt2 or .safetensors instead',
        )
    size = sum(tensor.nbytes for tensor in [*program.parameters(), *program.buffers()])
    if size >= _MOST_BYTES:
        raise CheckpointError(
            f"the file cannot hold {size / 2**30:.1f} GiB: ONNX files have at most 2 GiB",
            remedy="write .pt2 or .safetensors instead, or convert the program to a smaller type",
        )
    made = exported(program)
    try:
        with undisturbed(quiet=True), _silent():
            # weights in the file itself: a second file beside it could get lost
            model = torch.onnx.export(made, dynamo=True, external_data=False, verbose=False)
            assert model is not None
            import_module("onnx.checker").check_model(model.model_proto, full_check=True)
    except Exception as error:  # operators without a counterpart, versions that do not fit
        raise _refused("ONNX has no counterpart of the program", error) from error
    try:
        _run_onnx(model.model_proto.SerializeToString(), inputs_of(program))
    except Exception as error:  # whatever a runtime may raise
        raise _refused("onnxruntime does not run the exported program", error) from error
    try:
        with replacing(file) as temporary:
            model.save(temporary, external_data=False)
    except OSError as error:
        raise CheckpointError(f"the file cannot be written: {error}", remedy=_ELSEWHERE) from error


def _run_onnx(content: bytes, inputs: dict[str, Tensor]) -> None:
    """Run a program in onnxruntime, if it is installed.

    Torch writes some operators (an LSTM with projections) in a way that is valid and does not run.
    """
    if find_spec("onnxruntime") is None or any(t.dtype is torch.bfloat16 for t in inputs.values()):
        return  # numpy has no bfloat16
    runtime = import_module("onnxruntime")
    settings, call = runtime.SessionOptions(), runtime.RunOptions()
    settings.log_severity_level = call.log_severity_level = 4  # errors are raised, not printed
    session = runtime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    given = {name: tensor.cpu().numpy() for name, tensor in inputs.items() if name in names}
    session.run(None, given, call)


def exported(program: Program) -> ExportedProgram:
    """The program as ``torch.export`` makes it, with the sizes that may vary.

    If torch must fix one of them, the user is warned.

    Raises:
        CheckpointError: torch cannot export the program.
    """
    dynamic = program.report.dynamic_sizes()
    inputs = inputs_of(program)
    try:
        return _exported(program, inputs, dynamic, Dim.DYNAMIC)
    except Exception as error:
        why = error
    try:
        found = _exported(program, inputs, dynamic, Dim.AUTO)
    except Exception as error:
        raise _refused("torch.export does not accept the program", error) from error
    fixed = _fixed(found, dynamic)
    if fixed:
        warn_user(
            f"sizes of inputs that the program does not fix are fixed in the exported file: "
            f"{', '.join(fixed)} ({_reason(why)})",
            UserWarning,
        )
    return found


def _exported(
    program: Program, inputs: dict[str, Tensor], dynamic: dict[str, tuple[int, ...]], kind: Any
) -> ExportedProgram:
    shapes = {name: dict.fromkeys(dynamic.get(name, ()), kind) for name in inputs}
    with undisturbed(program, evaluate=True, quiet=True, autocast=("cpu", "cuda")), _silent():
        return torch.export.export(
            program, tuple(inputs.values()), dynamic_shapes=shapes, strict=False
        )


@contextmanager
def _silent() -> Iterator[None]:
    """Keep torch from logging what is reported as an error, or works in another way."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _fixed(found: ExportedProgram, dynamic: dict[str, tuple[int, ...]]) -> Sequence[str]:
    """Sizes that should vary and are numbers in an exported program."""
    shapes = {
        node.name: node.meta["val"].shape
        for node in found.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), Tensor)
    }
    return [
        f"{name}: dimension {dimension}"
        for name, dimensions in dynamic.items()
        for dimension in dimensions
        # a number, or a symbol that has turned out to be one
        if str(shapes[name][dimension]).isdecimal()
    ]


def _refused(fact: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the file cannot be written: {fact} ({_reason(error)})",
        remedy="save it as .safetensors instead",
    )


def _reason(error: BaseException) -> str:
    """The first line of the innermost cause; the outer ones are advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0].strip()}"[:300]
