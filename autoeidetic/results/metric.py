"""Metric: any measure of (output, target) behind one small interface; accuracy by default.

A function, an object like those of torchmetrics, or None (accuracy) becomes an
:class:`Accumulator`: ``update`` with every batch, ``compute`` at the end.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..common import batches, distributed
from ..errors import InputError

#: Targets of this value are left out, as in ``torch.nn.functional.cross_entropy``.
IGNORED = -100

MetricFunction = Callable[[Any, Any], Any]


class Accumulator(Protocol):
    """Accumulates a measure over batches."""

    name: str

    def update(self, output: Any, target: Any) -> None:
        """Add a batch."""

    def compute(self) -> float:
        """The measure over the batches of all processes since the last reset."""

    def reset(self) -> None:
        """Forget all batches."""


def accumulator(
    metric: Any = None, *, device: torch.device | str | None = None, together: bool = True
) -> Accumulator:
    """Wrap any metric.

    Args:
        metric: None for :func:`accuracy`; a function of (output, target) that returns a number for
            the batch, or a tensor of numbers that count one each; or an object with ``update``,
            ``compute`` and ``reset``, such as a torchmetrics ``Metric``.
        device: where an object with a method ``to`` is moved.
        together: with several processes, ``compute`` is over the batches of all of them, and all
            must call it. Objects must exchange their state themselves, as those of torchmetrics
            do.

    Example:
        >>> import torch
        >>> mean = accumulator(lambda output, target: (output - target).abs())
        >>> mean.update(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, 1.0]))
        >>> mean.update(torch.tensor([9.0]), torch.tensor([0.0]))
        >>> mean.compute()
        3.0

    Raises:
        InputError: it is not a metric.
    """
    if metric is None:
        return Mean(accuracy, together)
    # Before the test below: a class has update, compute and reset as well.
    if inspect.isclass(metric):
        raise InputError(
            f"metric={metric.__qualname__} is a class", remedy="pass an object of this class"
        )
    if all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset")):
        return Delegate(metric, device)
    if not callable(metric):
        raise InputError(
            f"metric is a {type(metric).__qualname__}, which is not a metric",
            remedy="pass a function of (output, target), or an object with update(output, target), "
            "compute() and reset()",
        )
    return Mean(metric, together)


class Mean:
    """The mean over samples of the values that a function returns."""

    def __init__(self, function: MetricFunction, together: bool = True) -> None:
        self.name = getattr(function, "__name__", type(function).__qualname__)
        self._function = function
        self._together = together
        self.reset()

    def update(self, output: Any, target: Any) -> None:
        value = self._function(output, target)
        # [samples] or [samples, *positions]: every element counts one.
        if isinstance(value, Tensor) and value.dim():
            self._sum += float(value.detach().double().sum())
            self._count += value.numel()
            return
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"metric '{self.name}' returned a {type(value).__qualname__}",
                remedy="return a number, or a tensor with one for every sample",
            ) from error
        # One number for the whole batch: the last batch may be smaller, so weigh by samples.
        samples = len(first_tensor(target, "target"))
        self._sum += number * samples
        self._count += samples

    def compute(self) -> float:
        pair = [self._sum, float(self._count)]
        # Sums are exchanged, not means: processes may have different numbers of samples.
        value, count = sums(torch.tensor(pair, dtype=torch.float64), self._together).tolist()
        return value / count if count else math.nan

    def reset(self) -> None:
        self._sum, self._count = 0.0, 0


class Delegate:
    """A metric object that accumulates by itself."""

    def __init__(self, metric: Any, device: torch.device | str | None = None) -> None:
        self.name = type(metric).__qualname__
        moves = device is not None and callable(getattr(metric, "to", None))
        self._metric = metric.to(device) if moves else metric

    def update(self, output: Any, target: Any) -> None:
        self._metric.update(output, target)

    def compute(self) -> float:
        value = self._metric.compute()
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            raise InputError(
                f"metric '{self.name}' computed a {type(value).__qualname__}{shape}",
                remedy="pass one that computes a single number (in torchmetrics: with an average)",
            ) from error

    def reset(self) -> None:
        self._metric.reset()


def sums(tensor: Tensor, together: bool) -> Tensor:
    """Sums over all processes, on the CPU."""
    return (distributed.total(tensor) if together else tensor).cpu()


# -- accuracy -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """For every target that counts: is the answer right, and which class is it about?"""

    right: Tensor
    label: Tensor
    classes: int


def accuracy(output: Any, target: Any) -> Tensor:
    """1 for each target that the output meets, 0 for each that it misses.

    Integer targets are compared with the argmax over classes, along dimension 1: ``[N]`` for
    outputs ``[N, C]``, or dense, ``[N, H, W]`` for ``[N, C, H, W]``; -100 is ignored. Real targets
    of the output's shape are multi-label: an output above 0 is a yes; NaN is ignored. Of a
    structured output the first tensor counts.

    Example:
        >>> import torch
        >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
        tensor([1., 0.])
        >>> accuracy(torch.tensor([[2.0, -1.0, -1.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
        tensor([1., 0., 1.])

    Raises:
        InputError: targets and outputs do not fit.
    """
    return judge(output, target).right.float()


def judge(output: Any, target: Any) -> Judged:
    """See :func:`accuracy`."""
    problem = misfit(output, target)
    if problem:
        raise InputError(
            problem,
            remedy="pass class numbers (integers) without the class dimension of the output, or "
            "real labels of the output's shape; or metric=, a function of (output, target)",
        )
    output, target = first_tensor(output, "output").detach(), first_tensor(target, "target")
    target = target.to(output.device)
    if holds_class_numbers(target):
        return _one_of(output, target.long())
    return _several(output, target)


def _one_of(output: Tensor, target: Tensor) -> Judged:
    # output: [N, classes, *positions]; target: [N, *positions].
    known = target != IGNORED
    right = output.argmax(1) == target
    return Judged(right[known], target[known], output.shape[1])


def _several(output: Tensor, target: Tensor) -> Judged:
    """Multi-label targets: labels along dimension 1, or a single label without that dimension."""
    # output and target: [N, labels, *positions], or [N] for a single label. An output above 0 is a
    # probability above 0.5 of binary cross entropy with logits.
    known = ~target.isnan()
    right = (output > 0) == (target > 0.5)
    classes = output.shape[1] if output.dim() > 1 else 1
    shape = [1, classes] + [1] * (output.dim() - 2) if output.dim() > 1 else [1]
    label = torch.arange(classes, device=output.device).view(shape).expand(output.shape)
    return Judged(right[known], label[known], classes)


def misfit(output: Any, target: Any) -> str:
    """Why accuracy is not defined for these; "" if it is."""
    output, target = first_tensor(output, "output"), first_tensor(target, "target")
    shapes = f"targets of shape {tuple(target.shape)} ({target.dtype}) for outputs of shape "
    shapes += f"{tuple(output.shape)}"
    # Multi-label: [N, labels, *positions] on both sides.
    if not holds_class_numbers(target):
        return "" if target.shape == output.shape else shapes
    # Class numbers: [N, *positions] for outputs [N, classes, *positions].
    if output.dim() < 2 or target.shape != output.shape[:1] + output.shape[2:]:
        return shapes
    classes = output.shape[1]
    wrong = (target != IGNORED) & ((target < 0) | (target >= classes))
    if bool(wrong.any()):
        return f"a target is {int(target[wrong][0])}, and the output has {classes} classes, from 0"
    return ""


def holds_class_numbers(target: Tensor) -> bool:
    """Are these class numbers, instead of multi-label values?"""
    return not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)


def first_tensor(value: Any, what: str) -> Tensor:
    """The first tensor of a structure."""
    return batches.first_tensor(value, what, "pass metric=, a function of (output, target)")
