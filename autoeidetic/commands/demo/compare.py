"""Compare: both networks learn the same tasks, and somebody is told as they go along."""

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
    """Hears the story line by line, and of every epoch; this one does nothing about it."""

    def tell(self, text: str) -> None:
        """A part of the story."""

    def expect(self, epochs: int) -> None:
        """How many epochs there are in all, as far as it is known."""

    def epoch(self, what: str) -> None:
        """One more is done."""


def compare(
    tasks: list[Lesson],
    seed: int = 0,
    config: TrainConfig = CONFIG,
    listener: Listener | None = None,
) -> tuple[Outcome, EideticNet]:
    """Teach both networks; what came of it, and the network that cannot forget."""
    began, listener = perf_counter(), listener or Listener()
    torch.manual_seed(seed)
    ours = Eidetic(tasks, config, lambda epoch: listener.epoch(story.doing(tasks, epoch)))
    listener.expect(2 * len(tasks) * _epochs(config))
    listener.tell(story.introduction(ours.net, tasks))
    for number in range(len(tasks)):
        ours.learn(number)
        listener.tell(story.learned(tasks[number], ours.record, ours.moments[-1]))
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
    """Of a task, about: rounds of pruning count as well, and half of them need recovery."""
    rounds = round(config.most / config.step)
    return (config.max_epochs or config.patience) + 2 * rounds + config.settle_epochs
