"""Bits: what "bitwise identical" means here. Unlike ``!=``, it tells 0 from -0."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers; numbers that are complex get a last dimension of two."""
    if tensor.is_complex():
        return bits(torch.view_as_real(tensor.resolve_conj()))
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().view(_INTEGERS[tensor.element_size()])


def different(left: Tensor, right: Tensor) -> Tensor:
    """Where two tensors of one shape and type differ in a bit. A NaN is a NaN, whatever its bits.

    Example:
        >>> left, right = torch.tensor([0.0, 1.0, torch.nan]), torch.tensor([-0.0, 1.0, torch.nan])
        >>> different(left, right)
        tensor([ True, False, False])
    """
    differs = bits(left) != bits(right)
    if left.is_complex():
        differs = differs.any(-1)
    return differs & ~(left.isnan() & right.isnan())


def same(left: Tensor, right: Tensor) -> bool:
    """Are shape, type and every bit the same? A NaN with the same bits is."""
    return left.dtype == right.dtype and torch.equal(bits(left), bits(right))
