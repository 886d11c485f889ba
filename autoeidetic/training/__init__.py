"""Training: the loop of train, prune and recover that learns one task."""

from .config import TrainConfig
from .history import Epoch, TaskHistory
from .optimizer import default_optimizer
from .running_statistics import BATCHES as REFRESH_BATCHES
from .running_statistics import refresh_statistics
from .train import train_task

__all__ = [
    "REFRESH_BATCHES",
    "Epoch",
    "TaskHistory",
    "TrainConfig",
    "default_optimizer",
    "refresh_statistics",
    "train_task",
]
