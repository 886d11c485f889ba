"""Routing: finding the task of an input when the caller does not name it."""

from . import learned, mahalanobis, outputs
from .base import Examples, Router, Settings, restore, router
from .features import Seen, View, routable_tasks, view
from .fitting import train
from .prediction import Prediction, predict

MODULES = (learned, mahalanobis, outputs)

__all__ = [
    "Examples",
    "Prediction",
    "Router",
    "Seen",
    "Settings",
    "View",
    "predict",
    "restore",
    "routable_tasks",
    "router",
    "train",
    "view",
]
