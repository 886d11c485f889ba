"""Store: keeps training states between epochs, in memory or in a directory.

``now`` is the state that training continues from; ``before`` is the one from before the current
round of pruning. A directory has separate files for every task, each written whole or not at all.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..common import archive, distributed, locks
from ..errors import CheckpointError, StorageWarning, warn_user
from .optimizer_state import pack, unpack

NOW, BEFORE = "now", "before"


class Memory:
    """Keeps copies in memory."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}

    def put(self, name: str, state: Any) -> None:
        # A state has live tensors, which the next step changes.
        self._states[name] = copy.deepcopy(state)

    def get(self, name: str) -> Any:
        return copy.deepcopy(self._states.get(name))

    def drop(self, name: str) -> None:
        self._states.pop(name, None)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None: ...


class Directory:
    """Keeps states in files of a directory, locked against other runs; the first process writes.

    A failed write does not stop training: the state stays in memory, a warning is issued, and the
    next write is attempted. The files always fit together: as long as the state from before a round
    is not written, no later one is.

    Raises:
        CheckpointError: the directory cannot be made or written to, or another run is in it.
        InputError: ``path`` is not a path.
    """

    def __init__(self, path: Any, task: int) -> None:
        self._path = archive.as_path(path, "checkpoint")
        self._task = task
        self._unwritten: dict[str, Any] = {}
        self._lock: AbstractContextManager[None] = locks.alone(self._path)

    def __enter__(self) -> Directory:
        self._lock.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._lock.__exit__(*raised)

    def file(self, name: str) -> Path:
        suffix = "" if name == NOW else f".{name}"
        return self._path / f"task-{self._task}{suffix}.safetensors"

    def put(self, name: str, state: Any) -> None:
        if distributed.rank() == 0:
            try:
                # A file of a later round without the state to go back to could not be resumed.
                if name == NOW and BEFORE in self._unwritten:
                    self._write(BEFORE, self._unwritten[BEFORE])
                self._write(name, state)
            except CheckpointError as error:
                self._unwritten[name] = copy.deepcopy(state)
                warn_user(
                    f"{archive.named(error.fact, self.file(name))}; training continues, and the "
                    "file written before is intact",
                    StorageWarning,
                )
        distributed.wait()

    def _write(self, name: str, state: Any) -> None:
        tensors: dict[str, Any] = {}
        archive.write(self.file(name), {"training": pack(state, tensors)}, tensors)
        self._unwritten.pop(name, None)

    def get(self, name: str) -> Any:
        # A state in memory is newer than its file; only the first process has it.
        unwritten = distributed.first(self._unwritten.get(name))
        if unwritten is not None:
            return copy.deepcopy(unwritten)
        file = self.file(name)
        if not distributed.first(file.exists()):
            return None
        with archive.about(file):
            description, tensors = archive.read(file)
            if "training" not in description:
                fact = "the file is not a state of training"
                raise CheckpointError(fact, remedy="pass a directory that holds nothing else")
            return unpack(description["training"], tensors)

    def drop(self, name: str) -> None:
        # While the newest state is not on disk, the file of NOW is an older one, which may still
        # need the state from before its round.
        if distributed.rank() == 0 and NOW not in self._unwritten:
            self._unwritten.pop(name, None)
            self.file(name).unlink(missing_ok=True)
        distributed.wait()
