"""Costs: parameters and multiply-adds of a network and of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..capture.capture import capture
from ..common.inputs import CallInputs
from ..common.undisturbed import undisturbed
from ..tasks.network import Network
from .finish import arguments

_VIEW = torch.ops.aten.view.default


def parameters(network: Network, tasks: Sequence[int], headless: bool) -> int:
    """The parameters of the model, with the heads of these tasks in place of its own.

    Of a widened network, those of the columns that the tasks need.
    """
    return sum(_parameters(*column, headless) for column in network.by_column(tasks))


def _parameters(column: Network, tasks: Sequence[int], headless: bool) -> int:
    own = {name for head in column.call_plan.heads for name in head.parameters}
    sizes = {name: p.numel() for name, p in column.backbone.named_parameters()}
    body = sum(size for name, size in sizes.items() if name not in own)
    if headless:
        return body
    kept = sum(size for name, size in sizes.items() if name in own)
    heads = [
        sum(p.numel() for p in column.heads[str(task)].parameters()) for task in {*tasks}
    ]  # a task that keeps the model's own head has none
    return body + sum(made or kept for made in heads)


def of_network(network: Network, tasks: Sequence[int], inputs: CallInputs) -> int:
    """Multiply-adds of the bare model, or of the columns that tasks need, for one input."""
    needed = len(network.by_column(tasks))
    calls = islice(network.column_calls(inputs.args, inputs.kwargs), needed)
    return sum(_of_column(column, CallInputs(args, kwargs)) for column, args, kwargs in calls)


def _of_column(column: Network, inputs: CallInputs) -> int:
    model = column.backbone
    with column.unguarded():
        with undisturbed(model, evaluate=True, gradients=False, quiet=True):
            graph = capture(model, inputs).module()
        run = partial(model, *inputs.args, **inputs.kwargs)
        return _multiply_adds(graph, arguments(inputs).args, model, run)


def multiply_adds(program: fx.GraphModule, inputs: Sequence[Tensor]) -> int:
    """Multiply-adds of matrix products, convolutions and attention, for one input."""
    return _multiply_adds(program, inputs, program, partial(program.forward, *inputs))


def _multiply_adds(
    graph: fx.GraphModule, inputs: Sequence[Tensor], model: nn.Module, run: Callable[[], Any]
) -> int:
    """The cost of a graph, counted on shapes alone; where that is not possible, on a pass."""
    operations = _Operations()
    around = undisturbed(
        model, evaluate=True, attributes=True, generators="all", gradients=False, quiet=True
    )
    with around:
        try:
            with operations:
                _OnMeta(graph).run(*(tensor.to("meta") for tensor in inputs))
        except Exception:  # an operator without a kernel for shapes, or one that reads values
            operations = _Operations()
            with operations:
                run()
    rows = next((tensor.shape[0] for tensor in inputs if tensor.dim()), 1)
    # a multiplication and an addition are two operations
    return operations.total // 2 // max(rows, 1)


class _OnMeta(fx.Interpreter):
    """Runs a graph on tensors that have no values."""

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().get_attr(target, args, kwargs).detach().to("meta")

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # results of other kernels may lie in memory in another order, and have no such view
        target = torch.ops.aten.reshape.default if target is _VIEW else target
        return super().call_function(target, args, kwargs)


class _Operations(TorchDispatchMode):
    """Counts floating point operations as ``FlopCounterMode`` does, for the model as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        counts = flop_registry.get(func._overloadpacket)
        if counts is not None:
            self.total += counts(*args, **kwargs, out_val=result)
        return result
