"""The documentation runs, is up to date, and names the commands that are really used.

What stands in a code block is executed: Python in one namespace for each page, commands through the
command line's own functions. Long ones are only parsed.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from sweeps import only
from test_public_names import MOVED
from torch import nn

import autoeidetic
from autoeidetic import TrainConfig, routing
from autoeidetic import commands as command_line
from autoeidetic.commands.images.model_names import parameters_on_meta
from autoeidetic.routing import base
from autoeidetic.tasks.pruning import scores

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "benchmarks/README.md",
    *sorted(DOCS.rglob("*.md")),
]
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line that it starts in."""

    language: str
    text: str
    line: int


def fenced(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2))) for m in found]


def blocks(page: Path, language: str) -> list[str]:
    return [block.text for block in fenced(page) if block.language == language]


def commands(block: str) -> list[str]:
    """The commands of a block for the shell, one by one."""
    lines = (line for line in block.splitlines() if line and not line.startswith("#"))
    return [part.strip() for line in lines for part in line.split(" && ")]


def title(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


RUNNING = [page for page in PAGES if blocks(page, "python")]
WITH_EXAMPLES = {
    "README.md",
    "docs/deploy.md",
    *(f"docs/{name}.md" for name in "quickstart how-it-works training routing auditing".split()),
    *(f"docs/{name}.md" for name in "command-line own-operators migrating visualizer".split()),
    *(f"docs/tutorials/{name}.md" for name in "own-loop pretrained vision-transformer".split()),
    "docs/tutorials/widening.md",
}


@pytest.fixture
def forget_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and routers registered in a test are gone after it."""
    monkeypatch.setattr(scores, "_SCORES", dict(scores._SCORES))
    monkeypatch.setattr(base, "_ROUTERS", dict(base._ROUTERS))


def test_pages_have_examples() -> None:
    assert {title(page) for page in RUNNING} >= WITH_EXAMPLES


@pytest.mark.usefixtures("forget", "forget_kinds")
@pytest.mark.parametrize("page", only([ROOT / "README.md"], RUNNING), ids=title)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, one after another, in one namespace and an empty directory."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in fenced(page):
        if block.language == "python":
            code = "\n" * block.line + block.text  # so that a traceback has the page's lines
            exec(compile(code, str(page), "exec"), namespace)
        elif block.language == "bash":
            for command in commands(block.text):
                words = shlex.split(command)
                if words[0] == "autoeidetic" and words[1] not in ("demo", "benchmark"):
                    assert command_line.main(words[1:]) == 0, command


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_block_is_one_that_is_tested(page: Path) -> None:
    assert {block.language for block in fenced(page)} <= {"python", "bash", "bibtex", "diff"}


@pytest.mark.parametrize("number", range(4), ids=["rule", "score", "router", "command"])
def test_diffs_apply(number: int) -> None:
    """The diffs for contributors fit the present tree; each stands for itself."""
    diffs = blocks(ROOT / "CONTRIBUTING.md", "diff")
    assert len(diffs) == 4
    command = ["git", "apply", "--check", "-"]
    result = subprocess.run(
        command, cwd=ROOT, input=diffs[number], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_example_of_the_readme_has_ten_lines() -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    assert len(example.splitlines()) <= 10


# -- commands -----------------------------------------------------------------------------------

TOOLS = {"python3", ".", "ruff", "mypy", "mkdocs", "pre-commit"}


def extras() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    return set(re.findall(r"^(\w+) = \[", text.partition("\n[")[0], re.MULTILINE))


def check_command(command: str) -> None:
    """That there is such a command, with such options, and such files."""
    program, *words = shlex.split(command, comments=True)
    if program == "autoeidetic":
        command_line._parser(words[0]).parse_args(words)  # SystemExit when it is not understood
    elif program == "pip":
        assert words[0] == "install"
        for found in re.findall(r"\[(.*?)\]", command):
            assert set(found.split(",")) <= extras(), command
    elif program in ("python", "pytest"):
        files = [word for word in words if word.endswith(".py")]
        assert all((ROOT / file).exists() for file in files), command
    else:
        assert program in TOOLS, command


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_commands_are_understood(page: Path) -> None:
    """Those in blocks, and those in the text that have arguments."""
    inline = re.findall(r"`((?:autoeidetic|python|pytest|pip) [^`\n]+)`", page.read_text())
    names = {
        f"autoeidetic {name}" for name in [*command_line.COMMANDS, "COMMAND --help", "--version"]
    }
    found = [command for block in blocks(page, "bash") for command in commands(block)]
    for command in found + [text for text in inline if text not in names]:
        check_command(command)


def test_a_command_that_is_not_there_is_found_out() -> None:
    for wrong in ("autoeidetic conjure", "python benchmarks/nothing.py", "pip install '.[none]'"):
        with pytest.raises((AssertionError, SystemExit)):
            check_command(wrong)


def test_every_command_is_described() -> None:
    rows = table(DOCS / "command-line.md", "command")
    assert [row[0].strip("`") for row in rows] == list(command_line.COMMANDS)


# -- the site -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    package = script.stem.removeprefix("with_")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    result = run([sys.executable, str(script)], tmp_path, quiet)
    assert "no bit of task 0 has moved" in result.stdout


def test_every_example_is_shown() -> None:
    page = (DOCS / "integrations.md").read_text()
    shown = re.findall(r"^\[\S+\]\((\S+\.py)\)$", page, re.MULTILINE)
    assert {DOCS / name for name in shown} == set(EXAMPLES)


@pytest.mark.slow
def test_site(tmp_path: Path) -> None:
    """No warning; all that is public is described; nothing is loaded from elsewhere."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    run(command, ROOT, {"NO_MKDOCS_2_WARNING": "1"})
    reference = (tmp_path / "api.html").read_text()
    for name in [*autoeidetic.__all__, *MOVED]:
        assert re.search(rf'id="autoeidetic\.([a-z.]+\.)?{name}"', reference), name
    assert reference.count("doc-object doc-module") == 1  # that of errors; functions, not modules
    assert "<code>&gt;&gt;&gt;" not in reference  # examples are code, with colours
    assert (tmp_path / "integrations.html").read_text().count("highlight") >= len(EXAMPLES)
    for recorded in (ROOT / "benchmarks/results").glob("*.html"):  # beside the page of its .md
        shown = tmp_path / "repository/pages/benchmarks/results" / recorded.name
        assert shown.read_bytes() == recorded.read_bytes()
        assert (tmp_path / "repository/benchmarks/results" / recorded.name).exists()
    elsewhere = re.compile(r"<(?:link|script|img)\b[^>]*=.?https?:[^>]+>")
    for page in tmp_path.rglob("*.html"):
        assert not elsewhere.findall(page.read_text()), page


def run(
    command: list[str], directory: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


# -- tables and links ---------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_lead_somewhere(page: Path) -> None:
    """To files that are there. That anchors are there, too, MkDocs checks."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file = target.partition("#")[0]
        assert not file or (page.parent / file).exists(), target


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = [block.strip() for block in blocks(ROOT / "README.md", "bash")]
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert lines[-1] in commands
    assert lines[-1].endswith("pytest -n 2")


# -- the commands of the README -----------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["test_vit"], ["torchvision:squeezenet1_1"], ["timm.models.resnet:test_resnet"]],
    ids=lambda arguments: arguments[0],
)
def test_inspect(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["inspect", *arguments]) == 0
    table = capsys.readouterr().out
    assert "units" in table
    assert command_line.main(["inspect", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]


def test_inspect_with_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["torchvision.ops.misc:Conv2dNormActivation", "--input", "2,3,8,8"]
    assert command_line.main(["inspect", *arguments]) == 2  # it needs arguments
    capsys.readouterr()
    assert command_line.main(["inspect", "torchvision:resnet18", "--input", "1,3,64,64"]) == 0
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
