"""Distributed: several processes that train one network, with ``torch.distributed``.

Every function works without it as well: then there is one process, and nothing to exchange.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

Value = TypeVar("Value")


def start() -> None:
    """Join the processes that ``torchrun`` has launched, unless the program has already."""
    if not distributed.is_available() or distributed.is_initialized():
        return
    if distributed.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1:
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def count() -> int:
    """The number of processes."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def rank() -> int:
    """The number of this process; process 0 writes files and shows progress."""
    return distributed.get_rank() if count() > 1 else 0


def total(tensor: Tensor) -> Tensor:
    """The sum over all processes, the same bits in each."""
    if count() == 1:
        return tensor
    # nccl exchanges tensors on GPUs only, gloo takes those on the CPU
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    summed = tensor.to(device, copy=True)
    distributed.all_reduce(summed)
    distributed.broadcast(summed, 0)  # a reduction may differ in the last bits between processes
    return summed.to(tensor.device)


def same(tensors: Iterable[Tensor]) -> None:
    """Copy the values of process 0 to every process."""
    if count() > 1:
        # in place, and in the same order everywhere: each broadcast is a meeting of all processes
        for tensor in tensors:
            distributed.broadcast(tensor.detach(), 0)


def mean(values: np.ndarray) -> np.ndarray:
    """The mean over all processes, the same bits in each."""
    return values if count() == 1 else (total(torch.from_numpy(values)) / count()).numpy()


def first(value: Value) -> Value:
    """The value of process 0."""
    return share(value)[0]


def share(value: Value) -> list[Value]:
    """The values of all processes, in the order of their ranks."""
    if count() == 1:
        return [value]
    # a collective: every process must call it, or the others wait for ever
    found: list[Any] = [None] * count()
    distributed.all_gather_object(found, value)
    return found


def wait() -> None:
    """Wait for all processes."""
    if count() > 1:
        distributed.barrier()
