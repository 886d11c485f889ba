"""The documentation runs, is up to date, and names the commands that are really used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autoeidetic import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


RUNNING = [page for page in PAGES if blocks(page, "python")]


def test_pages_have_examples() -> None:
    assert {page.name for page in RUNNING} >= {"README.md", "index.md", "how-it-works.md"}


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_code_blocks_run(
    page: Path, forget: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of a page, one after another, in one namespace and an empty directory."""
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(page, "python"))
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


def test_operators_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "docs/generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = [block.strip() for block in blocks(ROOT / "README.md", "bash")]
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert lines[-1] in commands
    assert lines[-1].endswith("pytest -n 2")


# -- the commands of the README -----------------------------------------------------------------


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo"]) == 0
    printed = capsys.readouterr().out
    for name in cli.DEMO:
        assert name in printed
    assert "can be divided between tasks" in printed
    assert "layer1" in printed
    assert "blocks.0" in printed


@pytest.mark.parametrize(
    "arguments",
    [["test_vit"], ["torchvision:squeezenet1_1"], ["timm.models.resnet:test_resnet"]],
    ids=lambda arguments: arguments[0],
)
def test_inspect(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", *arguments]) == 0
    table = capsys.readouterr().out
    assert "classes" in table
    assert cli.main(["inspect", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]


def test_inspect_with_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["torchvision.ops.misc:Conv2dNormActivation", "--input", "2,3,8,8"]
    assert cli.main(["inspect", *arguments]) == 2  # it needs arguments
    capsys.readouterr()
    assert cli.main(["inspect", "torchvision:resnet18", "--input", "1,3,64,64"]) == 0
    assert "layer4" in capsys.readouterr().out


def test_tied_parameters_stay_tied_without_memory() -> None:
    """The command line builds models without memory for parameters."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = nn.Parameter(torch.rand(3, 3))
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.a.weight = weight
            self.b.weight = weight
            self.register_buffer("index", weight.detach().argmax(1))

    with cli.parameters_on_meta():
        model = Tied()
    assert model.a.weight is model.b.weight
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not model.index.is_meta
    assert not nn.Linear(3, 3).weight.is_meta
