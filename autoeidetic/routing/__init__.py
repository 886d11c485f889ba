"""Routing: finding the task of an input when nobody tells it."""

from . import learned, mahalanobis, outputs
from .base import Examples, Router, Settings, restore, router
from .features import Seen, View, to_be_found, view
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
    "router",
    "to_be_found",
    "train",
    "view",
]
