"""Costs: parameters and multiply-adds of a network and of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..capture.capture import capture
from ..common.inputs import CallInputs
from ..common.undisturbed import undisturbed
from ..tasks.network import Network


def parameters(network: Network, tasks: Sequence[int], headless: bool) -> int:
    """The parameters of the model, with the heads of these tasks in place of its own."""
    own = {name for head in network.call_plan.heads for name in head.parameters}
    sizes = {name: p.numel() for name, p in network.backbone.named_parameters()}
    body = sum(size for name, size in sizes.items() if name not in own)
    if headless:
        return body
    kept = sum(size for name, size in sizes.items() if name in own)
    heads = [
        sum(p.numel() for p in network.heads[str(task)].parameters()) for task in {*tasks}
    ]  # a task that keeps the model's own head has none
    return body + sum(made or kept for made in heads)


def of_network(network: Network, inputs: CallInputs) -> int:
    """Multiply-adds of the bare model, for one input."""
    model = network.backbone
    with network.unguarded(), undisturbed(model, evaluate=True, gradients=False, quiet=True):
        graph = capture(model, inputs).module()
    leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
    return multiply_adds(graph, [leaf for leaf in leaves if isinstance(leaf, Tensor)])


def multiply_adds(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> int:
    """Multiply-adds of matrix products, convolutions and attention, for one input."""
    rows = next((t.shape[0] for t in inputs if t.dim()), 1)
    try:  # shapes are enough
        operations = _operations(_on_meta(graph), [tensor.to("meta") for tensor in inputs])
    except Exception:  # an operator without a kernel for shapes alone, or one that reads values
        operations = _operations(graph, inputs)
    # a multiplication and an addition are two operations
    return operations // 2 // max(rows, 1)


def _on_meta(graph: fx.GraphModule) -> fx.GraphModule:
    """The same graph with tensors that have no values."""
    names = {str(node.target) for node in graph.graph.find_nodes(op="get_attr")}
    tensors = dict(graph.state_dict(keep_vars=True))
    return fx.GraphModule({name: tensors[name].detach().to("meta") for name in names}, graph.graph)


def _operations(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> int:
    with (
        undisturbed(graph, generators="all", gradients=False, quiet=True),
        _Operations() as counted,
    ):
        fx.Interpreter(graph).run(*inputs)
    return counted.total


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
