"""Answering: a backbone with the heads of tasks, which answers for each of them.

Holds everything that a network consists of. Pins and guards are derived from the owners, and
installed anew whenever those change.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from . import enforce, heads, initialise, routing
from .blueprint import ATTACHED, Blueprint, HeadPlan
from .errors import DivergenceWarning, TaskError
from .free import FreeValues
from .inputs import CallInputs
from .integers import whole_number
from .layers.guard import Guard, Runtime, guard
from .owners import Owners
from .parts import Parts, exchanged, parts
from .passes import PassLock
from .pins import Pin, Pins, Where, state, watch
from .seal import Seal
from .snapshot import Snapshot

Self = TypeVar("Self", bound="Answering")


@dataclass(frozen=True)
class Task:
    """A task: its name, the classes of each of its heads, and whether it is finished.

    ``revisits`` is the earlier task it is a second go at; ``answered_by`` the second go that
    answers in its place; ``seal`` what it was when it was finished.
    """

    index: int
    name: str
    classes: dict[str, int]
    finished: bool
    seed: int
    revisits: int | None = None
    answered_by: int | None = None
    seal: Seal | None = None


class Answering(nn.Module):
    """``backbone`` is the user's model, ``heads`` its output layers, one set per task."""

    def __init__(
        self,
        model: nn.Module,
        blueprint: Blueprint,
        inputs: CallInputs,
        *,
        forward_transfer: bool,
        keep_head: bool,
        recycle: str,
    ) -> None:
        super().__init__()
        self.backbone = model
        self.heads = nn.ModuleDict()
        self.pins = Pins()
        self.blueprint = blueprint
        self.example = inputs
        self.keep_head = keep_head
        self.recycle = recycle
        self.owners = Owners.none(
            blueprint.plan, blueprint.outside, blueprint.locked, forward_transfer
        )
        self._tasks: list[Task] = []
        self._runtime = Runtime()
        self._one_at_a_time = PassLock()
        self._spreads = initialise.spreads(model)
        self._templates = heads.templates(model, blueprint.heads)
        self.router: routing.Router | None = None
        self._snapshot: Snapshot | None = None
        self._finite: Any = None
        self._guards: dict[str, Guard] = {}
        self._parts: Parts | None = None
        self._visible: dict[tuple[str | int, int], Tensor | None] = {}
        self._settle(freeze=True)
        # what the analysis saw: a saved network is analysed in the same types again
        self._dtypes = self._types()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks so far."""
        return tuple(self._tasks)

    @property
    def open_task(self) -> int | None:
        """The task in training."""
        return self.owners.open_task

    @property
    def free(self) -> FreeValues:
        """What no finished task owns."""
        inside = "backbone."
        own = {n.removeprefix(inside): s for n, s in self._slots.items() if n.startswith(inside)}
        return FreeValues(self.backbone, self.blueprint, self.owners, own)

    def _trained(self) -> dict[str, Tensor]:
        """What training changes; a mask in a buffer may well be infinite."""
        statistics = {f"backbone.{name}" for name in self.blueprint.plan.buffers}
        tensors = {name: home[leaf] for name, (home, leaf) in self._slots.items()}
        return {
            name: tensor
            for name, tensor in tensors.items()
            if tensor.is_floating_point()
            and (isinstance(tensor, nn.Parameter) or name in statistics)
        }

    # -- running -------------------------------------------------------------------------------

    def forward(self, *args: Any, task: int | str | None = None, **kwargs: Any) -> Any:
        """The outputs for a task: by default the one in training, else the newest.

        Args:
            task: a task's number, or "all" for a list with the outputs of every task.
        """
        if torch.compiler.is_compiling():
            return self._forward(task, args, kwargs)
        with self._one_at_a_time:
            self._before(args, kwargs)
            return self._forward(task, args, kwargs)

    def _forward(self, task: int | str | None, args: Any, kwargs: Any) -> Any:
        asked = self._asked(task)
        if task == "all":
            return self._answer_all(asked, args, kwargs)
        return self._answer(asked[0], args, kwargs)

    def _asked(self, task: int | str | None) -> tuple[int, ...]:
        count = len(self._tasks)
        if not count:
            raise TaskError("no task yet", remedy="call prepare_for_task(0, num_classes=...) first")
        if task is None:
            return (count - 1,)
        if isinstance(task, str) and task == "all":
            return tuple(self._answering(each) for each in range(count))
        given = task
        task = whole_number(task)
        if task is None or not 0 <= task < count:
            raise TaskError(
                f"task={given!r}, but there are tasks 0 to {count - 1}",
                remedy='pass one of them, or "all"',
            )
        return (self._answering(task),)

    def _answering(self, task: int) -> int:
        """The task whose units and head answer for a task."""
        other = self._tasks[task].answered_by
        return task if other is None else other

    def _before(self, args: Any, kwargs: Any) -> None:
        self._follow()
        learning = self.training and torch.is_grad_enabled()
        self.pins.before_forward(learning)
        leaves = pytree.tree_leaves((args, kwargs))
        self._runtime.restrict = not (
            torch.is_grad_enabled()
            and any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
        )
        for each in self._guards.values():
            each.runs = 0
            if each.counter is not None:
                each.counter.done = 0

    def _answer_all(self, asked: tuple[int, ...], args: Any, kwargs: Any) -> list[Any]:
        if not self.blueprint.joint or len(asked) == 1:
            return [self._answer(task, args, kwargs) for task in asked]
        output = self._run(asked, args, kwargs)
        parts = [self._part(output, position, asked) for position in range(len(asked))]
        if self._suspect(asked, parts):
            return [self._answer(task, args, kwargs) for task in asked]
        return parts

    def _answer(self, task: int, args: Any, kwargs: Any) -> Any:
        if self._tasks[task].finished and self._diverged():
            return self._answer_without_free(task, args, kwargs)
        output = self._part(self._run((task,), args, kwargs), 0, (task,))
        if self._suspect((task,), [output]):
            return self._answer_without_free(task, args, kwargs)
        return output

    def _run(self, tasks: tuple[int, ...], args: Any, kwargs: Any) -> Any:
        """One pass of the body, for some heads."""
        self._runtime.tasks = tasks
        if torch.compiler.is_compiling():
            with self._parameter_heads(tasks):
                return self.backbone(*args, **kwargs)
        # the fused kernels of torch's transformer layers pass the norms in them by
        fused = bool(self._guards) and torch.backends.mha.get_fastpath_enabled()
        if fused:
            torch.backends.mha.set_fastpath_enabled(False)
        try:
            with self._parameter_heads(tasks):
                output = self.backbone(*args, **kwargs)
        finally:
            if fused:
                torch.backends.mha.set_fastpath_enabled(True)
        if not self.training:
            enforce.check_runs(self._guards)
        return output

    @contextmanager
    def _parameter_heads(self, tasks: tuple[int, ...]) -> Iterator[None]:
        """Put the task's own parameters in the place of output parameters of the model."""
        swapped = []
        try:
            for head in self.blueprint.heads:
                if head.leaf is None:
                    continue
                own = self._head(tasks[0], head.layer)
                home: dict[str, Any] = self.backbone.get_submodule(head.holder)._parameters
                swapped.append((home, head.leaf, home[head.leaf]))
                value = home[head.leaf] if own is None else own.value
                home[head.leaf] = heads.mask(value, self._visible[head.layer, tasks[0]])
            yield
        finally:
            for home, leaf, value in swapped:
                home[leaf] = value

    def _part(self, output: Any, position: int, asked: tuple[int, ...]) -> Any:
        """What one task sees of an output that holds those of several tasks side by side."""
        task = asked[position]
        leaves, structure = pytree.tree_flatten(output)
        attached = self.blueprint.heads[0]
        if attached.layer == ATTACHED:
            features = leaves[attached.reads]
            if self._runtime.features is not None:
                self._runtime.features[ATTACHED] = features
            return self._head(task, ATTACHED)(heads.mask(features, self._visible[ATTACHED, task]))
        if len(leaves) != len(self.blueprint.outputs):  # a model with other outputs in training
            return output
        parts = []
        for number, (leaf, where) in enumerate(zip(leaves, self.blueprint.split, strict=True)):
            if len(asked) > 1 and where is not None:
                dim, layer = where
                leaf = leaf.split([self._tasks[t].classes[layer] for t in asked], dim)[position]
            elif isinstance(leaf, Tensor) and where is None:
                leaf = heads.mask(leaf, self._visible[number, task])
            parts.append(leaf)
        return pytree.tree_unflatten(parts, structure)

    # -- when training diverges ----------------------------------------------------------------

    def _diverged(self) -> bool:
        """Are there free values that are infinite or NaN? Looked up again when they change."""
        if self.open_task is None or torch.compiler.is_compiling():
            return False
        tensors = list(self._trained().values())
        now = state(tensors)
        if self._finite is None or self._finite[0] != now:
            self._finite = (now, all(bool(t.isfinite().all()) for t in tensors))
        return not self._finite[1]

    def _suspect(self, asked: tuple[int, ...], outputs: list[Any]) -> bool:
        """Is there something infinite or NaN in what a finished task answers during training?"""
        if self.open_task is None or torch.compiler.is_compiling():
            return False
        return any(
            isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf.isfinite().all()
            for task, output in zip(asked, outputs, strict=True)
            if self._tasks[task].finished
            for leaf in pytree.tree_leaves(output)
        )

    def _answer_without_free(self, task: int, args: Any, kwargs: Any) -> Any:
        """A finished task's outputs, computed with all free values set to zero."""
        warnings.warn(
            f"task {self.open_task} has diverged: finished tasks are answered without its units; "
            "net.rollback() takes the network back to the start of the task",
            DivergenceWarning,
            stacklevel=4,
        )
        with torch.no_grad(), self.free.set_to_zero():
            return self._part(self._run((task,), args, kwargs), 0, (task,))

    # -- keeping derived state right -----------------------------------------------------------

    def _settle(self, *, freeze: bool) -> None:
        """Derive pins and guards from the owners."""
        self._slots = enforce.slots(self.backbone, "backbone") | enforce.slots(self.heads, "heads")
        pins = enforce.backbone_pins(self.blueprint, self.owners, self._own_heads())
        prefixed = [replace(pin, name=f"backbone.{pin.name}") for pin in pins]
        for task in self._tasks:
            if task.finished:
                names = enforce.slots(self.heads[str(task.index)], f"heads.{task.index}")
                prefixed += [Pin(name, Where(), None) for name in names]
        covered = [f"backbone.{name}" for name in enforce.covered(self.blueprint)]
        self.pins.bind(prefixed, self._slots, covered, freeze=freeze)
        # they keep requires_grad, for torch.matmul picks its kernel, and so its bits, by that
        self._ddp_params_and_buffers_to_ignore = self._unused()
        watch(self.pins)
        self._install()
        self._parts = parts(self)
        self._finite = None
        self.pins.impose()  # last, so that what fails before has changed no value

    def _follow(self) -> None:
        """Go on with modules that were exchanged for others of their kind since the last look.

        Raises:
            EnforcementError: a module, a head or a parameter was exchanged for something that the
                analysis has not seen, was added or taken away.
        """
        if self._parts is not None and exchanged(self._parts):
            self._settle(freeze=False)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A step in the life of tasks that is taken as a whole or, when it fails, not at all."""
        tasks, owners, snapshot = list(self._tasks), self.owners, self._snapshot
        made, values = dict(self.heads._modules), dict(self.pins._buffers)
        try:
            yield
        except BaseException:  # also when it is interrupted
            self._tasks, self.owners, self._snapshot = tasks, owners, snapshot
            self.heads._modules, self.pins._buffers = made, values
            self._settle(freeze=False)
            raise

    def _own_heads(self) -> list[str]:
        """Parameters of the model's own head that a finished task keeps."""
        if not self.keep_head or not self._tasks or not self._tasks[0].finished:
            return []
        return [name for head in self.blueprint.heads for name in head.parameters]

    def _unused(self) -> list[str]:
        """What takes no part in training: other output layers, and frozen values."""
        names = [f"backbone.{n}" for head in self.blueprint.heads for n in head.parameters]
        if self.keep_head and self.open_task == 0:
            names = []
        for task in self._tasks:
            if task.finished:
                names += enforce.slots(self.heads[str(task.index)], f"heads.{task.index}")
        return names + [f"pins.{name}" for name in self.pins._buffers]

    def _install(self) -> None:
        """Put guards on the modules that need one, take them from the others."""
        device = lambda path: device_of(self.backbone, path)  # noqa: E731
        found = enforce.guards(self.blueprint, self.owners, self._runtime, device)
        looked_at = {head.layer: head.inputs for head in self.blueprint.heads}
        looked_at |= dict(enumerate(self.blueprint.outputs))  # type: ignore[arg-type]
        self._visible = {
            (key, task.index): enforce.visible(classes, task.index, self.owners, device(""))
            for key, classes in looked_at.items()
            for task in self._tasks
        }
        for head in self.blueprint.heads:
            if head.leaf is None and head.layer != ATTACHED and self._tasks:
                found[head.holder] = Guard(head.holder, whole=self._slot(head))
        paths = set(self._guards) | set(found)
        self._guards = {**self._guards, **found}  # those there may be, if this is interrupted
        for path in paths:
            guard(self.backbone.get_submodule(path), found.get(path))
        self._guards = found

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """The backbone as the bare model that it was, for a look at it; not for running tasks."""
        try:
            for path in self._guards:
                guard(self.backbone.get_submodule(path), None)
            yield
        finally:
            for path, found in self._guards.items():
                guard(self.backbone.get_submodule(path), found)

    def _head(self, task: int, layer: str) -> Any:
        """A task's own head in the place of a layer; None when it uses the layer itself."""
        return self.heads[str(task)]._modules.get(heads.key(layer))

    def _slot(self, head: HeadPlan) -> heads.HeadSlot:
        slot = heads.HeadSlot(self._runtime, head.layer, head.dim)
        for task in self._tasks:
            slot.heads[task.index] = self._head(task.index, head.layer)
            seen = None if head.nested else self._visible[head.layer, task.index]
            slot.visible[task.index] = seen
        return slot

    def train(self: Self, mode: bool = True) -> Self:
        """As ever; a change of mode is an occasion to put pinned values back.

        Afterwards, for a model may write weights when it changes its mode.
        """
        changes = mode != self.training
        super().train(mode)
        if changes:
            self.pins.impose()
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As ever, except that frozen values stay what they are; those of others are refused."""
        self._follow()
        self.pins.check(args[0] if args else kwargs["state_dict"], "pins.")
        result = super().load_state_dict(*args, **kwargs)
        self.pins.impose()
        return result

    def _apply(self: Self, fn: Any, recurse: bool = True) -> Self:
        self._follow()
        self.pins.impose()
        before = self._types()
        super()._apply(fn, recurse)
        self._settle(freeze=False)
        changed = [kind for name, kind in self._types().items() if before.get(name, kind) != kind]
        if changed:
            self._tasks = [_converted(task, changed[0]) for task in self._tasks]
        return self

    def _types(self) -> dict[str, torch.dtype]:
        return {name: home[leaf].dtype for name, (home, leaf) in self._slots.items()}

    def __getstate__(self) -> dict[str, Any]:
        self._follow()  # a copy takes what it finds for what was converted
        return {**self.__dict__, "_parts": None}  # classes with guards have no name to be found by

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._settle(freeze=False)


def _converted(task: Task, kind: torch.dtype) -> Task:
    """A task whose sealed values may have been rounded."""
    if task.seal is None:
        return task
    return replace(task, seal=replace(task.seal, converted=str(kind)))


def device_of(model: nn.Module, path: str) -> torch.device:
    module = model.get_submodule(path)
    for tensor in chain(module.parameters(), module.buffers(), model.parameters()):
        return tensor.device
    return torch.device("cpu")
