"""Networks that cannot forget: any PyTorch model, divided between tasks."""

from .analysis import analyze
from .checkpoint import load
from .convert import convert
from .errors import (
    AutoeideticError,
    CapacityError,
    CaptureError,
    CheckpointError,
    DivergenceWarning,
    EnforcementError,
    HeadError,
    InputError,
    NonFiniteError,
    NoParametersError,
    RuleError,
    TaskError,
    UnhandledOperatorError,
    UnhandledOperatorWarning,
)
from .net import EideticNet
from .rules import rule
from .score import score

__all__ = [
    "AutoeideticError",
    "CapacityError",
    "CaptureError",
    "CheckpointError",
    "DivergenceWarning",
    "EideticNet",
    "EnforcementError",
    "HeadError",
    "InputError",
    "NoParametersError",
    "NonFiniteError",
    "RuleError",
    "TaskError",
    "UnhandledOperatorError",
    "UnhandledOperatorWarning",
    "analyze",
    "convert",
    "load",
    "rule",
    "score",
]
