"""Answering: a backbone with the heads of tasks, which answers for each of them.

Holds everything that a network consists of. Pins and guards are derived from the owners, and
installed anew whenever those change.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .. import routing
from ..calls.calls import Call, Calls, analysed, generalised, remember
from ..calls.signature import UnknownArgumentError, kind, signature
from ..capture.decisions import decisions
from ..common.bits import alike, finite
from ..common.inputs import CallInputs
from ..common.torch_modes import (
    not_scriptable,
    recording,
    same_trace,
    strangeness,
    transforming,
    unrecorded,
)
from ..common.whole_numbers import whole_number
from ..enforce import derive
from ..enforce.guard import Guard, Runtime, guard
from ..enforce.module_identity import Parts, exchanged, parts
from ..enforce.owners import Owners
from ..enforce.pass_lock import PassLock, exclusive
from ..enforce.pins import Home, Pin, Pins, Where, state, watch
from ..errors import AutoeideticError, DivergenceWarning, EnforcementError, TaskError
from ..plan.call_plan import ATTACHED, CallPlan, HeadPlan
from ..proof import seals
from ..proof.seals import Seal
from . import compiled, forward_hooks, heads, initialise
from .free_values import FreeValues
from .reference import type_now
from .snapshot import Snapshot

Self = TypeVar("Self", bound="Answering")
#: So many paths are tried until one is protected as it is taken.
_PATHS = 4
_FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
#: For each output layer or number of an output, and each task, what the task may see of it.
_Visible = dict[tuple[str | int, int], Tensor | None]
#: Guards by the path of their module, and what tasks may see.
_Protection = tuple[dict[str, Guard], _Visible]


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
        self._one_at_a_time = PassLock()
        self.pins = Pins(self._one_at_a_time)
        self.blueprint = blueprint = made[0]
        self.examples = examples
        self.check_calls = True
        self._calls = Calls.of(examples, made)
        self._call = self._calls.first
        self._hooks = forward_hooks.hooks_of(model)
        # torch's own transformer layers pass the norms in them by, where fused kernels are allowed
        self._fused = any(isinstance(module, _FUSED) for module in model.modules())
        self.keep_head = keep_head
        self.recycle = recycle
        self.owners = Owners.none(
            blueprint.plan, blueprint.plan.outside, blueprint.plan.locked, forward_transfer
        )
        self._tasks: list[Task] = []
        self._runtime = Runtime()
        self._spreads = initialise.spreads(model)
        self._templates = heads.templates(model, blueprint.heads)
        self.router: routing.Router | None = None
        self._snapshot: Snapshot | None = None
        self._finite: Any = None
        self._unfit: AutoeideticError | None = None  # why the call in training was not analysed
        self._number = compiled.numbered(self)
        self._guards: dict[str, Guard] = {}
        self._protections: dict[Call, _Protection] = {}
        self._parts: Parts | None = None
        self._visible: _Visible = {}
        self._settle(freeze=True)
        # what the analysis saw: a saved network is analysed in the same types again
        self._dtypes = self._types()

    @property
    def example(self) -> CallInputs:
        """The first of the example inputs."""
        return self.examples[0]

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
        if not torch.compiler.is_compiling():
            return self._eagerly(task, args, kwargs)
        fused = self._fused and not self.training and torch.backends.mha.get_fastpath_enabled()
        standing = compiled.standing(self._number, signature(args, kwargs))
        if fused or standing == compiled.EAGER:
            return compiled.uncompiled(Answering._eagerly, self, task, args, kwargs)
        if standing == compiled.NEW:
            compiled.uncompiled(Answering._meet, self, args, kwargs)
            if self._call.blueprint.looks:  # which only its analysis can tell
                return compiled.uncompiled(Answering._eagerly, self, task, args, kwargs)
        if not torch.compiler.is_exporting():
            self._runtime.restrict = not _want_gradients((args, kwargs))
            args, kwargs = compiled.looked_after((args, kwargs), self._number)
        return self._forward(task, args, kwargs)

    def _eagerly(self, task: int | str | None, args: Any, kwargs: Any) -> Any:
        with self._one_at_a_time:
            with unrecorded():
                self._before(args, kwargs)
            if recording() or transforming():  # neither takes a backward pass of our own
                self._runtime.restrict = False
            with same_trace():
                return self._forward(task, args, kwargs)

    def _forward(self, task: int | str | None, args: Any, kwargs: Any) -> Any:
        asked = self._asked(task)
        if task == "all":
            return self._answer_all(asked, args, kwargs)
        return self._answer(asked[0], args, kwargs)

    def _asked(self, task: int | str | None) -> tuple[int, ...]:
        count = len(self._tasks)
        if not count:
            raise TaskError(
                "the network has no task yet",
                remedy="call prepare_for_task(0, num_classes=...) first",
            )
        if task is None:
            return (count - 1,)
        if isinstance(task, str) and task == "all":
            return tuple(self._answering(each) for each in range(count))
        given = task
        task = whole_number(task)
        if task is None or not 0 <= task < count:
            raise TaskError(
                f"task={given!r} does not exist: there are tasks 0 to {count - 1}",
                remedy='pass one of them, or "all"',
            )
        return (self._answering(task),)

    def _answering(self, task: int) -> int:
        """The task whose units and head answer for a task."""
        other = self._tasks[task].answered_by
        return task if other is None else other

    def _before(self, args: Any, kwargs: Any) -> None:
        self._follow()
        if self.check_calls:
            self._meet(args, kwargs)
        learning = self.training and torch.is_grad_enabled()
        self.pins.before_forward(learning)
        self._runtime.restrict = not _want_gradients((args, kwargs))

    def _answer_all(self, asked: tuple[int, ...], args: Any, kwargs: Any) -> list[Any]:
        if not self._call.blueprint.joint or len(asked) == 1:
            return [self._answer(task, args, kwargs) for task in asked]
        output = self._run(asked, args, kwargs)
        parts = [self._part(output, position, asked) for position in range(len(asked))]
        if torch.compiler.is_compiling():
            pairs = zip(asked, parts, strict=True)
            return [self._watched(task, part, args, kwargs) for task, part in pairs]
        if self._suspect(asked, parts):
            return [self._answer(task, args, kwargs) for task in asked]
        return parts

    def _answer(self, task: int, args: Any, kwargs: Any) -> Any:
        if self._tasks[task].finished and self._diverged():
            self._warn_diverged(task)
            return self._alone(task, args, kwargs)
        output = self._part(self._run((task,), args, kwargs), 0, (task,))
        if torch.compiler.is_compiling():
            return self._watched(task, output, args, kwargs)
        if self._suspect((task,), [output]):
            return self._second_opinion(task, output, args, kwargs)
        return output

    def _run(self, tasks: tuple[int, ...], args: Any, kwargs: Any) -> Any:
        """One pass of the body, for some heads."""
        watched = self._call.blueprint.looks and self.check_calls and not self.training
        if watched and not torch.compiler.is_compiling():
            return self._watched_pass(tasks, args, kwargs)
        return self._pass(tasks, args, kwargs)

    def _watched_pass(self, tasks: tuple[int, ...], args: Any, kwargs: Any) -> Any:
        """A pass of a model that looks at data: the path that it has taken is one that is known.

        Raises:
            EnforcementError: it is not, and needs something that the network's plan does not keep.
        """
        problem: EnforcementError | None = None
        for _ in range(_PATHS):
            output, problem = None, None
            with decisions() as seen:
                try:
                    output = self._pass(tasks, args, kwargs)
                except EnforcementError as error:  # perhaps it is to be protected as another path
                    problem = error
            call = self._path(CallInputs(args, kwargs, None if problem else tuple(seen)))
            if call is self._call:
                break
            self._protect(call)
        else:
            problem = EnforcementError(
                "the model takes another path each time that it is protected for the last one",
                remedy="compute with tensors instead of numbers (torch.where instead of if)",
            )
        if problem is not None:
            raise problem
        return output

    def _path(self, inputs: CallInputs) -> Call:
        """The call that a path of a model that looks at data belongs to."""
        if inputs.decisions is None:
            return self._analysed(inputs)
        key = (signature(inputs.args, inputs.kwargs), *inputs.decisions)
        call = self._calls.paths.get(key)
        if call is None:
            call = self._analysed(inputs)
            remember(self._calls.paths, key, call)
        return call

    def _pass(self, tasks: tuple[int, ...], args: Any, kwargs: Any) -> Any:
        self._runtime.tasks = tasks
        self._runtime.counting = not torch.compiler.is_compiling()
        derive.start_runs(self._guards)
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
        except RuntimeError as error:
            if self._unfit is not None:  # the masks are those of another call
                raise self._unfit from error
            raise
        finally:
            if fused:
                torch.backends.mha.set_fastpath_enabled(True)
        if not self.training:
            derive.check_runs(self._guards)
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
        blueprint = self._call.blueprint
        attached = blueprint.heads[0]
        if attached.layer == ATTACHED:
            features = leaves[attached.reads]
            if self._runtime.features is not None:
                self._runtime.features[ATTACHED] = features
            return self._head(task, ATTACHED)(heads.mask(features, self._visible[ATTACHED, task]))
        if len(leaves) != len(blueprint.outputs) and self.training:
            return output  # a model may have other outputs in training
        derive.check_outputs(leaves, blueprint)
        parts = []
        for number, (leaf, where) in enumerate(zip(leaves, blueprint.split, strict=True)):
            if len(asked) > 1 and where is not None:
                dim, layer = where
                leaf = leaf.split([self._tasks[t].classes[layer] for t in asked], dim)[position]
            elif isinstance(leaf, Tensor) and where is None:
                leaf = heads.mask(leaf, self._visible[number, task])
            parts.append(leaf)
        return pytree.tree_unflatten(parts, structure)

    # -- values that are not finite ------------------------------------------------------------

    def _bare(self, asked: list[int], args: Any, kwargs: Any) -> list[Any]:
        """What tasks answer, be it infinite or NaN: in one pass of the body, if that can be."""
        if self._call.blueprint.joint:
            output = self._run(tuple(asked), args, kwargs)
            return [self._part(output, position, tuple(asked)) for position in range(len(asked))]
        return [self._part(self._run((task,), args, kwargs), 0, (task,)) for task in asked]

    def _diverged(self) -> bool:
        """Are there free values that are infinite or NaN? Looked up again when they change."""
        if recording():
            return False
        if self.open_task is None and self._finite is not None:
            # nothing learns: changes that the pins have noticed are reason enough to look again
            if self._finite[2] == self.pins.changes:
                return not self._finite[1]
        tensors = list(self._trained().values())
        now = state(tensors)
        if self._finite is None or self._finite[0] != now:
            self._finite = (now, all(bool(t.isfinite().all()) for t in tensors), 0)
        self._finite = (*self._finite[:2], self.pins.changes)
        return not self._finite[1]

    def _watched(self, task: int, output: Any, args: Any, kwargs: Any) -> Any:
        """The answer of a compiled network: see :mod:`autoeidetic.tasks.compiled`."""
        if torch.compiler.is_exporting() or not self._tasks[task].finished:
            return output
        return compiled.watched(output, (args, kwargs), self._number, task)

    def _suspect(self, asked: tuple[int, ...], outputs: list[Any]) -> bool:
        """Is there something infinite or NaN in what a finished task answers?"""
        if recording() or transforming():  # there are no values to look at
            return False
        pairs = zip(asked, outputs, strict=True)
        return any(self._tasks[task].finished and not finite(output) for task, output in pairs)

    def _second_opinion(self, task: int, output: Any, args: Any, kwargs: Any) -> Any:
        """What to make of an answer that is not finite: whose fault is it?"""
        alone = self._alone(task, args, kwargs)
        if not alike(output, alone):
            self._warn_diverged(task)
        elif not finite((args, kwargs)):
            warnings.warn(
                f"the inputs hold infinite values or NaN, and so does the answer of task {task}: "
                "no task has diverged",
                DivergenceWarning,
                stacklevel=5,
            )
        else:  # a task may well answer so: masks, logarithms
            return output
        return alone

    def _warn_diverged(self, task: int) -> None:
        if self.open_task is not None:
            what = (
                f"task {self.open_task} has diverged: finished tasks are answered without its "
                "units; net.rollback() takes the network back to the start of the task"
            )
        else:
            what = (
                "values that no finished task owns, or units of later tasks, are infinite or NaN: "
                f"task {task} is answered without them; prepare_for_task({len(self._tasks)}) gives "
                "what is free fresh values"
            )
        warnings.warn(what, DivergenceWarning, stacklevel=5)

    def _alone(self, task: int, args: Any, kwargs: Any) -> Any:
        """A finished task's outputs with zeros for all that it and earlier tasks do not own."""
        before = replace(self.free, owners=self.owners.upto(task))
        with torch.no_grad(), before.set_to_zero():
            return self._part(self._run((task,), args, kwargs), 0, (task,))

    # -- keeping derived state right -----------------------------------------------------------

    def _settle(self, *, freeze: bool) -> None:
        """Derive pins and guards from the owners."""
        self._slots = derive.slots(self.backbone, "backbone") | derive.slots(self.heads, "heads")
        pins = derive.backbone_pins(self.blueprint, self.owners, self._own_heads())
        prefixed = [replace(pin, name=f"backbone.{pin.name}") for pin in pins]
        for task in self._tasks:
            if task.finished:
                names = derive.slots(self.heads[str(task.index)], f"heads.{task.index}")
                prefixed += [Pin(name, Where(), None) for name in names]
        covered = [f"backbone.{name}" for name in derive.covered(self.blueprint)]
        self.pins.bind(prefixed, self._slots, covered, freeze=freeze)
        # they keep requires_grad, for torch.matmul picks its kernel, and so its bits, by that
        self._ddp_params_and_buffers_to_ignore = self._unused()
        watch(self.pins)
        self._protections = {}
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
        check = Home.check_closely if transforming() else Home.check
        for home, name in self._slots.values():
            if home.kind == "_parameters":
                check(home, name)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A step in the life of tasks that is taken as a whole or, when it fails, not at all."""
        tasks, owners, snapshot = list(self._tasks), self.owners, self._snapshot
        made, store = dict(self.heads._modules), self.pins.store
        try:
            yield
        except BaseException:  # also when it is interrupted
            self._tasks, self.owners, self._snapshot = tasks, owners, snapshot
            self.heads._modules = made
            self.pins.put_back(store)
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
                names += derive.slots(self.heads[str(task.index)], f"heads.{task.index}")
        return names

    def _install(self) -> None:
        """Put guards on the modules that need one, take them from the others."""
        found, self._visible = self._protection(self._call)
        paths = set(self._guards) | set(found)
        self._guards = {**self._guards, **found}  # those there may be, if this is interrupted
        for path in paths:
            guard(self.backbone.get_submodule(path), found.get(path))
        self._guards = found

    def _protection(self, call: Call) -> _Protection:
        """The guards that a call needs, and what each task may see in it."""
        if call in self._protections:
            return self._protections[call]
        device = lambda path: device_of(self.backbone, path)  # noqa: E731
        found = derive.guards(self.blueprint, self.owners, call, self._runtime, device)
        looked_at: dict[str | int, Tensor | None] = dict(enumerate(call.blueprint.outputs))
        looked_at |= {head.layer: head.inputs for head in call.blueprint.heads}
        owners = call.owners(self.owners)
        visible: _Visible = {
            (key, task.index): derive.visible(units, task.index, owners, device(""))
            for key, units in looked_at.items()
            for task in self._tasks
        }
        for head in call.blueprint.heads:
            if head.leaf is None and head.layer != ATTACHED and self._tasks:
                found[head.holder] = Guard(head.holder, whole=self._slot(head, visible))
        self._protections[call] = found, visible
        return found, visible

    # -- calls that no example has shown -------------------------------------------------------

    def _meet(self, args: Any, kwargs: Any) -> None:
        """Protect what follows as this call needs it; analyse a call that is new.

        Raises:
            EnforcementError: in eval mode, the call is not one that can be answered.
        """
        try:
            key = signature(args, kwargs)
        except UnknownArgumentError as error:
            if not self.training:
                raise EnforcementError(
                    f"the network is called with a {error}, whose content cannot be analysed",
                    remedy="pass tensors, plain values, and tuples, lists and dicts of those",
                ) from error
            return
        self._unfit = None
        call = self._calls.known.get(key)
        if call is None:
            call = self._met_first(key, CallInputs(*_plain((args, kwargs))))
        if call is not self._call:
            self._protect(call)

    def _protect(self, call: Call) -> None:
        """Put the guards on that a call needs."""
        self._call = call
        self._install()

    def _met_first(self, key: Hashable, inputs: CallInputs) -> Call:
        """Analyse a call that is new. In training, of which nothing is promised, any call goes."""
        refusal = self._calls.refused.get(key)
        if refusal is None:
            try:
                call = self._calls.find(self.backbone, inputs) or self._analysed_alone(inputs)
                remember(self._calls.known, key, call)
                return call
            except AutoeideticError as error:  # kept without what it refers to
                refusal = type(error)(error.fact, place=error.place, remedy=error.remedy)
                remember(self._calls.refused, key, refusal)
        if self.training:
            self._unfit = refusal
            return self._calls.first
        raise refusal.with_traceback(None)

    def _analysed_alone(self, inputs: CallInputs) -> Call:
        """A call that is new, analysed; after a few of its kind a rule for all sizes is found."""
        call = self._analysed(inputs)
        if not call.blueprint.looks and self._calls.should_generalise(inputs):
            with self._bare_model():
                sizes = generalised(self.backbone, self.blueprint, inputs)
            if sizes is not None:
                key = kind(inputs.args, inputs.kwargs)
                self._calls.general.setdefault(key, []).append((sizes, call))
        return call

    def _analysed(self, inputs: CallInputs) -> Call:
        """A call that is new, analysed."""
        with self._bare_model():
            found = analysed(self.backbone, self._examples_now(), self.blueprint, inputs)
        call = self._calls.one_of(found)
        if inputs.decisions is None:
            key = (signature(inputs.args, inputs.kwargs), *found.decisions)
            remember(self._calls.paths, key, call)
        return call

    @contextmanager
    def _bare_model(self) -> Iterator[None]:
        """The backbone as the model that it was, in the mode in which it was analysed."""
        device = device_of(self.backbone, "").type
        with (
            self.unguarded(),
            forward_hooks.only(self.backbone, self._hooks),
            torch.autocast(device, enabled=False),
            torch.inference_mode(False),
        ):
            yield

    def _examples_now(self) -> tuple[CallInputs, ...]:
        """The examples in the type and on the device that the network has now."""
        device = device_of(self.backbone, "")

        def now(leaf: Tensor) -> Tensor:
            return leaf.to(leaf.device if leaf.is_meta else device, type_now(self, leaf.dtype))

        def moved(example: CallInputs) -> CallInputs:
            args, kwargs = pytree.tree_map_only(Tensor, now, (example.args, example.kwargs))
            return CallInputs(args, kwargs, example.decisions)

        return tuple(map(moved, self.examples))

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

    def _slot(self, head: HeadPlan, visible: _Visible) -> heads.HeadSlot:
        slot = heads.HeadSlot(self._runtime, head.layer, head.dim)
        for task in self._tasks:
            slot.heads[task.index] = self._head(task.index, head.layer)
            seen = None if head.nested else visible[head.layer, task.index]
            slot.visible[task.index] = seen
        return slot

    @exclusive
    def train(self: Self, mode: bool = True) -> Self:
        """As ever; a change of mode is an occasion to put pinned values back.

        Afterwards, for a model may write weights when it changes its mode.
        """
        changes = mode != self.training
        super().train(mode)
        if changes:
            self.pins.impose()
        return self

    @exclusive
    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As ever, except that frozen values stay what they are; those of others are refused."""
        self._follow()
        self.pins.check(args[0] if args else kwargs["state_dict"], "pins.")
        result = super().load_state_dict(*args, **kwargs)
        self.pins.impose()
        return result

    @exclusive
    def _apply(self: Self, fn: Any, recurse: bool = True) -> Self:
        self._follow()
        self.pins.impose()
        before = self._types()
        super()._apply(fn, recurse)
        self._settle(freeze=False)
        changed = [kind for name, kind in self._types().items() if before.get(name, kind) != kind]
        if changed:
            self._tasks = [self._converted(task, changed[0]) for task in self._tasks]
        return self

    def _converted(self, task: Task, kind: torch.dtype) -> Task:
        """A task after a change of type: are its values those that were sealed?"""
        if task.seal is None:
            return task
        rounded = "" if seals.holds(self, task.index, task.seal) else str(kind)
        return replace(task, seal=replace(task.seal, converted=rounded))

    def _types(self) -> dict[str, torch.dtype]:
        return {name: home[leaf].dtype for name, (home, leaf) in self._slots.items()}

    def __prepare_scriptable__(self) -> NoReturn:  # what torch.jit.script asks for
        raise not_scriptable()

    def __getstate__(self) -> dict[str, Any]:
        self._follow()  # a copy takes what it finds for what was converted
        # what is compiled is bound to this network; classes with guards have no name to be found by
        return {**super().__getstate__(), "_parts": None, "_protections": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._number = compiled.numbered(self)
        self._settle(freeze=False)


def _want_gradients(arguments: Any) -> bool:
    """Are gradients of inputs asked for? They go through frozen units as well."""
    return torch.is_grad_enabled() and any(
        isinstance(leaf, Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(arguments)
    )


def _plain(arguments: Any) -> Any:
    """The same arguments with stand-ins for tensors that an analysis cannot be made with."""

    def stand_in(tensor: Tensor) -> Tensor:
        if strangeness(tensor) is None:
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    return pytree.tree_map_only(Tensor, stand_in, arguments)


def device_of(model: nn.Module, path: str) -> torch.device:
    module = model.get_submodule(path)
    for tensor in chain(module.parameters(), module.buffers(), model.parameters()):
        return tensor.device
    return torch.device("cpu")
