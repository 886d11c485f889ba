"""Store: the values of frozen elements, in the type in which they were frozen.

It is no buffer of the network: code that goes through ``net.buffers()`` or writes into
``net.state_dict()`` (averages of weights do both) does not reach it, and a change of type leaves it
as it is. So ``net.half().float()`` has the bits that the network had before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Store:
    """Frozen values by the name of their tensor.

    Example:
        >>> store = Store({"weight": torch.tensor([1 / 3])})
        >>> store.like("weight", torch.empty(0, dtype=torch.bfloat16))
        tensor([0.3340], dtype=torch.bfloat16)
        >>> store.like("weight", torch.empty(0))
        tensor([0.3333])
    """

    def __init__(self, exact: dict[str, Tensor] | None = None) -> None:
        self._exact = exact or {}
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
        """A copy of a tensor in a type that holds these values as well; None: its own does."""
        if name not in self._exact:
            return None
        wide = torch.promote_types(self._exact[name].dtype, tensor.dtype)
        return None if wide == tensor.dtype else tensor.to(wide)

    def move(self, name: str, device: torch.device) -> None:
        """Follow a tensor to its device; on ``meta`` there are no values."""
        if name in self._exact and device.type != "meta":
            self._exact[name] = self._exact[name].to(device)
