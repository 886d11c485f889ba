"""What can go wrong, one class per situation.

Inner code states a fact; the public function adds what the user passed. Every error carries
the module path, the operator and the source line where they are known, and a remedy.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where in the user's model something happens."""

    module: str = ""
    operator: str = ""
    line: str = ""

    def __str__(self) -> str:
        parts = []
        if self.operator:
            parts.append(self.operator)
        if self.module:
            parts.append(f"in module '{self.module}'")
        if self.line:
            parts.append(f"at {self.line}")
        return " ".join(parts)


def with_article(name: str) -> str:
    """A Linear, an Embedding.

    >>> with_article("OptimizedModule")
    'an OptimizedModule'
    """
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


class AutoeideticError(Exception):
    """Base of every error of this package."""

    def __init__(self, fact: str, *, place: Place | None = None, remedy: str = "") -> None:
        self.fact = fact
        self.place = place or Place()
        self.remedy = remedy
        #: The part of the model's graph that was recorded before a capture failed.
        self.captured: object = None
        where = str(self.place)
        text = fact if not where else f"{fact}\n  where: {where}"
        super().__init__(text if not remedy else f"{text}\n  remedy: {remedy}")

    @property
    def module(self) -> str:
        return self.place.module

    @property
    def operator(self) -> str:
        return self.place.operator

    @property
    def line(self) -> str:
        return self.place.line


class InputError(AutoeideticError):
    """The example inputs are missing or of a type that cannot be traced."""


class CaptureError(AutoeideticError):
    """The model could not be run, neither on the meta device nor on real tensors."""


class NoParametersError(AutoeideticError):
    """No output of the model depends on a parameter, so there is nothing to divide."""


class UnhandledOperatorError(AutoeideticError):
    """An operator has no rule and no decomposition, and ``on_unhandled="raise"`` was asked for."""


class RuleError(AutoeideticError):
    """A rule was registered wrongly, or a rule failed on the operator it was registered for."""


class EnforcementError(AutoeideticError):
    """While running, the model does something that its analysis did not see."""


class HeadError(AutoeideticError):
    """The output layer cannot be made for a task as asked."""


class TaskError(AutoeideticError):
    """A step that does not fit where the network is in the life of its tasks."""


class CapacityError(AutoeideticError):
    """A task finds no free units where it needs some."""


class NonFiniteError(AutoeideticError):
    """Values to be frozen or to be learned from, or an answer, are infinite or not a number."""


class CheckpointError(AutoeideticError):
    """A file is not a saved network, is damaged, or does not fit the model."""


class MissingPackageError(AutoeideticError):
    """Something was asked for that needs a package which is not installed."""


class StorageWarning(UserWarning):
    """A state could not be written: training goes on, and the last one that could stays."""


class DivergenceWarning(UserWarning):
    """Free values (finished tasks are answered without them) or inputs are not finite."""


class RehearsalWarning(UserWarning):
    """A conversion could not be rehearsed: what its analysis cannot see would not be noticed."""


class UnhandledOperatorWarning(UserWarning):
    """An operator has no rule: everything it reads was mixed, which is sound but locks it."""


class LearningWarning(UserWarning):
    """A task seems to have learned little or nothing, or to leave nothing for later tasks."""
