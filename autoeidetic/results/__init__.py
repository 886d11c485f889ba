"""Results: metrics of continual learning, and the record of a run."""

from .bitwise import Bitwise
from .digest import Digest
from .evaluate import Evaluation, TaskResult, evaluate
from .metric import Accumulator, accumulator, accuracy
from .metrics import AccuracyMatrix
from .run import Run

__all__ = [
    "Accumulator",
    "AccuracyMatrix",
    "Bitwise",
    "Digest",
    "Evaluation",
    "Run",
    "TaskResult",
    "accumulator",
    "accuracy",
    "evaluate",
]
