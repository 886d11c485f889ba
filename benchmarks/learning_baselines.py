"""Three baselines on the same tasks with the same budget.

All of them start from the same network trained on task 0, which is stored in a file.
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
    """The training budget of one task.

    Attributes:
        epochs: number of passes over the task's examples.
        batch_size: examples per training step.
        optimizer: creates the optimizer of a task from parameters.
        schedule: creates a learning rate schedule, which steps after every epoch.
        transform: applied to the inputs of a training batch.
        seed: of the initial weights, the order of examples and everything else.
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
    seconds: float = 0.0  # training time of all tasks


# -- three baselines ------------------------------------------------------------------------------


def finetune(build: Build, tasks: Sequence[TaskData], budget: Budget, first: Path) -> Outcome:
    """One network trained on task after task, with one head per task: it forgets."""
    return _one_network("fine-tuning", build, tasks, budget, first, freeze=False)


def frozen(build: Build, tasks: Sequence[TaskData], budget: Budget, first: Path) -> Outcome:
    """Task 0 trains the network; later tasks train only a head on its features."""
    return _one_network("frozen after task 0", build, tasks, budget, first, freeze=True)


def separate(build: Build, tasks: Sequence[TaskData], budget: Budget, first: Path) -> Outcome:
    """One network per task: nothing is forgotten, nothing is shared, at full cost."""
    outcome = Outcome("separate networks")
    model, outcome.seconds = _first(build, tasks[0], budget, first)
    reached = [accuracy(model, *tasks[0].seen(tasks[0].test))]
    outcome.accuracy.append(list(reached))
    for task in tasks[1:]:
        model = MultiHead(build())
        model.add_head(task.classes)
        outcome.seconds += _learn(model, task, budget, outcome.name)
        reached.append(accuracy(model, *task.seen(task.test)))
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
    outcome.accuracy.append([accuracy(model, *tasks[0].seen(tasks[0].test))])
    if freeze:
        model.freeze_body()
    for number, task in enumerate(tasks[1:], 1):
        model.add_head(task.classes)
        outcome.seconds += _learn(model, task, budget, name)
        seen = enumerate(tasks[: number + 1])
        outcome.accuracy.append([accuracy(model, *old.seen(old.test), task=j) for j, old in seen])
    return outcome


def _first(build: Build, task: TaskData, budget: Budget, file: Path) -> tuple[MultiHead, float]:
    """The network trained on task 0, loaded if an earlier run stored it, and its training time."""
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
    """Train the newest head, and the body unless it is frozen; returns the seconds."""
    optimizer = budget.optimizer(model.trained())
    schedule = budget.schedule(optimizer) if budget.schedule else None
    loader = task.batches(budget.batch_size, budget.transform)
    start = time.perf_counter()
    train_epochs(model, loader, optimizer, budget.epochs, schedule, label=f"{label}: {task.name}")
    return time.perf_counter() - start


# -- the network, the loop, the measure -----------------------------------------------------------


class MultiHead(nn.Module):
    """A model whose last linear layer is replaced by one such layer per task."""

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
        """Add the head of another task."""
        self.heads.append(nn.Linear(self.features, classes))

    def freeze_body(self) -> None:
        """Freeze the body: its parameters stay, and it runs in eval mode from now on."""
        self.frozen = True
        self.body.requires_grad_(False).eval()

    def trained(self) -> list[nn.Parameter]:
        """The parameters that the newest task trains."""
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
    """Plain training with cross entropy; returns the mean loss of every epoch."""
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
    """The accuracy of ``model(x, **call)``; leaves the model in eval mode."""
    model.eval()
    batches = Batches(x, y, batch_size, shuffle=False)
    return sum(int((model(a, **call).argmax(1) == b).sum()) for a, b in batches) / len(y)
