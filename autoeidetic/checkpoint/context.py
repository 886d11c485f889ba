"""What holds while a file is written or read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ..errors import CheckpointError


def generator_untouched() -> AbstractContextManager[None]:
    """Models and heads are built, on the CPU, with values that are of no importance."""
    return torch.random.fork_rng(devices=[])


@contextmanager
def about(path: Any) -> Iterator[None]:
    """Say which file it is about."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f"'{path}' {error.fact}", place=error.place, remedy=error.remedy
        ) from error
