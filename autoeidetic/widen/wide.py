"""Wide: a network with several columns, behind the same front door.

    net            Wide                     net(x, task=3) asks the column of task 3
      columns.0    what the network was     tasks 0 1 2     finished, in eval mode
      columns.1    the first widening       tasks 3 4       finished, in eval mode
      columns.2    the second               task 5          open

Each column is a network of its own, whose tasks are numbered from 0. Here tasks have one number
each, and every method asks the column that the task lives in. New tasks live in the newest column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from ..common.archive import as_path
from ..common.inputs import whole_number
from ..enforce.owners import FREE
from ..enforce.pass_lock import PassLock, exclusive
from ..errors import (
    AutoeideticError,
    CheckpointError,
    InputError,
    TaskError,
)
from ..proof.verify import Verification
from ..tasks import opening
from ..tasks.compiled import numbered, uncompiled
from ..tasks.network import Network
from ..tasks.task import Task
from . import widen as widening
from .cache import ColumnCache
from .capacity import WideCapacity, wide_capacity
from .joined import Joined
from .laterals import Finished, column_kwargs, copies, finished, with_column
from .readers import Laterals
from .saving import save

#: With ``on_full="widen"`` a network is widened when less than this part of a group is free.
ROOM = 0.5


class Wide:
    """Mixed into the class of a network that was widened."""

    columns: Any  # an nn.ModuleList of networks
    router: Any
    pass_lock: PassLock

    # -- where tasks live ----------------------------------------------------------------------

    @property
    def backbone(self) -> nn.Module:
        """The user's model: that of the first column."""
        return self.columns[0].backbone

    @property
    def heads(self) -> Any:
        """The output layers of the newest column, which learn."""
        return self.newest.heads

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("backbone", "heads"):
            raise InputError(
                f"net.{name} of a widened network cannot be replaced",
                remedy="change modules inside of it, or convert another model",
            )
        super().__setattr__(name, value)

    @property
    def networks(self) -> tuple[Any, ...]:
        """All columns."""
        return tuple(self.columns)

    @property
    def newest(self) -> Any:
        """The column that new tasks live in."""
        return self.columns[-1]

    def _first_task(self, column: int) -> int:
        """The number of the first task of a column."""
        return sum(len(each.tasks) for each in list(self.columns)[:column])

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks so far."""
        found: list[Task] = []
        for column in self.columns:
            start = len(found)
            found += [_moved(task, start) for task in column.tasks]
        return tuple(found)

    @property
    def open_task(self) -> int | None:
        """The task in training."""
        own = self.newest.open_task
        return None if own is None else self._first_task(len(self.columns) - 1) + own

    def _place(self, task: Any) -> tuple[int, int]:
        """The column of a task, and its number there."""
        number, count = whole_number(task), len(self.tasks)
        if number is None or not 0 <= number < count:
            raise TaskError(
                f"task={task!r} does not exist: there are tasks 0 to {count - 1}",
                remedy='pass one of them, or "all"',
            )
        for column, network in enumerate(self.columns):
            if number < len(network.tasks):
                return column, number
            number -= len(network.tasks)
        raise AssertionError

    # -- answers -------------------------------------------------------------------------------

    def column_calls(
        self, args: Any, kwargs: dict[str, Any]
    ) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """Every column with the arguments of its own call; each finished one runs once."""
        found: Laterals = {}
        for number, column in enumerate(self.columns):
            own = column_kwargs(number, kwargs, found)
            last = number == len(self.columns) - 1
            yield (column, args, own) if last else (column, *copies(args, own))
            if not last:
                found = uncompiled(with_column, found, self.newest.earlier[number], args, own)

    def before_pass(self, args: Any, kwargs: Any, *, passing: bool = False) -> None:
        """Every column does this for its own call; with ``passing`` at once."""
        for column, own, named in self.column_calls(args, kwargs) if passing else ():
            column.before_pass(own, named, passing=True)

    def by_column(self, tasks: Sequence[int]) -> list[tuple[Any, list[int]]]:
        """The columns that tasks need, each with its own numbers of those that live there."""
        places = [self._place(task) for task in tasks]
        last = max(column for column, _ in places)
        return [
            (column, [task for where, task in places if where == number])
            for number, column in enumerate(self.networks[: last + 1])
        ]

    def bare_answers(self, asked: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """The outputs of several tasks as they come, infinite values and NaN included."""
        needed, found = self.by_column(asked), []
        calls = self.column_calls(args, kwargs)
        # the shorter one first: a column that nobody needs does not run
        for (_, tasks), (column, own, named) in zip(needed, calls, strict=False):
            answers = column.bare_answers(tasks, own, named) if tasks else []
            found.append(dict(zip(tasks, answers, strict=True)))
        places = [self._place(task) for task in asked]
        return [found[column][task] for column, task in places]

    def diverged(self) -> bool:
        """Does a trained tensor of a column hold infinite values or NaN?"""
        return any(column.diverged() for column in self.columns)

    def forward(self, *args: Any, task: int | str | None = None, **kwargs: Any) -> Any:
        if task == "all":
            return [
                answer
                for column, own, named in self.column_calls(args, kwargs)
                if column.tasks
                for answer in column(*own, task="all", **named)
            ]
        if task is None:
            column = self.newest if self.newest.tasks else self.columns[-2]
            return column(*args, **kwargs)
        where, number = self._place(task)
        return self.columns[where](*args, task=number, **kwargs)

    # -- the life of a task --------------------------------------------------------------------

    @exclusive
    def widen(self, width: float = 0.25, *, like: nn.Module | None = None) -> widening.Widened:
        made, about = widening.new_column(tuple(self._finished()), width, like)
        self.columns.append(made)
        self.train(self.training)
        return about

    @contextmanager
    def cache_columns(self, size: float = 1e9, *, folder: Any = None) -> Iterator[ColumnCache]:
        column, cache = self.newest, ColumnCache(size, folder)
        column.cache = cache
        try:
            yield cache
        finally:
            column.cache = None
            cache.close()

    def _finished(self) -> Iterator[Finished]:
        for column in self.columns:
            widening.check_finished(column)
        # those that earlier widenings closed are known to the newest column
        known = getattr(self.newest, "earlier", ())
        yield from known
        yield finished(self.newest, known)

    @exclusive
    def prepare_for_task(
        self,
        task: int,
        num_classes: int | Mapping[str, int] | None = None,
        name: str | None = None,
        *,
        revisit: int | None = None,
        on_full: str = "raise",
        width: float = 0.25,
    ) -> None:
        if whole_number(task) != len(self.tasks):
            raise TaskError(
                f"task {task!r} cannot be prepared: the network has {len(self.tasks)} tasks so far",
                remedy=f"the next task is {len(self.tasks)}",
            )
        if revisit is not None:
            where, revisit = self._place(revisit)
            if where != len(self.columns) - 1:
                raise InputError(
                    "a task of an earlier column cannot be revisited",
                    remedy="prepare a new task with its classes; it reads all that was learned",
                )
        title = f"task {whole_number(task)}" if name is None else name
        num_classes = self._layers_of(self.newest, num_classes)
        if on_full == "widen" and is_full(self.newest):
            opening.opened(self.newest, len(self.newest.tasks), num_classes, title, None, on_full)
            widen_for_task(self, width, revisit)
        # a column never widens itself
        on_full = "raise" if on_full == "widen" else on_full
        with self._in_newest():
            self.newest.prepare_for_task(
                len(self.newest.tasks), num_classes, title, revisit=revisit, on_full=on_full
            )

    @staticmethod
    def _layers_of(column: Network, num_classes: Any) -> Any:
        """Sizes by the names that output layers have in a column: ``fc`` is ``model.fc.layer``."""
        if not isinstance(num_classes, Mapping):
            return num_classes
        known = {_model_name(head.layer): head.layer for head in column.call_plan.heads}
        return {known.get(layer, layer): size for layer, size in num_classes.items()}

    def _check_open(self, call: str) -> None:
        if self.open_task is None:
            raise TaskError(
                f"{call} was called, but no task is open",
                remedy=f"call prepare_for_task({len(self.tasks)}) first",
            )

    @exclusive
    def replace_task(self, task: int, by: int | None) -> None:
        where, number = self._place(task)
        other, by_number = (where, None) if by is None else self._place(by)
        if other != where:
            raise TaskError(
                f"task {by!r} is not a finished revisit of task {task}",
                remedy="only a revisit in the same column can answer for a task",
            )
        self.columns[where].replace_task(number, by_number)

    def rollback(self) -> None:
        self._check_open("rollback()")
        with self._in_newest():
            self.newest.rollback()

    def prune(self, *args: Any, loss: Any = None, **kwargs: Any) -> None:
        self._check_open("prune()")
        if loss is not None:
            kwargs["loss"] = self._called_with_me(loss)
        with self._in_newest():
            self.newest.prune(*args, **kwargs)

    def finish_task(self) -> None:
        self._check_open("finish_task()")
        with self._in_newest():
            self.newest.finish_task()

    def train_task(
        self,
        *args: Any,
        checkpoint: Any = None,
        on_epoch: Callable[[Any], None] | None = None,
        step_function: Any = None,
        **kwargs: Any,
    ) -> Any:
        self._check_open("train_task()")
        if step_function is not None:
            kwargs["step_function"] = self._called_with_me(step_function)
        column = len(self.columns) - 1
        start = self._first_task(column)
        if checkpoint is not None:  # tasks of different columns have the same numbers there
            checkpoint = as_path(checkpoint, "checkpoint") / f"column-{column}"
            try:
                checkpoint.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(
                    f"'{checkpoint}' cannot be used as a folder: {error}",
                    remedy="pass another checkpoint=",
                ) from error

        def told(epoch: Any) -> None:
            if on_epoch is not None:
                on_epoch(replace(epoch, task=start + epoch.task))

        with self._in_newest():
            history = self.newest.train_task(*args, checkpoint=checkpoint, on_epoch=told, **kwargs)
        epochs = tuple(replace(epoch, task=start + epoch.task) for epoch in history.epochs)
        return replace(history, task=start + history.task, epochs=epochs)

    def _called_with_me(self, function: Any) -> Any:
        """A user's function of (network, batch), which gets this network instead of a column."""
        return lambda network, batch: function(self if network is self.newest else network, batch)

    def refresh_statistics(self, loader: Iterable[Any], **kwargs: Any) -> None:
        with self._in_newest():
            self.newest.refresh_statistics(loader, **kwargs)

    def seal(self) -> None:
        for column in self.columns:
            column.seal()

    def update_task(self, index: int, **changes: Any) -> None:
        """Change fields of a task's record."""
        where, number = self._place(index if index >= 0 else len(self.tasks) + index)
        self.columns[where].update_task(number, **changes)

    @contextmanager
    def _in_newest(self) -> Iterator[None]:
        """Errors of the newest column, with its numbers of tasks explained."""
        try:
            yield
        except AutoeideticError as error:
            start = self._first_task(len(self.columns) - 1)
            raise type(error)(
                f"{error.fact} (in column {len(self.columns) - 1}, whose task 0 is task {start} "
                "of the network)",
                place=error.place,
                remedy=error.remedy,
            ) from error

    # -- inputs of unknown tasks ---------------------------------------------------------------

    def answering_task(self, task: int) -> int:
        """The task whose units and head answer for a task."""
        where, number = self._place(task)
        return self._first_task(where) + int(self.columns[where].answering_task(number))

    # -- reports -------------------------------------------------------------------------------

    def capacity(self) -> WideCapacity:
        columns: list[Any] = list(self.columns)
        return wide_capacity(columns, [column.capacity() for column in columns])

    def verify(self, *args: Any, **kwargs: Any) -> Verification:
        found = []
        for number, column in enumerate(self.columns):
            if any(task.finished for task in column.tasks):
                start = self._first_task(number)
                own = column.verify(*args, **kwargs)
                moved = None if own.moved is None else f"columns.{number}: {own.moved}"
                tasks = tuple(replace(v, task=start + v.task) for v in own.tasks)
                found.append(replace(own, tasks=tasks, moved=moved))
        return replace(
            found[0],
            tasks=tuple(verdict for each in found for verdict in each.tasks),
            moved=next((each.moved for each in found if each.moved is not None), None),
            random=any(each.random for each in found),
        )

    def drawn_model(self) -> nn.Module:
        """All columns as one model."""
        return Joined([column.backbone for column in self.columns], self.newest.earlier)

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """All columns without their guards."""
        with ExitStack() as stack:
            for column in self.columns:
                stack.enter_context(column.unguarded())
            yield

    @exclusive
    def save(self, path: Any) -> None:
        self.follow()
        save(self.networks, self.router, path)

    # -- what nn.Module does -------------------------------------------------------------------

    def train(self: Any, mode: bool = True) -> Any:
        """Set the mode of the newest column; the others stay in eval mode."""
        self.training = mode
        for column in self.columns[:-1]:
            column.eval()
        self.newest.train(mode)
        return self

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of the newest column: nothing in a finished one learns any more.

        An optimizer that held the others would have them put back after every step.
        """
        inside = f"{prefix}." if prefix else ""
        own = f"{inside}columns.{len(self.columns) - 1}"
        if recurse:
            yield from self.newest.named_parameters(own, True, remove_duplicate)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """Tensors that take no part in training: all of finished columns, frozen ones of the last.

        DistributedDataParallel would wait for their gradients.
        """
        last = len(self.columns) - 1
        names = [f"columns.{last}.{name}" for name in self.newest.untrained()]
        for number, column in enumerate(self.columns[:-1]):
            tensors = (*column.named_parameters(), *column.named_buffers())
            names += [f"columns.{number}.{name}" for name, _ in tensors]
        return names

    @property
    def check_calls(self) -> bool:
        """Are calls that no example covers analysed?"""
        return bool(self.newest.check_calls)

    @check_calls.setter
    def check_calls(self, value: bool) -> None:
        for column in self.columns:
            column.check_calls = value

    def follow(self) -> None:
        for column in self.columns:
            column.follow()

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state of this network into its columns; frozen values stay."""
        self.follow()
        inside = [f"columns.{number}." for number in range(len(self.columns))]
        parts = [
            {n.removeprefix(p): v for n, v in state_dict.items() if n.startswith(p)} for p in inside
        ]
        for column, own in zip(self.columns, parts, strict=True):  # before anything is loaded
            column.pins.check(own, "pins.")
        result = nn.Module.load_state_dict(self, state_dict, strict, assign)  # type: ignore
        for column in self.columns:
            column.pins.impose()
        return result

    def _apply(self: Any, fn: Callable[..., Any], recurse: bool = True) -> Any:
        return nn.Module._apply(self, fn, recurse)

    def __getstate__(self: Any) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # pickle finds classes by name, and the name of this class is that of its base
        return _rebuild, (type(self).__mro__[2],), self.__getstate__()


