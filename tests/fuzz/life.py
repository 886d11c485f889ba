"""Lives: run a script, ask the oracle after every step."""

from __future__ import annotations

import functools
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autoeidetic
from autoeidetic import EideticNet
from autoeidetic.errors import AutoeideticError

from . import subjects
from .oracle import Finding, Memory, check_settings, raw, settings
from .script import Script, Step

#: What is not safe yet, to be emptied: tags of steps ("write:buffers"), kinds of calls
#: ("call:path") and subjects ("subject:experts") that lives are run without.
NOT_YET: frozenset[str] = frozenset()


class Tolerated(Exception):  # noqa: N818
    """A step does not fit the model or the moment, and would not without this package either."""


@dataclass
class Report:
    """What happened in a life."""

    script: Script
    steps: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    tolerated: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    compared: int = 0
    seconds: float = 0.0
    finding: Finding | None = None


class Life:
    """A network in the middle of its life, and all that a user holds besides."""

    def __init__(self, script: Script, excluded: frozenset[str], folder: Path) -> None:
        self.subject = subjects.subject(script.subject, script.seed, excluded)
        self.folder = folder
        self.memory = Memory()
        self.others: list[tuple[EideticNet, Memory]] = []  # that copies were made of
        self.optimizer: torch.optim.Optimizer | None = None  # of an earlier step
        self.state: dict[str, Any] | None = None  # a state_dict of an earlier step
        self.undo: list[Callable[[], None]] = []  # how to take back what was done to modules
        self.edited = False
        self.rounded = False  # has a warning told so?
        self.cried = False  # has verify said that something moved?
        self.net = self._convert(**script.convert)

    def _convert(self, examples: int, **options: Any) -> EideticNet:
        calls = [call.inputs for call in self.subject.calls]
        example = calls if examples > 1 and several_examples() else calls[0]
        model = self.subject.build()
        return autoeidetic.convert(model, example, **options)

    @property
    def steady(self) -> bool:
        """Nothing but training changes what the open task says: there are no statistics."""
        norms = nn.modules.batchnorm._NormBase
        return not any(isinstance(module, norms) for module in self.net.modules())

    def go_on_with(self, net: EideticNet, *, remember: bool) -> None:
        """A copy takes the network's place; the old one may be asked again at the end."""
        if remember:
            self.others = [(self.net, self.memory.copy())]
        self.net, self.optimizer, self.state = net, None, None
        self.edited, self.undo = self.edited or bool(self.undo), []

    def take_back(self) -> None:
        for each in reversed(self.undo):
            each()
        self.undo = []
        self.net.train(self.net.training)  # what was put aside has the mode of then

    def check(self) -> None:
        self.memory.check(self.net, self.subject)
        if self.cried:
            raise Finding("verify", "verify says that finished tasks changed, and they have not")

    def end(self) -> None:
        """One last look, at networks that copies were made of as well."""
        self.check()
        self.take_back()
        self.check()
        for net, memory in self.others:
            memory.check(net, self.subject)


@functools.lru_cache
def several_examples() -> bool:
    """Does ``convert`` take a list of examples?"""
    x = torch.randn(1, 2)
    try:
        autoeidetic.convert(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [x, x + 1])
    except AutoeideticError:
        return False
    return True


def live(script: Script, excluded: frozenset[str] = NOT_YET) -> Report:
    """Run a script. Random numbers, warnings and settings stay the caller's."""
    report, start, before = Report(script), time.perf_counter(), settings()
    if f"subject:{script.subject}" in excluded:
        return report
    with (
        tempfile.TemporaryDirectory() as folder,
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        try:
            _run(script.only(excluded), excluded, Path(folder), report, before)
        except Finding as finding:
            report.finding = finding
    report.warned.update({each.category.__name__ for each in caught})
    report.seconds = time.perf_counter() - start
    return report


def _run(
    script: Script, excluded: frozenset[str], folder: Path, report: Report, before: dict[str, Any]
) -> None:
    torch.manual_seed(script.seed)
    try:
        life = Life(script, excluded, folder)
    except AutoeideticError as error:
        report.refusals[f"convert {type(error).__name__}"] += 1
        return
    except Exception as error:
        found = raw(error)
        found.step = "convert"
        raise found from error
    name = ""
    try:
        for step in script.steps:
            name = step.name
            _take(life, step, report)
            check_settings(before)
            if not step.quiet:
                life.check()
        life.end()
    except Finding as finding:
        finding.step = finding.step or name
        raise
    finally:
        report.finished = len(life.memory.said)
        report.refusals.update({f"answer {k}": n for k, n in life.memory.refusals.items()})


def _take(life: Life, step: Step, report: Report) -> None:
    """One step: it works, or is refused by an error of the package."""
    from .actions import run

    report.steps[step.name] += 1
    try:
        run(life, step)
    except AutoeideticError as error:
        report.refusals[f"{step.name} {type(error).__name__}"] += 1
    except Tolerated as reason:
        report.tolerated[f"{step.name}: {reason}"] += 1
    except Finding:
        raise
    except Exception as error:
        raise raw(error) from error
