"""Base: the router interface, and the registry of kinds.

A router reads one row of numbers per input (:meth:`Router.look`), is fitted to the rows of all
tasks (:meth:`Router.fit`) and gives every task a score (:meth:`Router.scores`):

    Seen (features, logits)  -> look ->  rows [inputs, numbers]  -> scores ->  [inputs, tasks]

What it has learned are buffers, never parameters: ``net.parameters()`` goes to the optimizer of the
next task, which would train or decay them. Names, types and shapes of the buffers are data
(``Router.layout``), so a saved router can be checked before any of its code computes with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import InputError
from .features import Seen, View

#: Tensor name -> (type, names of its sizes); names may contain "{task}".
Layout = Mapping[str, tuple[torch.dtype, tuple[str, ...]]]
_ROUTERS: dict[str, type[Router]] = {}


@dataclass(frozen=True)
class Examples:
    """The data of one task: a row for each input, and labels if every input has one."""

    rows: Tensor
    labels: Tensor | None


@dataclass(frozen=True)
class Settings:
    """Settings of a router's training; each kind uses those that apply to it."""

    epochs: int
    lr: float
    seed: int
    progress: bool
    device: torch.device


class Router(nn.Module):
    """Finds the task of an input.

    A custom router is a subclass, registered with :func:`autoeidetic.router`. Its constructor must
    work without arguments. Arguments that it has are options of ``net.train_router`` and matter to
    :meth:`fit` alone: a saved file holds only the tensors.

    ``layout`` gives the type and the sizes of every tensor that :meth:`fit` returns. A size is a
    name: "tasks", "width" (the number of features), "seen_{task}" (the number of features that a
    task may see), or a custom name, which must mean the same size wherever it occurs. "{task}"
    stands for every task in turn.
    """

    kind: ClassVar[str] = ""
    needs_data: ClassVar[bool] = True
    reads_outputs: ClassVar[bool] = False
    layout: ClassVar[Layout] = {}

    def __init__(self) -> None:
        super().__init__()
        self.tasks = 0

    def look(self, seen: Seen) -> Tensor:
        """A row of numbers for each input; by default the features."""
        return seen.features

    def fit(
        self, examples: Sequence[Examples], view: View, settings: Settings
    ) -> dict[str, Tensor]:
        """The tensors of the layout, learned from examples; an empty list if no data was given."""
        raise NotImplementedError

    def scores(self, rows: Tensor, view: View) -> Tensor:
        """Scores ``[inputs, tasks]``: the highest wins, and their softmax is the confidence."""
        raise NotImplementedError

    def keep(self, tensors: Mapping[str, Tensor], view: View) -> None:
        """Register the tensors that :meth:`fit` returned as buffers.

        Raises:
            InputError: they do not match the layout.
        """
        if next(self.parameters(), None) is not None:
            raise InputError(
                "the router has parameters, which the optimizer of the next task would change",
                remedy="let fit return the learned values as tensors",
            )
        _check(self.layout, tensors, view.sizes)
        self.tasks = view.tasks
        for name in _expanded(self.layout, view.tasks):
            self.register_buffer(name, tensors[name].detach())

    def _apply(self, fn: Any, recurse: bool = True) -> Router:
        """Move with the network between devices, but keep the precision of the buffers.

        ``net.half()`` would round them, and another task could win.
        """
        # Let torch move the buffers, then replace those that it rounded by the originals.
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        return self


# -- the registry ------------------------------------------------------------------------------


