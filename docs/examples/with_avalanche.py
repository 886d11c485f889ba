"""Two experiences of an Avalanche benchmark. Task 0 stays the same, bit for bit."""

import torch
from avalanche.benchmarks import (
    benchmark_from_datasets,
    task_incremental_benchmark,
    with_classes_timeline,
)
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.logging import InteractiveLogger
from avalanche.models import MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import autoeidetic


class TaskAware(MultiTaskModule):
    """Tells Avalanche how to open a task, and how to ask for one."""

    def __init__(self, net: autoeidetic.EideticNet) -> None:
        super().__init__()
        self.net = net

    def adaptation(self, experience) -> None:
        """Called before each experience; after it Avalanche updates its optimizer."""
        super().adaptation(experience)
        if self.training and experience.task_label == len(self.net.tasks):
            classes = len(experience.classes_in_this_experience)
            self.net.prepare_for_task(experience.task_label, num_classes=classes)

    def forward_single_task(self, x: Tensor, task_label: int) -> Tensor:
        return self.net(x, task=task_label)


torch.manual_seed(0)
x = torch.randn(256, 8)
datasets = []
for task in range(2):
    data = TensorDataset(x, (x[:, task] > 0).long())
    data.targets = data.tensors[1].tolist()
    datasets.append(as_classification_dataset(data))
benchmark = benchmark_from_datasets(train=datasets, test=datasets)
benchmark = with_classes_timeline(task_incremental_benchmark(benchmark))

net = autoeidetic.convert(
    nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 2)), x
)
model = TaskAware(net)
strategy = Naive(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
    train_mb_size=32,
    train_epochs=5,
    evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[InteractiveLogger()]),
)
said = {}
for experience in benchmark.train_stream:
    strategy.train(experience)
    net.prune(0.5)
    strategy.train(experience)  # recover
    net.finish_task()
    task = experience.task_label
    strategy.eval(benchmark.test_stream[: task + 1])
    said[task] = net.eval()(x, task=task)

right = (net(x, task=1).argmax(1) == (x[:, 1] > 0)).float().mean()
assert right > 0.9
assert torch.equal(net(x, task=0), said[0])
assert net.verify(x).ok
print(f"task 1 is right in {right:.0%}, and no bit of task 0 has moved")
