"""Fitting: read the features of all finished tasks' data once, and train a router on them.

Several processes each read their part; the rows are exchanged, and all processes get the router
that the first one fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..common import distributed
from ..common.batches import divided, length, to_device
from ..common.inputs import check_loader
from ..common.undisturbed import undisturbed
from ..errors import InputError, NonFiniteError, TaskError
from ..tasks.network import Network
from .base import Examples, Router, Settings, make
from .features import View, observe, routable_tasks, view


def train(
    net: Network,
    loaders: Sequence[Iterable[Any]] | None,
    by: str,
    settings: Settings,
    options: Mapping[str, Any],
) -> Router:
    """See :meth:`autoeidetic.EideticNet.train_router`."""
    made = make(by, options)
    _check(net, loaders, made, settings)
    window = view(net, len(routable_tasks(net)))
    # Tensors made in inference mode could not be trained on. Autocast would round what is learned,
    # and the fit of the first process is sent to all, so that every process routes alike.
    # The seed gives loaders that shuffle the same order every time.
    with undisturbed(generators="cpu", seed=settings.seed, trainable=True):
        examples = [] if loaders is None else _read(net, loaders, made, window, settings)
        with torch.enable_grad(), torch.autocast(settings.device.type, enabled=False):
            made.keep(distributed.first(made.fit(examples, window, settings)), window)
    return made


def _check(
    net: Network, loaders: Sequence[Iterable[Any]] | None, made: Router, settings: Settings
) -> None:
    finished = routable_tasks(net)
    if not finished:
        raise TaskError(
            "no task is finished, so there is no task to route to",
            remedy="train a task and call finish_task() first",
        )
    if isinstance(settings.epochs, bool) or not isinstance(settings.epochs, int):
        raise InputError(
            f"epochs={settings.epochs!r} is not a whole number", remedy="pass a whole number"
        )
    if settings.epochs < 1 or not settings.lr > 0:
        raise InputError(
            f"epochs={settings.epochs} and lr={settings.lr} are not both above 0",
            remedy="both must be above 0",
        )
    one_each = "pass a list with one loader of (inputs, labels) for each finished task"
    if loaders is None:
        if made.needs_data:
            raise InputError(f"by={made.kind!r} needs data", remedy=one_each)
        return
    if not isinstance(loaders, (list, tuple)):
        raise InputError(
            f"loaders is a {type(loaders).__qualname__}, not a list of loaders", remedy=one_each
        )
    if len(loaders) != len(finished):
        names = ", ".join(f"'{net.tasks[task].name}'" for task in finished)
        raise InputError(
            f"{len(loaders)} loaders were passed for {len(finished)} finished tasks ({names})",
            remedy=one_each,
        )
    for number, loader in enumerate(loaders):
        check_loader(loader, f"loaders[{number}]")


def _read(
    net: Network,
    loaders: Sequence[Iterable[Any]],
    made: Router,
    window: View,
    settings: Settings,
) -> list[Examples]:
    """The rows and labels of every task's data, in memory."""
    loaders = [divided(loader) for loader in loaders]
    # A total is shown only if all lengths are known.
    lengths = [length(loader) for loader in loaders]
    total = sum(n for n in lengths if n is not None) if None not in lengths else None
    bar = tqdm(
        total=total,
        desc="features",
        unit="batch",
        delay=1,
        leave=False,
        disable=not settings.progress or distributed.rank() > 0,
    )
    with undisturbed(net, evaluate=True, gradients=False), bar:
        return [
            _examples(net, number, loader, made, window, settings, bar)
            for number, loader in enumerate(loaders)
        ]


def _examples(
    net: Network,
    number: int,
    loader: Iterable[Any],
    made: Router,
    window: View,
    settings: Settings,
    bar: Any,
) -> Examples:
    rows, labels = [], []
    about = f" of loader {number} (task '{net.tasks[window.numbers[number]].name}')"
    for batch in loader:
        args, kwargs, answer = _parts(batch, settings.device)
        net.before_pass(args, kwargs)
        seen = observe(net, window, args, kwargs, outputs=made.reads_outputs)
        found = made.look(seen)
        check_finite(found, about)
        rows.append(found.cpu())  # [inputs, numbers]: small, while the inputs may not fit
        labels.append(_labels(answer, len(found)))
        bar.update()
    # In the order of the ranks: every process has the same rows in the same order.
    rows = list(chain(*distributed.share(rows)))
    labels = list(chain(*distributed.share(labels)))
    if not sum(len(found) for found in rows):
        raise InputError(f"the data{about} is empty", remedy="pass a loader that has batches")
    # One batch without class numbers is enough to treat the whole task as unlabelled.
    known = [each for each in labels if each is not None]
    return Examples(torch.cat(rows), torch.cat(known) if len(known) == len(labels) else None)


def check_finite(rows: Tensor, about: str = "") -> None:
    """Check that all rows are finite.

    Raises:
        NonFiniteError: a row has infinite values or NaN.
    """
    bad = int((~rows.isfinite()).any(1).sum())
    if bad:
        raise NonFiniteError(
            f"the features of {bad} of {len(rows)} inputs{about} are infinite or NaN",
            remedy="look for infinite values or NaN in the inputs; a network in float16 may need "
            "bfloat16 or float32",
        )


def _parts(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Positional arguments, keyword arguments and labels of a batch."""
    labels = None
    if isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise InputError(
                f"a batch is a {type(batch).__name__} of {len(batch)} values",
                remedy="let loaders give (inputs, labels), or inputs alone; inputs are a tensor, "
                "a tuple of positional or a dict of keyword arguments",
            )
        batch, labels = batch[0], batch[1] if len(batch) == 2 else None
    batch = to_device(batch, device)
    if isinstance(batch, Mapping):
        return (), dict(batch), labels
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}, labels


def _labels(labels: Any, rows: int) -> Tensor | None:
    """The labels if they are one class number for each input; otherwise None."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.shape != (rows,):
        return None
    return labels.detach().cpu().long()
