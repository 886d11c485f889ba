"""EideticNet: the user's model, divided between tasks that cannot disturb each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from . import routing, training
from .common.batches import default_loss
from .common.whole_numbers import whole_number
from .enforce.owners import FREE, Owners
from .enforce.pass_lock import exclusive
from .errors import CapacityError, InputError, NonFiniteError, Place, TaskError
from .plan.call_plan import HeadPlan
from .proof import recheck, seals
from .proof.verify import Verification, verify
from .propagate.values import varies
from .report.drawable import Drawable
from .tasks import heads
from .tasks.capacity import Capacity, capacity
from .tasks.network import Answering, Task, device_of
from .tasks.pruning.choose import choose
from .tasks.pruning.scores import Loss, ScoreData, named, unit_scores
from .tasks.snapshot import Snapshot

#: What is made under ``torch.inference_mode()`` could not be trained later.
_trainable = torch.inference_mode(mode=False)


class EideticNet(Drawable, Answering):
    """A network that learns tasks one after another and cannot forget.

    Made by :func:`autoeidetic.convert`. ``backbone`` is the user's model, ``heads`` its output
    layers, one set per task. With ``check_calls = False`` it answers calls that no example has
    shown without analysing them.

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> net = autoeidetic.convert(model, torch.randn(2, 4))
        >>> net.prepare_for_task(0, num_classes=2)
        >>> net(torch.randn(5, 4)).shape
        torch.Size([5, 2])
        >>> net.prune(0.5)
        >>> net.finish_task()
        >>> net.capacity().free
        0.5
    """

    # -- the life of a task --------------------------------------------------------------------

    @exclusive
    @_trainable
    def prepare_for_task(
        self,
        task: int,
        num_classes: int | Mapping[str, int] | None = None,
        name: str | None = None,
        *,
        revisit: int | None = None,
        on_full: str = "raise",
    ) -> None:
        """Open a task: finish the one before if it is open, give free units fresh values.

        Args:
            task: 0 for the first task, then one more each time.
            num_classes: the size of the task's head; a mapping from layer to size for a model
                with output layers of different sizes; None keeps the model's own.
            name: how the task is called in reports.
            revisit: an earlier task that this one is a second go at, with all that was learned
                since and with units that are free now. It starts with the answers of that task,
                whose own units and outputs stay as they are; see :meth:`replace_task`.
            on_full: a group without any free unit raises an error ("raise"), or the task makes
                do with what earlier ones learned there ("reuse").

        Raises:
            TaskError: not the next task.
            CapacityError: a group is full.
            HeadError: no such head can be made.
        """
        if on_full not in ("raise", "reuse"):
            raise InputError(f"on_full={on_full!r} is unknown", remedy='use "raise" or "reuse"')
        if name is not None and not isinstance(name, str):
            raise InputError(f"name={name!r} is not text", remedy="pass a string, or none")
        given, task = task, len(self._tasks)
        if whole_number(given) != task:
            raise TaskError(
                f"task {given!r} cannot be prepared: the network has {task} tasks so far",
                remedy=f"the next task is {task}",
            )
        self._follow()
        if revisit is not None:
            num_classes = self._revisited(revisit, num_classes)
            revisit = whole_number(revisit)
        kept = self.keep_head and task == 0
        if (kept and num_classes is None) or not kept:
            sizes = heads.sizes(self.blueprint.heads, num_classes)
        else:
            sizes = self._kept_sizes(num_classes)
        after = self.owners if self.open_task is None else self.owners.finished()
        if on_full == "raise":
            self._check_room(after)
        seed = int(torch.randint(2**62, ()))
        opened = Task(
            task, name or f"task {task}", sizes, finished=False, seed=seed, revisits=revisit
        )
        made = self._first_heads(opened)
        with self._whole():
            if self.open_task is not None:
                self.finish_task()
            if task == 0 or self.recycle == "keep":
                with _seeded(seed + 1):
                    self.free.mend(self._spreads)
                self._snapshot = Snapshot(self.free.tensors())
            self._tasks.append(opened)
            self._start(made)

    def _revisited(self, task: int, num_classes: Any) -> dict[str, int]:
        """The classes of a task that is revisited."""
        (asked,) = self._asked(task)
        if not self.owners.forward_transfer:
            raise InputError(
                f"task {task} cannot be revisited: the tasks of this network share nothing",
                remedy="convert with forward_transfer=True",
            )
        if num_classes is not None:
            raise InputError(
                f"num_classes={num_classes!r} does not apply to a second go at task {task}",
                remedy="leave it out: the classes are those of the task",
            )
        return self._tasks[asked].classes

    @exclusive
    def replace_task(self, task: int, by: int | None) -> None:
        """From now on a second go at a task answers in its place; None undoes that.

        Nothing that was learned changes, so the old answers come back bit for bit.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
            >>> net.prepare_for_task(1, revisit=0)  # train it, and then:
            >>> net.finish_task()
            >>> net.replace_task(0, by=1)

        Raises:
            TaskError: there is no such task, or ``by`` is not a finished second go at it.
        """
        self._asked(task)
        number, other = whole_number(task), whole_number(by)
        assert number is not None
        if by is not None:
            known = other is not None and 0 <= other < len(self._tasks)
            second = self._tasks[other] if known else None  # type: ignore[index]
            if second is None or second.revisits != number or not second.finished:
                raise TaskError(
                    f"task {by!r} is not a finished second go at task {task}",
                    remedy=f"train one: prepare_for_task({len(self._tasks)}, revisit={task})",
                )
        self._tasks[number] = replace(self._tasks[number], answered_by=other)

    def _kept_sizes(self, num_classes: Any) -> dict[str, int]:
        own = {head.layer: head.size for head in self.blueprint.heads}
        if heads.sizes(self.blueprint.heads, num_classes) != own:
            raise InputError(
                f"num_classes={num_classes!r} does not fit the model's own head, which "
                "keep_head=True keeps",
                remedy="leave num_classes out for task 0",
            )
        return own

    def _check_room(self, owners: Owners) -> None:
        for group in self.blueprint.plan.groups:
            units = list(group.units)
            if owners.locked[units].all() or (owners.task[units] == FREE).any():
                continue
            held = set(owners.task[units].tolist())
            whose = "belong to finished tasks"
            if len(held) == 1:
                whose = f"all belong to task {held.pop()}, which gave up none of them"
            raise CapacityError(
                f"group '{group.name}' is full: its {group.size} units {whose}",
                place=Place(module=group.name),
                remedy="prune more before finishing a task (net.prune, or a higher tolerance), "
                'start from a wider model, or pass on_full="reuse" to build on what is there',
            )

    def _start(self, made: nn.ModuleDict, *, fresh: bool = True) -> None:
        """The newest task with its heads, free values as they are at its start (or as they are)."""
        task = self._tasks[-1]
        self.owners = self.owners.opened(task.index)
        if self._snapshot is not None:
            self.free.restore(self._snapshot.load())
        elif fresh:
            with _seeded(task.seed + 1):
                self.free.renew(self._spreads)
        self.heads[str(task.index)] = made
        self._settle(freeze=False)

    def _first_heads(self, task: Task) -> nn.ModuleDict:
        """The heads that a task starts with."""
        made = self._new_heads(task)
        if task.revisits is not None:
            before = self._answering(task.revisits)
            for head in self.blueprint.heads:
                heads.take_over(
                    head,
                    made[heads.key(head.layer)],
                    self._head(before, head.layer),
                    self.backbone,
                    lambda units: self.owners.hidden(before, units),
                    self.blueprint.plan,
                )
        return made

    def _new_heads(self, task: Task) -> nn.ModuleDict:
        made = nn.ModuleDict()
        if self.keep_head and task.index == 0:
            return made
        with _seeded(task.seed):
            for head in self.blueprint.heads:
                spread = self._spreads[head.parameters[0]][1] if head.parameters else 0.0
                made[heads.key(head.layer)] = heads.build(
                    head,
                    self._templates.get(head.layer),
                    task.classes[head.layer],
                    self._like(head),
                    spread,
                )
        return made

    def _like(self, head: HeadPlan) -> Tensor:
        if head.parameters:
            return self.backbone.get_parameter(head.parameters[0]).detach()
        return next(p for p in self.backbone.parameters() if p.is_floating_point()).detach()

    @exclusive
    @_trainable
    def rollback(self) -> None:
        """Take the network back to the start of the open task: all its training is gone.

        The way out when training has diverged.

        Raises:
            TaskError: no task is open, or the network was loaded in the middle of a task whose
                start can not be made again.
        """
        self._need_open("rollback()")
        self._follow()
        if self._snapshot is None and (self.open_task == 0 or self.recycle == "keep"):
            raise TaskError(
                "the values at the start of this task are not known any more",
                remedy="load a network that was saved before the task",
            )
        self.pins.impose()
        self._start(self._first_heads(self._tasks[-1]))

    @_trainable
    def prune(
        self,
        fraction: float,
        by: str = "l2",
        loader: Iterable[Any] | None = None,
        *,
        loss: Loss | None = None,
        since_start: bool = False,
    ) -> None:
        """Give up the least important units of the open task.

        Args:
            fraction: the part of each group's units in training to give up, 0 to 1.
            by: "l1", "l2", "random", "taylor", "hybrid", or a score of your own.
            loader: batches for scores that need data.
            loss: (network, batch) -> loss; by default the batches are (inputs, targets), and it
                is the one that :meth:`train_task` takes.
            since_start: the fraction is of the units that the task began with, and counts
                those given up before.

        Raises:
            TaskError: no task is open.
        """
        self._need_open("prune()")
        self._follow()
        if not isinstance(fraction, Real) or not 0 <= fraction <= 1:
            fact = f"fraction={fraction!r} is not a number between 0 and 1"
            raise InputError(fact, remedy="pass 0.5, say")
        data = None if loader is None else ScoreData(loader, loss or default_loss)
        self._prune(fraction, by, data, since_start=since_start)

    def _prune(self, fraction: float, by: str, data: ScoreData | None, since_start: bool) -> None:
        scores = unit_scores(self, by, data)
        chosen = choose(
            self.blueprint,
            self.owners,
            scores,
            fraction,
            over_network=named(by).over_network,
            since_start=since_start,
        )
        self._give_up(chosen)

    @exclusive
    def _give_up(self, chosen: Any) -> None:
        """Take units (a boolean vector) out of the open task."""
        with self._whole():
            self.owners = self.owners.pruning(chosen)
            self._level_computed_weights()
            self._settle(freeze=False)

    #: The loop of the method: see :func:`autoeidetic.training.train_task`.
    train_task = training.train_task
    #: For loops of one's own: see :func:`autoeidetic.training.refresh_statistics`.
    refresh_statistics = training.refresh_statistics

    @torch.no_grad()
    def _level_computed_weights(self) -> None:
        """Where a weight is standardised, hidden elements get the mean of the visible ones.

        So a row's mean is that of what it reads; the zeros are put on the computed weight. A
        weight whose rows depend on each other (a spectral norm) has no such means.
        """
        for name, entry in self.blueprint.plan.parameters.items():
            for read in entry.reads if varies(entry.units) else ():
                if not read.transformed or read.columns.shape != entry.units.shape or entry.head:
                    continue
                weight = self.backbone.get_parameter(name)
                rows = self.owners.level_of(read.rows)
                hidden = self.owners.hidden(rows, read.columns)
                hidden = (hidden & (rows == self.open_task)).expand(weight.shape).to(weight.device)
                if not bool(hidden.any()):
                    continue
                visible = (~hidden).flatten(1)
                mean = (weight.flatten(1) * visible).sum(1) / visible.sum(1).clamp(min=1)
                shape = [-1] + [1] * (weight.dim() - 1)
                weight.copy_(torch.where(hidden, mean.view(shape), weight))

    @exclusive
    @_trainable
    def finish_task(self) -> None:
        """Freeze what the open task has kept. Its outputs never change again.

        In eval mode, that is: in a loop of one's own, a model with batch norms needs
        :meth:`refresh_statistics` before, as :meth:`train_task` does by itself.

        Raises:
            TaskError: no task is open.
            NonFiniteError: a value is infinite or not a number, or what the task computes is: on
                reference inputs an earlier task no longer answers as it did. Nothing is changed.
            EnforcementError: an earlier task answers reference inputs with other finite values.
        """
        self._need_open("finish_task()")
        self._follow()
        self.pins.impose()
        self._check_finite()
        with self._whole():
            self._freeze()
            recheck.finished(self)
            self._tasks[-1] = replace(self._tasks[-1], seal=seals.take(self, len(self._tasks) - 1))

    def _freeze(self) -> None:
        """What the open task has kept is its own from here on."""
        self._tasks[-1] = replace(self._tasks[-1], finished=True)
        self.owners = self.owners.finished()
        self._snapshot = None
        self._settle(freeze=True)

    @exclusive
    def seal(self) -> None:
        """Take the seals of all finished tasks anew, for :func:`autoeidetic.audit`.

        ``finish_task`` takes them by itself. After a change of type (``net.half()``) they no longer
        apply, and a network that was saved by an earlier version has none.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
            >>> net.double().seal()
        """
        self._follow()
        self.pins.impose()
        self._tasks = [
            replace(task, seal=seals.take(self, task.index)) if task.finished else task
            for task in self._tasks
        ]

    def _check_finite(self) -> None:
        bad = [name for name, tensor in self._trained().items() if not tensor.isfinite().all()]
        if bad:
            raise NonFiniteError(
                f"task {self.open_task} cannot be finished: {len(bad)} tensors hold infinite "
                f"values or NaN, the first is {bad[0]}",
                place=Place(module=bad[0].removeprefix("backbone.").rpartition(".")[0]),
                remedy="net.rollback() takes the network back to the start of the task; train "
                "again with a lower learning rate",
            )

    def _need_open(self, call: str) -> None:
        if self.open_task is None:
            raise TaskError(
                f"{call} was called, but no task is open",
                remedy=f"call prepare_for_task({len(self._tasks)}) first",
            )

    # -- inputs of unknown tasks ---------------------------------------------------------------

    def train_router(
        self,
        loaders: Sequence[Iterable[Any]] | None = None,
        by: str = "learned",
        *,
        epochs: int = 50,
        lr: float = 3e-3,
        seed: int = 0,
        progress: bool = True,
        **options: Any,
    ) -> None:
        """Learn to tell the finished tasks apart. Nothing but the router changes.

        | by | what decides | data |
        |---|---|---|
        | "learned" | a classifier on the features before the output layers | needed |
        | "mahalanobis" | the distance of these features to those of each task | needed |
        | "entropy" | how sure each task's head is of its answer | optional |
        | "energy" | the same, by the size of its logits | optional |

        With data the last two are made comparable from head to head, which helps a lot.
        After another task is finished, call it again.

        Args:
            loaders: for each finished task one loader of (inputs, labels), or of inputs alone;
                inputs are a tensor, a tuple or a dict. Each is read once, and what the router
                reads of it is kept in memory meanwhile. A second go at a task needs none.
            by: one of these, or a kind registered with :func:`autoeidetic.router`.
            epochs: of the training of "learned".
            lr: its learning rate.
            seed: the same seed gives the same router. The caller's random numbers are not used.
            progress: show a bar if it takes long.
            options: of the kind: hidden, batch_size and weight_decay for "learned", shrinkage
                for "mahalanobis".

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> for task in range(2):  # and train them
            ...     net.prepare_for_task(task); net.prune(0.4); net.finish_task()
            >>> data = [[(torch.randn(64, 4) + 5 * task, torch.randint(2, (64,)))]
            ...         for task in range(2)]
            >>> net.train_router(data, epochs=100)
            >>> net.predict(torch.randn(3, 4) + 5).task
            tensor([1, 1, 1])

        Raises:
            TaskError: no task is finished.
            InputError: there is no such kind or option; not one loader for each finished task;
                an empty loader.
            NonFiniteError: features are infinite or NaN.
        """
        settings = routing.Settings(epochs, lr, seed, progress, device_of(self.backbone, ""))
        made = routing.train(self, loaders, by, settings, options)
        self.router = made.train(self.training)

    def predict(self, *args: Any, **kwargs: Any) -> routing.Prediction:
        """Find the task of each input, and its class in that task, in eval mode.

        One pass of the body, as for ``task="all"``. While a later task is trained, the answers
        for the finished ones stay the same, bit for bit.

        Returns:
            ``task``, ``label``, ``confidence`` and ``scores``. ``label`` is the largest value
            along the classes of the first output that a head makes (of several outputs the
            others are not looked at; for a dense output it is a map of labels).

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
            >>> net.train_router(by="entropy")
            >>> found = net.predict(torch.randn(5, 4))
            >>> found.task, found.label.shape, found.confidence.shape, found.scores.shape
            (tensor([0, 0, 0, 0, 0]), torch.Size([5]), torch.Size([5]), torch.Size([5, 1]))

        Raises:
            TaskError: there is no router, or tasks were finished after it was trained.
            NonFiniteError: features are infinite or NaN.
        """
        return routing.predict(self, args, kwargs)

    # -- reports -------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Who owns how much: free and used, per task, per group, per layer; what is reused."""
        parameters: dict[str, Tensor] = dict(self.backbone.named_parameters())
        return capacity(self.blueprint, self.owners, parameters)

    def _summary(self) -> str:
        return str(self.capacity())

    @exclusive
    def verify(self, *args: Any, rounds: int = 3, seed: int = 0, **kwargs: Any) -> Verification:
        """Scramble every free value several times and compare all finished tasks bit for bit.

        Takes the network's inputs. Everything is put back as it was.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
            >>> net.verify(torch.randn(5, 4)).ok
            True
        """
        self._follow()
        return verify(self, args, kwargs, rounds=rounds, seed=seed)

    @exclusive
    def save(self, path: Any) -> None:
        """Write the network to one file, all or nothing. :func:`autoeidetic.load` opens it."""
        from .checkpoint import save

        self._follow()
        save(self, path)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers that can be drawn again, without disturbing the caller's."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