def _model_name(layer: str) -> str:
    """The name that an output layer of a column has in the user's model."""
    return layer.removeprefix("model.").removesuffix(".layer")


def _moved(task: Task, start: int) -> Task:
    """A task of a column under its number in the network."""
    revisits, by = task.revisits, task.answered_by
    return replace(
        task,
        index=start + task.index,
        classes={_model_name(layer): size for layer, size in task.classes.items()},
        revisits=None if revisits is None else start + revisits,
        answered_by=None if by is None else start + by,
    )


def wide_class(base: type[Network]) -> type[Network]:
    """The class of widened networks of a class."""
    return type(base.__name__, (Wide, base), {"__module__": base.__module__})


def _rebuild(base: type[Network]) -> Network:
    kind = wide_class(base)
    return kind.__new__(kind)


def widened(network: Network, width: float, like: nn.Module | None) -> widening.Widened:
    """Turn a network into a wide one: what it was becomes the first column of the same object."""
    # plan first: the column is made before anything in the network changes
    widening.check_finished(network)
    made, about = widening.new_column((finished(network),), width, like)
    _divide(network, made)
    return about


def is_full(network: Network) -> bool:
    """Would the next task find a group with few free units?

    A task that has few units to choose from learns worse long before there are none: on held-out
    images of permuted MNIST a task that started with 56% of the units was 0.1 points below the
    first one, and with 34% it was 0.45 points below.
    """
    owners = network.owners if network.open_task is None else network.owners.finished()
    for group in network.call_plan.plan.groups:
        units = list(group.units)
        divided = ~owners.locked[units]
        free = (owners.task[units] == FREE) & divided
        if divided.any() and free.sum() < ROOM * divided.sum():
            return True
    return False


