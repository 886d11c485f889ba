"""Network: the core of a converted network.

Holds everything that a network consists of, and takes the steps in the life of a task whole or not
at all. Pins and guards are derived from the owners, and made again whenever those change: nothing
that protects a task lives in a loose attribute.

Other rooms use the public names of this class; users meet :class:`autoeidetic.EideticNet`, which
is this class behind the front door. What outlives a network (optimizer hooks, converted models) is
listed in :mod:`autoeidetic.common.process_state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..calls.calls import Call, Calls
from ..common.inputs import CallInputs
from ..common.torch_modes import is_transforming, script_error
from ..common.undisturbed import undisturbed
from ..enforce import derive_pins
from ..enforce.elements import Elements
from ..enforce.guard import Guard, Runtime, guard
from ..enforce.module_identity import ModuleIdentities, module_identities, modules_replaced
from ..enforce.optimizer_steps import watch
from ..enforce.owners import Owners
from ..enforce.pass_lock import PassLock, exclusive
from ..enforce.pins import Pin, Pins
from ..enforce.slots import Holder, tensor_slots
from ..errors import AutoeideticError, NonFiniteError, Place, TaskError
from ..plan.call_plan import CallPlan
from . import answer, compiled, divergence, forward_hooks, heads, initialise, opening
from .free_values import FreeValues
from .protection import Protection, Visible, protection, unguarded
from .pruning.computed_weights import level_computed_weights
from .snapshot import Snapshot
from .task import Task

Self = TypeVar("Self", bound="Network")
#: Layers of torch that may run fused kernels, which bypass the modules inside them.
_FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class Network(nn.Module):
    """``backbone`` is the user's model, ``heads`` its output layers, one set for each task.

    Everything below ``tasks`` and ``owners`` is derived from them by :meth:`settle`.

    Attributes:
        owners: the task that owns each unit.
        calls: the calls that were analysed; ``call`` is the one that guards are in place for.
        runtime: what the present pass is about; all guards share it.
        guards, visible: the guards by path, and what each task may see, for ``call``.
        slots: where each parameter and buffer is held, by its name in the network.
        spreads: mean and standard deviation of each parameter, for fresh values.
        analysed_types: the types that tensors had when the model was analysed.
        unfit: why the present call in training could not be analysed; None when it could.
    """

    router: Any  # a router of the room ``routing``, which comes later; None: there is none
    varies_in_batch_only = False  # a rule for the sizes of calls speaks of all sizes

    def __init__(
        self,
        model: nn.Module,
        made: tuple[CallPlan, ...],
        examples: tuple[CallInputs, ...],
        *,
        forward_transfer: bool,
        keep_head: bool,
        recycle: str,
    ) -> None:
        super().__init__()
        self.backbone = model
        self.heads = nn.ModuleDict()
        self.pass_lock = PassLock()
        self.pins = Pins(self.pass_lock)
        self.call_plan = call_plan = made[0]
        self.examples = examples
        self.check_calls = True
        self.calls = Calls.of(examples, made)
        self.call = self.calls.first
        self.original_hooks = forward_hooks.hooks_of(model)
        self.has_fused_layers = any(isinstance(module, _FUSED) for module in model.modules())
        self.keep_head = keep_head
        self.recycle = recycle
        self.owners = Owners.none(
            call_plan.plan, call_plan.plan.outside, call_plan.plan.locked, forward_transfer
        )
        self._tasks: list[Task] = []
        self.runtime = Runtime()
        self.spreads = initialise.spreads(model)
        self.head_templates = heads.templates(model, call_plan.heads)
        self.router = None
        self.finite_values = divergence.FiniteValues()
        self.unfit: AutoeideticError | None = None
        self.number = compiled.numbered(self)
        self.guards: dict[str, Guard] = {}
        self.visible: Visible = {}
        self._snapshot: Snapshot | None = None  # free values at the start of the open task
        self._protections: dict[Call, Protection] = {}
        self._identities: ModuleIdentities | None = None
        self.settle(freeze=True)
        # a saved network is analysed in the same types again
        self.analysed_types = self.types()

    @property
    def example(self) -> CallInputs:
        """The first of the example inputs."""
        return self.examples[0]

    @property
    def networks(self) -> tuple[Network, ...]:
        """The columns of the network: itself, unless it was widened."""
        return (self,)

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
        """The values of the backbone that no finished task owns."""
        inside = "backbone."
        own = {n.removeprefix(inside): s for n, s in self.slots.items() if n.startswith(inside)}
        return FreeValues(self.backbone, self.call_plan, self.owners, own)

    def trained_tensors(self) -> dict[str, Tensor]:
        """The tensors that training changes; other buffers (masks) may well be infinite."""
        statistics = {f"backbone.{name}" for name in self.call_plan.plan.buffers}
        tensors = {name: home[leaf] for name, (home, leaf) in self.slots.items()}
        return {
            name: tensor
            for name, tensor in tensors.items()
            if tensor.is_floating_point()
            and (isinstance(tensor, nn.Parameter) or name in statistics)
        }

    def types(self) -> dict[str, torch.dtype]:
        """The type of every tensor, by its name in the network."""
        return {name: home[leaf].dtype for name, (home, leaf) in self.slots.items()}

    def kept_head_names(self) -> list[str]:
        """Parameters of the model's own output layer that a finished task keeps."""
        if not self.keep_head or not self._tasks or not self._tasks[0].finished:
            return []
        return [name for head in self.call_plan.heads for name in head.parameters]

    def head(self, task: int, layer: str) -> Any:
        """A task's own head in the place of a layer; None when it uses the layer itself."""
        return self.heads[str(task)]._modules.get(heads.key(layer))

    # -- answers -------------------------------------------------------------------------------

    def column_calls(
        self, args: Any, kwargs: dict[str, Any]
    ) -> Iterator[tuple[Network, Any, dict[str, Any]]]:
        """The networks that a call concerns, with their arguments: a widened one has several."""
        yield self, args, kwargs

    def forward(self, *args: Any, task: int | str | None = None, **kwargs: Any) -> Any:
        """The outputs for a task: by default the open one, else the newest.

        Args:
            task: a task's number, or "all" for a list with the outputs of every task.
        """
        return answer.forward(self, task, args, kwargs)

    def before_pass(self, args: Any, kwargs: Any, *, passing: bool = False) -> None:
        """Follow exchanged modules, meet the call, put pinned values back.

        ``passing``: calls like this one will not come often, so no rule for their sizes is sought.
        """
        answer.before_pass(self, args, kwargs, passing=passing)

    def drawn_model(self) -> nn.Module:
        """The model that a drawing shows."""
        return self.backbone

    def by_column(self, tasks: Sequence[int]) -> list[tuple[Network, list[int]]]:
        """The columns that tasks need, each with its own numbers of those that live there."""
        return [(self, list(tasks))]

    def answering_task(self, task: int) -> int:
        """The task whose units and head answer for a task."""
        other = self._tasks[task].answered_by
        return task if other is None else other

    def answer(self, task: int, args: Any, kwargs: Any) -> Any:
        """The outputs of one task, without :meth:`before_pass`."""
        return answer.answer(self, task, args, kwargs)

    def answer_all(self, asked: tuple[int, ...], args: Any, kwargs: Any) -> list[Any]:
        """The outputs of several tasks, in one pass if that is possible."""
        return answer.answer_all(self, asked, args, kwargs)

    def bare_answers(self, asked: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """The outputs of several tasks as they come, infinite values and NaN included."""
        return answer.bare_answers(self, asked, args, kwargs)

    def answer_alone(self, task: int, args: Any, kwargs: Any) -> Any:
        """A finished task's outputs with fresh values for everything that it may not read."""
        return answer.answer_alone(self, task, args, kwargs)

    def diverged(self) -> bool:
        """Does a trained tensor hold infinite values or NaN?"""
        return divergence.diverged(self)

    # -- the life of a task --------------------------------------------------------------------

    def need_open(self, call: str) -> None:
        """Raises TaskError when no task is open."""
        if self.open_task is None:
            raise TaskError(
                f"{call} was called, but no task is open",
                remedy=f"call prepare_for_task({len(self._tasks)}) first",
            )

    def open(self, task: Task, made: nn.ModuleDict, *, keep_start: bool = True) -> None:
        """Begin a task with these heads; with ``keep_start`` :meth:`restart` can undo it."""
        if keep_start and (task.index == 0 or self.recycle == "keep"):
            with undisturbed(generators="torch", seed=task.seed + 1):
                self.free.mend(self.spreads)
            self._snapshot = Snapshot(self.free.tensors())
        self._tasks.append(task)
        self.begin(made, fresh=keep_start)

    def begin(self, made: nn.ModuleDict, *, fresh: bool = True) -> None:
        """Give the newest task its heads, and free values as they are at its start."""
        task = self._tasks[-1]
        self.owners = self.owners.opened(task.index)
        if self._snapshot is not None:
            self.free.restore(self._snapshot.load())
        elif fresh:
            with undisturbed(generators="torch", seed=task.seed + 1):
                self.free.renew(self.spreads)
        self.heads[str(task.index)] = made
        self.settle(freeze=False)

    def restart(self) -> None:
        """Take the open task back to its start.

        Raises:
            TaskError: the values at its start are gone.
        """
        if self._snapshot is None and (self.open_task == 0 or self.recycle == "keep"):
            raise TaskError(
                "the values at the start of this task are not known any more",
                remedy="load a network that was saved before the task",
            )
        self.pins.impose()
        self.begin(opening.first_heads(self, self._tasks[-1]))

    @exclusive
    def give_up(self, units: np.ndarray) -> None:
        """Take units (a boolean vector) out of the open task."""
        with self.whole():
            self.owners = self.owners.pruning(units)
            level_computed_weights(self)
            self.settle(freeze=False)

    def check_finite(self) -> None:
        """Raises NonFiniteError when a trained tensor holds infinite values or NaN."""
        tensors = self.trained_tensors().items()
        bad = [name for name, tensor in tensors if not tensor.isfinite().all()]
        if bad:
            raise NonFiniteError(
                f"task {self.open_task} cannot be finished: {len(bad)} tensors hold infinite "
                f"values or NaN, the first is {bad[0]}",
                place=Place(module=bad[0].removeprefix("backbone.").rpartition(".")[0]),
                remedy="net.rollback() takes the network back to the start of the task; train "
                "again with a lower learning rate",
            )

    def freeze(self) -> None:
        """Make everything that the open task has kept its own."""
        self._tasks[-1] = replace(self._tasks[-1], finished=True)
        self.owners = self.owners.finished()
        self._snapshot = None
        self.settle(freeze=True)

    def update_task(self, index: int, **changes: Any) -> None:
        """Change fields of a task's record."""
        self._tasks[index] = replace(self._tasks[index], **changes)

    def adopt_tasks(self, tasks: Iterable[Task]) -> None:
        """Take over other task records; ``settle`` must follow if owners or heads change, too."""
        self._tasks = list(tasks)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """A step in the life of a task that is taken as a whole or, when it fails, not at all."""
        tasks, owners, snapshot = list(self._tasks), self.owners, self._snapshot
        made, frozen = dict(self.heads._modules), self.pins.frozen_values
        try:
            yield
        except BaseException:  # interruptions as well
            self._tasks, self.owners, self._snapshot = tasks, owners, snapshot
            self.heads._modules = made
            self.pins.restore(frozen)
            self.settle(freeze=False)
            raise

    # -- derived state -------------------------------------------------------------------------

    def settle(self, *, freeze: bool) -> None:
        """Derive pins and guards from the owners; ``freeze`` takes present values as frozen."""
        self.slots = tensor_slots(self.backbone, "backbone") | tensor_slots(self.heads, "heads")
        pins = derive_pins.backbone_pins(self.call_plan, self.owners, self.kept_head_names())
        prefixed = [replace(pin, name=f"backbone.{pin.name}") for pin in pins]
        prefixed += [Pin(name, Elements(), None) for name in self._finished_heads()]
        restricted = [f"backbone.{n}" for n in derive_pins.backward_restricted(self.call_plan)]
        self.pins.bind(prefixed, self.slots, restricted, freeze=freeze)
        # frozen tensors keep requires_grad: torch.matmul picks its kernel, and so its bits, by it
        self._ddp_params_and_buffers_to_ignore = self.untrained()
        watch(self.pins)
        self._protections = {}
        self._install()
        self._identities = module_identities(self)
        self.finite_values.forget()
        self.pins.impose()  # last: what fails before has changed no value

    def _finished_heads(self) -> list[str]:
        """The tensors of the heads of finished tasks."""
        finished = [task.index for task in self._tasks if task.finished]
        return [
            name
            for index in finished
            for name in tensor_slots(self.heads[str(index)], f"heads.{index}")
        ]

    def untrained(self) -> list[str]:
        """Tensors that take no part in training: other output layers, and frozen values."""
        names = [f"backbone.{n}" for head in self.call_plan.heads for n in head.parameters]
        if self.keep_head and self.open_task == 0:
            names = []
        return names + self._finished_heads()

    def follow(self) -> None:
        """Accept modules that were exchanged for others of their kind since the last look.

        Raises:
            EnforcementError: a module, a head or a parameter was exchanged for something that the
                analysis has not seen, was added or removed.
        """
        if self._identities is not None and modules_replaced(self._identities):
            self.settle(freeze=False)
        check = Holder.check_closely if is_transforming() else Holder.check
        for home, name in self.slots.values():
            if home.kind == "_parameters":
                check(home, name)

    def protect(self, call: Call) -> None:
        """Put the guards in place that a call needs."""
        self.call = call
        self._install()

    def _install(self) -> None:
        """Put guards on the modules that need one, and take them from the others."""
        if self.call not in self._protections:
            self._protections[self.call] = protection(self, self.call)
        wanted = self._protections[self.call]
        found, self.visible = wanted.guards, wanted.visible
        paths = set(self.guards) | set(found)
        # an interruption may leave old and new guards mixed: both are listed until all are in place
        self.guards = {**self.guards, **found}
        for path in paths:
            guard(self.backbone.get_submodule(path), found.get(path))
        self.guards = found

    def unguarded(self) -> AbstractContextManager[None]:
        """A context in which the backbone has no guards, to look at it; not to run tasks."""
        return unguarded(self)

    # -- what nn.Module does -------------------------------------------------------------------

    @exclusive
    def train(self: Self, mode: bool = True) -> Self:
        """Set the mode, then put pinned values back: a model may write weights on a change."""
        changes = mode != self.training
        super().train(mode)
        if changes:
            self.pins.impose()
        return self

    @exclusive
    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state of this network; frozen values stay, other networks' are refused."""
        self.follow()
        self.pins.check(args[0] if args else kwargs["state_dict"], "pins.")
        result = super().load_state_dict(*args, **kwargs)
        self.pins.impose()
        return result

    @exclusive
    def _apply(self: Self, fn: Any, recurse: bool = True) -> Self:
        self.follow()
        self.pins.impose()
        super()._apply(fn, recurse)
        self.settle(freeze=False)
        return self

    def __prepare_scriptable__(self) -> NoReturn:  # torch.jit.script calls it
        raise script_error()

    def __getstate__(self) -> dict[str, Any]:
        self.follow()  # a copy takes its modules for the converted ones
        # compiled code is bound to this network, and guarded classes cannot be pickled by name
        return {**super().__getstate__(), "_identities": None, "_protections": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.number = compiled.numbered(self)
        self.settle(freeze=False)
