"""The record of an ``autoeidetic train`` directory: settings and tasks, checked on resumption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...common import files
from ...common.environment import difference
from ...errors import InputError
from .image_folders import ImageTask

#: Increased when records of an older format can no longer be read.
FORMAT = 1
RECORD = "train.json"
_PARTS = {"name", "folder", "classes", "train", "test", "images"}
_OTHER = "choose another --output"


class ImageRun:
    """A directory filled by :func:`autoeidetic.learn`, and the settings that its tasks share."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        # As JSON gives them back: a tuple would never equal the stored list.
        self.settings = files.as_stored(settings)

    def check(self, tasks: Sequence[ImageTask]) -> int:
        """The number of these tasks that the directory has already begun or finished.

        Raises:
            InputError: the directory belongs to something else, other settings or other tasks.
        """
        if self.directory.exists() and not self.directory.is_dir():
            raise InputError(f"'{self.directory}' is a file", remedy=_OTHER)
        if not self.directory.exists() or not any(self.directory.iterdir()):
            return 0
        if not (self.directory / RECORD).exists():
            raise InputError(f"'{self.directory}' is not empty and holds no run", remedy=_OTHER)
        stored = files.from_json(self.directory / RECORD)
        if not _is_record(stored):
            raise InputError(
                f"'{self.directory / RECORD}' is not a record that this version can read",
                remedy=_OTHER,
            )
        other = difference(stored["settings"], self.settings)
        if other:
            raise InputError(
                f"'{self.directory}' belongs to another run: {other}",
                remedy=f"{_OTHER}, or use the settings of that run",
            )
        # Tasks that were only announced may be replaced by others.
        begun = stored["tasks"][: self._begun()]
        self._check_tasks(begun, [task.to_dict() for task in tasks])
        return len(begun)

    def _begun(self) -> int:
        """The number of tasks with a stored training state; a task without one may be replaced."""
        number = 0
        while (self.directory / "checkpoints" / f"task-{number}.safetensors").exists():
            number += 1
        return number

    def _check_tasks(self, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
        first = ", ".join(f"'{task['folder']}'" for task in old)
        for number, before in enumerate(old):
            if number >= len(new):
                raise InputError(
                    f"'{self.directory}' has learned from {len(old)} folders, but the "
                    f"command names only {len(new)}",
                    remedy=f"pass {first} first, in this order; or {_OTHER}",
                )
            after = new[number]
            # Paths are not compared: the same images may have moved to another folder.
            if any(before[part] != after[part] for part in ("classes", "images")):
                raise InputError(
                    f"task {number} of '{self.directory}' has learned from '{before['folder']}' "
                    f"({len(before['classes'])} classes, {before['train'] + before['test']} "
                    f"images), but '{after['folder']}' holds other images",
                    remedy=f"pass {first} first, in this order and unchanged; or {_OTHER}",
                )

    def write(self, tasks: Sequence[ImageTask]) -> None:
        """Record the settings and tasks of the run.

        Raises:
            InputError: the directory cannot be written to.
        """
        record = {
            "format": FORMAT,
            "settings": self.settings,
            "tasks": [task.to_dict() for task in tasks],
        }
        files.write(self.directory / RECORD, files.to_json(record))


def _is_record(stored: Any) -> bool:
    return (
        isinstance(stored, dict)
        and stored.get("format") == FORMAT
        and isinstance(stored.get("settings"), dict)
        and isinstance(stored.get("tasks"), list)
        and all(isinstance(task, dict) and task.keys() >= _PARTS for task in stored["tasks"])
    )
