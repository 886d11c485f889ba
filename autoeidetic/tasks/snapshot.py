"""Snapshot: tensors in a temporary file, so that they take no memory.

The file is removed when the last reference to the snapshot is gone. A file that a killed process
left behind is removed when the same user takes the next snapshot.
"""

from __future__ import annotations

import tempfile
import weakref
from typing import Any

from torch import Tensor

from ..common.archive import separate
from ..common.locks import Temporary
from ..errors import CheckpointError, TaskError


class Snapshot:
    """A dictionary of tensors on disk.

    Raises:
        CheckpointError: the file cannot be written.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            file = Temporary(tempfile.gettempdir(), ".snapshot")
            self._path = str(file.path)
            # before the file is written: a write that fails must not leave it behind
            self._finalizer = weakref.finalize(self, file.close)
            save_file(separate(tensors), self._path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the values at the start of the task cannot be stored in a file: {error}",
                remedy="make room in the directory for temporary files, or set TMPDIR to a "
                "writable directory that has room",
            ) from error

    def load(self) -> dict[str, Tensor]:
        """The tensors.

        Raises:
            TaskError: the file is missing or damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self._path)
        except (OSError, SafetensorError) as error:
            raise TaskError(
                f"the values at the start of this task cannot be read any more: {error}",
                remedy="load a network that was saved before the task, and set TMPDIR to a "
                "directory that is not cleaned up during training",
            ) from error

    def __deepcopy__(self, memo: Any) -> Snapshot:
        return self  # never changes, so copies share it

    def __reduce__(self) -> Any:
        return Snapshot, (self.load(),)  # with its content: the file exists on this machine only
