"""Results: evaluation, metrics of continual learning, and the record of a run."""

from ..common.digests import Digest
from .accuracy_matrix import AccuracyMatrix
from .bitwise import Bitwise
from .evaluate import evaluate
from .evaluation import Evaluation, TaskResult
from .metric import Accumulator, accumulator, accuracy
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
