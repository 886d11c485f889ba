"""Scripts: what is drawn from a seed, as plain data that prints as Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from . import subjects

Draw = Callable[[Random], dict[str, Any]]


@dataclass(frozen=True)
class Step:
    """One thing that a user does. ``quiet``: the oracle is not asked after it."""

    name: str
    seed: int
    quiet: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        quiet = ["quiet=True"] if self.quiet else []
        options = [f"{key}={value!r}" for key, value in self.options.items()]
        return f"step({', '.join([repr(self.name), str(self.seed), *quiet, *options])})"

    @property
    def tags(self) -> set[str]:
        """Names that :data:`NOT_YET` may hold: of the action, and of each of its options."""
        inner = self.options.get("inner")
        own = {f"{self.name}:{value}" for value in self.options.values() if value is not inner}
        return {self.name} | own | (inner.tags if isinstance(inner, Step) else set())


def step(name: str, seed: int, quiet: bool = False, **options: Any) -> Step:
    """A step, as it prints."""
    return Step(name, seed, quiet, options)


@dataclass(frozen=True)
class Script:
    """A whole life."""

    subject: str
    seed: int
    convert: dict[str, Any]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"    {each!r}," for each in self.steps]
        head = f"Script({self.subject!r}, {self.seed}, {self.convert!r}, ("
        return "\n".join([head, *lines, "))"])

    def only(self, excluded: frozenset[str]) -> Script:
        """The same life without steps that carry one of these tags."""
        kept = tuple(each for each in self.steps if not each.tags & excluded)
        return Script(self.subject, self.seed, self.convert, kept)


def draw(seed: int) -> Script:
    """The life of a seed: two or three tasks, with all sorts of things between their steps."""
    rng = Random(seed)
    subject = subjects.draw(rng)
    convert = {
        "rehearse": rng.random() < 0.7,
        "forward_transfer": rng.random() < 0.85,
        "keep_head": rng.random() < 0.1,
        "recycle": "keep" if rng.random() < 0.2 else "reinit",
        "examples": rng.choice([1, 1, 1, 2]),
    }
    return Script(subject, rng.randrange(10**6), convert, tuple(_steps(rng)))


def _steps(rng: Random) -> Iterator[Step]:
    from .actions import drawn

    for _ in range(rng.randint(2, 3)):
        for name in ("prepare", "train", "prune", "finish"):
            if name == "prune" and rng.random() < 0.15:
                continue  # everything is kept
            if name == "finish" and rng.random() < 0.15:
                continue  # the next task finishes it
            yield drawn(rng, name)
            for _ in range(rng.choice([0, 0, 1, 1, 2, 3] if name != "prepare" else [0, 0, 1])):
                yield drawn(rng)
