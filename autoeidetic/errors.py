"""Errors and warnings, one class per situation.

Inner code states a fact; the public function adds what the user passed. Every error carries
the module path, the operator and the source line where they are known, and a remedy.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

_PACKAGE = __name__.partition(".")[0]
#: Code between the user's line and the one that warns.
_BETWEEN = frozenset({_PACKAGE, "torch", "contextlib", "functools"})


@dataclass(frozen=True)
class Place:
    """A place in the user's model: module path, operator and source line."""

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
    """A name with its indefinite article.

    >>> with_article("OptimizedModule")
    'an OptimizedModule'
    """
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


class AutoeideticError(Exception):
    """Base class of all errors of this package: a fact, the place in the model and a remedy."""

    def __init__(self, fact: str, *, place: Place | None = None, remedy: str = "") -> None:
        self.fact = fact
        self.place = place or Place()
        self.remedy = remedy
        #: The part of the model's graph that was recorded before a capture failed.
        self.captured: object = None
        #: What the model's own code raised, if that is the cause.
        self.reason = ""
        # one fact, then one line each for place and remedy:  fact / where: ... / remedy: ...
        where = str(self.place)
        text = fact if not where else f"{fact}\n  where: {where}"
        super().__init__(text if not remedy else f"{text}\n  remedy: {remedy}")

    def alone(self) -> AutoeideticError:
        """The same error without traceback, causes and capture, which keep tensors alive."""
        copied = type(self)(self.fact, place=self.place, remedy=self.remedy)
        copied.reason = self.reason
        return copied

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
    """No output of the model depends on a parameter, so there is nothing to divide among tasks."""


class UnhandledOperatorError(AutoeideticError):
    """An operator has no rule and no decomposition, and ``on_unhandled="raise"`` was passed."""


class RuleError(AutoeideticError):
    """A rule was registered incorrectly, or failed on the operator it was registered for."""


class EnforcementError(AutoeideticError):
    """The model does something at run time that its analysis has not seen."""


class HeadError(AutoeideticError):
    """The output layer that a task asks for cannot be made."""


class TaskError(AutoeideticError):
    """A step does not fit the present state of the network's tasks."""


class CapacityError(AutoeideticError):
    """No free units are left where a task needs some."""


class NonFiniteError(AutoeideticError):
    """Values to be frozen, values to learn from, or outputs are infinite or NaN."""


class CheckpointError(AutoeideticError):
    """A file is not a saved network, is damaged, cannot be written, or does not fit the model."""


class ExtractionError(AutoeideticError):
    """A task, or a smaller model, cannot be made a program of its own."""


class MissingPackageError(AutoeideticError):
    """A feature needs a package that is not installed."""


class StorageWarning(UserWarning):
    """A training state could not be written; training goes on, and the last stored state stays."""


class DivergenceWarning(UserWarning):
    """Free values, which finished tasks do not use, or inputs are not finite."""


class RehearsalWarning(UserWarning):
    """A conversion could not be rehearsed, so effects that its analysis misses stay unnoticed."""


class UnhandledOperatorWarning(UserWarning):
    """An operator has no rule: its inputs count as mixed, which is sound but locks their units."""


class LearningWarning(UserWarning):
    """A task seems to have learned little or nothing, or leaves no capacity for later tasks."""


def warn_user(text: str, kind: type[Warning]) -> None:
    """Warn at the line of the user's code, however many calls of this package are in between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)
