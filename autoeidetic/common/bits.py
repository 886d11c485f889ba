"""Bits: bitwise comparison of tensors. Unlike ``!=``, it tells 0 from -0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers; complex numbers get a last dimension of two."""
    if tensor.is_complex():
        return bits(torch.view_as_real(tensor.resolve_conj()))
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().view(_INTEGERS[tensor.element_size()])


def different(left: Tensor, right: Tensor) -> Tensor:
    """A mask of the elements whose bits differ; shapes and types are equal, all NaNs are the same.

    Example:
        >>> left, right = torch.tensor([0.0, 1.0, torch.nan]), torch.tensor([-0.0, 1.0, torch.nan])
        >>> different(left, right)
        tensor([ True, False, False])
    """
    # integers of the same width: as floats, 0 == -0 and NaN != NaN
    differs = bits(left) != bits(right)
    if left.is_complex():
        differs = differs.any(-1)
    return differs & ~(left.isnan() & right.isnan())


def same(left: Tensor, right: Tensor) -> bool:
    """Are shape, type and every bit the same? The bits of NaNs count, too."""
    return left.dtype == right.dtype and torch.equal(bits(left), bits(right))


# -- answers: tensors in some structure ----------------------------------------------------------


def tensors_of(answer: Any) -> list[Tensor]:
    """The tensors in a structure, in order."""
    return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor)]


def finite(answer: Any) -> bool:
    """Are all numbers in an answer finite?

    Example:
        >>> finite({"logits": torch.tensor([1.0, torch.inf]), "index": torch.tensor(1)})
        False
    """
    return all(
        bool(tensor.isfinite().all())
        for tensor in tensors_of(answer)
        if tensor.is_floating_point() or tensor.is_complex()
    )


def alike(left: Any, right: Any) -> bool:
    """Do two answers of one structure have the same bits? All NaNs count as the same."""
    # the shapes first: different() would broadcast
    pairs = zip(tensors_of(left), tensors_of(right), strict=True)
    return all(a.shape == b.shape and not bool(different(a, b).any()) for a, b in pairs)
