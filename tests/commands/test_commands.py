"""The command line as a whole: help that teaches, exit codes, names that are nearly right.

What one command does is tested where it belongs: drawings, training, the zoo, analysis.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from checkpoint.test_audit import learned, strict
from checkpoint.test_checkpoint import edit

from autoeidetic import commands
from autoeidetic.errors import InputError, Place
from commands.test_train_command import fails

COMMANDS = ("inspect", "visualize", "train", "verify", "benchmark")

# -- help -----------------------------------------------------------------------------------------


def printed_by(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a call prints that ends well, in argparse or after it."""
    try:
        code: Any = commands.main(arguments)
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    return printed.out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command has some, and each of them can be typed."""
    module, purpose = import_module(f"autoeidetic.commands.{name}"), commands.COMMANDS[name]
    text = printed_by([name, "--help"], capsys)
    assert purpose[1:] in " ".join(text.split())
    assert module.EXAMPLES in text
    lines = [line for line in module.EXAMPLES.splitlines() if line.startswith("  autoeidetic")]
    assert len(lines) >= 2
    for line in lines:
        program, *typed = shlex.split(line, comments=True)
        assert program == "autoeidetic"
        assert commands._parser(name).parse_args(typed).command is module


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    choices = commands._parser(name)._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for action in choices[name]._actions:  # type: ignore[index, call-overload]
        assert action.help, action.dest


def test_overview(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(printed_by(["--help"], capsys).split())
    for name, purpose in commands.COMMANDS.items():
        assert name in text
        assert purpose in text


@pytest.mark.slow
def test_help_does_not_wait_for_libraries_of_models() -> None:
    """They take seconds to import."""
    program = (
        "import contextlib, sys; from autoeidetic import commands\n"
        "with contextlib.suppress(SystemExit): commands.main(['--help'])\n"
        "sys.exit(', '.join({'timm', 'torchvision', 'matplotlib'} & sys.modules.keys()) or None)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "the following arguments are required: COMMAND; see autoeidetic --help"),
        ("inspct resnet18", "invalid choice: 'inspct'"),
        ("inspect", "the following arguments are required: MODEL; see autoeidetic inspect --help"),
        ("inspect test_resnet --input", "argument --input: expected one argument"),
        ("inspect test_resnet --depth 3", "unrecognized arguments"),
        ("visualize test_resnet --depth 0", "'0' is not a number of levels"),
        ("train test_resnet", "the following arguments are required: --tasks, --output"),
        ("verify", "the following arguments are required: CHECKPOINT"),
        ("benchmark --only everything", "invalid choice: 'everything'"),
        ("benchmark --workers two", "invalid int value: 'two'"),
    ],
)
def test_what_cannot_be_parsed(typed: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, not all the options."""
    fails(typed.split(), words, capsys)


# -- names of models ------------------------------------------------------------------------------

NEARLY = {
    "resnet_18": "did you mean 'resnet18'",
    "ResNet50": "did you mean 'resnet50'",
    "vit_tiny": "did you mean 'vit_tiny_patch16_224'",
    "swin_t": "did you mean 'torchvision:swin_t'?",
    "test_resnet.r160_in22k": "did you mean 'test_resnet.r160_in1k'?",
    "torchvision:resnet81": "did you mean 'resnet18'",
    "timm.models.resnet:resnet_18": "did you mean 'resnet18'",
    "torch.nn:linear": "did you mean 'Linear'",
    "zzzzzzzz": "timm has no model 'zzzzzzzz'; timm.list_models() lists all names",
}


@pytest.mark.parametrize("name", NEARLY)
def test_names_that_are_nearly_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    fails(["inspect", name], NEARLY[name], capsys)


