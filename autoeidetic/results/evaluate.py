"""Evaluate: what a network knows of every task, and whether a bit of it has moved."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..common import distributed
from ..common.batches import call, split, to_device
from ..common.digests import Digest, Hasher, combine
from ..common.tables import html, line, number, table
from ..common.undisturbed import undisturbed
from ..errors import InputError, TaskError
from ..routing import to_be_found
from .metric import IGNORED, Accumulator, accumulator, first_tensor, judge, misfit, sums, whole

if TYPE_CHECKING:
    from ..net import EideticNet, Task

Loaders = Sequence[Iterable[Any]] | Mapping[int, Iterable[Any]]


@dataclass(frozen=True)
class TaskResult:
    """How one task is done.

    ``accuracy`` is the metric's value when the task is known. ``per_class`` is the share of right
    answers for each class (NaN: there was no sample of it), or empty where there are no classes.
    ``agnostic`` and ``agnostic_per_class`` are for the router: task and class both right; None
    without one. ``digest`` is None while the task is open.
    """

    task: int
    name: str
    finished: bool
    samples: int
    accuracy: float
    per_class: tuple[float, ...]
    agnostic: float | None
    agnostic_per_class: tuple[float, ...] | None
    digest: Digest | None
    answered_by: int | None = None


@dataclass(frozen=True)
class Evaluation:
    """How all tasks are done.

    ``confusion[t][s]`` counts samples of ``t`` that the router takes for ``s``. Without a router,
    or with one that does not know all finished tasks (``note`` tells), it is None.
    """

    metric: str
    tasks: tuple[TaskResult, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    note: str = ""

    @property
    def accuracy(self) -> dict[int, float]:
        """Of every task when it is known."""
        return {result.task: result.accuracy for result in self.tasks}

    @property
    def average(self) -> float:
        """Mean over tasks."""
        return _mean(self.accuracy.values())

    @property
    def agnostic(self) -> float | None:
        """Mean over tasks when the router finds the task; None without one."""
        known = [result.agnostic for result in self.tasks if result.agnostic is not None]
        return _mean(known) if known else None

    @property
    def digests(self) -> dict[int, Digest]:
        """Of all finished tasks."""
        return {r.task: r.digest for r in self.tasks if r.digest is not None}

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "average": self.average, "agnostic": self.agnostic}

    def __str__(self) -> str:
        routed = self.confusion is not None
        rows = [["task", "samples", self.metric, "worst class"]]
        rows[0] += ["task unknown"] if routed else []
        for result in self.tasks:
            classes = [share for share in result.per_class if not math.isnan(share)]
            row = [line(result.name), str(result.samples), number(result.accuracy)]
            row.append(number(min(classes)) if classes else "")
            if routed:
                row.append("" if result.agnostic is None else number(result.agnostic))
            rows.append(row)
        last = ["average", "", number(self.average), ""]
        if routed:
            last.append("" if self.agnostic is None else number(self.agnostic))
        text = table([*rows, last])
        return f"{text}\n{self.note}" if self.note else text

    def _repr_html_(self) -> str:
        return html(str(self))


def evaluate(
    net: EideticNet,
    loaders: Loaders,
    *,
    metric: Any = None,
    tasks: Iterable[int] | None = None,
    reference: Any = None,
    together: bool = True,
    progress: bool = False,
) -> Evaluation:
    """Measure every task on its own data. Changes nothing in the network.

    If the network has a router that knows all finished tasks, it is measured on them as well:
    without being told the task.

    Args:
        net: the network.
        loaders: one for each task, in order or by task number; those of tasks to come may be among
            them. Batches are (inputs, targets), inputs a tensor, a tuple of positional or a dict
            of keyword arguments.
        metric: see :func:`autoeidetic.results.accumulator`; accuracy by default. A dict gives
            every task its own.
        tasks: only these.
        reference: inputs, as of one batch, that the digests are taken over. By default it is the
            loader of each task, which must then give the same batches every time.
        together: with several processes, each with its part of the data, all must call this, and
            all get the result over everything. False: each on its own.
        progress: a line for each task on the error output.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(10, 4), torch.randint(2, (10,))
        >>> net = autoeidetic.convert(model, x)
        >>> net.prepare_for_task(0, num_classes=2, name="coin")
        >>> evaluation = autoeidetic.evaluate(net, [[(x, y)]])
        >>> evaluation.tasks[0].samples
        10
        >>> evaluation.average == evaluation.accuracy[0]
        True

    Raises:
        InputError: a task has no loader, a loader no batch, or outputs and targets do not fit.
        TaskError: there is no such task.
    """
    chosen = _chosen(net, loaders, tasks)
    device = next(net.parameters()).device
    confusion = torch.zeros(len(net.tasks), len(net.tasks), dtype=torch.int64)
    results, names = [], []
    with _looking(net):
        for task in chosen:
            began = time.perf_counter()
            own = metric[task.index] if isinstance(metric, Mapping) else metric
            measure = accumulator(own, device=device, together=together)
            measure.reset()
            pass_ = _Pass(net, task, measure, own is None, confusion, reference, device)
            results.append(pass_.run(loaders[task.index], together))
            names.append(measure.name)
            if progress and distributed.rank() == 0:
                _tell(results[-1], measure.name, time.perf_counter() - began)
    counts = sums(confusion, together).tolist()
    return Evaluation(
        ", ".join(dict.fromkeys(names)),
        tuple(results),
        tuple(tuple(row) for row in counts) if _routed(net) else None,
        _note(net),
    )


def _routed(net: EideticNet) -> bool:
    return net.router is not None and not _note(net)


def _note(net: EideticNet) -> str:
    finished = len(to_be_found(net))
    if net.router is None or net.router.tasks == finished:
        return ""
    return f"the router knows {net.router.tasks} of {finished} finished tasks: not measured"


def _chosen(net: EideticNet, loaders: Loaders, tasks: Iterable[int] | None) -> list[Task]:
    if not net.tasks:
        raise TaskError(
            "the network has no task yet", remedy="call prepare_for_task(0, num_classes=...) first"
        )
    asked = range(len(net.tasks)) if tasks is None else sorted(set(tasks))
    held = set(loaders) if isinstance(loaders, Mapping) else set(range(len(loaders)))
    for task in asked:
        if task not in range(len(net.tasks)):
            raise TaskError(
                f"there is no task {task!r}", remedy=f"there are tasks 0 to {len(net.tasks) - 1}"
            )
        if task not in held:
            raise InputError(
                f"there is no loader for task {task}",
                remedy="pass one for each task, or tasks= to evaluate only some",
            )
    return [net.tasks[task] for task in asked]


@contextmanager
def _looking(net: EideticNet) -> Iterator[None]:
    """In eval mode without gradients; modes and the generator that loaders draw from put back."""
    before = net.training
    with undisturbed(net, evaluate=True, generators="cpu", gradients=False):
        try:
            yield
        finally:
            net.train(before)  # puts pinned values back, unlike setting the mode


class _Tally:
    """Right answers and samples of each class."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None

    def add(self, right: Tensor, label: Tensor, classes: int) -> None:
        both = torch.stack(
            [torch.bincount(part.cpu(), minlength=classes) for part in (label[right], label)]
        )
        self._counts = both if self._counts is None else self._counts + both

    def shares(self, together: bool) -> tuple[tuple[float, ...], float]:
        """Of each class, and of all samples; nothing and NaN when nothing was counted."""
        if self._counts is None:
            return (), math.nan
        right, count = sums(self._counts, together).double()
        return tuple((right / count).tolist()), float(right.sum() / count.sum())


