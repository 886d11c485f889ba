"""Loop: train a task, prune it round by round, leave it ready to be finished.

A task goes through the phases *train* (until patience runs out), *prune* (a round of pruning and
a look at the accuracy), *recover* (epochs of training that bring the accuracy back), *settle*
(epochs with falling rates at the end) and *done*.
All that decides how it goes on is in :class:`Progress` and in the states of
:mod:`~autoeidetic.training.state`; it is stored after every pass over the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import nn

from ..common import distributed
from ..common.batches import criterion, divided
from ..common.inputs import check_loader
from ..errors import CheckpointError, InputError, LearningWarning, NonFiniteError, TaskError
from ..results.metric import accumulator
from ..tasks.capacity import free_share
from ..tasks.network import Network
from ..tasks.pruning.prune import prune
from . import doubts, state
from .config import TrainConfig
from .doubts import Targets
from .epochs import TRAIN, EmptyBatchError, Passes, StepFunction, step_with
from .history import Epoch, TaskHistory
from .progress_bar import bar
from .store import BEFORE, NOW, Directory, Memory

PRUNE, RECOVER, SETTLE, DONE = "prune", "recover", "settle", "done"
#: Devices that fused optimizers have kernels for, in every torch that is supported.
_FUSED = ("cpu", "cuda")
Undone = NonFiniteError | EmptyBatchError


@dataclass
class Progress:
    """Where the loop is.

    ``best`` is the best accuracy: of the epochs while training, of looks in eval mode from then
    on; ``accuracy`` the one of the network as it is kept. ``since`` counts epochs without a better
    one; ``tries`` the epochs of recovery in this round, or of settling.
    """

    phase: str = TRAIN
    best: float = float("-inf")
    accuracy: float = float("-inf")
    since: int = 0
    round: int = 0
    tries: int = 0
    reason: str = ""
    epochs: list[Epoch] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Progress:
        return Progress(**{**values, "epochs": [Epoch(**epoch) for epoch in values["epochs"]]})


def train_task(
    net: Network,
    loader: Iterable[Any],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    metric: Any = None,
    scheduler: Any = None,
    scheduler_every: str = "epoch",
    step_function: StepFunction | None = None,
    checkpoint: Any = None,
    progress: bool = True,
    on_epoch: Callable[[Epoch], None] | None = None,
    config: TrainConfig | None = None,
    **settings: Any,
) -> TaskHistory:
    """The loop behind :meth:`autoeidetic.EideticNet.train_task`, which describes it."""
    if net.open_task is None:
        raise TaskError(
            "train_task() was called, but no task is open",
            remedy=f"call prepare_for_task({len(net.tasks)}) first",
        )
    if scheduler_every not in ("epoch", "batch"):
        raise InputError(
            f"scheduler_every={scheduler_every!r} is unknown", remedy='use "epoch" or "batch"'
        )
    config = (config or TrainConfig()).with_(**settings)
    check_loader(loader, "loader")
    if optimizer is not None:
        _check_optimizer(net, optimizer)
    distributed.start()
    store = Memory() if checkpoint is None else Directory(checkpoint, net.open_task)
    if optimizer is None:
        optimizer = default_optimizer(net.parameters())
    loader = divided(loader)
    device = next(net.parameters()).device
    with store, bar(net.tasks[-1].name, progress) as shown:
        passes = Passes(
            net=net,
            model=_distributed(net),
            loader=loader,
            step_function=step_function or step_with(loss or criterion),
            optimizer=optimizer,
            after_batch=scheduler.step if scheduler and scheduler_every == "batch" else None,
            metric=accumulator(metric, device=device),
            targets=Targets() if metric is None else None,
            clip=config.clip,
            autocast=config.autocast,
            scaler=torch.amp.GradScaler(device.type, enabled=config.autocast == "float16"),
            bar=shown,
        )
        own_loss = loss is not None or step_function is not None
        return Loop(
            passes, scheduler, scheduler_every, config, store, on_epoch, own_loss=own_loss
        ).run()


def default_optimizer(
    parameters: Iterable[nn.Parameter], rate: float = 1e-3
) -> torch.optim.Optimizer:
    """AdamW, fused where it can be: the plain one is slow on second moments that are zero."""
    parameters = list(parameters)
    fused = all(p.is_floating_point() and p.device.type in _FUSED for p in parameters)
    return torch.optim.AdamW(parameters, lr=rate, fused=fused or None)


def _check_optimizer(net: Network, optimizer: Any) -> None:
    """One from before the task does not know its head: it would not learn, and nobody would see."""
    if not hasattr(optimizer, "param_groups"):  # a class, or a function that makes one
        raise InputError(
            f"optimizer is {optimizer!r:.80}, not a torch.optim.Optimizer",
            remedy="pass one, for instance torch.optim.AdamW(net.parameters(), lr=0.001)",
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in _head_parameters(net).items():
        if parameter.requires_grad and id(parameter) not in held:
            raise InputError(
                f"the optimizer does not have {name}, a parameter of the head of task "
                f"{net.open_task}, which would not learn",
                remedy="make the optimizer after prepare_for_task, from net.parameters(), or add "
                "the parameter with optimizer.add_param_group; one that is not to be trained is "
                "left out with requires_grad_(False)",
            )


def _head_parameters(net: Network) -> dict[str, nn.Parameter]:
    """Of the open task, by their names in the network."""
    if net.keep_head and net.open_task == 0:
        names = [name for head in net.blueprint.heads for name in head.parameters]
        return {f"backbone.{name}": net.backbone.get_parameter(name) for name in names}
    own = f"heads.{net.open_task}"
    return dict(net.heads[str(net.open_task)].named_parameters(prefix=own))


def _distributed(net: Network) -> nn.Module:
    if distributed.count() == 1:
        return net
    # all processes draw from the seed of the first when they roll back
    net.update_task(-1, **vars(distributed.first(net.tasks[-1])))
    return nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)


class Loop:
    """One task on its way through the phases."""

    def __init__(
        self,
        passes: Passes,
        scheduler: Any,
        scheduler_every: str,
        config: TrainConfig,
        store: Memory | Directory,
        on_epoch: Callable[[Epoch], None] | None,
        *,
        own_loss: bool = False,
    ) -> None:
        self.passes, self.net = passes, passes.net
        self.optimizer, self.loader = passes.optimizer, passes.loader
        self.scheduler, self.scheduler_every = scheduler, scheduler_every
        self.config, self.store, self.on_epoch = config, store, on_epoch
        self.progress = Progress()
        self.own_loss = own_loss
        self.doubts: list[str] = []  # that are to be told; "" for none
        self.rates = [group.get("initial_lr", group["lr"]) for group in self.optimizer.param_groups]
        owners = self.net.owners
        self.began = int(owners.in_training.sum() + owners.pruned.sum())

    def run(self) -> TaskHistory:
        """To the end, from where an earlier run stopped."""
        stored = self.store.get(NOW)
        if stored is None:
            self.store.put(NOW, self.state())
        else:
            self.restore(stored)
        begun = self.progress.phase != DONE
        while self.progress.phase != DONE:
            try:
                self.advance()
            except (NonFiniteError, EmptyBatchError) as error:
                raise self._undone(error) from error
            self.store.put(NOW, self.state())
            self._tell()
        self.store.drop(BEFORE)
        if begun:
            self._look_back()
            self._tell()
        return self.history()

    def advance(self) -> None:
        """One pass over the data, and what follows from it."""
        {
            TRAIN: self._train,
            PRUNE: self._prune,
            RECOVER: self._recover,
            SETTLE: self._settle,
        }[self.progress.phase]()

    # -- phases --------------------------------------------------------------------------------

    def _train(self) -> None:
        self._clock()
        loss, accuracy = self.passes.train(TRAIN, len(self.progress.epochs))
        self._check_values()
        now = self.progress
        now.since = 0 if accuracy > now.best else now.since + 1
        now.best = max(now.best, accuracy)
        now.accuracy = accuracy
        most = self.config.max_epochs
        ends = now.since >= self.config.patience or (most and len(now.epochs) + 1 >= most)
        if ends:
            self.passes.refresh()  # first, so that on_epoch sees the network as it stays
        self._record(TRAIN, loss, accuracy)
        if self.scheduler is not None and self.scheduler_every == "epoch":
            _step_scheduler(self.scheduler, accuracy)
        if ends:
            self._start_pruning()

    def _start_pruning(self) -> None:
        now = self.progress
        if self.config.prune:
            self._set_rates(self.config.lr_factor)
            trained = now.accuracy
            now.phase, now.best = PRUNE, self.passes.look("look")
            now.accuracy = now.best
            self._compare(trained, now.accuracy)
        else:
            self._stop("not pruned")

    def _look(self, phase: str) -> float:
        """The accuracy in eval mode, with statistics of the weights as they are now.

        Training, and pruning as well, leaves those of earlier weights behind.
        """
        self.passes.refresh()
        return self.passes.look(phase)

    def _prune(self) -> None:
        """One more round; when it does no harm, the next one may follow."""
        self._clock()
        now = self.progress
        self.store.put(BEFORE, self.state())
        before = int(self.net.owners.pruned.sum())
        share = self._share(now.round + 1)
        data = self.passes.score_data(self.config.score_batches)
        prune(self.net, share, self.config.pruning, data, since_start=True)
        now.round += 1
        now.tries = 0
        if int(self.net.owners.pruned.sum()) == before:
            if share == self.config.most:
                self._stop(self._all_pruned())
            return
        accuracy = self._look(PRUNE)
        self._record(PRUNE, None, accuracy)
        self._judge(accuracy)

    def _recover(self) -> None:
        self._clock()
        loss, _ = self.passes.train(RECOVER, len(self.progress.epochs))
        self._check_values()
        accuracy = self._look("look")
        self.progress.tries += 1
        self._record(RECOVER, loss, accuracy)
        self._judge(accuracy)

    def _judge(self, accuracy: float) -> None:
        """Is the accuracy good enough for another round?"""
        now = self.progress
        if accuracy >= now.best - self.config.tolerance:
            now.best = max(now.best, accuracy)
            now.accuracy = accuracy
            now.phase = PRUNE
            if self._share(now.round) == self.config.most:
                self._stop(self._all_pruned())
        elif now.tries < self.config.recovery_epochs:
            now.phase = RECOVER
        else:
            self._undo_round()

    def _share(self, rounds: int) -> float:
        """What is given up after so many rounds."""
        return min(rounds * self.config.step, self.config.most)

    def _all_pruned(self) -> str:
        most = self.config.most
        return "nothing is left to prune" if most == 1.0 else f"{most:.0%} are pruned, as asked"

    def _undo_round(self) -> None:
        now = self.progress
        before = self.store.get(BEFORE)
        if before is None or before["progress"]["round"] != now.round - 1:
            raise CheckpointError(
                f"the state from before round {now.round} of pruning is missing",
                remedy="delete the states of this task and train it again",
            )
        epochs = now.epochs
        self.restore({**before, "random": state.of_random(self.loader)})
        self.progress.epochs = epochs
        self._stop(f"round {self.progress.round + 1} cost more than the tolerance, and was undone")

    def _stop(self, reason: str) -> None:
        now = self.progress
        now.phase = SETTLE if self.config.settle_epochs else DONE
        now.reason, now.tries = reason, 0

    def _settle(self) -> None:
        """An epoch at a lower rate than the one before; the last one is near zero."""
        self._clock()
        now, number = self.progress, self.config.settle_epochs
        self._set_rates(self.config.lr_factor * (1 - now.tries / number))
        loss, trained = self.passes.train(SETTLE, len(now.epochs))
        self._check_values()
        now.tries += 1
        now.accuracy = trained
        if now.tries == number:
            now.phase, now.accuracy = DONE, self._look("look")
            self._compare(trained, now.accuracy)
        self._record(SETTLE, loss, trained)

    def _set_rates(self, factor: float) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    # -- states --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that decides how this goes on."""
        return {
            "network": state.of_network(self.net),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": self.passes.scaler.state_dict(),
            "random": state.of_random(self.loader),
            "progress": self.progress.to_dict(),
            "rates": self.rates,
            "kinds": self._kinds(),
        }

    def _kinds(self) -> list[str]:
        return [type(part).__qualname__ for part in (self.optimizer, self.scheduler)]

    def restore(self, stored: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            CheckpointError: it is of another network, or its optimizer is another one.
        """
        state.check_network(self.net, stored["network"])
        if stored["kinds"] != self._kinds():
            raise CheckpointError(
                f"the stored optimizer and scheduler are {' and '.join(stored['kinds'])}, and not "
                f"{' and '.join(self._kinds())}",
                remedy="pass the optimizer and the scheduler that the run was started with",
            )
        try:
            self.optimizer.load_state_dict(stored["optimizer"])
            if self.scheduler is not None and stored["scheduler"] is not None:
                self.scheduler.load_state_dict(stored["scheduler"])
            self.passes.scaler.load_state_dict(stored["scaler"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"the stored optimizer is another one: {error}",
                remedy="pass the optimizer and the scheduler that the run was started with",
            ) from error
        state.to_network(self.net, stored["network"])
        state.to_random(stored["random"], self.loader)
        self._change_rates(stored["rates"])
        self.progress = Progress.from_dict(stored["progress"])

    def _change_rates(self, stored: list[float]) -> None:
        """Go on with the rates that the optimizer came with, when they are other ones now."""
        factors = [
            now / then if then else 1.0 for now, then in zip(self.rates, stored, strict=True)
        ]
        if all(factor == 1.0 for factor in factors):
            return
        for group, factor in zip(self.optimizer.param_groups, factors, strict=True):
            for name in ("lr", "initial_lr"):
                if name in group:
                    group[name] *= factor
        if hasattr(self.scheduler, "base_lrs"):
            rates = zip(self.scheduler.base_lrs, factors, strict=True)
            self.scheduler.base_lrs = [rate * factor for rate, factor in rates]

    def _undone(self, error: Undone) -> Undone:
        """Back to the last good state."""
        epochs = len(self.progress.epochs)
        self.restore(self.store.get(NOW))
        return type(error)(
            f"{error.fact}; the network is back where it was after {epochs} epochs",
            place=error.place,
            remedy=error.remedy,
        )

    def _check_values(self) -> None:
        if self.net.diverged():
            raise NonFiniteError(
                f"values of task {self.net.open_task} are infinite or NaN",
                remedy="train with a lower learning rate, or pass clip=1.0",
            )

    # -- doubts --------------------------------------------------------------------------------

    def _compare(self, trained: float, seen: float) -> None:
        """Of one epoch: the accuracy on the way, and that in eval mode, which counts from now on.

        Not in recovery: units that are too few are seen there by the accuracy alone.
        """
        if self.passes.targets is not None:
            text = doubts.about_evaluation(self._name(), trained, seen, self.passes.targets)
            self.doubts.append(text)

    def _look_back(self) -> None:
        """At a task that is ready to be finished."""
        now, config, name = self.progress, self.config, self._name()
        if self.passes.targets is not None:
            allowed = config.tolerance if config.prune else 0.0
            self.doubts.append(
                doubts.about_chance(
                    name, now.accuracy, allowed, self.passes.targets, weighted=self.own_loss
                )
            )
        if config.prune and self.began and not self._pruned():
            self.doubts.append(doubts.about_room(name, config.step, config.tolerance))

    def _tell(self) -> None:
        """Warn the caller of ``train_task``; a state is stored before, if a warning is an error."""
        told, self.doubts = [text for text in self.doubts if text], []
        for text in told if distributed.rank() == 0 else ():
            warnings.warn(text, LearningWarning, stacklevel=4)

    def _name(self) -> str:
        return f"task {self.net.open_task}"

    # -- records -------------------------------------------------------------------------------

    def _clock(self) -> None:
        self._started = perf_counter()

    def _record(self, phase: str, loss: float | None, accuracy: float) -> None:
        epoch = Epoch(
            task=int(self.net.open_task or 0),
            number=len(self.progress.epochs),
            phase=phase,
            round=self.progress.round,
            loss=loss,
            accuracy=accuracy,
            pruned=self._pruned(),
            free=free_share(self.net.blueprint, self.net.owners),
            lr=float(self.optimizer.param_groups[0]["lr"]),
            seconds=perf_counter() - self._started,
        )
        self.progress.epochs.append(epoch)
        self.passes.bar.tell(
            accuracy=f"{accuracy:.2%}",
            pruned=f"{epoch.pruned:.0%}",
            free=f"{epoch.free:.0%}",
        )
        if self.on_epoch is not None and distributed.rank() == 0:
            self.on_epoch(epoch)

    def _pruned(self) -> float:
        return int(self.net.owners.pruned.sum()) / max(self.began, 1)

    def history(self) -> TaskHistory:
        now = self.progress
        return TaskHistory(
            task=int(self.net.open_task or 0),
            epochs=tuple(now.epochs),
            accuracy=now.accuracy,
            rounds=now.round,
            pruned=self._pruned(),
            free=free_share(self.net.blueprint, self.net.owners),
            reason=now.reason,
        )


def _step_scheduler(scheduler: Any, accuracy: float) -> None:
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(accuracy)
    else:
        scheduler.step()
