"""Training: the loop of Eidetic Learning on any converted network."""

from .config import TrainConfig
from .history import Epoch, TaskHistory
from .loop import default_optimizer, train_task

__all__ = ["Epoch", "TaskHistory", "TrainConfig", "default_optimizer", "train_task"]
