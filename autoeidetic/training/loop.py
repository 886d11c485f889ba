"""Loop: train a task, prune it round by round, leave it ready to be finished.

A task goes through these phases:

    train     epochs until the accuracy has not risen for ``patience`` epochs
    prune     one round of pruning, then the accuracy in eval mode is measured
    recover   epochs of training that bring the accuracy back within the tolerance
    settle    epochs at the end, with falling learning rates
    done

    train --> prune <--> recover      prune -> prune     the round is kept
                |           |         prune -> recover   accuracy < best - tolerance
                +-----+-----+         recover -> prune   the round is kept after all
                      v               -> settle          all is pruned, or a round was undone
                   settle --> done

Without pruning, training leads straight to settling.

One pass over the data is one step of the loop, and the state is stored after each step.
Everything that decides how training continues is in :class:`~.progress.Progress` and in the state
of :mod:`~autoeidetic.training.snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from ..common import distributed
from ..errors import CheckpointError, LearningWarning, NonFiniteError, warn_user
from ..tasks.capacity import free_share
from ..tasks.pruning.prune import prune
from . import learning_warnings, state
from .config import TrainConfig
from .epochs import EmptyBatchError, EpochRunner
from .history import Epoch, TaskHistory
from .progress import DONE, PRUNE, RECOVER, SETTLE, TRAIN, Progress
from .snapshot import Snapshots
from .store import BEFORE, NOW, Directory, Memory

#: Errors of a pass after which the network goes back to the last stored state.
PassError = NonFiniteError | EmptyBatchError


class Loop:
    """The training of one task, phase by phase."""

    def __init__(
        self,
        runner: EpochRunner,
        scheduler: Any,
        scheduler_every: str,
        config: TrainConfig,
        store: Memory | Directory,
        on_epoch: Callable[[Epoch], None] | None,
        *,
        own_loss: bool = False,
    ) -> None:
        self.runner, self.net = runner, runner.net
        self.optimizer, self.loader = runner.optimizer, runner.loader
        self.scheduler, self.scheduler_every = scheduler, scheduler_every
        self.config, self.store, self.on_epoch = config, store, on_epoch
        self.progress = Progress()
        self.snapshots = Snapshots(runner, scheduler)
        self.own_loss = own_loss
        self.pending: list[str] = []  # warnings that have not been issued; "" for none
        owners = self.net.owners
        self.initial_units = int(owners.in_training.sum() + owners.pruned.sum())

    def run(self) -> TaskHistory:
        """Train to the end, from the stored state if there is one."""
        stored = self.store.get(NOW)
        if stored is None:
            self.store.put(NOW, self.state())
        else:
            self.restore(stored)
        unfinished = self.progress.phase != DONE
        while self.progress.phase != DONE:
            try:
                self.advance()
            except (NonFiniteError, EmptyBatchError) as error:
                raise self._undone(error) from error
            # Stored before warnings and before the next step: at any moment a killed run can
            # continue from the last complete pass.
            self.store.put(NOW, self.state())
            self._issue_warnings()
        self.store.drop(BEFORE)
        if unfinished:
            self._check_outcome()
            self._issue_warnings()
        return self.history()

    def advance(self) -> None:
        """One step of the current phase: a pass over the data, and the decision after it."""
        {
            TRAIN: self._train,
            PRUNE: self._prune,
            RECOVER: self._recover,
            SETTLE: self._settle,
        }[self.progress.phase]()

    # -- phases --------------------------------------------------------------------------------

    def _train(self) -> None:
        self._start_clock()
        loss, accuracy = self.runner.train(TRAIN, len(self.progress.epochs))
        self._check_values()
        now = self.progress
        # During training the accuracy of the epoch itself is used: it costs no extra pass.
        now.since = 0 if accuracy > now.best else now.since + 1
        now.best = max(now.best, accuracy)
        now.accuracy = accuracy
        most = self.config.max_epochs
        ends = now.since >= self.config.patience or (most and len(now.epochs) + 1 >= most)
        if ends:
            self.runner.refresh_statistics()  # first, so that on_epoch sees the final network
        self._record(TRAIN, loss, accuracy)
        if self.scheduler is not None and self.scheduler_every == "epoch":
            _step_scheduler(self.scheduler, accuracy)
        if ends:
            self._start_pruning()

    def _start_pruning(self) -> None:
        now = self.progress
        if self.config.prune:
            self._set_rates(self.config.lr_factor)
            # Rounds are judged in eval mode, so the best accuracy must be one in eval mode, too:
            # that of the epochs has dropout in it, and weights that were still changing.
            trained = now.accuracy
            now.phase, now.best = PRUNE, self.runner.evaluate("evaluate")
            now.accuracy = now.best
            self._compare_modes(trained, now.accuracy)
        else:
            self._stop("not pruned")

    def _evaluate(self, phase: str) -> float:
        """The accuracy in eval mode, with running statistics of the current weights.

        Training and pruning change what a batch norm receives, and its running statistics lag
        behind. Without a new estimate a round would be judged by stale statistics: the accuracy
        drops although no unit that matters is gone, and a good round is undone.
        """
        self.runner.refresh_statistics()
        return self.runner.evaluate(phase)

    def _prune(self) -> None:
        """One round of pruning; the next one may follow if the accuracy holds."""
        self._start_clock()
        now = self.progress
        # BEFORE is what an undone round goes back to; it is stored before any unit is pruned.
        self.store.put(BEFORE, self.state())
        before = int(self.net.owners.pruned.sum())
        share = self._share(now.round + 1)
        data = self.runner.score_data(self.config.score_batches)
        prune(self.net, share, self.config.pruning, data, since_start=True)
        now.round += 1
        now.tries = 0
        # The share counts from the start of the task; in small groups it may round to no new unit.
        if int(self.net.owners.pruned.sum()) == before:
            if share == self.config.most:
                self._stop(self._all_pruned())
            return
        accuracy = self._evaluate(PRUNE)
        self._record(PRUNE, None, accuracy)
        self._judge(accuracy)

    def _recover(self) -> None:
        self._start_clock()
        loss, _ = self.runner.train(RECOVER, len(self.progress.epochs))
        self._check_values()
        accuracy = self._evaluate("evaluate")
        self.progress.tries += 1
        self._record(RECOVER, loss, accuracy)
        self._judge(accuracy)

    def _judge(self, accuracy: float) -> None:
        """Keep the round, train to recover from it, or undo it."""
        now = self.progress
        # ``best`` never falls, so losses within the tolerance do not add up over rounds.
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
        """The share of the task's initial units that is pruned after this number of rounds."""
        return min(rounds * self.config.step, self.config.most)

    def _all_pruned(self) -> str:
        most = self.config.most
        return "nothing is left to prune" if most == 1.0 else f"{most:.0%} are pruned, as asked"

    def _undo_round(self) -> None:
        now = self.progress
        before = self.store.get(BEFORE)
        # A state of another round would undo more, or less, than this one.
        if before is None or before["progress"]["round"] != now.round - 1:
            raise CheckpointError(
                f"the state from before round {now.round} of pruning is missing",
                remedy="delete the states of this task and train it again",
            )
        # The epochs of the round did happen: they stay in the history, and random numbers go on
        # from here instead of being drawn a second time.
        epochs = now.epochs
        self.restore({**before, "random": state.of_random(self.loader)})
        self.progress.epochs = epochs
        self._stop(f"round {self.progress.round + 1} cost more than the tolerance, and was undone")

    def _stop(self, reason: str) -> None:
        now = self.progress
        now.phase = SETTLE if self.config.settle_epochs else DONE
        now.reason, now.tries = reason, 0

    def _settle(self) -> None:
        """One epoch of settling; rates fall from epoch to epoch, nearly to zero in the last."""
        self._start_clock()
        now, number = self.progress, self.config.settle_epochs
        # Linear: factor * (1, (n-1)/n, ..., 1/n); tries counts the epochs of this phase.
        self._set_rates(self.config.lr_factor * (1 - now.tries / number))
        loss, trained = self.runner.train(SETTLE, len(now.epochs))
        self._check_values()
        now.tries += 1
        now.accuracy = trained
        if now.tries == number:
            now.phase, now.accuracy = DONE, self._evaluate("evaluate")
            self._compare_modes(trained, now.accuracy)
        self._record(SETTLE, loss, trained)

    def _set_rates(self, factor: float) -> None:
        # From the initial rates, not from the present ones: a factor is applied once, not on top.
        for group, rate in zip(self.optimizer.param_groups, self.snapshots.rates, strict=True):
            group["lr"] = rate * factor

    # -- states --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that decides how training continues."""
        return self.snapshots.take(self.progress)

    def restore(self, stored: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            CheckpointError: it is of another network, or its optimizer is another one.
        """
        self.progress = self.snapshots.restore(stored)

    def _undone(self, error: PassError) -> PassError:
        """Restore the last good state, and say so in the error."""
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

    # -- warnings ------------------------------------------------------------------------------

    def _compare_modes(self, trained: float, evaluated: float) -> None:
        """Compare the accuracy during an epoch with the accuracy in eval mode after it.

        Not in recovery: there a low accuracy may simply mean that too few units are left.
        """
        if self.runner.targets is not None:
            text = learning_warnings.about_evaluation(
                self._name(), trained, evaluated, self.runner.targets
            )
            self.pending.append(text)

    def _check_outcome(self) -> None:
        """Check a task that is ready to be finished: did it learn, did it leave free units?"""
        now, config, name = self.progress, self.config, self._name()
        if self.runner.targets is not None:
            allowed = config.tolerance if config.prune else 0.0
            self.pending.append(
                learning_warnings.about_chance(
                    name, now.accuracy, allowed, self.runner.targets, weighted=self.own_loss
                )
            )
        if config.prune and self.initial_units and not self._pruned():
            text = learning_warnings.about_room(name, config.step, config.tolerance)
            self.pending.append(text)

    def _issue_warnings(self) -> None:
        """Warn the caller of ``train_task``.

        Called after the state is stored: where warnings are errors, no epoch is lost.
        """
        texts, self.pending = [text for text in self.pending if text], []
        for text in texts if distributed.rank() == 0 else ():
            warn_user(text, LearningWarning)

    def _name(self) -> str:
        return f"task {self.net.open_task}"

    # -- records -------------------------------------------------------------------------------

    def _start_clock(self) -> None:
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
            free=free_share(self.net.call_plan, self.net.owners),
            lr=float(self.optimizer.param_groups[0]["lr"]),
            seconds=perf_counter() - self._started,
        )
        self.progress.epochs.append(epoch)
        self.runner.bar.show(
            accuracy=f"{accuracy:.2%}",
            pruned=f"{epoch.pruned:.0%}",
            free=f"{epoch.free:.0%}",
        )
        if self.on_epoch is not None and distributed.rank() == 0:
            self.on_epoch(epoch)

    def _pruned(self) -> float:
        """The share of the task's initial units that is pruned."""
        return int(self.net.owners.pruned.sum()) / max(self.initial_units, 1)

    def history(self) -> TaskHistory:
        """The record of the task."""
        now = self.progress
        return TaskHistory(
            task=int(self.net.open_task or 0),
            epochs=tuple(now.epochs),
            accuracy=now.accuracy,
            rounds=now.round,
            pruned=self._pruned(),
            free=free_share(self.net.call_plan, self.net.owners),
            reason=now.reason,
        )


def _step_scheduler(scheduler: Any, accuracy: float) -> None:
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(accuracy)
    else:
        scheduler.step()
