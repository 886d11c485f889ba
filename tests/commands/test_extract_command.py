"""``autoeidetic extract`` and ``autoeidetic slim``: programs on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint.test_audit import strict
from torch import Tensor, nn

import autoeidetic
from autoeidetic.extract.program import Program
from commands import test_commands
from commands.test_commands import printed_by
from commands.test_train_command import fails

COMMANDS = ("extract", "slim")


def model() -> nn.Module:
    """A model that no library builds by name."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


MODEL = "commands.test_extract_command:model"


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A network whose task 1 has a number for a name, that of another task."""
    net = autoeidetic.convert(model(), torch.ones(2, 3, 16, 16))
    for number, name in enumerate(("pets", "2", "cars")):
        net.prepare_for_task(number, num_classes=number + 2, name=name)
        net.prune(0.6)
        net.finish_task()
    net.save(tmp_path / "net")
    return str(tmp_path / "net")


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    test_commands.test_help_teaches_with_examples(name, capsys)
    test_commands.test_every_option_is_explained(name)


def answers(path: Path, x: Tensor) -> Any:
    return autoeidetic.load(path)(x)


def test_extract(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = autoeidetic.load(saved, model=model()).eval()
    x = torch.randn(3, 3, 16, 16)
    file = tmp_path / "program.safetensors"
    typed = ["extract", saved, "--model", MODEL, "-o", str(file)]
    text = printed_by([*typed, "--task", "pets"], capsys)
    assert text.startswith("task pets\n")
    assert f"{file}: {file.stat().st_size:,} bytes" in text
    assert torch.allclose(answers(file, x), net(x, task=0), atol=1e-5)
    found = strict(printed_by([*typed, "--task", "pets", "--json"], capsys))
    assert found["tasks"] == ["pets"]
    assert found["parameters_after"] < found["parameters_before"]
    assert (found["file"], found["bytes"]) == (str(file), file.stat().st_size)
    # a name comes before a number
    printed_by([*typed, "--task", "0", "--task", "2"], capsys)
    for found, number in zip(answers(file, x), (0, 1), strict=True):
        assert torch.allclose(found, net(x, task=number), atol=1e-5)
    printed_by([*typed, "--task", "all"], capsys)
    assert [each.shape[1] for each in answers(file, x)] == [2, 3, 4]


def test_extract_for_deployment(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = autoeidetic.load(saved, model=model()).eval()
    x = torch.randn(5, 3, 16, 16)
    file = tmp_path / "program.pt2"
    printed_by(["extract", saved, "--model", MODEL, "--task", "cars", "-o", str(file)], capsys)
    found = torch.export.load(file).module()(x)
    assert torch.allclose(found, net(x, task=2), atol=1e-5)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["-o", "a.safetensors"], "the following arguments are required: --task"),
        (["--task", "pets"], "the following arguments are required: -o/--output"),
        (["--task", "dogs", "-o", "a.pt2"], "task 'dogs' does not exist"),
        (["--task", "7", "-o", "a.pt2"], "task 7 does not exist"),
        (["--task", "all", "--task", "pets", "-o", "a.pt2"], "--task all is given beside other"),
        (["--task", "pets", "-o", "a.pth"], "'a.pth' ends in '.pth': that is no format"),
        (["--task", "pets", "-o", "a"], "'a' has no ending"),
        (["--task", "pets", "-o", "none/a.pt2"], "its directory does not exist"),
    ],
)
def test_mistakes(
    more: list[str],
    words: str,
    saved: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(Path(saved).parent)
    fails(["extract", saved, "--model", MODEL, *more], words, capsys)
    assert [path.name for path in Path(saved).parent.iterdir()] == ["net"]


def test_files_that_hold_no_network(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.safetensors"
    more = ["--task", "pets", "-o", str(program)]
    printed_by(["extract", saved, "--model", MODEL, *more], capsys)
    fails(["extract", str(program), *more], "holds a program, not a network", capsys)
    fails(["extract", str(program), "--model", MODEL, *more], "which needs no model", capsys)
    fails(["extract", f"{saved}x", *more], "does not exist", capsys)
    fails(["extract", saved, *more], "--model on the command line", capsys)


def test_slim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.safetensors"
    typed = ["slim", MODEL, "--input", "2,3,16,16", "-o", str(file), "--json", "--keep", "0.5"]
    found = strict(printed_by(typed, capsys))
    assert found["parameters_after"] < found["parameters_before"]
    program = autoeidetic.load(file)
    assert isinstance(program, Program)
    assert program(torch.randn(3, 3, 16, 16)).shape == (3, 5)
    assert program.get_parameter("0.0.weight").shape == (4, 3, 3, 3)
    more = [*typed, "--of", "multiply-adds"]
    found = strict(printed_by(more, capsys))
    assert found["multiply_adds_after"] <= found["multiply_adds_before"] * 0.55


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--keep", "0"], "--keep 0 is not a part"),
        (["--keep", "1.5"], "--keep 1.5 is not a part"),
        (["--keep", "nan"], "--keep nan is not a part"),
        (["--keep", "half"], "invalid float value: 'half'"),
        (["--keep", "0.5", "--of", "layers"], "invalid choice: 'layers'"),
        (["--keep", "0.5", "--by", "luck"], "luck"),
    ],
)
def test_slim_mistakes(
    more: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = ["slim", MODEL, "--input", "2,3,16,16", "-o", str(tmp_path / "a.pt2"), *more]
    fails(typed, words, capsys)
    assert not list(tmp_path.iterdir())


def test_slim_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--keep", "0.5", "-o", str(tmp_path / "a.pt2")]
    fails(["slim", "test_resnt", *more], "did you mean 'test_resnet'", capsys)
    fails(["slim", "botnet50ts_256", "--pretrained", *more], "no pretrained values", capsys)
