"""The comparison: both networks learn the same tasks, and a listener is told of the progress."""

from __future__ import annotations

from time import perf_counter

import torch

from ... import EideticNet, Lesson, TrainConfig
from . import story
from .data import train_images
from .eidetic import CONFIG, Eidetic
from .finetuning import fine_tune
from .networks import ARGUMENTS, NAME
from .outcome import Outcome


class Listener:
    """Receives the story and the progress of a comparison; this base class ignores both."""

    def tell(self, text: str) -> None:
        """Receive a part of the story."""

    def expect(self, epochs: int) -> None:
        """Receive the total number of epochs, as far as it is known."""

    def epoch(self, what: str) -> None:
        """Receive a description of the epoch that is done."""


def compare(
    tasks: list[Lesson],
    seed: int = 0,
    config: TrainConfig = CONFIG,
    listener: Listener | None = None,
) -> tuple[Outcome, EideticNet]:
    """Train both networks; the results, and the network that cannot forget."""
    began, listener = perf_counter(), listener or Listener()
    torch.manual_seed(seed)
    # The eidetic network first: its epochs and rates are the budget of fine-tuning.
    ours = Eidetic(tasks, config, lambda epoch: listener.epoch(story.doing(tasks, epoch)))
    listener.expect(2 * len(tasks) * _epochs(config))
    listener.tell(story.introduction(ours.net, tasks))
    for number in range(len(tasks)):
        ours.learn(number)
        listener.tell(story.learned(tasks[number], ours.record, ours.moments[-1]))
    # Now exact: one moment per epoch or round of pruning, one more after each task. Fine-tuning
    # trains as many epochs as `ours`.
    listener.expect(len(ours.moments) - len(tasks) + ours.record.epochs)
    evaluation = ours.train_router()
    listener.tell(story.FINE_TUNING)
    tuned = fine_tune(
        tasks, ours.rates, lambda number: listener.epoch(f"fine-tuning: {tasks[number].name}")
    )
    listener.tell(story.forgotten(tuned))
    outcome = Outcome(
        network=NAME,
        arguments=ARGUMENTS,
        parameters=sum(p.numel() for p in ours.net.backbone.parameters()),
        seed=seed,
        names=tuple(str(task.name) for task in tasks),
        train_images=train_images(tasks),
        test_images=len(ours.images),
        eidetic=ours.record,
        tuned=tuned,
        capacity=tuple(ours.moments),
        groups=tuple(ours.shares),
        logits=sum(answer.numel() for answer in ours.answers),
        changed=ours.changed_logits(),
        scramble_proof=ours.scramble_proof(),
        confusion=evaluation.confusion or (),
        agnostic=evaluation.agnostic or 0.0,
        seconds=perf_counter() - began,
    )
    return outcome, ours.net


def _epochs(config: TrainConfig) -> int:
    """An estimate for one task: a round of pruning counts, and needs about one epoch to recover."""
    rounds = round(config.most / config.step)
    return (config.max_epochs or config.patience) + 2 * rounds + config.settle_epochs
