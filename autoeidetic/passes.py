"""Passes: one at a time, for what a pass is for is noted in the network while it runs."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any


class PassLock:
    """A lock of a network's own: copies of the network, pickled or not, get another one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> Any:  # copy.deepcopy asks for it, too
        return PassLock, ()
