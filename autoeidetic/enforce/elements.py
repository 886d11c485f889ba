"""Elements: a set of elements of one tensor, in the cheapest of three forms.

    everything          dim, index, mask = None          a head, a constant buffer
    whole slices        dim = 0, index = [1, 4]          rows 1 and 4: the weight of a layer whose
                                                         rows belong to tasks
    anything else       mask of the tensor's rank        rows and columns both decide; of size 1
                                                         along dimensions in which nothing varies

Slices are kept as an index because a masked write costs as much as the tensor is large, and the
write happens after every step of an optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..common.bits import bits, same
from .spot_checks import sample_indices


@dataclass(frozen=True)
class Elements:
    """All elements of a tensor, whole slices along ``dim``, or those that ``mask`` marks.

    Example:
        >>> rows = Elements.of(torch.tensor([[True], [False], [True]]))
        >>> rows.dim, rows.index
        (0, tensor([0, 2]))
        >>> rows.cleared(torch.ones(3, 2))
        tensor([[0., 0.],
                [1., 1.],
                [0., 0.]])
    """

    dim: int | None = None
    index: Tensor | None = None
    mask: Tensor | None = None

    @property
    def everything(self) -> bool:
        """Are these all elements of the tensor?"""
        return self.index is None and self.mask is None

    @staticmethod
    def of(mask: Tensor) -> Elements | None:
        """The elements that a (broadcastable) mask marks; None when it marks none."""
        if not bool(mask.any()):
            return None
        if bool(mask.all()):
            return Elements()
        varying = [d for d, n in enumerate(mask.shape) if n > 1]
        if len(varying) == 1:
            return Elements(dim=varying[0], index=mask.reshape(-1).nonzero().reshape(-1))
        return Elements(mask=mask)

    def to(self, device: torch.device) -> Elements:
        """The same elements of a tensor on another device."""
        move = lambda t: None if t is None else t.to(device)  # noqa: E731
        return Elements(self.dim, move(self.index), move(self.mask))

    def take(self, tensor: Tensor) -> Tensor:
        """A copy of the marked elements."""
        if self.index is not None and self.dim is not None:
            return tensor.index_select(self.dim, self.index)
        if self.mask is not None:
            return tensor[self.mask.expand(tensor.shape)]
        return tensor.clone()

    def samples(self, tensor: Tensor) -> list[Tensor]:
        """A few of the marked elements, spread over the tensor: views without dimensions."""
        if self.index is not None and self.dim is not None:
            # sample the tensor of the marked slices, then translate the position along ``dim``
            shape = [len(self.index) if d == self.dim else n for d, n in enumerate(tensor.shape)]
            split = [
                (at[: self.dim], at[self.dim], at[self.dim + 1 :]) for at in sample_indices(shape)
            ]
            places = [(*left, int(self.index[n]), *right) for left, n, right in split]
        elif self.mask is not None:
            marked = self.mask.nonzero()
            places = [tuple(marked[n].tolist()) for (n,) in sample_indices(marked.shape[:1])]
        else:
            places = sample_indices(tensor.shape)
        return [tensor[place] for place in places]

    def holds(self, tensor: Tensor, values: Tensor) -> bool:
        """Do the marked elements have these values, bit for bit?"""
        now = tensor if self.everything else self.take(tensor)
        return same(now, values)

    def any_bit(self, tensor: Tensor) -> bool:
        """Does a marked element differ from +0.0 in a bit? The sign of a zero counts."""
        if self.mask is not None and not tensor.is_complex():
            return bool(((bits(tensor) != 0) & self.mask).any())
        return bool(bits(tensor if self.everything else self.take(tensor)).any())

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Write these values to the marked elements in place."""
        if self.index is not None and self.dim is not None:
            tensor.index_copy_(self.dim, self.index, values.to(tensor.dtype))
        elif self.mask is not None:
            tensor.masked_scatter_(self.mask, values.to(tensor.dtype))
        else:
            tensor.copy_(values)

    def cleared(self, tensor: Tensor) -> Tensor:
        """A copy with zeros at the marked elements."""
        if tensor.is_sparse:
            return self.cleared(tensor.to_dense()).to_sparse()
        if self.index is not None and self.dim is not None:
            return tensor.index_fill(self.dim, self.index, 0)
        if self.mask is not None:
            return tensor.masked_fill(self.mask, 0)
        return torch.zeros_like(tensor)

    def clear(self, tensor: Tensor) -> None:
        """Write zeros to the marked elements in place."""
        if self.index is not None and self.dim is not None:
            tensor.index_fill_(self.dim, self.index, 0)
        elif self.mask is not None:
            tensor.masked_fill_(self.mask, 0)
        else:
            tensor.zero_()
