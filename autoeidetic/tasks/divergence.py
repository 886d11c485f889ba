"""Divergence: infinite values and NaN, and which task is to blame for them.

A weight of zero does not keep out an infinite value: ``0 * inf`` is NaN. A unit that diverges in
training would therefore reach finished tasks through the very zeros that protect them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..common.bits import finite
from ..common.torch_modes import is_recording, is_transforming
from ..enforce.slots import versions
from ..errors import DivergenceWarning, warn_user

if TYPE_CHECKING:
    from .network import Network


class FiniteValues:
    """Remembers whether the trained tensors are finite; looks again only after a change.

    Reading every value costs more than a small forward pass. Version counters and addresses tell
    when a tensor was written; while no task is open, the pins notice every change.
    """

    def __init__(self) -> None:
        self._state: Any = None
        self._finite = True
        self._changes = -1

    def forget(self) -> None:
        """Look again at the next question."""
        self._state = None

    def hold(self, network: Network) -> bool:
        """Are all trained tensors of the network finite?"""
        known = self._state is not None
        if known and network.open_task is None and self._changes == network.pins.changes:
            return self._finite
        tensors: list[Tensor] = list(network.trained_tensors().values())
        now = versions(tensors)
        if not known or self._state != now:
            self._finite = all(bool(t.isfinite().all()) for t in tensors)
            self._state = now
        self._changes = network.pins.changes
        return self._finite


def diverged(network: Network) -> bool:
    """Does a trained tensor hold infinite values or NaN?"""
    return not is_recording() and not network.finite_values.hold(network)


def suspect(network: Network, asked: tuple[int, ...], outputs: list[Any]) -> bool:
    """Does a finished task answer with infinite values or NaN?"""
    if is_recording() or is_transforming():  # there are no values to look at
        return False
    pairs = zip(asked, outputs, strict=True)
    return any(network.tasks[task].finished and not finite(output) for task, output in pairs)


def warn_about_inputs(task: int) -> None:
    """The inputs are not finite: no task is to blame."""
    warn_user(
        f"the inputs hold infinite values or NaN, and so does the answer of task {task}: "
        "no task has diverged",
        DivergenceWarning,
    )


def warn_diverged(network: Network, task: int) -> None:
    """Values that do not belong to a finished task have diverged; it is answered without them."""
    if network.open_task is not None:
        what = (
            f"task {network.open_task} has diverged: finished tasks are answered without its "
            "units; net.rollback() takes the network back to the start of the task"
        )
    else:
        what = (
            "values that no finished task owns, or units of later tasks, are infinite or NaN: "
            f"task {task} is answered without them; prepare_for_task({len(network.tasks)}) gives "
            "what is free fresh values"
        )
    warn_user(what, DivergenceWarning)
