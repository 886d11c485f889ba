"""Running statistics of norms, re-estimated from data for the current weights.

In train mode a batch norm uses the statistics of the batch; in eval mode it uses running ones,
which are averages over earlier steps. After few steps, or after a round of pruning, those describe
weights that no longer exist, and accuracy in eval mode can be that of chance. So they are
re-estimated, as plain averages over some batches with the current weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..common import distributed
from ..common.batches import call, divided, to_device
from ..common.inputs import check_loader, whole_number
from ..common.undisturbed import undisturbed
from ..enforce.guard import Runtime
from ..errors import InputError, NonFiniteError, Place, TaskError
from ..tasks.network import Network
from .state import generators_of

#: Enough batches: a thousand samples, 32 in a batch, give a mean to 3 % of its spread.
BATCHES = 32
#: Batch and instance norms of torch, and classes derived from them in timm and elsewhere.
_NORMS = nn.modules.batchnorm._NormBase
_COUNTER = "num_batches_tracked"


@torch.inference_mode(mode=False)
def refresh_statistics(net: Network, loader: Iterable[Any], *, batches: int = BATCHES) -> None:
    """The estimate behind :meth:`autoeidetic.EideticNet.refresh_statistics`."""
    if net.open_task is None:
        raise TaskError(
            "refresh_statistics() was called without an open task",
            remedy=f"call prepare_for_task({len(net.tasks)}) first",
        )
    if (whole_number(batches) or 0) < 1:
        raise InputError(
            f"batches={batches!r} is not a number of batches", remedy="pass 32, for example"
        )
    check_loader(loader, "loader")
    device = next(net.parameters()).device

    def forward(batch: Any) -> None:
        call(net, _inputs(to_device(batch, device)))

    estimate(net, divided(loader), forward, batches)


def _inputs(batch: Any) -> Any:
    """The inputs of a batch; targets are not needed."""
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
    """A module with running statistics of free channels.

    ``tensors`` maps the name of each statistic to its tensor and a mask of the free elements (None:
    all are free). ``calls`` counts the calls of the module during the estimate.
    """

    path: str
    module: nn.Module
    tensors: dict[str, tuple[Tensor, Tensor | None]]
    calls: int = 0


def estimate(
    net: Network, loader: Iterable[Any], forward: Callable[[Any], Any], batches: int = BATCHES
) -> None:
    """Average the statistics of free channels over some batches; ``forward`` runs the network.

    Either all statistics are replaced or, if something fails, none.
    """
    norms = _lagging(net)
    if not norms:
        return
    with torch.no_grad(), _put_back_on_failure(net, norms):
        # Eager: a compiled network would be compiled again for each momentum
        kept = undisturbed(generators="all", also=generators_of(loader), eager=True)
        with kept, _modes(net, norms), _counting(norms, net.runtime):
            read = 0
            for batch in _some(loader, batches):
                forward(batch)
                read += 1
        if not int(distributed.total(torch.tensor(read))):
            raise no_batches()
        _average(norms)
        _check_finite(norms)
    # Norms may have updated statistics of frozen channels as well: write the pinned values back.
    net.pins.impose()


def _lagging(net: Network) -> list[_Norm]:
    """The norms whose statistics follow the weights: those with free channels.

    Norms that the model keeps in eval mode while it trains, or whose momentum is zero, are left
    out: their statistics are fixed on purpose.
    """
    free = net.free
    found: dict[str, _Norm] = {}
    names = {name: free.elements(name) for name in net.call_plan.plan.buffers}
    names = {name: mask for name, mask in names.items() if mask is not None and bool(mask.any())}
    # Statistics that belong to no unit are frozen as a whole when the first task is finished.
    if not any(task.finished for task in net.tasks):
        names |= dict.fromkeys(
            name for name in net.call_plan.plan.constants if _is_running(net, name)
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
    # A model's train() may leave some norms in eval mode, so put it in train mode and look.
    with _mode(net, training=True):
        return [norm for norm in found.values() if norm.module.training]


def _is_running(net: Network, name: str) -> bool:
    """Is this a running statistic of a custom norm (timm's EvoNorm)?"""
    path, _, leaf = name.rpartition(".")
    return leaf.startswith("running_") and "momentum" in vars(net.backbone.get_submodule(path))


@contextmanager
def _mode(net: Network, *, training: bool) -> Iterator[None]:
    """The network in train or eval mode; afterwards every module has its own mode again."""
    before = net.training
    with undisturbed(net):
        try:
            if net.training != training:
                net.train(training)
            yield
        finally:
            if net.training != before:  # train() puts pinned values back
                net.train(before)


@contextmanager
def _modes(net: Network, norms: list[_Norm]) -> Iterator[None]:
    """Norms in train mode, everything else in eval mode."""
    with _mode(net, training=False):
        for norm in norms:
            norm.module.training = True  # not what is inside: timm's norms hold a dropout
        yield


@contextmanager
def _counting(norms: list[_Norm], runtime: Runtime) -> Iterator[None]:
    """Make norms compute plain averages: before call n, the momentum is set to 1 / n.

    That is what ``momentum=None`` means for a batch norm; instance norms do not support it. A run
    for a level in which nothing learns updates no statistics, and is not counted.
    """

    def counted(norm: _Norm) -> Callable[[Any, Any], None]:
        def before(module: Any, args: Any) -> None:
            if not runtime.settled:
                norm.calls += 1
                module.momentum = 1 / norm.calls

        return before

    # running = (1 - m) * running + m * batch. With m = 1, 1/2, 1/3, ... that is the plain mean of
    # the batches so far, and the old value drops out with the first one (m = 1).
    # Custom norms keep their own momentum: their formula is not known.
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
def _put_back_on_failure(net: Network, norms: list[_Norm]) -> Iterator[None]:
    """Restore all statistics if an exception passes."""
    tensors = [tensor for norm in norms for tensor, _ in norm.tensors.values()]
    counters = [norm.module._buffers.get(_COUNTER) for norm in norms]
    tensors += [counter for counter in counters if counter is not None]
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    except BaseException:  # KeyboardInterrupt, too
        for tensor, values in zip(tensors, before, strict=True):
            tensor.copy_(values)
        raise


def _some(loader: Any, number: int) -> Iterable[Any]:
    """At most ``number`` batches; of a list evenly spaced ones, as it may be sorted by class."""
    if isinstance(loader, (list, tuple)) and len(loader) > number:
        return (loader[each * len(loader) // number] for each in range(number))
    return itertools.islice(loader, number)


def _average(norms: list[_Norm]) -> None:
    """Average over all processes, weighted by the number of calls in each."""
    if distributed.count() == 1:
        return
    for norm in norms:
        weight = torch.tensor([float(norm.calls if isinstance(norm.module, _NORMS) else 1)])
        for tensor, free in norm.tensors.values():
            own = tensor.double().cpu()
            sums = distributed.total(torch.cat([own.flatten() * weight, weight.double()]))
            # sums: the weighted statistics of all processes, then the sum of the weights. Frozen
            # channels keep their bits, so the mean is written to free ones only.
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
    """The error for a loader that gives nothing."""
    return InputError(
        "the loader gave no batches",
        remedy="pass one that has some and can be read again and again, such as a DataLoader or a "
        "list (a generator can be read once)",
    )
