"""What holds while a network is written or read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def undisturbed() -> Iterator[None]:
    """Models and heads are built on the CPU: the caller's random numbers are not used for it.

    Nor do they get tensors of the inference mode, which can never be trained.
    """
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        yield
