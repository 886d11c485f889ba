"""Snapshot: values put aside in a temporary file, so that they take no memory.

The file is gone when nothing refers to the snapshot any more.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor


class Snapshot:
    """A dictionary of tensors on disk."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        descriptor, self._path = tempfile.mkstemp(prefix="autoeidetic-", suffix=".safetensors")
        os.close(descriptor)
        self._finalizer = weakref.finalize(self, _remove, self._path)
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, self._path)

    def load(self) -> dict[str, Tensor]:
        return load_file(self._path)

    def __deepcopy__(self, memo: Any) -> Snapshot:
        return self  # never changes, so copies share it

    def __reduce__(self) -> Any:
        return Snapshot, (self.load(),)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)
