"""Files that version 0.1.0 saved: they load, and answer with the bits they had then."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import autoeidetic
from autoeidetic.checkpoint import saving
from autoeidetic.checkpoint.record import fingerprint
from autoeidetic.errors import CheckpointError, LearningWarning
from autoeidetic.tasks.reference import environment
from checkpoint.saved_by_0_1 import make

FOLDER = Path(make.__file__).parent


@pytest.fixture(scope="module")
def known() -> dict[str, Tensor]:
    return load_file(FOLDER / "answers.safetensors")


def same(net: autoeidetic.EideticNet, kind: str, name: str, known: dict[str, Tensor]) -> None:
    """Bit for bit where the files were made, to rounding elsewhere."""
    found = make.answers(net, kind)
    assert found
    then = json.loads((FOLDER / "environment.json").read_text())
    for key, value in found.items():
        before = known[f"{name}.{key}"]
        if environment(torch.device("cpu")) == then:
            assert torch.equal(value, before), key
        else:
            torch.testing.assert_close(value, before)


def load(name: str) -> autoeidetic.EideticNet:
    model = None if name == "vit" else make.mlp()
    return autoeidetic.load(FOLDER / f"{name}.safetensors", model=model)


@pytest.mark.parametrize("kind", ["mlp", "vit"])
def test_answers_and_predictions_are_the_same(kind: str, known: dict[str, Tensor]) -> None:
    net = load(kind)
    assert net.router is not None
    assert net.router.kind == make.ROUTER[kind]
    assert all(task.finished for task in net.tasks)
    same(net, kind, kind, known)


@pytest.mark.parametrize("kind", ["mlp", "vit"])
def test_their_seals_hold(kind: str) -> None:
    model = None if kind == "vit" else make.mlp()
    audit = autoeidetic.audit(FOLDER / f"{kind}.safetensors", model=model)
    assert audit.ok


@pytest.mark.parametrize("kind", ["mlp", "vit"])
def test_they_can_be_saved_and_loaded_again(
    kind: str, known: dict[str, Tensor], tmp_path: Path
) -> None:
    load(kind).save(tmp_path / "again.safetensors")
    model = None if kind == "vit" else make.mlp()
    same(autoeidetic.load(tmp_path / "again.safetensors", model=model), kind, kind, known)


def test_a_task_that_was_stopped_in_the_middle_goes_on(
    known: dict[str, Tensor], tmp_path: Path
) -> None:
    net = load("training")
    assert net.open_task == make.TASKS
    shutil.copytree(FOLDER / "training", tmp_path / "training")
    phases: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LearningWarning)
        make.last_task(net, tmp_path / "training", lambda epoch: phases.append(epoch.phase))
    assert "train" not in phases  # that was done before
    net.finish_task()
    net.router = None
    same(net, "mlp", "training", known)


class Spare(nn.Module):
    """Has a layer that no output reads, as the pooler of an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.pooler = nn.Linear(8, 4)
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.first(x)))


#: Version 0.1 wrote one or the other for the same model, by the order of a set of names.
ORDERS = ["ecb6a9887487c87b1027ecc37f09f603", "7f9ce397c572ba7d0d9a40cd7d65721a"]


@pytest.mark.parametrize("noted", [*ORDERS, "0" * 32])
def test_units_of_unused_parameters_in_another_order(
    noted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 6)
    net = autoeidetic.convert(Spare(), x)
    net.prepare_for_task(0, num_classes=2)
    net.prune(0.5)
    net.finish_task()
    there = lambda plan: {**fingerprint(plan), "classes of elements": noted}  # noqa: E731
    monkeypatch.setattr(saving, "fingerprint", there)
    net.save(tmp_path / "net")
    if noted not in ORDERS:
        with pytest.raises(CheckpointError, match="units of elements differ"):
            autoeidetic.load(tmp_path / "net", Spare())
        return
    loaded = autoeidetic.load(tmp_path / "net", Spare())
    assert torch.equal(loaded.eval()(x, task=0), net.eval()(x, task=0))
    assert autoeidetic.audit(tmp_path / "net", Spare()).ok
