"""Earlier seals: the seals of a saved network, kept when a resumed run finishes its tasks again.

A resumed run rebuilds its network by finishing all tasks again from the stored training states. The
tasks keep the seals that were taken the first time: a new seal would vouch for whatever values are
there now, and its reference outputs could be those of another machine or thread count.
"""

from __future__ import annotations

from typing import Any

from ..common import archive
from ..errors import CheckpointError
from ..tasks.network import Network
from ..tasks.task import Task
from .record import COLUMNS, Record

_REMEDY = "continue in another directory, or restore the run's own files"


def earlier_tasks(path: Any) -> tuple[Task, ...]:
    """The tasks of a saved network; () if there is no file.

    Raises:
        CheckpointError: the file is damaged or something else.
    """
    file = archive.as_path(path)
    if not file.exists():
        return ()
    with archive.about(path):
        description, _ = archive.read(file)
        if description.get("kind") != COLUMNS:
            return Record.parse(description).tasks
        try:
            networks = [column["network"] for column in description["columns"]]
        except (KeyError, TypeError) as error:
            fact = f"the file has columns that no network writes ({error!r})"
            raise CheckpointError(fact, remedy=_REMEDY) from error
        return tuple(task for each in networks for task in Record.parse(each).tasks)


def keep_seal(net: Network, earlier: Task, path: Any) -> None:
    """Give the task that was finished last its seal from a file.

    Raises:
        CheckpointError: the task froze other values than those that were sealed.
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
