"""The front door: public names, old spellings of names, and packages imported on demand."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import pytest

import autoeidetic
from autoeidetic import errors

#: Old spelling at the front door -> the room that has the name now.
MOVED = {
    "Audit": "checkpoint",
    "CapacityError": "errors",
    "CaptureError": "errors",
    "CheckpointError": "errors",
    "DivergenceWarning": "errors",
    "EnforcementError": "errors",
    "Epoch": "training",
    "HeadError": "errors",
    "InputError": "errors",
    "LearningWarning": "errors",
    "MissingPackageError": "errors",
    "NoParametersError": "errors",
    "NonFiniteError": "errors",
    "Prediction": "routing",
    "RehearsalWarning": "errors",
    "RuleError": "errors",
    "StorageWarning": "errors",
    "TaskError": "errors",
    "TaskHistory": "training",
    "UnhandledOperatorError": "errors",
    "UnhandledOperatorWarning": "errors",
}

#: Packages that take long to import; a function that needs one imports it.
ON_DEMAND = """
matplotlib networkx pandas PIL py_mini_racer resvg_py safetensors scipy sklearn tensorboard timm
torchvision transformers
""".split()


def test_public_names() -> None:
    assert dir(autoeidetic) == sorted(autoeidetic.__all__)
    assert len(autoeidetic.__all__) <= 20
    everything: dict[str, object] = {}
    exec("from autoeidetic import *", everything)
    assert set(autoeidetic.__all__) == set(everything) - {"__builtins__"}


@pytest.mark.parametrize("name", MOVED)
def test_old_spellings_go_on_working(name: str) -> None:
    room = importlib.import_module(f"autoeidetic.{MOVED[name]}")
    assert getattr(autoeidetic, name) is getattr(room, name)
    imported: dict[str, type] = {}
    exec(f"from autoeidetic import {name}", imported)
    assert imported[name] is getattr(room, name)
    assert pickle.loads(pickle.dumps(imported[name])) is imported[name]
    assert name not in autoeidetic.__all__


def test_every_error_was_at_the_front_door() -> None:
    kinds = (errors.AutoeideticError, Warning)
    public = {n for n, e in vars(errors).items() if isinstance(e, type) and issubclass(e, kinds)}
    later = {"AutoeideticError", "ExtractionError"}  # errors since then are in errors only
    assert public == {name for name, room in MOVED.items() if room == "errors"} | later


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'autoeidetic' has no attribute 'Eidetic'"):
        autoeidetic.Eidetic  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Eidetic'"):
        exec("from autoeidetic import Eidetic")


def imported_by(statement: str) -> set[str]:
    """Packages of ``ON_DEMAND`` that a statement imports, in a process of its own."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split()) & set(ON_DEMAND)


def test_other_packages_are_imported_on_demand() -> None:
    """Those that torch imports itself are not counted."""
    assert imported_by("import torch, autoeidetic") == imported_by("import torch")
