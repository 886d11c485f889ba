"""Frozen values: a copy of every frozen element, in the type in which it was frozen.

The copies are not buffers of the network: code that goes through ``net.buffers()`` or writes into
``net.state_dict()`` (averages of weights do both) does not reach them, and a change of type leaves
them as they are. So ``net.half().float()`` has the bits that the network had before:

    frozen in float32        1/3 ------------------------------------ exact, never rounded
    net.half()               like(half)    = 0.3333 in half           what is imposed now
    net.half().float()       like(float32) = 1/3                      the old bits again
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class FrozenValues:
    """The values of frozen elements, by the name of their tensor.

    Example:
        >>> frozen = FrozenValues({"weight": torch.tensor([1 / 3])})
        >>> frozen.like("weight", torch.empty(0, dtype=torch.bfloat16))
        tensor([0.3340], dtype=torch.bfloat16)
        >>> frozen.like("weight", torch.empty(0))
        tensor([0.3333])
    """

    def __init__(self, exact: dict[str, Tensor] | None = None) -> None:
        self._exact = exact or {}
        # of those whose tensor has another type now: made when first asked for, never saved
        self._rounded: dict[str, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_exact": self._exact, "_rounded": {}}

    def __contains__(self, name: str) -> bool:
        return name in self._exact

    def __iter__(self) -> Iterator[str]:
        return iter(self._exact)

    def exact(self, name: str) -> Tensor:
        """The values as they were frozen."""
        return self._exact[name]

    def like(self, name: str, tensor: Tensor) -> Tensor:
        """The values in the type of a tensor."""
        values = self._exact[name]
        if values.dtype == tensor.dtype:
            return values
        rounded = self._rounded.get(name)
        if rounded is None or rounded.dtype != tensor.dtype or rounded.device != values.device:
            rounded = self._rounded[name] = values.to(tensor.dtype)
        return rounded

    def widened(self, name: str, tensor: Tensor) -> Tensor | None:
        """A copy of a tensor in a type that also holds these values exactly.

        None when the tensor's own type does, or nothing of the tensor is frozen.
        """
        if name not in self._exact:
            return None
        wide = torch.promote_types(self._exact[name].dtype, tensor.dtype)
        return None if wide == tensor.dtype else tensor.to(wide)

    def move(self, name: str, device: torch.device) -> None:
        """Move the values of a tensor to its device; ``meta`` holds none, so they stay then."""
        if name in self._exact and device.type != "meta":
            self._exact[name] = self._exact[name].to(device)
