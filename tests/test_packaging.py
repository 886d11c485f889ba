"""The wheel: built without a network, installed elsewhere, complete, and of one version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import autoeidetic
from autoeidetic import commands

ROOT = Path(__file__).parent.parent
NEEDED = (
    "autoeidetic/py.typed",
    "autoeidetic/draw/page/page.html",
    "autoeidetic/draw/page/page.css",
    "autoeidetic/draw/page/graph.css",
    "autoeidetic/draw/page/js/main.js",
    "autoeidetic/draw/page/vendor/elk-worker.min.js",
    "autoeidetic/draw/page/vendor/elkjs-LICENSE.md",
)
# another version than that of the repository, so that no other place can have told it
VERSION = "98.7.6"
IMPORTED = f"""
import torch
import autoeidetic
from autoeidetic.commands import main

print(autoeidetic.__file__)
assert autoeidetic.__version__ == {VERSION!r}
model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
assert "</html>" in autoeidetic.analyze(model, torch.zeros(1, 2)).to_html()
main(["--version"])
"""


def sources() -> set[str]:
    """All files of the package, as they are named in a wheel."""
    files = (path for path in (ROOT / "autoeidetic").rglob("*") if path.is_file())
    kept = (path for path in files if "__pycache__" not in path.parts and path.name[0] != ".")
    return {path.relative_to(ROOT).as_posix() for path in kept}


def run(*command: str, directory: Path, **environment: str) -> str:
    result = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def pip(*arguments: str, directory: Path) -> str:
    return run(sys.executable, "-m", "pip", *arguments, "--no-index", directory=directory)


@pytest.mark.slow
def test_wheel(tmp_path: Path) -> None:
    """From a copy, for a build leaves files beside the sources."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "autoeidetic", source / "autoeidetic", ignore=ignored)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    project = (ROOT / "pyproject.toml").read_text()
    here = f'version = "{version("autoeidetic")}"'
    assert project.count(here) == 1, "install the package again: its version has changed"
    (source / "pyproject.toml").write_text(project.replace(here, f'version = "{VERSION}"'))

    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "./source")
    pip(*build, directory=tmp_path)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name == f"autoeidetic-{VERSION}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= set(NEEDED)
    assert {name for name in names if ".dist-info/" not in name} == sources()
    assert any(name.endswith("licenses/LICENSE") for name in names)

    target = tmp_path / "target"
    pip("install", "--no-deps", "--target", str(target), str(wheel), directory=tmp_path)
    command = [sys.executable, "-W", "error::DeprecationWarning:autoeidetic", "-c", IMPORTED]
    printed = run(*command, directory=tmp_path, PYTHONPATH=str(target), OMP_NUM_THREADS="1")
    assert printed.split("\n")[:2] == [
        str(target / "autoeidetic/__init__.py"),
        f"autoeidetic {VERSION}",
    ]
    assert (target / "bin/autoeidetic").exists()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert autoeidetic.__version__ == version("autoeidetic")
    with pytest.raises(SystemExit) as stopped:
        commands.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"autoeidetic {autoeidetic.__version__}\n"


def test_changes_begin_with_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == autoeidetic.__version__


def test_contributors_run_what_ci_runs() -> None:
    block = re.search(r"^```bash\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
    assert block is not None
    lines = block[1].splitlines()
    assert len(lines) == 3
    assert " && ".join(lines) == (ROOT / ".ci/run").read_text().splitlines()[-1]


def test_hooks_call_what_is_installed() -> None:
    """The tools of the environment: nothing is fetched, and no version is named twice."""
    yaml = pytest.importorskip("yaml")
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
    entries = [hook["entry"].split() for hook in local["hooks"]]
    assert entries[:2] == [["ruff", "check"], ["mypy"]]
    for program, script, *_ in entries[2:]:
        assert program == "python"
        assert (ROOT / script).exists()
