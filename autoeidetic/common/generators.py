"""The random number generators that a forward pass may use, left as they were."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def untouched_generators() -> Iterator[None]:
    """After the block, torch, Python and NumPy go on with the numbers they would have given."""
    states: list[tuple[Callable[[Any], None], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
    ]
    if torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    try:
        yield
    finally:
        for restore, state in states:
            restore(state)


def seed_generators(seed: int) -> None:
    """The same numbers from here on, whenever this is called with the same seed."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed)
