"""EideticNet: the public methods of a network. Each one delegates to a room.

    the life of a task   tasks/opening, tasks/network, tasks/pruning, proof/recheck, proof/seals
    training             training/
    unknown tasks        routing/
    reports, files       tasks/capacity, proof/verify, checkpoint/, report/drawable -> draw/

State that belongs to the process and not to one network (hooks on optimizers, the set of converted
models) is listed in :mod:`autoeidetic.common.process_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from . import routing, training
from .checkpoint import save
from .common.batches import default_loss
from .enforce.pass_lock import exclusive
from .errors import InputError
from .extract.extract import extract
from .extract.program import Program
from .proof import recheck, seals
from .proof.verify import Verification, verify
from .report.drawable import Drawable
from .tasks import opening
from .tasks.capacity import Capacity, network_capacity
from .tasks.network import Network
from .tasks.protection import device_of
from .tasks.pruning.prune import prune
from .tasks.pruning.scores import Loss, ScoreData
from .training.epochs import StepFunction
from .widen import ColumnCache, Widened
from .widen.wide import is_full, widen_for_task, widened

Self = TypeVar("Self", bound="EideticNet")
#: Tensors made under ``torch.inference_mode()`` could not be trained later.
_trainable = torch.inference_mode(mode=False)
#: Attributes of the core that are for the rooms and not for users.
_FOR_ROOMS = frozenset(
    "analysed_types call calls examples finite_values guards has_fused_layers head_templates "
    "keep_head number original_hooks owners pass_lock pins recycle runtime slots spreads unfit "
    "visible".split()
)


class EideticNet(Drawable, Network):
    """A network that learns tasks one after another and cannot forget.

    Made by :func:`autoeidetic.convert`. ``backbone`` is the user's model, ``heads`` its output
    layers, one set for each task. With ``check_calls = False`` it answers calls that no example
    covers without analysing them.

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

    router: routing.Router | None

    # -- the life of a task --------------------------------------------------------------------
    #
    # prepare_for_task -> train -> prune -> finish_task -> prepare_for_task of the next task ...
    #        ^--- rollback ---'
    # `exclusive`: no forward pass runs in another thread while owners or values change.

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
        width: float = 0.25,
    ) -> None:
        """Open a task: finish the one before if it is open, give free units fresh values.

        Args:
            task: 0 for the first task, then one more each time.
            num_classes: the size of the task's head; a mapping from layer to size for a model
                with output layers of different sizes; None keeps the model's own.
            name: the task's name in reports.
            revisit: an earlier task that this one revisits, with everything that was learned
                since and with the units that are free now. It starts with the answers of that
                task, whose own units and outputs stay as they are; see :meth:`replace_task`.
            on_full: a group without any free unit raises an error ("raise"), or the task reuses
                the units of earlier tasks there ("reuse"). With "widen" the network is widened
                (:meth:`widen`) when less than half of a group is free.
            width: of the column that ``on_full="widen"`` adds.

        Raises:
            TaskError: not the next task.
            CapacityError: a group is full.
            HeadError: no such head can be made.
        """
        # everything that can fail comes first: until the block below, nothing has changed
        opened = opening.opened(self, task, num_classes, name, revisit, on_full)
        if on_full == "widen" and is_full(self):
            widen_for_task(self, width, revisit)  # from here on the network is another one
            self.prepare_for_task(task, num_classes, name, revisit=revisit)
            return
        heads = opening.first_heads(self, opened)
        with self.whole():
            if self.open_task is not None:
                self.finish_task()
            self.open(opened, heads)

    @exclusive
    @_trainable
    def widen(self, width: float = 0.25, *, like: nn.Module | None = None) -> Widened:
        """Add a column beside the network: room for new tasks. No bit of a finished task moves.

        The network that there is stays as it is. Beside it runs a narrower copy of the model, whose
        layers also read the inputs of the same layers in the network. Tasks to come live in the
        new column, and ``net.parameters()`` are its own. Units that are still free in the network
        are hidden from then on.

        Args:
            width: the part of the model's units that the new column gets. It may get more, where
                whole attention heads or convolution groups are needed, and all of them where the
                model cannot be built narrower; the result says so.
            like: a module to use as the column: the same structure with other sizes.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2); net.finish_task()  # it keeps every unit
            >>> print(net.widen(0.5))
            column 1: 50% of the width, 20 parameters
            >>> net.prepare_for_task(1, num_classes=3)
            >>> net(torch.randn(5, 4), task=1).shape
            torch.Size([5, 3])

        Raises:
            TaskError: a task is open, or there is none yet.
            InputError: the width is no number above 0, up to 1; or ``like`` does not fit.
        """
        self.follow()
        return widened(self, width, like)

    def cache_columns(
        self, size: float = 1e9, *, folder: Any = None
    ) -> AbstractContextManager[ColumnCache]:
        """Keep what the newest column reads of finished ones, while this context lasts.

        Finished columns then run once for every training input, not in every epoch. That pays for
        data without augmentation; an input that has changed is a new one. Answers in eval mode are
        computed as ever.

        Args:
            size: the most bytes to keep. Inputs that come when it is full are not kept.
            folder: keep them in a file there instead of in memory; it is deleted in the end.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2); net.finish_task(); _ = net.widen(0.5)
            >>> net.prepare_for_task(1, num_classes=2)
            >>> with net.cache_columns(size=1e8) as cache:
            ...     for epoch in range(3):
            ...         loss = net(torch.ones(2, 4)).sum()
            >>> cache.hits, cache.misses
            (4, 2)

        Raises:
            InputError: the network was not widened, ``size`` is no number of bytes, or the folder
                cannot be written to; and in a pass, if inputs have no batch in front, or a layer
                mixes the inputs of a batch.
        """
        raise InputError(
            "the network has no columns that could be cached",
            remedy="call net.widen() first",
        )

    @exclusive
    def replace_task(self, task: int, by: int | None) -> None:
        """Let a revisit of a task answer in its place from now on; None undoes that.

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
            TaskError: there is no such task, or ``by`` is not a finished revisit of it.
        """
        number, other = opening.replacement(self, task, by)
        self.update_task(number, answered_by=other)

    @exclusive
    @_trainable
    def rollback(self) -> None:
        """Take the network back to the start of the open task: all its training is gone.

        The way out when training has diverged.

        Raises:
            TaskError: no task is open, or the network was loaded in the middle of a task whose
                start cannot be made again.
        """
        self.need_open("rollback()")
        self.follow()
        self.restart()

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
            by: "l1", "l2", "random", "taylor", "hybrid", or a custom score.
            loader: batches for scores that need data.
            loss: (network, batch) -> loss; by default the batches are (inputs, targets), and it
                is the loss that :meth:`train_task` takes.
            since_start: the fraction is of the units that the task began with, and counts
                those given up before.

        Raises:
            TaskError: no task is open.
        """
        self.need_open("prune()")
        self.follow()
        data = None if loader is None else ScoreData(loader, loss or default_loss)
        prune(self, fraction, by, data, since_start=since_start)

    @exclusive
    @_trainable
    def finish_task(self) -> None:
        """Freeze what the open task has kept. Its outputs in eval mode never change again.

        A custom training loop of a model with batch norms calls :meth:`refresh_statistics` before
        it; :meth:`train_task` does so by itself.

        Raises:
            TaskError: no task is open.
            NonFiniteError: a value is infinite or NaN, or the task's units overflow so that an
                earlier task no longer answers reference inputs as it did. Nothing is changed.
            EnforcementError: an earlier task answers reference inputs with other finite values.
        """
        self.need_open("finish_task()")
        self.follow()
        self.pins.impose()
        self.check_finite()
        with self.whole():  # all or nothing: a recheck that fails leaves the task open
            self.freeze()
            recheck.finished(self)
            self.update_task(-1, seal=seals.take(self, len(self.tasks) - 1))

    @exclusive
    def seal(self) -> None:
        """Take the seals of all finished tasks again, for :func:`autoeidetic.audit`.

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
        self.follow()
        self.pins.impose()
        seals.take_all(self)

    # -- training ------------------------------------------------------------------------------

    def train_task(
        self,
        loader: Iterable[Any],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
        metric: Any = None,
        scheduler: Any = None,
        scheduler_every: str = "epoch",
        step_function: StepFunction | None = None,
        checkpoint: Any = None,
        progress: bool = True,
        on_epoch: Callable[[training.Epoch], None] | None = None,
        config: training.TrainConfig | None = None,
        **settings: Any,
    ) -> training.TaskHistory:
        """Train the open task, prune it as far as it goes, and leave it ready to be finished.

        Train until the training accuracy has not risen for ``patience`` epochs. Then prune in
        rounds: a round gives up ``step`` of each group's units. If the accuracy on the training
        data falls more than ``tolerance`` below the best, train for at most ``recovery_epochs``;
        if that does not bring it back, undo the round and stop.

        Args:
            loader: batches (inputs, targets); inputs are a tensor, a tuple or a dict.
            optimizer: an optimizer of ``net.parameters()``, made after ``prepare_for_task``; by
                default AdamW with a rate of 0.001.
            loss: a function of (output, target); by default cross entropy, or binary cross
                entropy for targets that are real numbers.
            metric: what counts as accuracy, higher is better: a function of (output, target) or
                an object with ``update``, ``compute`` and ``reset`` (torchmetrics).
            scheduler: a scheduler of the learning rates, stepped ``scheduler_every`` "epoch" or
                "batch" while training; not while pruning.
            step_function: (network, batch) -> (loss, output, target), instead of ``loss``.
            checkpoint: a directory where the state is stored after every epoch. After the program
                was killed, the same call continues from there, with the same result.
            progress: show a bar.
            on_epoch: called with a record of each epoch.
            config: settings in one object.
            settings: fields of :class:`~autoeidetic.TrainConfig`, instead of or on top of
                ``config``: pruning, step, most, tolerance, patience, recovery_epochs,
                settle_epochs, max_epochs, lr_factor, prune, clip, autocast, score_batches.

        Running statistics of batch norms lag behind the weights. They are re-estimated
        before accuracy is measured in eval mode and before this returns
        (:meth:`refresh_statistics`). A :class:`~autoeidetic.errors.LearningWarning` tells
        when that accuracy is far below the one in train mode, when a task ends at chance,
        and when no round of pruning could be kept.

        Several processes launched by ``torchrun`` train the task together.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> _ = torch.manual_seed(0)
            >>> model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2)
            >>> x = torch.randn(64, 4)
            >>> history = net.train_task([(x, (x[:, 0] > 0).long())], max_epochs=20, progress=False)
            >>> net.finish_task()
            >>> history.task
            0

        Raises:
            TaskError: no task is open.
            InputError: the loader gives no batches, or empty ones; the optimizer does not have the
                parameters of the task's head.
            NonFiniteError: the loss or a value became infinite or NaN; the network is back where
                it was after the last good epoch.
            CheckpointError: the directory cannot be written to, is of another network, or is in use
                by another run.
        """
        return training.train_task(
            self,
            loader,
            optimizer=optimizer,
            loss=loss,
            metric=metric,
            scheduler=scheduler,
            scheduler_every=scheduler_every,
            step_function=step_function,
            checkpoint=checkpoint,
            progress=progress,
            on_epoch=on_epoch,
            config=config,
            **settings,
        )

    def refresh_statistics(
        self, loader: Iterable[Any], *, batches: int = training.REFRESH_BATCHES
    ) -> None:
        """Re-estimate the running statistics of batch norms for the current weights.

        Call it in a custom training loop before accuracy is measured in eval mode, and before
        ``finish_task``; :meth:`train_task` does so by itself. Channels of finished tasks keep
        their statistics bit for bit; parameters, gradients, modes and random generators stay as
        they are. Norms run in train mode and everything else (dropout) in eval mode, because the
        statistics are used in eval mode. For a network without running statistics no batch is
        read.

        Args:
            loader: batches of training data: (inputs, targets), or inputs alone; inputs are a
                tensor, a tuple or a dict.
            batches: the most batches to read: the first ones, or evenly spaced ones of a list.

        With several processes all must call it; each reads its part, and all get the average.

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
            InputError: the loader gives no batches, or something else than batches.
            NonFiniteError: statistics would be infinite or NaN; they stay as they were.
        """
        training.refresh_statistics(self, loader, batches=batches)

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
        """Train a router, which tells the finished tasks apart. Nothing else changes.

        | by | the task is chosen by | data |
        |---|---|---|
        | "learned" | a classifier on the features before the output layers | needed |
        | "mahalanobis" | the distance of these features to those of each task | needed |
        | "entropy" | the entropy of each head's answer | optional |
        | "energy" | the energy of each head's logits | optional |

        With data the scores of the last two are calibrated, so that heads can be compared; this
        helps a lot. Call it again after another task is finished.

        Args:
            loaders: for each finished task one loader of (inputs, labels), or of inputs alone;
                inputs are a tensor, a tuple or a dict. Each loader is read once, and its features
                are kept in memory during the training. A revisit needs no loader.
            by: one of these, or a kind registered with :func:`autoeidetic.router`.
            epochs: the number of epochs for "learned".
            lr: the learning rate for "learned".
            seed: the same seed gives the same router. The caller's generators are not used.
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
            InputError: there is no such kind or option, the number of loaders is not that of the
                finished tasks, or a loader is empty.
            NonFiniteError: features are infinite or NaN.
        """
        settings = routing.Settings(epochs, lr, seed, progress, device_of(self.backbone, ""))
        made = routing.train(self, loaders, by, settings, options)
        self.router = made.train(self.training)

    def predict(self, *args: Any, **kwargs: Any) -> routing.Prediction:
        """Predict the task of each input and its class within that task, in eval mode.

        It takes one pass of the body, like ``task="all"``. Training a later task does not change
        the predictions, bit for bit.

        Returns:
            ``task``, ``label``, ``confidence`` and ``scores``. ``label`` is the class with the
            largest value in the first output that a head makes; other outputs are ignored. For a
            dense output it is a map of labels.

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

    # -- programs ------------------------------------------------------------------------------

    @exclusive
    def extract(self, task: int | str | Sequence[int | str]) -> Program:
        """Make a program of one task: a small, dense, ordinary PyTorch module.

        The program has only the units that the task uses, no masks and no guards, and needs this
        package neither to run nor to be trained further. Its answers are those of the network
        up to rounding, which is checked before it is returned.

        Args:
            task: a finished task, by number or name. A list makes one program that answers for
                several tasks, with one pass of the body. "all" stands for all finished tasks;
                with a router, the program then finds the task by itself and returns a dict with
                ``task``, ``label`` and ``scores``.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
            >>> program = net.extract(0)
            >>> program(torch.randn(5, 4)).shape
            torch.Size([5, 2])
            >>> {name: tuple(value.shape) for name, value in program.state_dict().items()}
            {'0.weight': (4, 4), '0.bias': (4,), '2.weight': (2, 4), '2.bias': (2,)}

        Raises:
            TaskError: there is no such task, or it is not finished.
            ExtractionError: the model's path depends on data, or the program differs from the
                network; the error names the operator, the module and the line.
        """
        return extract(self, task)

    # -- reports -------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """The shares of the network that are free and that each task owns and reuses.

        In total, per group and per layer.
        """
        return network_capacity(self)

    def _summary(self) -> str:
        return str(self.capacity())

    @exclusive
    def verify(self, *args: Any, rounds: int = 3, seed: int = 0, **kwargs: Any) -> Verification:
        """Check that no free value influences a finished task.

        Every round gives all free values random numbers and compares the answers of all finished
        tasks to ``args`` and ``kwargs`` bit for bit. All values are restored afterwards.

        Example:
            >>> import torch, autoeidetic
            >>> from torch import nn
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> net = autoeidetic.convert(model, torch.randn(2, 4))
            >>> net.prepare_for_task(0, num_classes=2); net.prune(0.5); net.finish_task()
            >>> net.verify(torch.randn(5, 4)).ok
            True
        """
        self.follow()
        return verify(self, args, kwargs, rounds=rounds, seed=seed)

    @exclusive
    def save(self, path: Any) -> None:
        """Write the network to one file, all or nothing. :func:`autoeidetic.load` opens it."""
        self.follow()
        save(self, path)

    def __dir__(self) -> list[str]:
        """Names for users: completion leaves out what the rooms use of the core."""
        methods = {name for name in vars(Network) if name[:1] != "_"} - {"tasks", "open_task"}
        return sorted(set(super().__dir__()) - (methods - set(dir(nn.Module))) - _FOR_ROOMS)

    @exclusive
    def _apply(self: Self, fn: Any, recurse: bool = True) -> Self:
        # .to(), .half(), .cuda(): seals note whether the change has rounded frozen values
        self.follow()
        before = self.types()
        super()._apply(fn, recurse)
        seals.note_conversion(self, before)
        return self
