"""Actions that copy a network, or put it or its state into a file."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor

import autoeidetic
from autoeidetic.errors import AutoeideticError

from .life import Life, Tolerated
from .oracle import Finding
from .registry import action


@action(1.2, after=["go on with the copy", "go on with the original"])
def deepcopy(life: Life, after: str) -> None:
    made = copy.deepcopy(life.net)
    _choose(life, made, after)


def _choose(life: Life, made: Any, after: str) -> None:
    if after == "go on with the copy":
        life.go_on_with(made, remember=True)
    else:
        life.others = [(made, life.memory.copy())]


@action(0.7, after=["go on with the copy", "go on with the original"])
def pickled(life: Life, after: str) -> None:
    try:
        pickle.dumps(life.subject.build())
    except Exception as error:
        raise Tolerated("the bare model cannot be pickled") from error
    try:
        data = pickle.dumps(life.net)
    except RuntimeError as error:
        if "Serialization of parametrized modules" not in str(error):
            raise
        raise Tolerated("a parametrized module cannot be pickled") from error
    _choose(life, pickle.loads(data), after)


@action(1.5, after=["go on with the copy", "go on with the copy", "go on with the original"])
def save_load(life: Life, after: str) -> None:
    path = life.folder / "net.safetensors"
    life.net.save(path)
    try:
        made = autoeidetic.load(path, model=life.subject.build())
    except AutoeideticError as error:
        if life.undo or life.edited:
            raise
        raise Finding("lost", f"what was saved cannot be opened: {error.fact}") from error
    made.train(life.net.training)
    _choose(life, made, after)


@action(0.5)
def torch_save(life: Life) -> None:
    """The state_dict through torch.save, into the same network."""
    file = io.BytesIO()
    torch.save(life.net.state_dict(), file)
    file.seek(0)
    _load(life, torch.load(file, weights_only=True))


@action(0.5)
def keep_state(life: Life) -> None:
    life.state = {name: value.clone() for name, value in life.net.state_dict().items()}


@action(0.5, what=["kept", "noise"])
def load_state(life: Life, what: str) -> None:
    """A state of an earlier moment, perhaps of an earlier task; or of another network."""
    if what == "noise":
        now = life.net.state_dict()
        _load(life, {name: _noisy(value) for name, value in now.items()})
    elif life.state is None:
        raise Tolerated("none was kept")
    else:
        _load(life, life.state)


def _noisy(tensor: Tensor) -> Tensor:
    return tensor + 0.1 * torch.randn_like(tensor) if tensor.is_floating_point() else tensor


def _load(life: Life, state: dict[str, Any]) -> None:
    try:
        life.net.load_state_dict(state)
    except RuntimeError as error:  # what load_state_dict raises, by torch's own convention
        if not str(error).startswith(("Nothing was loaded", "Error(s) in loading")):
            raise
        raise Tolerated("load_state_dict refused") from error
