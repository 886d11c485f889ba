"""What holds while a file is written or read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import CheckpointError


@contextmanager
def undisturbed() -> Iterator[None]:
    """Models and heads are built on the CPU: the caller's random numbers are not used for it.

    Nor do they get tensors of the inference mode, which can never be trained.
    """
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        yield


@contextmanager
def about(path: Any) -> Iterator[None]:
    """Say which file it is about."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f"'{path}' {error.fact}", place=error.place, remedy=error.remedy
        ) from error
