"""``autoeidetic train``: folders of images in, a network and its record out; mistakes in a line."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import timm
import torch
import torchvision
from checkpoint.test_audit import strict
from PIL import Image
from torch import nn

import autoeidetic
from autoeidetic import commands
from autoeidetic.checkpoint import rebuild
from autoeidetic.commands import train
from autoeidetic.commands.images.image_folders import find_tasks
from autoeidetic.commands.images.vision import image_model
from autoeidetic.errors import InputError

SHORT = """
--size 32 --epochs 2 --step 0.4 --most 0.4 --tolerance 1 --batch-size 8 --workers 0 --device cpu
""".split()

# -- helpers --------------------------------------------------------------------------------------


def draw(path: Path, shade: int, count: int) -> None:
    """Noise around a shade."""
    path.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(shade)
    for number in range(count):
        noise = generator.integers(-40, 40, (32, 32, 3))
        Image.fromarray((shade + noise).clip(0, 255).astype(np.uint8)).save(path / f"{number}.png")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks, in all layouts: without a division, with one, without images for testing."""
    root = tmp_path_factory.mktemp("images")
    for number, (task, parts) in enumerate(
        {"a": [""], "b": ["train", "val"], "c": ["train"]}.items()
    ):
        for part in parts:
            for label, shade in (("dark", 60 + number), ("light", 180 + number)):
                draw(root / task / part / label, shade, 3 if part == "val" else 5)
    return root


def command(folders: Path, tasks: str, output: Path, *more: str) -> list[str]:
    """What is typed; what is said twice counts the second time."""
    named = [str(folders / task) for task in tasks]
    return ["train", "test_resnet", "--tasks", *named, "--output", str(output), *SHORT, *more]


@pytest.fixture(scope="module")
def run(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks, learned without a break."""
    output = tmp_path_factory.mktemp("runs") / "run"
    assert commands.main(command(folders, "ab", output, "--quiet")) == 0
    return output


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def fails(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line, with a remedy, about what is wrong."""
    capsys.readouterr()
    try:
        code: Any = commands.main(arguments)
    except SystemExit as stop:  # argparse's own
        code = stop.code
    printed = capsys.readouterr()
    assert code == 2, printed.err
    assert not printed.out
    assert len(printed.err.splitlines()) == 1, printed.err
    assert printed.err.startswith("autoeidetic")
    assert words in printed.err
    assert "; " in printed.err, "no remedy"
    assert "Traceback" not in printed.err


# -- what it does ---------------------------------------------------------------------------------


def test_learns_and_says_so(
    folders: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given again, the command has nothing left to do but to tell."""
    before = (copied / "network.safetensors").read_bytes()
    assert commands.main(command(folders, "ab", copied, "--json")) == 0
    printed = capsys.readouterr()
    assert not printed.err
    result = strict(printed.out)
    assert result["bitwise"]["ok"]
    assert 0 <= result["agnostic"] <= 1
    assert 0 < result["free"] < 1
    assert result["checkpoint"] == str(copied / "network.safetensors")
    assert commands.main([*shlex.split(result["verify"])[1:], "--json"]) == 0
    assert [each["name"] for each in strict(capsys.readouterr().out)["tasks"]] == ["a", "b"]
    assert commands.main(command(folders, "ab", copied)) == 0
    printed = capsys.readouterr()
    assert "a: 2 classes, 8 training images, 2 test images, 32 x 32" in printed.err
    assert "b: 2 classes, 10 training images, 6 test images" in printed.err
    assert result["verify"] in printed.out
    assert "free for more tasks" in printed.out
    assert "accuracy when the router finds the task" in printed.out
    assert (copied / "network.safetensors").read_bytes() == before


@pytest.mark.slow
def test_widens(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks that keep almost all their units get columns, and the command resumes with them."""
    output, more = tmp_path / "run", ("--most", "0.1", "--widen", "0.5", "--quiet")
    assert commands.main(command(folders, "ab", output, *more)) == 0
    net: Any = autoeidetic.load(output / "network.safetensors")
    assert len(net.columns) == 2
    assert commands.main(command(folders, "abc", output, *more)) == 0
    after: Any = autoeidetic.load(output / "network.safetensors")
    assert len(after.columns) == 3
    x = torch.randn(4, 3, 32, 32)
    for task in (0, 1):
        assert torch.equal(net.eval()(x, task=task), after.eval()(x, task=task))
    assert autoeidetic.audit(output / "network.safetensors").ok
    fails(command(folders, "ab", output, "--widen", "2"), "--widen 2 is not above 0", capsys)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 4])
