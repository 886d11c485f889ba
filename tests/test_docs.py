"""The documentation runs, is up to date, and names the commands that are really used."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

from autoeidetic import TrainConfig, cli, routing
from autoeidetic.cli import demo
from autoeidetic.lookup import parameters_on_meta
from autoeidetic.routing import base

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


RUNNING = [page for page in PAGES if blocks(page, "python")]
WITH_EXAMPLES = {"README.md", "index.md", "how-it-works.md", "training.md", "routing.md"}


@pytest.fixture
def forget_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and routers registered in a test are gone after it."""
    scores = sys.modules["autoeidetic.score"]  # the package's attribute is the decorator
    monkeypatch.setattr(scores, "_SCORES", dict(scores._SCORES))
    monkeypatch.setattr(base, "_ROUTERS", dict(base._ROUTERS))


def test_pages_have_examples() -> None:
    assert {page.name for page in RUNNING} >= WITH_EXAMPLES


@pytest.mark.usefixtures("forget", "forget_kinds")
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def table(page: Path, first: str) -> list[list[str]]:
    """The rows of the table whose first column has this name."""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            next(lines)
            return list(_cells(lines))
    raise AssertionError(f"{page} has no table of {first}")


def _cells(lines: Iterator[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_settings_are_those_of_the_loop() -> None:
    """Every setting in its order, with its default, and something said about it."""
    rows = table(ROOT / "docs/training.md", "setting")
    written = [(name.strip("`"), ast.literal_eval(default.strip("`"))) for name, default, _ in rows]
    assert written == [(field.name, field.default) for field in fields(TrainConfig)]
    assert all(meaning for _, _, meaning in rows)


def test_scores_and_routers_are_those_there_are() -> None:
    """Those of the package; an example that ran before may have registered others."""
    scores = sys.modules["autoeidetic.score"]
    written = {
        ast.literal_eval(name): float(over_network)
        for names, _, over_network in table(ROOT / "docs/training.md", "`pruning=`")
        for name in names.replace("`", "").split(", ")
    }
    own = {
        n: s.over_network for n, s in scores._SCORES.items() if vars(scores).get(n) is s.function
    }
    assert written == own
    kinds = {row[0].strip('`"') for row in table(ROOT / "docs/routing.md", "`by=`")}
    modules = {module.__name__ for module in routing.MODULES}
    assert kinds == {name for name, kind in base._ROUTERS.items() if kind.__module__ in modules}


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
    for name in demo.DEMO:
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

    with parameters_on_meta():
        model = Tied()
    assert model.a.weight is model.b.weight
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not model.index.is_meta
    assert not nn.Linear(3, 3).weight.is_meta
