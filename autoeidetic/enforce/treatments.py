"""Treatments: the functions that guarded modules call differently, one class per hazard.

| class | intercepts | hazard |
|---|---|---|
| ``RestrictedBackward`` | linear, convolutions | gradients of frozen rows: not wrong, but costly |
| ``ComputedWeight`` | every product | zeros in a parameter do not stay zeros in its weight |
| ``RunningStatistics`` | batch and instance norm | training moves the statistics of all channels |
| ``LevelNorms`` | layer, RMS and group norm | statistics mix channels of all tasks |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import EnforcementError, Place
from .guard import CallCounter, Runtime
from .kernels import level_norms, restricted_backward, statistics, stock_norms

_CONVOLUTIONS = frozenset({F.conv1d, F.conv2d, F.conv3d})
_TRANSPOSED = frozenset({F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d})
#: The position of the weight among the arguments, of functions that have one for it. In a matrix
#: product any operand may be the weight.
_WEIGHT_POSITIONS = {
    **dict.fromkeys((F.linear, F.embedding, *_CONVOLUTIONS, *_TRANSPOSED), 1),
    F.bilinear: 2,
}
_POSITION_OPERATORS = ("aten.linear", "aten.conv", "aten.embedding", "aten._trilinear")
_ADDING = frozenset({torch.addmm, torch.baddbmm})  # their first argument is no factor
#: How a computed weight is used: whether its function has a position for it, and its shape.
Use = tuple[bool, tuple[int, ...]]


def use_of(operator: str, shape: Sequence[int]) -> Use:
    """The use of a weight by an operator of the graph."""
    return operator.startswith(_POSITION_OPERATORS), tuple(shape)


class _Treatment:
    functions: ClassVar[frozenset[Any]] = frozenset()

    def wanted(self, module: nn.Module) -> bool:
        return True

    def applies(self) -> bool:
        return True

    def finish(self, module: nn.Module, calls: int) -> None:
        pass


@dataclass
class RestrictedBackward(_Treatment):
    """A layer's backward, restricted to rows and input columns of the task in training.

    ``weight`` is the parameter's name, ``active`` the index of its rows in training, ``columns``
    that of inputs in training (None: all).
    """

    runtime: Runtime
    weight: str
    active: Tensor
    columns: Tensor | None
    functions: ClassVar[frozenset[Any]] = frozenset({F.linear}) | _CONVOLUTIONS

    def wanted(self, module: nn.Module) -> bool:
        return torch.is_grad_enabled()

    def call(self, module: nn.Module, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        given: list[Any] = _bind(args, kwargs, ("input", "weight", "bias"))
        x, weight, bias, *rest = given
        if weight is not module._parameters[self.weight]:  # some other product in ``forward``
            return func(*args, **kwargs)
        if not self.runtime.restrict:
            # The input wants its gradient, also through frozen rows; frozen rows still get none.
            learning = [None if p is None else self._learning(p) for p in (weight, bias)]
            return func(x, *learning, *rest, **_without(kwargs))
        assert weight is not None
        if func is F.linear:
            return restricted_backward.linear(x, weight, bias, self.active, self.columns)
        stride, padding, dilation, groups = _window(*rest, **_without(kwargs))
        return restricted_backward.conv(
            func, x, weight, bias, stride, padding, dilation, groups, self.active, self.columns
        )

    def _learning(self, parameter: Tensor) -> Tensor:
        """The same values; only active rows have a gradient."""
        active = parameter.index_select(0, self.active)
        return parameter.detach().index_copy(0, self.active, active)


def _bind(args: Any, kwargs: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """The named arguments, however they were passed, then the other positional ones."""
    named = [kwargs.get(name) for name in names[len(args) :]]
    return [*args[: len(names)], *named, *args[len(names) :]]


def _without(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k not in ("input", "weight", "bias")}


def _window(stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    return stride, padding, dilation, groups


@dataclass
class ComputedWeight(_Treatment):
    """Puts zeros on a weight that is computed from a parameter (weight standardisation).

        parameter  ->  (p - mean) / std  ->  computed weight  ->  F.conv2d(x, weight)
        zeros here would not stay zeros      zeros go here

    ``keep`` marks the elements that may be non-zero, by the use of the computed weight. In a matrix
    product any operand may be the weight, so it is recognised by its shape, and the module refuses
    to run when more operands have that shape than ``counts``, the uses that the analysis saw.

    ``keep_in_run`` is the same for the run of one level, where parameters of later levels are zeros
    already: only whole rows of such levels are zeroed, because a weight norm of zeros is NaN.
    """

    runtime: Runtime
    path: str
    keep: dict[Use, Tensor]
    keep_in_run: dict[int, dict[Use, Tensor]]
    counts: dict[Use, int]
    operators: str
    lines: str
    matched: dict[Use, int] = field(default_factory=dict)
    functions: ClassVar[frozenset[Any]] = (
        frozenset(_WEIGHT_POSITIONS)
        | {torch.matmul, torch.mm, torch.bmm, torch.einsum, torch.addmm, torch.baddbmm}
        | {Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm}
    )

    def wanted(self, module: nn.Module) -> bool:
        return bool(self._masks())

    def _masks(self) -> dict[Use, Tensor]:
        """What to keep in the present run."""
        level = self.runtime.level
        return self.keep if level is None else self.keep_in_run.get(level, {})

    def call(self, module: nn.Module, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        if number == 0:
            self.matched = {}
        has_position = func in _WEIGHT_POSITIONS
        operands = _candidates(func, args, kwargs)
        uses = {key: self._matching(value, has_position) for key, value in operands.items()}
        found = {key: use for key, use in uses.items() if use is not None}
        if not found:
            return func(*args, **kwargs)
        if len(found) > 1:
            self._refuse("two operands of a product have the shape of a computed weight")
        key, use = next(iter(found.items()))
        self.matched[use] = self.matched.get(use, 0) + 1
        if not has_position and self.matched[use] > self.counts[use]:
            self._refuse("an operand of a product has the shape of a computed weight by chance")
        weight, keep = operands[key], self._masks()[use]
        if tuple(weight.shape) != use[1]:  # the transposed weight; the mask may have sizes 1
            keep = keep.mT
        masked = torch.where(keep, weight, torch.zeros_like(weight))
        if isinstance(key, int):
            return func(*args[:key], masked, *args[key + 1 :], **kwargs)
        return func(*args, **{**kwargs, key: masked})

    def _matching(self, weight: Any, has_position: bool) -> Use | None:
        """The use that an operand has the shape of, or the transposed shape; None: no such use."""
        if not isinstance(weight, Tensor) or isinstance(weight, nn.Parameter):
            return None
        shape = tuple(weight.shape)
        shapes = (shape, shape[::-1]) if len(shape) == 2 else (shape,)
        use = next((use for use in ((has_position, s) for s in shapes) if use in self.counts), None)
        return use if use in self._masks() else None

    def finish(self, module: nn.Module, calls: int) -> None:
        if not calls or any(use not in self.matched for use in self._masks()):
            self._refuse("a computed weight was not used by a function that can be given zeros")

    def _refuse(self, fact: str) -> None:
        raise EnforcementError(
            fact,
            place=Place(self.path, self.operators, self.lines),
            remedy="use it in F.linear or F.conv inside this module, or in a matrix product in "
            "which nothing else has its shape",
        )


def _candidates(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[int | str, Any]:
    """The arguments that may be a computed weight, by position or name."""
    operands: dict[int | str, Any] = dict(enumerate(args[:3]))
    operands.update(kwargs)
    if func in _WEIGHT_POSITIONS:
        return {
            key: value
            for key, value in operands.items()
            if key in (_WEIGHT_POSITIONS[func], "weight")
        }
    if func in _ADDING:
        return {key: value for key, value in operands.items() if key not in (0, "input")}
    return operands


@dataclass
class RunningStatistics(_Treatment):
    """Keeps channels of finished tasks on their running statistics, in training as well.

    ``active`` is the index of the channels that no finished task owns. ``alone``: the other values
    are frozen with their statistics, so that they need no gradient.
    """

    runtime: Runtime
    active: Tensor
    alone: bool
    functions: ClassVar[frozenset[Any]] = frozenset(
        {F.batch_norm, torch.batch_norm, F.instance_norm, torch.instance_norm}
    )

    def wanted(self, module: nn.Module) -> bool:
        return module.training

    def call(self, module: nn.Module, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        given = _norm_arguments(func, *args, **kwargs)
        x, mean, var, weight, bias, training, momentum, eps = given
        if mean is None or not training:
            return func(*args, **kwargs)
        kernel = (
            statistics.batch_norm
            if func in (F.batch_norm, torch.batch_norm)
            else statistics.instance_norm
        )
        # in the run of a level that does not learn, nothing is updated
        active = self.active[:0] if self.runtime.settled else self.active
        restrict = self.alone and self.runtime.restrict
        return kernel(x, mean, var, weight, bias, momentum, eps, active, restrict=restrict)


def _norm_arguments(func: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """(x, mean, var, weight, bias, training, momentum, eps) whatever the spelling."""
    if func in (torch.batch_norm, torch.instance_norm):  # weight and bias come first
        x, weight, bias, mean, var, training, momentum, eps, *_ = args
        return x, mean, var, weight, bias, training, momentum, eps
    names = ("input", "running_mean", "running_var", "weight", "bias")
    flag = "training" if func is F.batch_norm else "use_input_stats"
    default: dict[str, Any] = {flag: func is not F.batch_norm, "momentum": 0.1, "eps": 1e-5}
    order = (*names, flag, "momentum", "eps")
    given = {**dict.fromkeys(names), **default, **dict(zip(order, args, strict=False)), **kwargs}
    return tuple(given[name] for name in order)


@dataclass
class LevelNorms(_Treatment):
    """Layer, RMS and group norms with one set of statistics per level.

    ``tables[level][call][norm]``: the level whose run this is part of (None: no such run), the
    number of the call of the module, the number of the norm in it. The entry None stands for the
    stock kernel. Norms of an inner module that has tables of its own, or is run level by level, do
    not count.
    """

    runtime: Runtime
    path: str
    tables: dict[int | None, list[list[level_norms.LevelTable | None]]]
    counter: CallCounter
    functions: ClassVar[frozenset[Any]] = frozenset(
        {
            F.layer_norm,
            torch.layer_norm,
            F.rms_norm,
            torch.rms_norm,
            F.group_norm,
            torch.group_norm,
        }
    )

    def applies(self) -> bool:
        return self.runtime.inside == self.path

    def call(self, module: nn.Module, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        call = self.counter.next() if number == 0 else self.counter.current
        tables = self.tables[self.runtime.level][call]
        if number >= len(tables):  # one norm too many: raises
            self.finish(module, number + 1)
        table = tables[number]
        if table is None:
            return func(*args, **kwargs)
        restrict = None if self.runtime.stock_norms else self.runtime.restrict
        if func in (F.rms_norm, torch.rms_norm):
            return _rms_norm(table, restrict, *args, **kwargs)
        if func in (F.group_norm, torch.group_norm):
            return _group_norm(table, restrict, *args, **kwargs)
        return _layer_norm(table, restrict, *args, **kwargs)

    def finish(self, module: nn.Module, calls: int) -> None:
        expected = len(self.tables[None][self.counter.current])
        if calls != expected:
            raise EnforcementError(
                f"module '{self.path}' ran {calls} norms where the analysis saw {expected}",
                place=Place(module=self.path),
                remedy="convert the model with example inputs of the kind it is used with",
            )


def _layer_norm(
    table: level_norms.LevelTable,
    restrict: bool | None,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    if restrict is None:
        return stock_norms.layer_norm(input, table, weight, bias, eps)
    return level_norms.layer_norm(input, table, weight, bias, eps, restrict=restrict)


def _rms_norm(
    table: level_norms.LevelTable,
    restrict: bool | None,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    if restrict is None:
        return stock_norms.rms_norm(input, table, weight, eps)
    return level_norms.rms_norm(input, table, weight, eps, restrict=restrict)


def _group_norm(
    table: level_norms.LevelTable,
    restrict: bool | None,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    if restrict is None:
        return stock_norms.group_norm(input, num_groups, table, weight, bias, eps)
    return level_norms.group_norm(input, num_groups, table, weight, bias, eps, restrict=restrict)