def widen_for_task(network: Any, width: float, revisit: int | None) -> None:
    """Make room for the next task: finish the one before if it is open, and add a column.

    Raises:
        InputError: the width is none, or a task of the full column is to be revisited.
    """
    widening.checked_width(width)
    if revisit is not None:
        raise InputError(
            "a task cannot be revisited in another column, and its own has little room",
            remedy='pass on_full="reuse", or prepare a new task with its classes',
        )
    if network.open_task is not None:
        network.finish_task()
    network.widen(width)


def _divide(network: Any, made: Any) -> None:
    """Move all that a network is to a new object of its class, which becomes its first column.

    The object that users hold keeps its identity and its own hooks.
    """
    base: Any = type(network)
    mode = network.training
    first = base.__new__(base)
    nn.Module.__init__(first)
    hooks = {name: value for name, value in vars(first).items() if "hook" in name}
    own = {name: network.__dict__[name] for name in hooks}
    own |= {name: value for name, value in vars(network).items() if name not in vars(made)}
    compiled = {n: v for n, v in vars(network).items() if n == "_compiled_call_impl"}
    own |= compiled  # of the object that the user has compiled
    own.pop("columns", None)
    before = vars(network)
    first.__dict__ = {**before, **hooks, **dict.fromkeys(compiled)}
    first.number = numbered(first)
    # what the newest column reads is the first column, which is another object now
    made.earlier = tuple(replace(column, network=first) for column in made.earlier)
    whole = assembled([first, made])
    whole.__dict__.update(own)
    try:
        whole.router, first.router = first.router, None
        # at once: other threads may wait for the lock of this network
        network.__dict__, network.__class__ = vars(whole), type(whole)
        first.settle(freeze=False)
        network.train(mode)
    except BaseException:  # interruptions as well: the network is what it was
        network.__dict__, network.__class__ = before, base
        network.settle(freeze=False)
        raise


def assembled(columns: list[Any]) -> Any:
    """A wide network of these columns."""
    network: Any = _rebuild(type(columns[0]))
    nn.Module.__init__(network)
    network.columns = nn.ModuleList(columns)
    network.pass_lock = columns[0].pass_lock
    network.router = None
    return network