class _Pass:
    """One task on its data."""

    def __init__(
        self,
        net: EideticNet,
        task: Task,
        measure: Accumulator,
        plain: bool,
        confusion: Tensor,
        reference: Any,
        device: torch.device,
    ) -> None:
        self.net, self.task, self.measure = net, task, measure
        self.plain, self.confusion = plain, confusion
        self.reference, self.device = reference, device
        self.known, self.unknown = _Tally(), _Tally()
        self.asked, self.answered = Hasher(), Hasher()
        self.routed = task.index in to_be_found(net) and _routed(net)
        self.samples = 0

    def run(self, loader: Iterable[Any], together: bool) -> TaskResult:
        for batch in loader:
            self.batch(*split(batch))
        if not self.samples:
            raise InputError(
                f"the loader of task {self.task.index} gave nothing",
                remedy="pass one that can be read again and again, such as a DataLoader or a list "
                "(a generator can be read once)",
            )
        digest = self.digest(together) if self.task.finished else None
        per_class, _ = self.known.shares(together)
        agnostic: float | None = None
        agnostic_per_class: tuple[float, ...] | None = None
        if self.routed:
            agnostic_per_class, agnostic = self.unknown.shares(together)
        return TaskResult(
            self.task.index,
            self.task.name,
            self.task.finished,
            int(sums(torch.tensor(self.samples), together)),
            self.measure.compute(),
            per_class,
            agnostic,
            agnostic_per_class,
            digest,
            self.task.answered_by,
        )

    def batch(self, inputs: Any, target: Any) -> None:
        if self.task.finished and self.reference is None:
            self.asked.update(inputs)
        inputs, target = to_device(inputs, self.device), to_device(target, self.device)
        output = call(self.net, inputs, task=self.task.index)
        if self.task.finished and self.reference is None:
            self.answered.update(output)
        self.measure.update(output, target)
        label = first_tensor(target, "target")
        self.samples += len(label)
        # real targets of somebody's own metric need not be labels
        if self.plain or (whole(label) and not misfit(output, target)):
            judged = judge(output, target)
            self.known.add(judged.right, judged.label, judged.classes)
        if self.routed:
            self.route(inputs, label.cpu(), first_tensor(output, "output").shape)

    def route(self, inputs: Any, label: Tensor, shape: torch.Size) -> None:
        """What the network says when nobody tells the task."""
        predicted = call(self.net.predict, inputs)
        tasks, found = predicted.task.cpu(), predicted.label.cpu()
        self.confusion[self.task.index] += torch.bincount(tasks, minlength=len(self.net.tasks))
        if whole(label) and found.shape == label.shape and len(shape) > 1:
            mine = (tasks == self.task.index).view(-1, *[1] * (label.dim() - 1))
            right, counts = mine & (found == label), label != IGNORED
            self.unknown.add(right[counts], label[counts], shape[1])

    def digest(self, together: bool) -> Digest:
        if self.reference is not None:
            self.asked.update(self.reference)
            inputs = to_device(self.reference, self.device)
            self.answered.update(call(self.net, inputs, task=self.task.index))
        return combine(self.asked, self.answered, together)


def _tell(result: TaskResult, metric: str, seconds: float) -> None:
    routed = "" if result.agnostic is None else f", task unknown {result.agnostic:.4f}"
    print(
        f"{line(result.name)}: {metric} {result.accuracy:.4f}{routed} "
        f"({result.samples} samples, {seconds:.1f} s)",
        file=sys.stderr,
    )


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)
