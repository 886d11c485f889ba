"""Verify: scramble every free value and compare the answers of finished tasks bit by bit.

The oracle that ships with the package: it decides by outputs alone, and takes from the analysis
only which values are free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..common.bits import different, finite
from ..common.tables import notebook_html
from ..common.undisturbed import seed_generators, undisturbed
from ..errors import EnforcementError, TaskError
from ..tasks.network import Network
from . import recheck

#: The tensors that each module has returned, by path.
Record = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Verdict:
    """The effect of scrambling on one task's outputs.

    ``nans`` counts outputs that are NaN although the inputs are finite. ``sealed``: does the task
    agree with its seal? None if it cannot be compared; ``note`` gives the reason.
    """

    task: int
    name: str
    elements: int
    changed: int
    largest: float
    nans: int = 0
    sealed: bool | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.changed == 0 and self.nans == 0 and self.sealed is not False

    def __str__(self) -> str:
        text = f"{self.name}: {self.changed} of {self.elements} outputs changed"
        if self.changed:
            text += f", by up to {self.largest:.3g}"
        if self.nans:
            text += f"; {self.nans} are NaN, though the inputs are finite"
        if self.sealed is False:
            text += f"; {self.note}"
        elif self.note:
            text += f" (not compared with its seal: {self.note})"
        return text


@dataclass(frozen=True)
class Verification:
    """The verdicts on all finished tasks.

    ``moved`` names the first layer, in the order of the forward pass, whose frozen channels
    changed. ``random``: the model answers the same inputs differently each time, so that tasks were
    compared with the same random numbers for every answer.
    """

    rounds: int
    tasks: tuple[Verdict, ...]
    moved: str | None
    random: bool = False

    @property
    def ok(self) -> bool:
        return not self.random and all(verdict.ok for verdict in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        lines = [str(verdict) for verdict in self.tasks]
        if self.moved is not None:
            lines.append(f"the first layer whose frozen channels moved: {self.moved}")
        return "\n".join([*lines, f"{self._verdict()} in {self.rounds} rounds"])

    def _verdict(self) -> str:
        if any(verdict.changed or verdict.sealed is False for verdict in self.tasks):
            return "FINISHED TASKS HAVE CHANGED"
        if any(verdict.nans for verdict in self.tasks):
            return "nothing moved, but FINISHED TASKS ANSWER NaN"
        if self.random:
            return (
                "the model is random in eval mode: it answers the same inputs differently each "
                "time, which no conversion can change; with the same random numbers nothing moved"
            )
        return "nothing moved"

    def _repr_html_(self) -> str:
        return notebook_html(str(self))


def verify(
    net: Network,
    args: Any,
    kwargs: Any,
    *,
    rounds: int,
    seed: int,
    others: Sequence[Network] = (),
) -> Verification:
    """See :meth:`autoeidetic.EideticNet.verify`.

    Free values of ``others``, the columns that a later one reads, are scrambled as well.
    """
    finished = [task for task in net.tasks if task.finished]
    if not finished:
        raise TaskError(
            "no task is finished, so there is nothing to verify",
            remedy="train a task and call finish_task() first",
        )
    net.pins.impose()
    generator = torch.Generator().manual_seed(seed)
    moved = None

    def ask(seeded: bool = True) -> list[list[Tensor]]:
        if seeded:  # a model may be random in eval mode as well
            seed_generators(seed)
        return [outputs(net, task.index, args, kwargs) for task in finished]

    with ExitStack() as stack:
        # first: a model may write weights on a change of mode
        kept = [(each, stack.enter_context(_kept_values(each))) for each in (net, *others)]
        stack.enter_context(undisturbed(net, evaluate=True, generators="all", gradients=False))
        # without seeds first: does the model answer the same inputs twice alike? Then with the same
        # seed: if even that fails, its randomness comes from elsewhere and nothing can be compared
        random = any(compare(a, b)[1] for a, b in zip(ask(False), ask(False), strict=True))
        before = ask()
        if random and any(compare(a, b)[1] for a, b in zip(before, ask(), strict=True)):
            raise EnforcementError(
                "the model is random in eval mode, and not by the generators of torch, NumPy or "
                "Python: it answers the same inputs differently each time",
                remedy="nothing can be compared bit for bit; take the randomness out of the model",
            )
        worst = [compare(answer, answer) for answer in before]
        for _ in range(rounds):
            for each, _ in kept:
                scramble(each, generator)
            found = [compare(a, b) for a, b in zip(before, ask(), strict=True)]
            worst = [max(pair, key=lambda c: c[1]) for pair in zip(worst, found, strict=True)]
            # while the scrambled values are still in place
            if moved is None and any(changed for _, changed, _ in found):
                moved = _first_moved(net, kept, args, kwargs)
            for each, values in kept:
                _put_back(each, values)
        nans = [_nans(answer) if finite((args, kwargs)) else 0 for answer in before]
    verdicts = tuple(
        Verdict(task.index, task.name, *counts, nan, *recheck.with_seal(net, task))
        for task, counts, nan in zip(finished, worst, nans, strict=True)
    )
    return Verification(rounds, verdicts, moved, random)


def _nans(answer: list[Tensor]) -> int:
    return sum(int(tensor.isnan().sum()) for tensor in answer)


def outputs(net: Network, task: int, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors of a task's answer."""
    output = net(*args, task=task, **kwargs)
    return [leaf.clone() for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def compare(before: list[Tensor], after: list[Tensor]) -> tuple[int, int, float]:
    """(elements, elements that differ, the largest difference)."""
    elements = changed = 0
    largest = 0.0
    for a, b in zip(before, after, strict=True):
        differs = different(a, b)
        elements += a.numel()
        changed += int(differs.sum())
        if bool(differs.any()):
            distance = (a.double() - b.double())[differs].abs().nan_to_num(nan=float("inf"))
            largest = max(largest, float(distance.max()))
    return elements, changed, largest


@contextmanager
def _kept_values(net: Network) -> Iterator[dict[str, Tensor]]:
    """Copies of all values, which are restored after the block."""
    state = _copy(net)
    try:
        yield state
    finally:
        _put_back(net, state)


def _copy(net: Network) -> dict[str, Tensor]:
    return {name: home[leaf].detach().clone() for name, (home, leaf) in net.slots.items()}


@torch.no_grad()
def _put_back(net: Network, state: dict[str, Tensor]) -> None:
    for name, value in state.items():
        home, leaf = net.slots[name]
        home[leaf].detach().copy_(value)


def scramble(net: Network, generator: torch.Generator) -> None:
    """Give everything that belongs to no finished task random values."""
    # whole tensors: heads of open tasks, and the model's own output layer if no task uses it; in
    # the rest of the backbone only free elements are written
    finished = {f"heads.{task.index}." for task in net.tasks if task.finished}
    kept = set(net.kept_head_names())
    parameters = net.call_plan.plan.parameters.items()
    idle = {name for name, entry in parameters if entry.head and name not in kept}
    free = net.free
    for name, (home, leaf) in net.slots.items():
        tensor = home[leaf]
        if not tensor.is_floating_point() or any(name.startswith(p) for p in finished):
            continue
        noise = torch.randn(tensor.shape, generator=generator).to(tensor) * _spread(tensor)
        if leaf == "running_var":  # a variance is positive
            noise = noise.abs() + 0.1
        if not name.startswith("backbone.") or name.removeprefix("backbone.") in idle:
            tensor.copy_(noise)
        else:
            free.write(name.removeprefix("backbone."), noise)


def _spread(tensor: Tensor) -> float:
    """The standard deviation of random values that keep a deep network finite."""
    # at least as wide as the present values, and 1 / sqrt(inputs) for weights, so that the variance
    # stays about the same from layer to layer
    own = float(tensor.float().std()) if tensor.numel() > 1 else 0.0
    if tensor.dim() < 2:
        return 2 * max(own, 0.25)
    inputs = math.prod(tensor.shape[1:])
    return max(own, (inputs or 1) ** -0.5)


def _first_moved(
    net: Network, kept: list[tuple[Network, dict[str, Tensor]]], args: Any, kwargs: Any
) -> str | None:
    """The first module, in the order of calls, whose frozen channels differ from before.

    The kept values are restored.
    """
    scrambled = record(net, args, kwargs)
    for each, values in kept:
        _put_back(each, values)
    last = max(task.index for task in net.tasks if task.finished)
    return first_moved(net, record(net, args, kwargs), scrambled, last)


def first_moved(net: Network, before: Record, after: Record, last: int) -> str | None:
    """The first module whose outputs differ in two passes, in channels of tasks 0 to ``last``."""
    for path, values in before.items():
        now = after.get(path, values)
        for a, b, units in zip(values, now, net.call_plan.modules[path], strict=True):
            if units is None or a.shape[1:] != units.shape[1:] or 0 in units.shape:
                continue  # other shapes than the analysed ones: this layer cannot be named
            level = net.owners.level_of(units)
            frozen = ((level <= last) & (level >= 0)).expand(units.shape)
            mine = frozen[:1].expand(a.shape) if a.dim() else frozen
            if bool((different(a, b) & mine.to(a.device)).any()):
                return path or type(net.backbone).__name__
    return None


def record(net: Network, args: Any, kwargs: Any) -> Record:
    """The outputs of every module for task 0, inner modules before outer ones."""
    seen: Record = {}
    hooks = []
    for path, module in net.backbone.named_modules():
        if path in net.call_plan.modules:

            def note(_: Any, __: Any, output: Any, path: str = path) -> None:
                leaves = pytree.tree_leaves(output)
                if len(leaves) == len(net.call_plan.modules[path]):
                    seen.setdefault(
                        path, [x.clone() if isinstance(x, Tensor) else x for x in leaves]
                    )

            hooks.append(module.register_forward_hook(note))
    try:
        net(*args, task=0, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
