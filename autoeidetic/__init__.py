"""Networks that cannot forget: any PyTorch model, divided between tasks."""

from importlib.metadata import version

from .analyze import analyze
from .checkpoint import Audit
from .convert import convert
from .draw import visualize
from .errors import (
    AutoeideticError,
    CapacityError,
    CaptureError,
    CheckpointError,
    DivergenceWarning,
    EnforcementError,
    HeadError,
    InputError,
    LearningWarning,
    MissingPackageError,
    NonFiniteError,
    NoParametersError,
    RehearsalWarning,
    RuleError,
    StorageWarning,
    TaskError,
    UnhandledOperatorError,
    UnhandledOperatorWarning,
)
from .learn import Lesson, learn
from .load import audit, load
from .net import EideticNet
from .propagate.rules import rule
from .results import Run, evaluate
from .routing import Prediction, router
from .tasks.pruning.scores import score
from .training import Epoch, TaskHistory, TrainConfig

__version__ = version("autoeidetic")

__all__ = [
    "Audit",
    "AutoeideticError",
    "CapacityError",
    "CaptureError",
    "CheckpointError",
    "DivergenceWarning",
    "EideticNet",
    "EnforcementError",
    "Epoch",
    "HeadError",
    "InputError",
    "LearningWarning",
    "Lesson",
    "MissingPackageError",
    "NoParametersError",
    "NonFiniteError",
    "Prediction",
    "RehearsalWarning",
    "RuleError",
    "Run",
    "StorageWarning",
    "TaskError",
    "TaskHistory",
    "TrainConfig",
    "UnhandledOperatorError",
    "UnhandledOperatorWarning",
    "analyze",
    "audit",
    "convert",
    "evaluate",
    "learn",
    "load",
    "router",
    "rule",
    "score",
    "visualize",
]