def router(name: str) -> Callable[[type[Router]], type[Router]]:
    """Register a kind of router, a subclass of ``autoeidetic.routing.Router``.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> @autoeidetic.router("nearest")
        ... class Nearest(autoeidetic.routing.Router):
        ...     layout = {"centres": (torch.float32, ("tasks", "width"))}
        ...
        ...     def fit(self, examples, view, settings):
        ...         return {"centres": torch.stack([e.rows.mean(0) for e in examples])}
        ...
        ...     def scores(self, rows, view):
        ...         return -torch.cdist(rows, self.centres)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> net = autoeidetic.convert(model, torch.randn(2, 4))
        >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
        >>> net.train_router([[torch.randn(5, 4)]], by="nearest")
        >>> net.predict(torch.randn(3, 4)).task
        tensor([0, 0, 0])

    Raises:
        InputError: the name is taken, or the class is not a router.
    """

    def register(kind: type[Router]) -> type[Router]:
        if not isinstance(kind, type) or not issubclass(kind, Router):
            raise InputError(
                f"{kind!r} is not a router", remedy="make a subclass of autoeidetic.routing.Router"
            )
        if name in _ROUTERS:
            raise InputError(
                f"there is a router {name!r} already", remedy="register it by another name"
            )
        # A file stores the name of the kind, so a class must have exactly one.
        if "kind" in vars(kind):
            raise InputError(
                f"{kind.__qualname__} is the router {kind.kind!r} already",
                remedy="make a subclass of it, and register that",
            )
        kind.kind = name
        _ROUTERS[name] = kind
        return kind

    return register


def make(by: str, options: Mapping[str, Any]) -> Router:
    """A new router that is not fitted yet.

    Raises:
        InputError: there is no such kind, or the kind has no such option.
    """
    if by not in _ROUTERS:
        raise InputError(
            f"there is no router {by!r}", remedy=f"use one of {', '.join(sorted(_ROUTERS))}"
        )
    kind = _ROUTERS[by]
    known = [name for name in inspect.signature(kind).parameters if name not in ("args", "kwargs")]
    for name in options:
        if name not in known:
            raise InputError(
                f"the router {by!r} has no option {name!r}",
                remedy=f"its options are {', '.join(known)}" if known else "it has none",
            )
    return kind(**options)


def restore(kind: str, tensors: Mapping[str, Tensor], view: View) -> Router:
    """A router made from its stored tensors.

    Raises:
        InputError: there is no such kind, or the tensors do not fit it.
    """
    # No options: they matter to ``fit`` only. ``keep`` checks the tensors, which may come from an
    # edited file.
    made = make(kind, {})
    made.keep(tensors, view)
    return made


# -- the layout --------------------------------------------------------------------------------


def _check(layout: Layout, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
    """Compare tensors with a layout; the first tensor with a custom size defines that size."""
    expected = _expanded(layout, sizes["tasks"])
    for name in tensors:
        if name not in expected:
            raise InputError(
                f"the router has a tensor {name!r}", remedy="the layout has no such name"
            )
    # Custom sizes are not in ``sizes``; setdefault below takes them from their first tensor.
    known = dict(sizes)
    for name, (dtype, names) in expected.items():
        if name not in tensors:
            fact = f"the router has no tensor {name!r}"
            raise InputError(fact, remedy="every name of the layout needs one")
        tensor = tensors[name]
        if tensor.dtype != dtype or tensor.dim() != len(names):
            raise InputError(
                f"the router has {name} as {list(tensor.shape)} of {tensor.dtype}",
                remedy=f"it must have {len(names)} dimensions and be {dtype}",
            )
        for size, found in zip(names, tensor.shape, strict=True):
            if known.setdefault(size, found) != found:
                raise InputError(
                    f"the router has {name} of shape {list(tensor.shape)}",
                    remedy=f"{size} must be {known[size]} in it",
                )
        if not bool(tensor.isfinite().all()):
            fact = f"the router has infinite values or NaN in {name}"
            raise InputError(fact, remedy="train it again")


def _expanded(layout: Layout, tasks: int) -> dict[str, tuple[torch.dtype, tuple[str, ...]]]:
    """The layout with "{task}" replaced by every task number."""
    return {
        name.format(task=task): (dtype, tuple(size.format(task=task) for size in sizes))
        for name, (dtype, sizes) in layout.items()
        for task in range(tasks)
    }
