"""Networks that cannot forget: the channel structure of any PyTorch model, and what follows."""

from .analysis import analyze
from .errors import (
    AutoeideticError,
    CaptureError,
    InputError,
    NoParametersError,
    RuleError,
    UnhandledOperatorError,
    UnhandledOperatorWarning,
)
from .rules import rule

__all__ = [
    "AutoeideticError",
    "CaptureError",
    "InputError",
    "NoParametersError",
    "RuleError",
    "UnhandledOperatorError",
    "UnhandledOperatorWarning",
    "analyze",
    "rule",
]
