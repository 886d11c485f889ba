"""Compiled: the checks of a network whose pass is a compiled graph.

``torch.compile`` runs the Python code of a pass once, when it traces it; later passes run the graph
alone. So the checks are in two places:

    standing       at compile time: was this call analysed, and can it be compiled?
    looked_after   an operator before the body: put pinned values back, as an eager pass does
    watched        an operator behind the head: look for NaN in the answer

An eager network that answers NaN repeats the pass without the units that have diverged. A graph
cannot do that, so the operator raises an error instead of returning a wrong answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.utils import _pytree as pytree

from ..common.bits import finite
from ..common.process_state import network_numbers, networks_by_number
from ..errors import DivergenceWarning, EnforcementError, NonFiniteError, warn_user
from . import reference

if TYPE_CHECKING:
    from .network import Network


def numbered(net: Network) -> int:
    """Register a network under a new number, by which a graph finds it; a copy gets another one."""
    number = next(network_numbers)
    networks_by_number[number] = net
    return number


KNOWN, NEW, EAGER = "known", "new", "eager"


def standing(number: int, key: Hashable) -> str:
    """How a call is treated; asked when it is compiled, and a constant of the graph.

    KNOWN: it can be compiled as it is. NEW: it was not analysed yet, or has other masks than the
    present call. EAGER: it cannot be compiled, because its code looks at data or because the
    network was changed; the eager pass raises the error for that.
    """
    net = networks_by_number[number]
    try:
        if not torch.compiler.is_exporting():  # export has put stand-ins in place of parameters
            net.follow()
    except EnforcementError:
        return EAGER
    call = net.calls.known.get(key)
    if net.check_calls and call is not None and call.call_plan.looks:
        return EAGER
    return KNOWN if not net.check_calls or call is net.call else NEW


# what torch.compiler.assume_constant_result does, without importing the compiler
standing._dynamo_marked_constant = True  # type: ignore[attr-defined]


@_disable_dynamo
def uncompiled(function: Any, *args: Any) -> Any:
    """Call a function outside the compiled graph."""
    return function(*args)


def looked_after(inputs: Any, network: int) -> Any:
    """The same inputs, through an operator that prepares the network in every run of the graph."""
    # one tensor is enough: everything that reads it waits for the operator. The graph has no other
    # way to order a side effect before the body
    leaves, structure = pytree.tree_flatten(inputs)
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            leaves[position] = _prepare_pass(leaf, network)
            break
    return pytree.tree_unflatten(leaves, structure)


# not in a CUDA graph, which would replay kernels without running this code
@torch.library.custom_op(
    "autoeidetic::look_after", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,)
)
def _prepare_pass(value: Tensor, network: int) -> Tensor:
    net = networks_by_number.get(network)
    if net is not None:
        net.follow()
        net.pins.before_forward(net.training)
    return value.clone()  # a custom operator may not return its input


@_prepare_pass.register_fake
def _(value: Tensor, network: int) -> Tensor:
    return torch.empty_like(value)


_prepare_pass.register_autograd(lambda ctx, gradient: (gradient, None))


def watched(answer: Any, inputs: Any, network: int, task: int) -> Any:
    """The same answer, through an operator that checks it for NaN in every run of the graph."""
    given = [leaf for leaf in pytree.tree_leaves(inputs) if _is_real(leaf)]
    return pytree.tree_map(
        lambda leaf: _check_for_nan(leaf, given, network, task) if _is_real(leaf) else leaf, answer
    )


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


@torch.library.custom_op("autoeidetic::look", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _check_for_nan(answer: Tensor, inputs: Sequence[Tensor], network: int, task: int) -> Tensor:
    # NaN in the inputs explains NaN in the answer; with finite inputs something has diverged
    if bool(answer.isnan().any()) and finite(inputs):
        net = networks_by_number.get(network)
        if net is not None:
            _raise_or_warn(net, task)
    return answer.clone()


@_check_for_nan.register_fake
def _(answer: Tensor, inputs: Sequence[Tensor], network: int, task: int) -> Tensor:
    return torch.empty_like(answer)


def _backward(ctx: Any, gradient: Tensor) -> Any:
    return gradient, [None] * ctx.inputs, None, None


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.inputs = len(inputs[1])


_check_for_nan.register_autograd(_backward, setup_context=_setup)


def _raise_or_warn(net: Network, task: int) -> None:
    """Report that a finished task answers NaN to finite inputs.

    Raises:
        NonFiniteError: units of other tasks have diverged.
    """
    if net.diverged() or reference.poisoned(net, task):
        raise NonFiniteError(
            f"task {task} answers NaN in a compiled network: units that are not its own are "
            "infinite or NaN",
            remedy="call the network uncompiled, which answers without them; net.rollback() takes "
            "it back to the start of an open task",
        )
    warn_user(
        f"task {task} answers NaN to finite inputs in a compiled network; if the uncompiled "
        "network does not, units that are not its own overflow",
        DivergenceWarning,
    )
