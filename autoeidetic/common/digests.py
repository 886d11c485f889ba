"""Digests: fingerprints of a task's outputs, to show over time that no bit has moved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import distributed


@dataclass(frozen=True)
class Digest:
    """Fingerprints of a task's inputs and of its outputs.

    Outputs can be compared only when the inputs were the same: a loader that shuffles gives others
    every time.
    """

    inputs: str
    outputs: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


class Hasher:
    """Hashes the bytes of tensors, of any structure and type, one after another.

    >>> one, other = Hasher(), Hasher()
    >>> one.update(torch.tensor([0.0]))
    >>> other.update(torch.tensor([-0.0]))  # equal, but not the same bits
    >>> one.digest() == other.digest()
    False
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=32)

    def update(self, value: Any) -> None:
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                # without type and shape, [2, 3] and [3, 2] of the same bytes would look alike
                self._hash.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
                self._hash.update(memoryview(_bytes(leaf)))
            else:
                self._hash.update(f"{type(leaf).__qualname__}".encode())

    def digest(self) -> str:
        return self._hash.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    # conjugation and negation are lazy flags in torch: the bytes in memory do not have them yet
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy()


def combine(inputs: Hasher, outputs: Hasher, together: bool) -> Digest:
    """The digest of this process, or one over all processes in the order of their ranks."""
    own = (inputs.digest(), outputs.digest())
    if not together or distributed.count() == 1:
        return Digest(*own)
    # [(inputs, outputs) of each rank] -> (all inputs, all outputs), then one digest of each
    parts = zip(*distributed.share(own), strict=True)
    return Digest(*(blake2b("".join(p).encode(), digest_size=32).hexdigest() for p in parts))
