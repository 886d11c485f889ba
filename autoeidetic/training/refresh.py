"""Refresh: running statistics of norms, estimated anew from data.

In training a batch norm uses the statistics of the batch; in eval mode it uses running ones, which
are averages over earlier steps. After few steps, or after a round of pruning, those describe
weights that are no longer there, and accuracy in eval mode can be that of chance. So they are
taken again, as plain averages over some batches with the weights as they are now.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..common import distributed
from ..common.batches import call, divided, to_device
from ..common.inputs import check_loader
from ..common.whole_numbers import whole_number
from ..errors import InputError, NonFiniteError, Place, TaskError
from .state import kept_random

if TYPE_CHECKING:
    from ..enforce.guard import Runtime
    from ..net import EideticNet

#: How many batches suffice: a thousand samples of 32 in a batch give a mean to 3 % of its spread.
BATCHES = 32
#: Batch and instance norms of torch, and what is derived from them in timm and elsewhere.
_NORMS = nn.modules.batchnorm._NormBase
_COUNTER = "num_batches_tracked"


@torch.inference_mode(mode=False)
def refresh_statistics(net: EideticNet, loader: Iterable[Any], *, batches: int = BATCHES) -> None:
    """Estimate the running statistics of batch norms anew, for the weights as they are now.

    For a loop of one's own: before accuracy is measured in eval mode, and before ``finish_task``.
    :meth:`train_task` does it by itself. Channels of finished tasks keep their statistics bit for
    bit; parameters, gradients, modes and random generators stay as they are. Norms run in train
    mode, everything else (dropout) in eval mode, for the statistics are for use in eval mode. A
    network without running statistics reads no batch.

    Args:
        loader: batches of training data: (inputs, targets), or inputs alone; inputs are a tensor,
            a tuple or a dict.
        batches: how many of them are read at most: the first ones, or of a list some that are
            spread evenly.

    With several processes all of them call it, each reads its part, and all get the average.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> model = nn.Sequential(
        ...     nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
        ... )
        >>> x = torch.randn(64, 4)
        >>> net = autoeidetic.convert(model, x)
        >>> net.prepare_for_task(0, num_classes=2)  # train it, prune it, and then:
        >>> net.prune(0.5)
        >>> net.refresh_statistics([(x, None)])
        >>> net.finish_task()

    Raises:
        TaskError: no task is open.
        InputError: the loader gives no batches, or none of this kind.
        NonFiniteError: statistics would be infinite or NaN; they stay as they were.
    """
    if net.open_task is None:
        raise TaskError(
            "refresh_statistics() was called without an open task",
            remedy=f"call prepare_for_task({len(net.tasks)}) first",
        )
    if (whole_number(batches) or 0) < 1:
        raise InputError(f"batches={batches!r} is not a number of batches", remedy="pass 32, say")
    check_loader(loader, "loader")
    device = next(net.parameters()).device

    def forward(batch: Any) -> None:
        call(net, _inputs(to_device(batch, device)))

    estimate(net, divided(loader), forward, batches)


def _inputs(batch: Any) -> Any:
    """What the network is called on; targets are not needed."""
    if isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise InputError(
                f"a batch is a {type(batch).__name__} of {len(batch)} values",
                remedy="let the loader give (inputs, targets), or inputs alone; inputs are a "
                "tensor, a tuple of positional or a dict of keyword arguments",
            )
        return batch[0]
    return batch


# -- the estimate --------------------------------------------------------------------------------


@dataclass
class _Norm:
    """A module that holds running statistics of free channels.

    ``tensors`` are its statistics with the elements that are free (None: all of them), ``calls``
    counts its calls in the estimate.
    """

    path: str
    module: nn.Module
    tensors: dict[str, tuple[Tensor, Tensor | None]]
    calls: int = 0


def estimate(
    net: EideticNet, loader: Iterable[Any], forward: Callable[[Any], Any], batches: int = BATCHES
) -> None:
    """Average the statistics of free channels over some batches; ``forward`` runs the network.

    Either all of them are estimated or, when something fails, none.
    """
    norms = _lagging(net)
    if not norms:
        return
    with torch.no_grad(), _put_back_on_failure(net, norms):
        with kept_random(loader), _modes(net, norms), _counting(norms, net._runtime), _eager():
            read = 0
            for batch in _some(loader, batches):
                forward(batch)
                read += 1
        if not int(distributed.total(torch.tensor(read))):
            raise no_batches()
        _average(norms)
        _check_finite(norms)
    net.pins.impose()


def _lagging(net: EideticNet) -> list[_Norm]:
    """The norms whose statistics follow the weights: none without free channels.

    A norm that its model keeps in eval mode while it trains, or whose momentum is zero, has the
    statistics that it is meant to have.
    """
    free = net.free
    found: dict[str, _Norm] = {}
    names = {name: free.elements(name) for name in net.blueprint.plan.buffers}
    names = {name: mask for name, mask in names.items() if mask is not None and bool(mask.any())}
    if not any(task.finished for task in net.tasks):  # from then on they are frozen as a whole
        names |= dict.fromkeys(
            name for name in net.blueprint.plan.constants if _is_running(net, name)
        )
    for name, mask in names.items():
        path, _, leaf = name.rpartition(".")
        module = net.backbone.get_submodule(path)
        if module.__dict__.get("momentum", 1.0) == 0.0:
            continue
        norm = found.setdefault(path, _Norm(path, module, {}))
        home, leaf = free.slots[name]
        norm.tensors[name] = (home[leaf], None if mask is None else mask.to(home[leaf].device))
    if not found:
        return []
    with _mode(net, training=True):
        return [norm for norm in found.values() if norm.module.training]


def _is_running(net: EideticNet, name: str) -> bool:
    """Statistics that a norm of somebody's own updates and computes with (timm's EvoNorm)."""
    path, _, leaf = name.rpartition(".")
    return leaf.startswith("running_") and "momentum" in vars(net.backbone.get_submodule(path))


@contextmanager
def _mode(net: EideticNet, *, training: bool) -> Iterator[None]:
    """The network in a mode, unless it is in it; afterwards every module is in its own again."""
    modes = {module: module.training for module in net.modules()}
    try:
        if net.training != training:
            net.train(training)
        yield
    finally:
        if net.training != modes[net]:
            net.train(modes[net])
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _modes(net: EideticNet, norms: list[_Norm]) -> Iterator[None]:
    """Norms in train mode, everything else in eval mode."""
    with _mode(net, training=False):
        for norm in norms:
            norm.module.training = True  # not what is inside: timm's norms hold a dropout
        yield


@contextmanager
def _counting(norms: list[_Norm], runtime: Runtime) -> Iterator[None]:
    """Each call of a norm counts the same: its momentum is one divided by the calls so far.

    That is what ``momentum=None`` means for a batch norm, and it holds for instance norms, too. A
    run for a level in which nothing learns updates nothing, and does not count.
    """

    def counted(norm: _Norm) -> Callable[[Any, Any], None]:
        def before(module: Any, args: Any) -> None:
            if not runtime.settled:
                norm.calls += 1
                module.momentum = 1 / norm.calls

        return before

    own = [norm for norm in norms if isinstance(norm.module, _NORMS)]
    momenta = [norm.module.momentum for norm in own]
    hooks: list[Any] = []
    try:
        for norm in own:
            hooks.append(norm.module.register_forward_pre_hook(counted(norm)))
            counter = norm.module._buffers[_COUNTER]
            if counter is not None:
                counter.zero_()
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm, momentum in zip(own, momenta, strict=True):
            norm.module.momentum = momentum


@contextmanager
def _put_back_on_failure(net: EideticNet, norms: list[_Norm]) -> Iterator[None]:
    tensors = [tensor for norm in norms for tensor, _ in norm.tensors.values()]
    counters = [norm.module._buffers.get(_COUNTER) for norm in norms]
    tensors += [counter for counter in counters if counter is not None]
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:  # also when it is interrupted
        for tensor, values in zip(tensors, before, strict=True):
            tensor.copy_(values)
        raise


def _eager() -> AbstractContextManager[Any]:
    """A compiled network is not compiled again for each momentum."""
    compiles = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


def _some(loader: Any, number: int) -> Iterable[Any]:
    if isinstance(loader, (list, tuple)) and len(loader) > number:
        return (loader[each * len(loader) // number] for each in range(number))
    return itertools.islice(loader, number)


def _average(norms: list[_Norm]) -> None:
    """Over all processes, weighted by what each has seen."""
    if distributed.count() == 1:
        return
    for norm in norms:
        weight = torch.tensor([float(norm.calls if isinstance(norm.module, _NORMS) else 1)])
        for tensor, free in norm.tensors.values():
            own = tensor.double().cpu()
            sums = distributed.total(torch.cat([own.flatten() * weight, weight.double()]))
            if float(sums[-1]):
                mean = (sums[:-1] / sums[-1]).view_as(tensor).to(tensor)
                tensor.copy_(mean if free is None else torch.where(free, mean, tensor))


def _check_finite(norms: list[_Norm]) -> None:
    for norm in norms:
        for name, (tensor, _) in norm.tensors.items():
            if not bool(tensor.isfinite().all()):
                raise NonFiniteError(
                    f"the running statistics '{name}' would be infinite or NaN",
                    place=Place(module=norm.path),
                    remedy="look for infinite values or NaN in the inputs; if training has "
                    "diverged, net.rollback() takes the network back to the start of the task",
                )


def no_batches() -> InputError:
    """Nothing could be read."""
    return InputError(
        "the loader gave no batches",
        remedy="pass one that has some and can be read again and again, such as a DataLoader or a "
        "list (a generator can be read once)",
    )
