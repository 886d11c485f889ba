"""What a network that can forget reaches on the same tasks with the same budget.

All three start with the same network trained on task 0, which is kept in a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from benchmarks.learning_data import Batches, TaskData, Transform

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Budget:
    """What may be spent on one task.

    Attributes:
        epochs: over the task's examples.
        batch_size: of a training step.
        optimizer: makes one from parameters; every task gets a new one.
        schedule: makes a learning rate schedule from an optimizer, stepped after every epoch.
        transform: of the inputs of a training batch.
        seed: of the initial weights, the order of examples and all else.
    """

    epochs: int
    batch_size: int
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    transform: Transform | None = None
    seed: int = 0


@dataclass
class Outcome:
    """``accuracy[i][j]``: on the test examples of task ``j`` after task ``i``, for ``j <= i``."""

    name: str
    accuracy: list[list[float]] = field(default_factory=list)
    seconds: float = 0.0  # of training, all tasks together


# -- three baselines ------------------------------------------------------------------------------


def finetune(build: Build, tasks: Sequence[TaskData], budget: Budget, first: Path) -> Outcome:
    """One network trained on task after task, each with a head of its own: it forgets."""
    return _one_network("fine-tuning", build, tasks, budget, first, freeze=False)


def frozen(build: Build, tasks: Sequence[TaskData], budget: Budget, first: Path) -> Outcome:
    """Task 0 trains the network; later tasks train a head on its features and nothing else."""
    return _one_network("frozen after task 0", build, tasks, budget, first, freeze=True)


def separate(build: Build, tasks: Sequence[TaskData], budget: Budget, first: Path) -> Outcome:
    """A network for each task: nothing to forget, nothing shared, the cost of them all."""
    outcome = Outcome("separate networks")
    model, outcome.seconds = _first(build, tasks[0], budget, first)
    reached = [accuracy(model, *tasks[0].test)]
    outcome.accuracy.append(list(reached))
    for task in tasks[1:]:
        model = MultiHead(build())
        model.add_head(task.classes)
        outcome.seconds += _learn(model, task, budget, outcome.name)
        reached.append(accuracy(model, *task.test))
        outcome.accuracy.append(list(reached))
    return outcome


def _one_network(
    name: str,
    build: Build,
    tasks: Sequence[TaskData],
    budget: Budget,
    first: Path,
    *,
    freeze: bool,
) -> Outcome:
    outcome = Outcome(name)
    model, outcome.seconds = _first(build, tasks[0], budget, first)
    outcome.accuracy.append([accuracy(model, *tasks[0].test)])
    if freeze:
        model.freeze_body()
    for number, task in enumerate(tasks[1:], 1):
        model.add_head(task.classes)
        outcome.seconds += _learn(model, task, budget, name)
        seen = enumerate(tasks[: number + 1])
        outcome.accuracy.append([accuracy(model, *old.test, task=j) for j, old in seen])
    return outcome


def _first(build: Build, task: TaskData, budget: Budget, file: Path) -> tuple[MultiHead, float]:
    """A network trained on task 0, and how long that took."""
    torch.manual_seed(budget.seed)
    model = MultiHead(build())
    model.add_head(task.classes)
    if not file.exists():
        seconds = torch.tensor(_learn(model, task, budget, "task 0 of all"))
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "seconds": seconds}, file)
    stored = torch.load(file, weights_only=True)
    model.load_state_dict(stored["model"])
    torch.manual_seed(budget.seed + 1)
    return model, float(stored["seconds"])


def _learn(model: MultiHead, task: TaskData, budget: Budget, label: str) -> float:
    """Train the newest head, and the body unless it is frozen. How long it took."""
    optimizer = budget.optimizer(model.trained())
    schedule = budget.schedule(optimizer) if budget.schedule else None
    loader = Batches(*task.train, budget.batch_size, transform=budget.transform)
    start = time.perf_counter()
    train_epochs(model, loader, optimizer, budget.epochs, schedule, label=f"{label}: {task.name}")
    return time.perf_counter() - start


# -- the network, the loop, the measure -----------------------------------------------------------


class MultiHead(nn.Module):
    """A model without its last linear layer, and one such layer for each task."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        layers = [(n, layer) for n, layer in model.named_modules() if isinstance(layer, nn.Linear)]
        if not layers:
            raise ValueError(f"{type(model).__name__} has no linear layer to take as its head")
        name, last = layers[-1]
        model.set_submodule(name, nn.Identity())
        self.body = model
        self.heads = nn.ModuleList()
        self.features = last.in_features
        self.frozen = False

    def add_head(self, classes: int) -> None:
        """Another task."""
        self.heads.append(nn.Linear(self.features, classes))

    def freeze_body(self) -> None:
        """From now on the body computes what it computes in eval mode."""
        self.frozen = True
        self.body.requires_grad_(False).eval()

    def trained(self) -> list[nn.Parameter]:
        """What the newest task may change."""
        body = [] if self.frozen else list(self.body.parameters())
        return body + list(self.heads[-1].parameters())

    def train(self, mode: bool = True) -> MultiHead:
        super().train(mode)
        self.body.train(mode and not self.frozen)
        return self

    def forward(self, x: Tensor, task: int = -1) -> Tensor:
        return self.heads[task](self.body(x))


def train_epochs(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    epochs: int,
    scheduler: Any = None,
    *,
    label: str = "",
) -> list[float]:
    """Plain training with cross entropy; the scheduler steps after every epoch. Mean losses."""
    model.train()
    losses: list[float] = []
    bar = tqdm(range(epochs), desc=label, leave=False)
    for _ in bar:
        total, count = torch.zeros(()), 0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(y)
            count += len(y)
        if scheduler is not None:
            scheduler.step()
        losses.append(float(total) / count)
        bar.set_postfix(loss=f"{losses[-1]:.4f}")
    return losses


@torch.no_grad()
def accuracy(
    model: nn.Module, x: Tensor, y: Tensor, *, batch_size: int = 500, **call: Any
) -> float:
    """The share of right answers of ``model(x, **call)``; leaves the model in eval mode."""
    model.eval()
    batches = Batches(x, y, batch_size, shuffle=False)
    return sum(int((model(a, **call).argmax(1) == b).sum()) for a, b in batches) / len(y)
