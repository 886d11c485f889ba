"""Batches: inputs and targets, calling a network on them, the default loss, shares of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from ..errors import InputError
from . import distributed


def split(batch: Any) -> tuple[Any, Any]:
    """(inputs, targets) of a batch.

    Raises:
        InputError: it is not a pair.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputError(
            f"a batch is a {type(batch).__qualname__}, not a pair (inputs, targets)",
            remedy="give the loader pairs",
        )
    return batch[0], batch[1]


def call(net: Callable[..., Any], inputs: Any, **options: Any) -> Any:
    """Call a network on a tensor, a tuple of positional or a dict of keyword arguments."""
    if isinstance(inputs, Mapping):
        return net(**inputs, **options)
    if isinstance(inputs, (tuple, list)):
        return net(*inputs, **options)
    return net(inputs, **options)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on a device."""
    return pytree.tree_map_only(Tensor, lambda t: t.to(device, non_blocking=True), batch)


def criterion(output: Any, target: Tensor) -> Tensor:
    """Cross entropy for whole-number targets, binary cross entropy for real ones.

    The logits are the first tensor of a structured output. Whole-number targets may be dense:
    ``[N, H, W]`` for logits ``[N, C, H, W]``; -100 is left out. Real targets have the shape of the
    logits: one probability for each label; NaN is left out.

    >>> criterion(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor(1.3863)
    >>> criterion(torch.zeros(2, 4), torch.zeros(2, 4))
    tensor(0.6931)

    Raises:
        InputError: the target fits neither.
    """
    logits = first_tensor(output, "output", "pass step_function=")
    # [N, C, *space] with [N, *space]: classes
    if not target.is_floating_point() and target.shape == logits.shape[:1] + logits.shape[2:]:
        return F.cross_entropy(logits, target.long())
    # [N, C] with [N, C]: one yes or no for each label
    if target.dtype == torch.bool and target.shape == logits.shape:
        target = target.to(logits.dtype)
    if target.is_floating_point() and target.shape == logits.shape:
        # NaN marks labels that nobody has given
        known = ~target.isnan()
        return F.binary_cross_entropy_with_logits(logits[known], target[known].to(logits.dtype))
    raise InputError(
        f"targets of shape {tuple(target.shape)} ({target.dtype}) do not fit outputs of shape "
        f"{tuple(logits.shape)}",
        remedy="pass loss=, a function of (output, target)",
    )


def first_tensor(value: Any, what: str, remedy: str) -> Tensor:
    """The first tensor in a structure.

    Raises:
        InputError: there is none.
    """
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            return leaf
    raise InputError(
        f"the {what} is a {type(value).__qualname__} without a tensor in it", remedy=remedy
    )


def length(loader: Any) -> int | None:
    """The number of batches of a loader; None when it has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def default_loss(net: Callable[..., Any], batch: Any) -> Tensor:
    """:func:`criterion` of a network on a batch."""
    inputs, target = split(batch)
    return criterion(call(net, inputs), target)


def divided(loader: Any) -> Any:
    """A loader that gives each process its share; unchanged if it has a custom sampler."""
    if distributed.count() == 1 or not isinstance(loader, DataLoader):
        return loader
    # a custom batch sampler, or one that repeats or leaves out: its order is kept as it is
    if loader.batch_size is None or not _takes_each_once(loader.sampler, loader.dataset):
        return loader
    shuffle = isinstance(loader.sampler, RandomSampler)
    # it repeats a few examples, so that all processes make the same number of steps
    sampler: DistributedSampler[Any] = DistributedSampler(loader.dataset, shuffle=shuffle)
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        worker_init_fn=loader.worker_init_fn,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        timeout=loader.timeout,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
    )


def _takes_each_once(sampler: Any, dataset: Any) -> bool:
    if type(sampler) is RandomSampler:
        return not sampler.replacement and len(sampler) == len(dataset)
    return type(sampler) is SequentialSampler
