"""Task measurement: one task of a network, measured on its data in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..common.batches import call, split, to_device
from ..common.digests import Digest, Hasher, combine
from ..errors import InputError
from ..tasks.task import Task
from .evaluation import TaskResult
from .metric import IGNORED, Accumulator, first_tensor, holds_class_numbers, judge, misfit, sums


class _ClassCounts:
    """Counts correct answers and samples of each class."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None  # [2, classes]: correct answers, samples

    def add(self, right: Tensor, label: Tensor, classes: int) -> None:
        both = torch.stack(
            [torch.bincount(part.cpu(), minlength=classes) for part in (label[right], label)]
        )
        self._counts = both if self._counts is None else self._counts + both

    def shares(self, together: bool) -> tuple[tuple[float, ...], float]:
        """The share of correct answers in each class, and in all; () and NaN without samples."""
        if self._counts is None:
            return (), math.nan
        # A class without samples gives 0 / 0: NaN, which is what is known about it.
        right, count = sums(self._counts, together).double()
        return tuple((right / count).tolist()), float(right.sum() / count.sum())


class TaskMeasurement:
    """Measures one task, with the task given and, if it is routed, with the task unknown.

    ``confusion`` is the task's row of the router's confusion matrix, which is added to; None if the
    router is not measured. ``is_accuracy``: the metric is the default one. The digests are over
    ``reference``, or over all batches if it is None.
    """

    def __init__(
        self,
        net: Any,  # an EideticNet: predict() may be overridden
        task: Task,
        measure: Accumulator,
        *,
        is_accuracy: bool,
        confusion: Tensor | None,
        reference: Any,
        device: torch.device,
    ) -> None:
        self.net, self.task, self.measure = net, task, measure
        self.is_accuracy, self.confusion = is_accuracy, confusion
        self.reference, self.device = reference, device
        self.task_known, self.task_unknown = _ClassCounts(), _ClassCounts()
        self.input_hash, self.output_hash = Hasher(), Hasher()
        self.samples = 0

    def run(self, loader: Iterable[Any], together: bool) -> TaskResult:
        """Measure all batches."""
        for batch in loader:
            self.batch(*split(batch))
        if not self.samples:
            raise InputError(
                f"the loader of task {self.task.index} gave nothing",
                remedy="pass one that can be read again and again, such as a DataLoader or a list "
                "(a generator can be read once)",
            )
        digest = self.digest(together) if self.task.finished else None
        per_class, _ = self.task_known.shares(together)
        agnostic: float | None = None
        agnostic_per_class: tuple[float, ...] | None = None
        if self.confusion is not None:
            agnostic_per_class, agnostic = self.task_unknown.shares(together)
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
        # Open tasks still change: only finished ones have outputs worth a digest.
        if self.task.finished and self.reference is None:
            self.input_hash.update(inputs)
        # Inputs are hashed as the loader gave them, before they move to a device.
        inputs, target = to_device(inputs, self.device), to_device(target, self.device)
        output = call(self.net, inputs, task=self.task.index)
        if self.task.finished and self.reference is None:
            self.output_hash.update(output)
        self.measure.update(output, target)
        label = first_tensor(target, "target")
        self.samples += len(label)
        # Real targets of a custom metric need not be labels.
        if self.is_accuracy or (holds_class_numbers(label) and not misfit(output, target)):
            judged = judge(output, target)
            self.task_known.add(judged.right, judged.label, judged.classes)
        if self.confusion is not None:
            self.route(inputs, label.cpu(), first_tensor(output, "output").shape, self.confusion)

    def route(self, inputs: Any, label: Tensor, shape: torch.Size, confusion: Tensor) -> None:
        """Measure the network's answers when the router must find the task."""
        predicted = call(self.net.predict, inputs)
        tasks, found = predicted.task.cpu(), predicted.label.cpu()
        # In place: a row of the matrix that the caller holds.
        confusion += torch.bincount(tasks, minlength=len(self.net.tasks))
        if holds_class_numbers(label) and found.shape == label.shape and len(shape) > 1:
            # The task is found per input, the label per position: broadcast over positions.
            mine = (tasks == self.task.index).view(-1, *[1] * (label.dim() - 1))
            right, counts = mine & (found == label), label != IGNORED
            self.task_unknown.add(right[counts], label[counts], shape[1])

    def digest(self, together: bool) -> Digest:
        """The digests of inputs and outputs; equal digests are equal bits."""
        if self.reference is not None:
            self.input_hash.update(self.reference)
            inputs = to_device(self.reference, self.device)
            self.output_hash.update(call(self.net, inputs, task=self.task.index))
        return combine(self.input_hash, self.output_hash, together)
