"""Call stack: the module calls that are running."""

from __future__ import annotations


class CallStack:
    """The module calls that are running, from the outermost to the innermost."""

    def __init__(self) -> None:
        self.scope: tuple[int, ...] = ()  # their numbers
        self._paths: list[str] = []
        self._next = 0

    @property
    def path(self) -> str:
        """The path of the innermost module."""
        return self._paths[-1] if self._paths else ""

    def new(self) -> int:
        """The number of a call that is about to begin."""
        self._next += 1
        return self._next - 1

    def enter(self, number: int, path: str) -> None:
        self.scope = (*self.scope, number)
        self._paths.append(path)

    def leave(self) -> None:
        self.scope = self.scope[:-1]
        self._paths.pop()
