"""Pass lock: forward passes, optimizer steps and task steps of one network exclude each other.

Per-pass state lives on the network, and between the writes of an optimizer and the pins that put
frozen values back a finished task would answer with other bits.

A lock is held by *frames*, functions that are running, and not by "acquire" and "release" alone.
torch reports the end of a step only when the step succeeds, and Ctrl-C may come between any two
lines, so a release may never happen. Instead, a waiting thread asks whether the holder's frame is
still running:

    thread A   optimizer.step()  frame F ---- raises ----x      no hook is called, F has ended
    thread B   forward   waits ...  is F running? yes  yes  no  -> the lock is free, B goes on
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ..common.process_state import pass_lock_numbers

Method = TypeVar("Method", bound=Callable[..., Any])

#: How often a waiting thread asks whether the frames that hold the lock have ended, in seconds.
_POLL_SECONDS = 0.02
#: How many polls in a row may find a taken lock without a holder. A thread may be between taking
#: the lock and recording itself, and one that was interrupted there will never record itself.
_POLLS_WITHOUT_HOLDER = 50


@dataclass(frozen=True)
class Hold:
    """A frame that holds a lock while it runs; ``step``: it is a step of an optimizer."""

    frame: FrameType
    step: bool = False

    @property
    def ended(self) -> bool:
        """Has the function returned or raised?"""
        # Python offers no query, but it refuses to clear a frame that is running.
        try:
            self.frame.clear()
        except RuntimeError:
            return False
        return True


class PassLock:
    """The lock of one network: copies of the network, pickled or not, get another one.

    A thread may take it several times. A hold ends at the latest with the function that took it.

    ``_lock`` is what threads wait for. ``_owner`` and ``_holds`` say who has it: the thread, and
    its frames from the outermost to the innermost. Invariant: with an owner there is at least one
    hold, and ``_lock`` is taken.
    """

    def __init__(self) -> None:
        self.number = next(pass_lock_numbers)  # several locks are always taken in this order
        self._lock = threading.Lock()
        self._record = threading.Lock()  # protects the two below; held for a few lines at a time
        self._owner: int | None = None
        self._holds: list[Hold] = []

    def __enter__(self) -> None:
        self._acquire(Hold(sys._getframe(1)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release(sys._getframe(1))

    def begin_step(self, frame: FrameType) -> None:
        """Hold the lock until this frame ends, or :meth:`end_step` is called."""
        self._acquire(Hold(frame, step=True))

    def end_step(self, frame: FrameType) -> None:
        """End the hold of a frame; nothing happens when it holds nothing."""
        self._release(frame)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """A context without the lock, if only optimizer steps of this thread hold it.

        A pass or a task step around them relies on the lock, which is then kept.
        """
        with self._record:
            mine = self._owner == threading.get_ident() and all(h.step for h in self._holds)
            holds = list(self._holds)
            if mine:
                self._free()
        try:
            yield
        finally:
            if mine:
                self._wait()
                self._set_holder(holds)

    def _acquire(self, hold: Hold) -> None:
        me = threading.get_ident()
        if self._owner == me:
            with self._record:
                self._drop_ended()
                if self._owner == me:
                    self._holds.append(hold)
                    return
        self._wait()
        self._set_holder([hold])

    def _set_holder(self, holds: list[Hold]) -> None:
        with self._record:
            self._owner, self._holds = threading.get_ident(), holds

    def _release(self, frame: FrameType) -> None:
        with self._record:
            frames = [hold.frame for hold in self._holds]
            if self._owner != threading.get_ident() or frame not in frames:
                return
            while self._holds.pop().frame is not frame:
                pass  # holds inside it: steps that raised
            if not self._holds:
                self._free()

    def _wait(self) -> None:
        """Wait for ``_lock`` and take it; free it when the frames that hold it have ended."""
        without_holder = 0
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            with self._record:
                without_holder = without_holder + 1 if self._owner is None else 0
                if self._owner is not None:
                    self._drop_ended()
                elif without_holder > _POLLS_WITHOUT_HOLDER and self._lock.locked():
                    self._free()
                    without_holder = 0

    def _drop_ended(self) -> None:
        """Drop holds whose frames have ended, innermost first; without any the lock is free."""
        while self._holds and self._holds[-1].ended:
            self._holds.pop()
        if not self._holds:
            self._free()

    def _free(self) -> None:
        self._owner, self._holds = None, []
        self._lock.release()

    def __reduce__(self) -> Any:  # used by pickle and by copy.deepcopy
        return PassLock, ()


def exclusive(method: Method) -> Method:
    """Decorates a method of a network: it holds the network's ``pass_lock`` while it runs."""

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.pass_lock:
            return method(self, *args, **kwargs)

    return locked  # type: ignore[return-value]
