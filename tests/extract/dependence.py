"""Which parameters do the answers of a task depend on? By brute force, without any rule.

An element with a gradient matters. Some guards pass no gradients to what is frozen, and steps have
none, so the rest is scaled: all of a tensor at once and, if that changes an answer, piece by piece,
where a piece is one position along one dimension. What is zero stays zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch import Tensor

from autoeidetic import EideticNet

Values = dict[str, Tensor]
#: Inputs that are tried: the largest of several values is another one each time.
TRIALS = 6
#: Scales of what may not matter: other signs, and other sides of thresholds.
SCALES = (-1.3, 5.0, 0.1)


@dataclass
class Dependence:
    """What is known to matter, as a mask for each parameter of a network."""

    net: EideticNet
    task: int
    inputs: Tensor
    values: Values = field(init=False)
    used: Values = field(init=False)

    def __post_init__(self) -> None:
        more = [scale * torch.randn_like(self.inputs) for scale in (1, 1, 3, 3, 9)]
        self.trials = [self.inputs, *more][:TRIALS]
        self.values = {name: p.detach() for name, p in self.net.named_parameters()}
        self.used = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in self.values.items()}

    def reaches(self, count: int) -> bool:
        """Do the answers depend on so many parameters? The smallest box around them counts."""
        return any(found >= count for found in self._counts())

    def _counts(self) -> Iterator[int]:
        """Ever better counts of the parameters that matter."""
        self._look_for_gradients()
        yield self.count()
        with torch.no_grad():
            self.before = [self._answer(x, self.values) for x in self.trials]
            for name, mask in self.used.items():
                if self._matters(name, ~mask):
                    for piece in _pieces(mask):
                        if not (mask & piece).any() and self._matters(name, piece):
                            mask |= piece & (self.values[name] != 0)
                    yield self.count()

    def count(self) -> int:
        """The parameters that are known to matter, and those between them."""
        return sum(map(_box, self.used.values()))

    def _answer(self, x: Tensor, values: Values) -> Tensor:
        with mock.patch.object(self.net.pins, "before_forward"):  # puts frozen values back
            found = torch.func.functional_call(self.net, values, (x,), {"task": self.task})
        assert isinstance(found, Tensor)
        return found

    def _look_for_gradients(self) -> None:
        leaves = {name: value.clone().requires_grad_() for name, value in self.values.items()}
        for x in self.trials:
            try:
                out = self._answer(x, leaves)
                loss = (out * torch.randn_like(out)).sum()
                found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            except RuntimeError:  # not every operator has a derivative
                return
            for (name, value), gradient in zip(self.values.items(), found, strict=True):
                if gradient is not None:
                    self.used[name] |= (gradient != 0) & (value != 0)

    def _matters(self, name: str, chosen: Tensor) -> bool:
        for scale in SCALES:
            value = torch.where(chosen, self.values[name] * scale, self.values[name])
            for x, expected in zip(self.trials, self.before, strict=True):
                if not torch.equal(self._answer(x, {**self.values, name: value}), expected):
                    return True
        return False


def _pieces(mask: Tensor) -> Iterator[Tensor]:
    """Each position along each dimension."""
    for dim in range(mask.dim()):
        for position in range(mask.shape[dim]):
            piece = torch.zeros_like(mask)
            piece.select(dim, position).fill_(True)
            yield piece


def _box(mask: Tensor) -> int:
    """The size of the smallest product of positions around the true elements."""
    size = int(mask.any())
    for dim in range(mask.dim()):
        size *= int(mask.movedim(dim, 0).reshape(mask.shape[dim], -1).any(1).sum())
    return size
