"""Compiled: what a network looks at where no Python code of a pass is run.

Whether a call was analysed is asked when it is compiled. A compiled network cannot answer a second
time without what has diverged, as an eager one does. So an operator in its graph looks for NaN at
run time and raises an error instead of a wrong answer.
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
    """A number by which a graph can find a network again; a copy gets another one."""
    number = next(network_numbers)
    networks_by_number[number] = net
    return number


KNOWN, NEW, EAGER = "known", "new", "eager"


def standing(number: int, key: Hashable) -> str:
    """How a call is to be treated, asked when it is compiled.

    NEW: it was not analysed yet, or is protected otherwise. EAGER: it cannot be compiled, for its
    code looks at data, or the network has been changed, which the eager pass will tell.
    """
    net = networks_by_number[number]
    try:
        if not torch.compiler.is_exporting():  # with stand-ins for its parameters
            net.follow()
    except EnforcementError:
        return EAGER
    call = net.calls.known.get(key)
    if net.check_calls and call is not None and call.call_plan.looks:
        return EAGER
    return KNOWN if not net.check_calls or call is net.call else NEW


# as torch.compiler.assume_constant_result does it, without importing the compiler
standing._dynamo_marked_constant = True  # type: ignore[attr-defined]


@_disable_dynamo
def uncompiled(function: Any, *args: Any) -> Any:
    """Call a function without compiling anything in it."""
    return function(*args)


def looked_after(inputs: Any, network: int) -> Any:
    """The same inputs; when the graph is run, the network is looked after before they are used."""
    leaves, structure = pytree.tree_flatten(inputs)
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            leaves[position] = _look_after(leaf, network)
            break
    return pytree.tree_unflatten(leaves, structure)


@torch.library.custom_op(
    "autoeidetic::look_after", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,)
)
def _look_after(value: Tensor, network: int) -> Tensor:
    net = networks_by_number.get(network)
    if net is not None:
        net.follow()
        net.pins.before_forward(net.training)
    return value.clone()


@_look_after.register_fake
def _(value: Tensor, network: int) -> Tensor:
    return torch.empty_like(value)


_look_after.register_autograd(lambda ctx, gradient: (gradient, None))


def watched(answer: Any, inputs: Any, network: int, task: int) -> Any:
    """The same answer; NaN in it is looked into when the graph is run."""
    given = [leaf for leaf in pytree.tree_leaves(inputs) if _is_real(leaf)]
    return pytree.tree_map(
        lambda leaf: _look(leaf, given, network, task) if _is_real(leaf) else leaf, answer
    )


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


@torch.library.custom_op("autoeidetic::look", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _look(answer: Tensor, inputs: Sequence[Tensor], network: int, task: int) -> Tensor:
    if bool(answer.isnan().any()) and finite(inputs):
        net = networks_by_number.get(network)
        if net is not None:
            _explain(net, task)
    return answer.clone()


@_look.register_fake
def _(answer: Tensor, inputs: Sequence[Tensor], network: int, task: int) -> Tensor:
    return torch.empty_like(answer)


def _backward(ctx: Any, gradient: Tensor) -> Any:
    return gradient, [None] * ctx.inputs, None, None


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.inputs = len(inputs[1])


_look.register_autograd(_backward, setup_context=_setup)


def _explain(net: Network, task: int) -> None:
    """Why does a finished task answer NaN to finite inputs?

    Raises:
        NonFiniteError: something else than its own units has diverged.
    """
    if net.diverged() or reference.poisoned(net, task):
        raise NonFiniteError(
            f"task {task} answers NaN in a compiled network: units that are not its own are "
            "infinite or NaN",
            remedy="ask the network itself, which answers without them; net.rollback() takes it "
            "back to the start of an open task",
        )
    warn_user(
        f"task {task} answers NaN to finite inputs in a compiled network; if the network itself "
        "does not, units that are not its own overflow",
        DivergenceWarning,
    )
