"""Passes: forward passes, optimizer steps and life steps of one network exclude each other.

Per-pass state lives on the network, and between the writes of an optimizer and the pins that put
frozen values back a finished task would answer with other bits.
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

#: How often a thread that waits looks whether the one that holds a lock has left it, in seconds.
_LOOK = 0.02
#: So many times there may be no holder: one that is just being noted down, or was interrupted then.
_PATIENCE = 50


@dataclass(frozen=True)
class Hold:
    """A function that holds a lock while it runs; ``step``: it is a step of an optimizer."""

    frame: FrameType
    step: bool = False

    @property
    def left(self) -> bool:
        """Has it returned or raised? Frames that run cannot be cleared."""
        try:
            self.frame.clear()
        except RuntimeError:
            return False
        return True


class PassLock:
    """A lock of a network's own: copies of the network, pickled or not, get another one.

    A thread may take it several times. Who has left the function that holds it holds it no more:
    torch tells the end of a step only if it succeeds, and Ctrl-C may come at any moment.
    """

    def __init__(self) -> None:
        self.number = next(pass_lock_numbers)  # who needs several locks takes them in this order
        self._lock = threading.Lock()
        self._noting = threading.Lock()  # for the two below
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
        """Hold the lock until this frame is left, or :meth:`end_step` is called."""
        self._acquire(Hold(frame, step=True))

    def end_step(self, frame: FrameType) -> None:
        self._release(frame)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let others have the lock that steps of this thread hold, and nothing around them."""
        with self._noting:
            mine = self._owner == threading.get_ident() and all(h.step for h in self._holds)
            holds = list(self._holds)
            if mine:
                self._set_free()
        try:
            yield
        finally:
            if mine:
                self._wait()
                self._note(holds)

    def _acquire(self, hold: Hold) -> None:
        me = threading.get_ident()
        if self._owner == me:
            with self._noting:
                self._forget_those_who_left()
                if self._owner == me:
                    self._holds.append(hold)
                    return
        self._wait()
        self._note([hold])

    def _note(self, holds: list[Hold]) -> None:
        with self._noting:
            self._owner, self._holds = threading.get_ident(), holds

    def _release(self, frame: FrameType) -> None:
        with self._noting:
            frames = [hold.frame for hold in self._holds]
            if self._owner != threading.get_ident() or frame not in frames:
                return
            while self._holds.pop().frame is not frame:
                pass  # steps inside that have failed
            if not self._holds:
                self._set_free()

    def _wait(self) -> None:
        nobody = 0
        while not self._lock.acquire(timeout=_LOOK):
            with self._noting:
                nobody = nobody + 1 if self._owner is None else 0
                if self._owner is not None:
                    self._forget_those_who_left()
                elif nobody > _PATIENCE and self._lock.locked():
                    self._set_free()
                    nobody = 0

    def _forget_those_who_left(self) -> None:
        while self._holds and self._holds[-1].left:
            self._holds.pop()
        if not self._holds:
            self._set_free()

    def _set_free(self) -> None:
        self._owner, self._holds = None, []
        self._lock.release()

    def __reduce__(self) -> Any:  # copy.deepcopy asks for it, too
        return PassLock, ()


def exclusive(method: Method) -> Method:
    """A method of a network during which no other thread runs passes or steps."""

    @functools.wraps(method)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.pass_lock:
            return method(self, *args, **kwargs)

    return alone  # type: ignore[return-value]
