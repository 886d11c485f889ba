"""A stock network is converted and learns task after task. This is the part to copy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import autoeidetic

from ... import Epoch, Lesson, TrainConfig
from ...common.bits import different
from ...results import Evaluation
from ...tasks.capacity import Share
from .data import all_test_images
from .networks import stock_network
from .outcome import Moment, Record

RATE = 3e-3
#: A task gives up to four fifths of its units, a fifth in each round, as long as accuracy allows.
CONFIG = TrainConfig(
    max_epochs=7,
    step=0.2,
    most=0.8,
    tolerance=0.02,
    recovery_epochs=3,
    lr_factor=0.5,
    settle_epochs=3,
)


class Eidetic:
    """The network, its tasks, and a record of their training."""

    def __init__(
        self, tasks: list[Lesson], config: TrainConfig, on_epoch: Callable[[Epoch], None]
    ) -> None:
        self.tasks, self.config, self.on_epoch = tasks, config, on_epoch
        self.images = all_test_images(tasks)
        self.net = autoeidetic.convert(stock_network(), self.images[:2])
        self.record = Record()
        self.rates: list[list[float]] = []
        self.moments: list[Moment] = []
        self.shares: list[tuple[Share, ...]] = []
        self.answers: list[Tensor] = []

    def learn(self, number: int) -> None:
        """Train, prune and finish a task; store its outputs to compare with later."""
        task = self.tasks[number]
        self.rates.append([])
        # open -> train and prune -> finish: from here on the bits of this task stay.
        self.net.prepare_for_task(number, num_classes=2, name=task.name)
        self.net.train_task(
            task.train,
            # after prepare_for_task, which makes the head that it has to know
            optimizer=torch.optim.AdamW(self.net.parameters(), lr=RATE),
            config=self.config,
            on_epoch=self._note,
            progress=False,
        )
        self.net.finish_task()
        self.record.after_task(self._accuracies())
        self.answers.append(self._answer(number))
        self._note_capacity()

    def train_router(self) -> Evaluation:
        """Train a router, which predicts the task of an image, and evaluate with it."""
        self.net.train_router([task.train for task in self.tasks], progress=False)
        return autoeidetic.evaluate(self.net, [task.test for task in self.tasks])

    def changed_logits(self) -> int:
        """The number of logits of finished tasks whose bits have changed."""
        now = map(self._answer, range(len(self.answers)))
        return sum(int(different(*pair).sum()) for pair in zip(self.answers, now, strict=True))

    def scramble_proof(self) -> bool:
        """Whether all outputs stay the same when everything free is overwritten."""
        return self.net.verify(self.images[:64]).ok

    @torch.no_grad()
    def _answer(self, number: int) -> Tensor:
        """The logits of a task for the test images of all tasks."""
        return self.net.eval()(self.images, task=number)

    def _accuracies(self) -> dict[int, float]:
        tests = [task.test for task in self.tasks]
        return autoeidetic.evaluate(self.net, tests).accuracy

    def _note(self, epoch: Epoch) -> None:
        # A round of pruning trains nothing, so it is no epoch for the comparison.
        if epoch.phase != "prune":
            self.record.after_epoch(self._accuracies())
            self.rates[-1].append(epoch.lr)
        self._note_capacity()
        self.on_epoch(epoch)

    def _note_capacity(self) -> None:
        capacity = self.net.capacity()
        self.moments.append(Moment(self.record.epochs, capacity.tasks, capacity.free))
        # One entry per task: replaces the entry of the current one until the next task begins.
        self.shares[len(self.rates) - 1 :] = [capacity.groups]
