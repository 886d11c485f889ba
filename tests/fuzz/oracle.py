"""The oracle: what finished tasks said when they were finished, and whether they still say it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import lives
import torch
from torch import Tensor

from autoeidetic import EideticNet
from autoeidetic.errors import AutoeideticError
from autoeidetic.proof.verify import Verification

from .subjects import Call, Subject


class Finding(AssertionError):  # noqa: N818
    """Something that must not happen.

    ``kind``: "moved", other bits or NaN; "raw", an error that is not of the package; "verify",
    which disagrees with the bits; "finish", which changed what the open task said; "lost", a
    finished task or a saved network; "globals", a setting of torch that did not stay; "hang".
    """

    def __init__(self, kind: str, what: str, *, step: str = "", call: str = "") -> None:
        self.kind, self.what, self.step, self.call = kind, what, step, call
        super().__init__(f"{kind}: {what}")

    @property
    def cause(self) -> str:
        """The same for findings that look alike: without numbers and names of tensors."""
        plain = re.sub(r"'[^']*'|\"[^\"]*\"|-?\d[\d.e+-]*|\[[^]]*\]|\([^)]*\)", "_", self.what)
        what = plain[:120] if self.kind == "raw" else ""
        return " | ".join(part for part in (self.kind, self.call, what) if part)


Said = dict[int, dict[int, list[Tensor]]]  # task -> number of the call -> tensors


@dataclass
class Memory:
    """What the finished tasks of one network said, and how often it refused to answer."""

    said: Said = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Memory:
        return Memory({task: dict(calls) for task, calls in self.said.items()}, self.refusals)

    def check(self, net: EideticNet, subject: Subject) -> None:
        """Compare every finished task on every call; record those that are new."""
        lost = [task for task in self.said if not (_count(net) > task and net.tasks[task].finished)]
        if lost:
            raise Finding("lost", f"finished tasks are gone: {lost}")
        training = net.training
        try:
            if training:
                net.eval()
            self._look(net, subject)
            if training:
                net.train()
        except AutoeideticError as error:
            self.refused(error)

    def _look(self, net: EideticNet, subject: Subject) -> None:
        for task in net.tasks:
            if task.finished and task.index not in self.said:
                self._record(net, subject, task.index)
        for number in self.said:
            self._compare(net, subject, number)

    def refused(self, error: AutoeideticError) -> None:
        self.refusals[type(error).__name__] += 1

    def _record(self, net: EideticNet, subject: Subject, task: int) -> None:
        self.said[task] = {}
        for number, call in enumerate(subject.calls):
            said = self._ask(net, call, task)
            if said is not None and all(_finite(tensor) for tensor in said):
                self.said[task][number] = said

    def _compare(self, net: EideticNet, subject: Subject, task: int) -> None:
        answering = net.tasks[task].answered_by
        expected = self.said.get(task if answering is None else answering, {})
        for number, said in expected.items():
            call = subject.calls[number]
            now = self._ask(net, call, task)
            if now is not None and not lives.same(now, said):
                raise Finding(
                    "moved",
                    f"task {task} of {_count(net)} moved {lives.distance(now, said)} on the call "
                    f"'{call.kind}'{_verdict(net, call)}",
                    call=call.kind,
                )

    def _ask(self, net: EideticNet, call: Call, task: int) -> list[Tensor] | None:
        try:
            return ask(net, call, task)
        except AutoeideticError as error:
            self.refused(error)
            return None

    def expect(self, said: list[Tensor], task: int, number: int, where: str) -> None:
        """Compare what was answered at another moment."""
        known = self.said.get(task, {}).get(number)
        if known is not None and not lives.same(said, known):
            raise Finding("moved", f"task {task} moved {lives.distance(said, known)} {where}")


def ask(net: EideticNet, call: Call, task: Any) -> list[Tensor]:
    """What a task answers, in the mode that the network has."""
    try:
        with torch.no_grad():
            return lives.tensors(lives.call(net, call.inputs, task=task))
    except AutoeideticError:
        raise
    except Exception as error:
        raise raw(error, call.kind) from error


def raw(error: Exception, call: str = "") -> Finding:
    text = " ".join(str(error).split())[:200]
    return Finding("raw", f"{type(error).__name__}: {text}", call=call)


def verified(net: EideticNet, call: Call) -> Verification:
    """What ``verify`` says."""
    inputs = call.inputs
    if isinstance(inputs, dict):
        return net.verify(**inputs, rounds=1)
    args = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    return net.verify(*args, rounds=1)


def cries(report: Verification) -> bool:
    """Does it say that something moved? A task that has always answered NaN did not move."""
    return any(verdict.changed or verdict.sealed is False for verdict in report.tasks)


def _verdict(net: EideticNet, call: Call) -> str:
    """What verify says of a network that has moved."""
    try:
        return ", and verify says ok" if verified(net, call).ok else ", and verify says so"
    except Exception as error:
        return f", and verify raises {type(error).__name__}"


def _count(net: EideticNet) -> int:
    return len(net.tasks)


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def settings() -> dict[str, Any]:
    """Settings of torch that nobody may leave changed."""
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "fastpath": torch.backends.mha.get_fastpath_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def check_settings(before: dict[str, Any]) -> None:
    changed = {key: value for key, value in settings().items() if before[key] != value}
    if changed:
        torch.backends.mha.set_fastpath_enabled(True)
        raise Finding("globals", f"left changed: {changed}")