def test_goes_on_where_it_was_stopped(
    epochs: int,
    folders: Path,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the same bits, in the middle of any task."""
    epoch, seen = autoeidetic.Run.epoch, []

    def stopped(self: autoeidetic.Run, row: Any) -> None:
        epoch(self, row)
        seen.append(row)
        if len(seen) == epochs:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(autoeidetic.Run, "epoch", stopped)
        assert commands.main(command(folders, "ab", tmp_path / "run", "--quiet")) == 130
    assert capsys.readouterr().err == "autoeidetic: stopped; run the same command to resume\n"
    assert commands.main(command(folders, "ab", tmp_path / "run", "--quiet")) == 0
    assert {p.name for p in (tmp_path / "run").iterdir()} == {p.name for p in run.iterdir()}
    here, there = (path / "network.safetensors" for path in (tmp_path / "run", run))
    assert here.read_bytes() == there.read_bytes()


def test_one_more_task(folders: Path, copied: Path, run: Path) -> None:
    """What was finished stays, bit for bit."""
    assert commands.main(command(folders, "abc", copied, "--quiet", "--router", "none")) == 0
    before, after = (autoeidetic.load(path / "network.safetensors") for path in (run, copied))
    assert [task.name for task in after.tasks] == ["a", "b", "c"]
    assert after.tasks[:2] == before.tasks  # seals and all
    x = torch.randn(4, 3, 32, 32)
    for task in (0, 1):
        assert torch.equal(before.eval()(x, task=task), after.eval()(x, task=task))
    assert autoeidetic.audit(copied / "network.safetensors").ok
    assert json.loads((copied / "train.json").read_text())["tasks"][2]["name"] == "c"


def test_seals_are_taken_once(folders: Path, copied: Path, run: Path) -> None:
    """With another number of threads the outputs are others, and a new seal would hide it."""
    torch.set_num_threads(2)
    assert commands.main(command(folders, "ab", copied, "--quiet", "--router", "none")) == 0
    before, after = (autoeidetic.load(path / "network.safetensors") for path in (run, copied))
    assert after.tasks == before.tasks
    assert before.tasks[0].seal.reference.environment["threads"] == "1"


def test_a_network_of_another_run_stays(
    folders: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (copied / "network.safetensors").read_bytes()
    shutil.rmtree(copied / "checkpoints")
    for record in ("results.json", "metrics.csv", "tasks.csv"):
        (copied / record).unlink()
    fails(
        command(folders, "ab", copied, "--quiet", "--batch-size", "4"),
        "holds a finished task 'a' that is not what this run finished as 'a'",
        capsys,
    )
    assert (copied / "network.safetensors").read_bytes() == before


def make() -> nn.Module:
    """A model that no library knows."""
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def test_a_model_of_ones_own(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = command(folders, "a", tmp_path / "run", "--json", "--router", "none", "--pretrained")
    typed[1] = "commands.test_train_command:make"
    assert commands.main(typed) == 0
    result = strict(capsys.readouterr().out)
    assert result["agnostic"] is None
    assert result["verify"].endswith("--model commands.test_train_command:make")
    assert commands.main(shlex.split(result["verify"])[1:]) == 0
    assert autoeidetic.load(result["checkpoint"], make()).recycle == "keep"


def test_a_vit_of_another_size_is_rebuilt_by_its_name() -> None:
    made = image_model("test_vit", 64, pretrained=False).net
    assert rebuild.recipe(made.backbone, 1000)["arguments"]["img_size"] == [64, 64]
    with torch.device("meta"):
        model = torchvision.models.vit_b_16(image_size=32, num_classes=2)
    arguments = {"num_classes": 2, "image_size": 32}
    expected = {"library": "torchvision", "name": "vit_b_16", "arguments": arguments}
    assert rebuild.recipe(model, 2) == expected


def test_size_and_augmentation() -> None:
    made = image_model("test_vit", 64, pretrained=False)
    assert made.data["input_size"] == (3, 64, 64)
    assert made.transform()(Image.new("RGB", (90, 70))).shape == (3, 64, 64)
    for augment in train.AUGMENTATIONS:
        assert made.transform(augment)(Image.new("RGB", (90, 70))).shape == (3, 64, 64)


# -- folders --------------------------------------------------------------------------------------


def test_what_is_held_out(folders: Path) -> None:
    """A fifth of each class, always the same; another seed takes others."""
    (task,) = find_tasks([str(folders / "a")], 0)
    assert (len(task.train), len(task.test)) == (8, 2)
    assert {label for _, label in task.test} == {0, 1}
    assert not {file for file, _ in task.train} & {file for file, _ in task.test}
    assert find_tasks([str(folders / "a")], 0) == (task,)
    assert any(find_tasks([str(folders / "a")], seed) != (task,) for seed in (1, 2, 3))
    (divided,) = find_tasks([str(folders / "b")], 0)
    assert all("/val/" in file for file, _ in divided.test)


def test_names_and_links(folders: Path, tmp_path: Path) -> None:
    """Folders of one name are told apart; links into one place are no reason to mix tasks up."""
    draw(tmp_path / "a" / "dark", 50, 2)
    draw(tmp_path / "a" / "light", 200, 2)
    one, other = str(folders / "a"), str(tmp_path / "a")
    assert [task.name for task in find_tasks([one, other], 0)] == [one, other]
    for name in ("first", "second"):
        for label in ("dark", "light"):
            (tmp_path / name / label).mkdir(parents=True)
            for file in (folders / "a" / label).iterdir():
                (tmp_path / name / label / file.name).symlink_to(file)
    assert len(find_tasks([str(tmp_path / "first"), str(tmp_path / "second")], 0)) == 2
    (tmp_path / "first" / ".cache").mkdir()
    (tmp_path / "first" / "notes.txt").write_text("of no importance")
    assert find_tasks([str(tmp_path / "first")], 0)[0].classes == ("dark", "light")


# -- mistakes -------------------------------------------------------------------------------------

#: Folders that hold no task: (how they are made, what is said of them).
FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda p: None, "does not exist"),
    "a file": (lambda p: p.write_text(""), "is not a folder"),
    "empty": (lambda p: p.mkdir(), "has no class folders"),
    "images without classes": (lambda p: draw(p, 9, 2), "has no class folders"),
    "parts without classes": (
        lambda p: (draw(p / "train", 9, 2), draw(p / "val", 9, 2)),
        "has no class folders",
    ),
    "one class": (lambda p: draw(p / "only", 9, 2), "has only one class, 'only'"),
    "empty class": (
        lambda p: (draw(p / "full", 9, 2), (p / "none").mkdir()),
        "none' has no images",
    ),
    "one image": (lambda p: (draw(p / "x", 9, 1), draw(p / "y", 9, 2)), "has only one image"),
    "other classes": (
        lambda p: [draw(p / c, 9, 1) for c in ("train/x", "train/y", "val/x", "val/z")],
        "have different classes: 'y' is in only one of them",
    ),
    "damaged image": (
        lambda p: (draw(p / "x", 9, 3), draw(p / "y", 9, 3), _cut(p / "y" / "1.png")),
        "1.png' cannot be read as an image",
    ),
    "no image": (
        lambda p: (draw(p / "x", 9, 3), draw(p / "y", 9, 3), (p / "y" / "a.jpg").write_text("no")),
        "a.jpg' cannot be read as an image",
    ),
}


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_without_a_task(
    name: str, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, words = FOLDERS[name]
    build(tmp_path / "task")
    typed = command(folders, "a", tmp_path / "run", "--tasks", str(folders / "a"))
    fails([*typed, str(tmp_path / "task")], words, capsys)
    assert not (tmp_path / "run").exists()


ARGUMENTS = {
    "--lr 0": "--lr 0 is not a learning rate",
    "--lr nan": "--lr nan is not a learning rate",
    "--lr fast": "argument --lr: invalid float value: 'fast'",
    "--step 2": "step=2.0",
    "--most 0": "most=0.0",
    "--tolerance -1": "tolerance=-1.0",
    "--pruning luck": "luck",
    "--epochs 0": "'0' is not a number of epochs",
    "--batch-size 1": "'1' is not a number of images",
    "--size 0": "'0' is not a number of pixels",
    "--workers -1": "'-1' is not a number of processes",
    "--augment much": "argument --augment: invalid choice: 'much'",
    "--router oracle": "argument --router: invalid choice: 'oracle'",
    "--nonsense": "unrecognized arguments: --nonsense",
}


@pytest.mark.parametrize("typed", ARGUMENTS)
def test_wrong_arguments(
    typed: str, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = typed.split()
    fails(command(folders, "a", tmp_path / "run", *more), ARGUMENTS[typed], capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one here")
def test_no_such_device(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = command(folders, "a", tmp_path / "run", "--device", "cuda")
    fails(typed, "no CUDA device is available", capsys)


NAMES = {
    ("test_resnt",): "did you mean 'test_resnet'",
    ("test_resnet.best",): "Invalid pretrained tag (best)",
    ("torchvision:squeezenet1_1", "--size", "8"): "does not accept images of 8 x 8 pixels",
    ("test_vit", "--size", "3"): "test_vit",
    ("botnet50ts_256", "--pretrained"): "botnet50ts_256 has no pretrained values",
    ("torch.nn:Linear",): "cannot be built: TypeError",
    ("torch.nn:Identity",): "no output of the model depends on a parameter",
}


@pytest.mark.parametrize("typed", NAMES, ids=lambda typed: typed[0])
def test_models_that_do_not_do(
    typed: tuple[str, ...], folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *more = typed
    arguments = command(folders, "a", tmp_path / "run", *more)
    arguments[1] = name
    fails(arguments, NAMES[typed], capsys)
    assert not (tmp_path / "run").exists()


def test_a_size_that_nobody_knows() -> None:
    with pytest.raises(InputError, match="is not known") as caught:
        image_model("commands.test_train_command:make", None, pretrained=False)
    assert caught.value.remedy == "pass --size"


def test_offline(
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    typed = command(folders, "a", tmp_path / "run", "--pretrained")
    fails(typed, "the pretrained values of test_resnet cannot be loaded", capsys)
    assert not (tmp_path / "run").exists()


def test_what_hubs_say_of_every_attempt_is_left_out(
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = timm.create_model

    def noisy(name: str, pretrained: bool = False, **options: Any) -> Any:
        if not pretrained:
            return create(name, **options)
        print("fetching ...", file=sys.stderr)
        logging.getLogger("hub").warning("trying once more")
        raise OSError("no\nconnection")

    monkeypatch.setattr(timm, "create_model", noisy)
    typed = command(folders, "a", tmp_path / "run", "--pretrained")
    fails(typed, "cannot be loaded: OSError: no connection; check the connection", capsys)
    assert logging.root.manager.disable == 0


# -- a folder that holds something already --------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "more", "words"),
    [
        ("ab", ["--seed", "1"], "belongs to another run: seed was 0 and is 1"),
        ("ab", ["--epochs", "3"], "belongs to another run: epochs was 2 and is 3"),
        ("ab", ["--size", "64"], "belongs to another run: size was 32 and is 64"),
        ("a", [], "has learned from 2 folders, but the command names only 1"),
        ("ba", [], "task 0 of"),
        ("ac", [], "task 1 of"),
        ("aa", [], "are the same folder"),
    ],
)
def test_another_run(
    tasks: str,
    more: list[str],
    words: str,
    folders: Path,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = content(run)
    fails(command(folders, tasks, run, *more), words, capsys)
    assert content(run) == before


def test_images_that_changed_since(
    folders: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(folders, tmp_path / "images"))
    assert commands.main(command(other, "ab", copied, "--quiet")) == 0  # the same ones elsewhere
    draw(other / "b" / "train" / "dark", 1, 6)
    fails(command(other, "ab", copied), "holds other images", capsys)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda p: p.write_text(""), "is a file"),
        (lambda p: (p.mkdir(), (p / "thesis.tex").write_text("")), "holds no run"),
        (lambda p: (p.mkdir(), (p / "train.json").write_text("{")), "cannot be read"),
        (lambda p: (p.mkdir(), (p / "train.json").write_text("{}")), "not a record"),
        (
            lambda p: (p.mkdir(), (p / "train.json").write_text('{"format": 1, "tasks": [1]}')),
            "not a record",
        ),
    ],
)
def test_a_place_that_is_taken(
    build: Any, words: str, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path / "run")
    before = content(tmp_path)
    fails(command(folders, "a", tmp_path / "run"), words, capsys)
    assert content(tmp_path) == before


def test_a_place_that_cannot_be(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    fails(command(folders, "a", tmp_path / "file" / "run"), "cannot be written", capsys)


# -- what goes wrong on the way -------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_image_that_is_damaged_later(
    workers: str,
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that reads images says it in the same words."""
    images = Path(shutil.copytree(folders / "a", tmp_path / "a"))
    for file in images.rglob("*.png"):
        _cut(file)
    monkeypatch.setattr(train, "check_images", lambda tasks, progress: None)
    typed = command(tmp_path, "a", tmp_path / "run", "--quiet", "--workers", workers)
    fails(typed, "repair the file, or remove it from the folder", capsys)


@pytest.mark.slow
def test_too_little_memory(
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(train, "learn", full)
    typed = command(folders, "a", tmp_path / "run", "--quiet")
    fails(typed, "pass a smaller --batch-size", capsys)
