"""Errors: one class per situation, and a message that says where and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic import commands
from autoeidetic.errors import (
    CaptureError,
    InputError,
    NoParametersError,
    Place,
    RuleError,
    UnhandledOperatorError,
    UnhandledOperatorWarning,
)

ERRORS = (
    CaptureError,
    InputError,
    NoParametersError,
    RuleError,
    UnhandledOperatorError,
)


def line_of(text: str) -> str:
    """``file:line`` of the only line of this file with this text at its end."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(text)]
    return f"{__file__}:{number}"


def failure(
    kind: type[autoeidetic.AutoeideticError], model: Any, inputs: Any = None, **options: Any
) -> Any:
    with pytest.raises(kind) as caught:
        autoeidetic.analyze(model, inputs, **options)
    error = caught.value
    assert type(error) is kind
    assert error.remedy
    assert f"remedy: {error.remedy}" in str(error)
    return error


def test_one_base() -> None:
    for error in ERRORS:
        assert issubclass(error, autoeidetic.AutoeideticError)
        assert error.__doc__
    assert issubclass(UnhandledOperatorWarning, UserWarning)


def test_message_has_fact_place_and_remedy() -> None:
    place = Place("blocks.0", "aten.add", "model.py:3")
    error = autoeidetic.AutoeideticError("it broke", place=place, remedy="mend it")
    assert str(error) == (
        "it broke\n  where: aten.add in module 'blocks.0' at model.py:3\n  remedy: mend it"
    )
    assert (error.module, error.operator, error.line) == ("blocks.0", "aten.add", "model.py:3")
    assert str(autoeidetic.AutoeideticError("it broke")) == "it broke"


# -- inputs -------------------------------------------------------------------------------------


def test_not_a_model() -> None:
    error = failure(InputError, torch.relu, torch.rand(2))
    assert "not a torch.nn.Module" in str(error)
    assert "pass the model itself" in error.remedy


def test_missing_inputs() -> None:
    error = failure(InputError, nn.Linear(3, 3))
    assert "no example inputs were given and those of Linear are not known" in str(error)
    assert "analyze(model, torch.randn(2, 3, 32, 32))" in error.remedy


@pytest.mark.parametrize(
    ("inputs", "where"),
    [
        (np.zeros(3), "example_inputs is a numpy.ndarray"),
        ((torch.zeros(3), {"mask": np.zeros(3)}), "example_inputs[1]['mask']"),
        ({"x": object()}, "example_inputs['x']"),
    ],
)
def test_inputs_of_unknown_types(inputs: Any, where: str) -> None:
    error = failure(InputError, nn.Linear(3, 3), inputs)
    assert where in str(error)
    assert "cannot be traced" in str(error)
    assert "torch.as_tensor" in error.remedy


def test_unknown_option() -> None:
    error = failure(InputError, nn.Linear(3, 3), torch.rand(3), on_unhandled="ignore")
    assert "on_unhandled='ignore' is unknown" in str(error)


# -- capture ------------------------------------------------------------------------------------


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no luck\nat all")  # raised here


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), Breaks())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_a_forward_that_fails_both_ways() -> None:
    error = failure(CaptureError, Outer(), torch.rand(2, 4))
    text = str(error)
    assert text.startswith("Outer cannot be run for analysis")
    assert "on meta: ValueError: no luck" in text
    assert "on real tensors: ValueError: no luck" in text
    assert "at all" not in text
    assert error.module == "body.1"
    assert error.line == line_of("# raised here")
    assert "model.eval()(example_inputs)" in error.remedy
    assert isinstance(error.__cause__, ValueError)


def test_inputs_of_the_wrong_shape() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    error = failure(CaptureError, model, torch.rand(2, 5))
    assert error.module == "0"
    assert "the shape and type the model expects" in error.remedy
    assert error.line == ""  # torch's own code: the line that calls analyze is none of the model's
    assert "test_errors.py" not in str(error)


def test_the_line_that_calls_a_layer_of_torch() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)  # calls it

    error = failure(CaptureError, nn.Sequential(Wrong()), torch.rand(2, 4))
    assert error.module == "0.layer"
    assert error.line == line_of("# calls it")


def lines_of(model: nn.Module, inputs: Tensor) -> set[str]:
    """All source lines that an analysis names."""
    deps = autoeidetic.analyze(model, inputs)
    plan = deps.plan
    lines = {read.line for entry in plan.parameters.values() for read in entry.reads}
    lines |= {line for nested in plan.nested for line in nested.lines}
    lines |= {lock.place.line for lock in deps.locked}
    return lines | {data["line"] for *_, data in deps.graph.edges(data=True) if "line" in data}


def test_no_line_of_the_caller_is_named() -> None:
    """The whole model is torch's own code, so there is no line to name."""
    stock = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Softmax(1), nn.PReLU(), nn.Flatten()),
        nn.Linear(288, 4),
    )
    assert lines_of(stock, torch.rand(2, 3, 8, 8)) <= {""}


def test_lines_inside_of_libraries_are_named() -> None:
    torchvision = pytest.importorskip("torchvision")
    lines = lines_of(torchvision.models.squeezenet1_1(), torch.rand(2, 3, 64, 64))
    assert any("/torchvision/models/squeezenet.py:" in line for line in lines)
    assert not any("test_errors.py" in line for line in lines)


class LooksAtData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if y.sum() > 0 else -y


def test_data_on_the_meta_device() -> None:
    model = LooksAtData().to("meta")
    error = failure(CaptureError, model, torch.rand(2, 4, device="meta"))
    assert "looks at data" in str(error)
    assert "load it on the CPU" in error.remedy


# -- nothing to divide --------------------------------------------------------------------------


class IgnoresItsParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.layer(x)
        return x * 2


@pytest.mark.parametrize("model", [nn.ReLU(), IgnoresItsParameters(), nn.Identity()])
def test_no_output_depends_on_a_parameter(model: nn.Module) -> None:
    error = failure(NoParametersError, model, torch.rand(2, 4))
    assert "parameter" in str(error)


# -- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no_such_model"], "timm has no model 'no_such_model'"),
        (["torchvision:no_such_model"], "torchvision has no model 'no_such_model'"),
        (["no.such.module:factory"], "the module 'no.such.module' cannot be imported"),
        (["math:no_such_function"], "'math' has no function or class 'no_such_function'"),
        (["builtins:dict"], "not a torch.nn.Module"),
        (["torch.nn:Linear"], "cannot be built: TypeError"),
        (["torch.nn:ReLU"], "pass example_inputs"),
        (["torch.nn:ReLU", "--input", "2,3"], "parameter"),
        (["test_resnet", "--input", "2,3,4"], "cannot be run for analysis"),
    ],
)
def test_command_line_mistakes(arguments: list[str], words: str, capsys: Any) -> None:
    assert commands.main(["inspect", *arguments]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith("autoeidetic: ")
    assert words in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_command_line_shapes(capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        commands.main(["inspect", "test_resnet", "--input", "2,x"])
    assert caught.value.code == 2
    assert "'2,x' is not a shape such as 2,3,32,32" in capsys.readouterr().err


@pytest.mark.slow
def test_no_traceback() -> None:
    command = [sys.executable, "-m", "autoeidetic", "inspect", "no_such_model"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
