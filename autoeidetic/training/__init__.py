"""Training: the loop of Eidetic Learning on any converted network."""

from .config import TrainConfig
from .history import Epoch, TaskHistory
from .loop import default_optimizer, train_task
from .refresh import BATCHES as REFRESH_BATCHES
from .refresh import refresh_statistics

__all__ = [
    "REFRESH_BATCHES",
    "Epoch",
    "TaskHistory",
    "TrainConfig",
    "default_optimizer",
    "refresh_statistics",
    "train_task",
]