@pytest.mark.parametrize("name", COMMANDS[:3])
def test_every_command_looks_names_up_alike(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["--tasks", "a", "--output", "b"] if name == "train" else []
    fails([name, "test_resnt", *more], "did you mean 'test_resnet'", capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken_module_of_a_test:make", "SyntaxError"),
        ("raising_module_of_a_test:make", "RuntimeError: no weights here"),
        (":make", "the module '' cannot be imported"),
        (".relative:make", "the module '.relative' cannot be imported"),
        ("torchvision:", "torchvision has no model ''"),
    ],
)
def test_modules_that_cannot_be_imported(
    name: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "broken_module_of_a_test.py").write_text("def make(:\n")
    (tmp_path / "raising_module_of_a_test.py").write_text("raise RuntimeError('no weights\\nhere')")
    monkeypatch.syspath_prepend(tmp_path)
    fails(["inspect", name], words, capsys)


# -- verify ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> str:
    learned().save(tmp_path / "net")
    return str(tmp_path / "net")


def test_verify(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    """0 when all is in order, 1 when it is not; as text and as JSON."""
    typed = ["verify", saved, "--model", "checkpoint.test_audit:normed"]
    assert "every finished task is what it was" in printed_by(typed, capsys)
    assert strict(printed_by([*typed, "--json"], capsys))["ok"] is True
    edit(Path(saved), lambda _, tensors: tensors["heads.1.3.bias"].add_(1))
    assert commands.main(typed) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == "TAMPERED WITH: task 1"
    assert not printed.err
    assert commands.main([*typed, "--json"]) == 1
    assert strict(capsys.readouterr().out)["tasks"][1]["verdict"] == "changed"
    Path(saved).write_bytes(Path(saved).read_bytes()[:-1])
    assert commands.main(typed) == 1
    assert "EDITED OR DAMAGED" in capsys.readouterr().out


def test_verify_mistakes(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(["verify", saved], "--model on the command line", capsys)
    fails(["verify", f"{saved}x"], "does not exist; check the path", capsys)
    fails(["verify", str(tmp_path)], "is a directory", capsys)
    fails(["verify", __file__], "is not a safetensors file", capsys)
    fails(["verify", saved, "--model", "test_resnt"], "did you mean 'test_resnet'", capsys)
    fails(["verify", saved, "--model", "commands.test_commands:strict"], "cannot be built", capsys)
    fails(["verify", saved, "--model", "builtins:dict"], "not a torch.nn.Module", capsys)
    fails(
        ["verify", saved, "--model", "checkpoint.test_checkpoint:small"], "has nothing for", capsys
    )


# -- benchmark ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "no model is chosen"),
        ("--models test_resnt", "did you mean 'test_resnet'"),
        ("--models test_vit --workers 0", "--workers 0 is not above 0; pass a number above 0"),
        ("--models test_vit --seconds -1", "--seconds -1"),
        ("--models test_vit --max-params nan", "--max-params nan"),
        ("--models test_vit --output a/b", "is not a plain file name"),
    ],
)
def test_benchmark_mistakes(
    typed: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before anything is measured."""
    fails(["benchmark", *typed.split(), "--into", str(tmp_path / "into")], words, capsys)
    assert not list((tmp_path / "into").rglob("*"))


def test_benchmark_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    typed = ["benchmark", "--models", "test_vit", "--into", str(tmp_path / "file")]
    fails(typed, "cannot be used as a folder", capsys)


# -- endings --------------------------------------------------------------------------------------


def test_interrupted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autoeidetic.commands.inspect.run", interrupt)
    assert commands.main(["inspect", "test_resnet"]) == 130
    assert capsys.readouterr().err == "autoeidetic: stopped\n"


def test_a_reader_that_has_seen_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """``autoeidetic inspect ... | head -1``"""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert commands.main(["inspect", "checkpoint.test_audit:normed", "--input", "2,3"]) == 0
        closed.flush()


def test_errors_are_one_line() -> None:
    place = Place("layer", "aten.add")
    error = InputError("a\n b", place=place, remedy="do c")
    assert commands._one_line(error) == "a b; aten.add in module 'layer'; do c"
