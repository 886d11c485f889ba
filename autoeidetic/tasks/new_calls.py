"""New calls: what a network does when it is called in a way that no example has shown.

A known signature is a dictionary look-up. A new one is analysed on the bare model; when it needs
nothing but what the plan keeps, it gets guards and masks for its own shapes, else it is refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..calls.calls import Call, analysed, generalised, remember
from ..calls.signature import UnknownArgumentError, kind, signature
from ..common.inputs import CallInputs
from ..common.torch_modes import unsupported_tensor
from ..errors import AutoeideticError, EnforcementError
from . import forward_hooks
from .protection import device_of, unguarded
from .reference import type_now

if TYPE_CHECKING:
    from .network import Network

#: A search for a rule that took so many seconds and found none is not repeated.
_LONG = 10.0


def meet(network: Network, args: Any, kwargs: Any, *, passing: bool = False) -> None:
    """Protect the pass that follows as its call needs it; analyse a call that is new.

    ``passing``: calls like this one will not come often.

    Raises:
        EnforcementError: in eval mode, the call cannot be answered.
    """
    try:
        key = signature(args, kwargs)
    except UnknownArgumentError as error:
        if not network.training:
            raise EnforcementError(
                f"the network is called with a {error}, whose content cannot be analysed",
                remedy="pass tensors, plain values, and tuples, lists and dicts of those",
            ) from error
        return
    network.unfit = None
    call = network.calls.known.get(key)
    if call is None:
        call = _first_met(network, key, CallInputs(*_plain((args, kwargs))), passing)
    if call is not network.call:
        network.protect(call)


def path_call(network: Network, inputs: CallInputs) -> Call:
    """The call that a path of a model that reads data belongs to."""
    if inputs.decisions is None:
        return _analysed(network, inputs)
    key = (signature(inputs.args, inputs.kwargs), *inputs.decisions)
    call = network.calls.paths.get(key)
    if call is None:
        call = _analysed(network, inputs)
        remember(network.calls.paths, key, call)
    return call


def _first_met(network: Network, key: Hashable, inputs: CallInputs, passing: bool) -> Call:
    """Analyse a new call. Training makes no promise about calls, so there any call goes."""
    refusal = network.calls.refused.get(key)
    if refusal is None:
        try:
            found = network.calls.find(network.backbone, inputs)
            call = found or _analysed_alone(network, inputs, passing)
            remember(network.calls.known, key, call)
            return call
        except AutoeideticError as error:
            refusal = error.alone()
            remember(network.calls.refused, key, refusal)
    if network.training:
        network.unfit = refusal
        return network.calls.first
    raise refusal.with_traceback(None)


def _analysed_alone(network: Network, inputs: CallInputs, passing: bool) -> Call:
    """Analyse a new call; after a few of its kind, find a rule for all its sizes."""
    call = _analysed(network, inputs)
    if not passing and not call.call_plan.looks and network.calls.should_generalise(inputs):
        with _bare_model(network):
            began, varied = perf_counter(), network.calls.varied(inputs)
            if network.varies_in_batch_only:
                varied = [dims & {0} for dims in varied]
            sizes = generalised(network.backbone, network.call_plan, inputs, varied)
            if sizes is None and perf_counter() - began > _LONG:
                network.calls.give_up(inputs)
        if sizes is not None:
            key = kind(inputs.args, inputs.kwargs)
            network.calls.general.setdefault(key, []).append((sizes, call))
    return call


def _analysed(network: Network, inputs: CallInputs) -> Call:
    with _bare_model(network):
        examples = _examples_now(network)
        found = analysed(network.backbone, examples, network.call_plan, inputs)
    call = network.calls.one_of(found)
    if inputs.decisions is None:
        key = (signature(inputs.args, inputs.kwargs), *found.decisions)
        remember(network.calls.paths, key, call)
    return call


@contextmanager
def _bare_model(network: Network) -> Iterator[None]:
    """The backbone as the plain model that was converted, in the mode it was analysed in."""
    device = device_of(network.backbone, "").type
    with (
        unguarded(network),
        forward_hooks.only(network.backbone, network.original_hooks),
        torch.autocast(device, enabled=False),
        torch.inference_mode(False),
    ):
        yield


def _examples_now(network: Network) -> tuple[CallInputs, ...]:
    """The examples in the type and on the device that the network has now."""
    device = device_of(network.backbone, "")

    def now(leaf: Tensor) -> Tensor:
        return leaf.to(leaf.device if leaf.is_meta else device, type_now(network, leaf.dtype))

    def moved(example: CallInputs) -> CallInputs:
        args, kwargs = pytree.tree_map_only(Tensor, now, (example.args, example.kwargs))
        return CallInputs(args, kwargs, example.decisions)

    return tuple(map(moved, network.examples))


def _plain(arguments: Any) -> Any:
    """The same arguments with meta tensors for tensors that cannot be analysed."""

    def stand_in(tensor: Tensor) -> Tensor:
        if unsupported_tensor(tensor) is None:
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    return pytree.tree_map_only(Tensor, stand_in, arguments)
