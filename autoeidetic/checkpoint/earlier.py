"""Earlier: seals that a file holds, for a network that is put together again beside it.

A run that goes on finishes its finished tasks once more, out of the states of training. Their seals
stay those that were taken the first time: a new one would vouch for whatever is there now, and its
reference outputs would be those of another number of threads or another machine.
"""

from __future__ import annotations

from typing import Any

from ..common import archive
from ..errors import CheckpointError
from ..tasks.network import Network
from ..tasks.task import Task
from .record import Record

_REMEDY = "go on in another directory, or put the run's own files back"


def earlier_tasks(path: Any) -> tuple[Task, ...]:
    """The tasks of a saved network; none, if there is no file.

    Raises:
        CheckpointError: it is damaged or something else.
    """
    file = archive.as_path(path)
    if not file.exists():
        return ()
    with archive.about(path):
        description, _ = archive.read(file)
        return Record.parse(description).tasks


def keep_seal(net: Network, earlier: Task, path: Any) -> None:
    """Give the task that was finished last the seal that a file holds of it.

    Raises:
        CheckpointError: what the task froze is not what was sealed.
    """
    now = net.tasks[-1]
    if earlier.seal is None or now.seal is None:
        return
    with archive.about(path):
        if (
            earlier.name != now.name
            or earlier.seal.frozen != now.seal.frozen
            or earlier.seal.terms not in (None, now.seal.terms)
        ):
            raise CheckpointError(
                f"the file holds a finished task '{earlier.name}' that is not what this run "
                f"finished as '{now.name}'",
                remedy=_REMEDY,
            )
    net.update_task(-1, seal=earlier.seal)
