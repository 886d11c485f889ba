"""Networks that cannot forget: any PyTorch model, divided between tasks.

``convert(model)`` makes a network that learns tasks one after another; the outputs of a finished
task stay bitwise identical. The package has one room for each step, listed here in the order of the
data flow. A room imports only from those above it.

| room | what it does |
|---|---|
| `errors` | errors and warnings; each error has a fact, a place and a remedy |
| `common` | helpers without a room of their own: inputs, files, locks, digests, random generators |
| `capture` | runs the model on example inputs and records a graph of operators |
| `propagate` | sends the channels of each value through the graph, one rule for each operator |
| `couple` | joins channels that live and die together into units, and units into groups |
| `plan` | states for every parameter element which unit it belongs to and which units it reads |
| `enforce` | holds the values of finished tasks and restricts each pass to a task's units |
| `calls` | checks that calls with other shapes or flags agree with the plan |
| `tasks` | the network itself: tasks, heads, capacity, pruning, reinitialised values |
| `proof` | verifies that finished tasks have not moved, and rehearses this on a copy |
| `routing` | finds the task of an input that comes without one |
| `results` | metrics of continual learning, plots, and the record of a run |
| `training` | trains, prunes and finishes one task, and resumes where it was stopped |
| `checkpoint` | saves a network to one file, loads it and audits the file |
| `report` | the result of an analysis, as tables, graphs and JSON |
| `extract` | cuts some tasks out of a network, as a program of their own |
| `analyze` | the front door to capture, propagate, couple, plan and report |
| `draw` | draws models and networks as HTML, SVG, PNG, DOT, Mermaid, GraphML and JSON |
| `net` | `EideticNet`, the network that users call, with a method for each step above |
| `convert` | makes an `EideticNet` from a model |
| `slim` | prunes any model to a smaller program, without tasks |
| `load` | makes an `EideticNet` from a file |
| `learn` | learns, evaluates and records a whole sequence of tasks |
| `commands` | the command line, one module for each command |
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from . import errors
from .analyze import analyze
from .convert import convert
from .draw import visualize
from .errors import AutoeideticError
from .learn import Lesson, learn
from .load import audit, load
from .net import EideticNet
from .propagate.rules import rule
from .results import Run, evaluate
from .routing import router
from .slim import slim
from .tasks.pruning.scores import score
from .training import TrainConfig

__version__ = version("autoeidetic")

__all__ = [
    "AutoeideticError",
    "EideticNet",
    "Lesson",
    "Run",
    "TrainConfig",
    "analyze",
    "audit",
    "convert",
    "errors",
    "evaluate",
    "learn",
    "load",
    "router",
    "rule",
    "score",
    "slim",
    "visualize",
]

if TYPE_CHECKING:
    from .checkpoint import Audit as Audit
    from .errors import CapacityError as CapacityError
    from .errors import CaptureError as CaptureError
    from .errors import CheckpointError as CheckpointError
    from .errors import DivergenceWarning as DivergenceWarning
    from .errors import EnforcementError as EnforcementError
    from .errors import HeadError as HeadError
    from .errors import InputError as InputError
    from .errors import LearningWarning as LearningWarning
    from .errors import MissingPackageError as MissingPackageError
    from .errors import NonFiniteError as NonFiniteError
    from .errors import NoParametersError as NoParametersError
    from .errors import RehearsalWarning as RehearsalWarning
    from .errors import RuleError as RuleError
    from .errors import StorageWarning as StorageWarning
    from .errors import TaskError as TaskError
    from .errors import UnhandledOperatorError as UnhandledOperatorError
    from .errors import UnhandledOperatorWarning as UnhandledOperatorWarning
    from .routing import Prediction as Prediction
    from .training import Epoch as Epoch
    from .training import TaskHistory as TaskHistory
else:  # type checkers would accept any name at all if they saw this function
    #: Names that were public here before they moved to their rooms; they go on working.
    _MOVED = {
        "checkpoint": ("Audit",),
        "errors": (
            *("CapacityError", "CaptureError", "CheckpointError", "DivergenceWarning"),
            *("EnforcementError", "HeadError", "InputError", "LearningWarning"),
            *("MissingPackageError", "NoParametersError", "NonFiniteError", "RehearsalWarning"),
            *("RuleError", "StorageWarning", "TaskError", "UnhandledOperatorError"),
            "UnhandledOperatorWarning",
        ),
        "routing": ("Prediction",),
        "training": ("Epoch", "TaskHistory"),
    }

    def __getattr__(name):
        for room, names in _MOVED.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{room}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
