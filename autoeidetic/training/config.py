"""Config: the settings of the training loop, in one object that can be written to a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..errors import InputError
from ..tasks.pruning.scores import named

#: Setting -> (its requirement in words, a test).
_RULES: dict[str, tuple[str, Any]] = {
    "step": ("above 0 and at most 1", lambda v: 0 < v <= 1),
    "most": ("above 0 and at most 1", lambda v: 0 < v <= 1),
    "tolerance": ("0 or more", lambda v: v >= 0),
    "patience": ("at least 1", lambda v: v >= 1),
    "recovery_epochs": ("0 or more", lambda v: v >= 0),
    "settle_epochs": ("0 or more", lambda v: v >= 0),
    "max_epochs": ("None or at least 1", lambda v: v is None or v >= 1),
    "lr_factor": ("above 0", lambda v: v > 0),
    "clip": ("None or above 0", lambda v: v is None or v > 0),
    "autocast": (
        'None, "bfloat16" or "float16"',
        lambda v: v in (None, "bfloat16", "float16"),
    ),
    "score_batches": ("at least 1", lambda v: v >= 1),
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings for training and pruning a task.

    Args:
        pruning: the score that units are pruned by.
        step: the share of each group's units that one round of pruning takes.
        most: pruning ends when this share of each group's units is given up.
        tolerance: how far the training accuracy may stay below the best one.
        patience: training ends after this number of epochs without a better accuracy.
        recovery_epochs: the most epochs that may follow a round of pruning to get back within the
            tolerance.
        settle_epochs: epochs at the end, after all pruning, with rates that fall to zero.
        max_epochs: the most epochs of training before pruning.
        lr_factor: learning rates while pruning, as a factor of those that the optimizer came with.
        prune: False for a last task that may keep everything.
        clip: the largest norm of the gradient.
        autocast: "bfloat16" or "float16" for mixed precision.
        score_batches: the number of batches for a score that needs data.

    Example:
        >>> config = TrainConfig(pruning="l1", step=0.1)
        >>> TrainConfig.from_dict(config.to_dict()) == config
        True
    """

    pruning: str = "l2"
    step: float = 0.05
    most: float = 1.0
    tolerance: float = 0.001
    patience: int = 10
    recovery_epochs: int = 5
    settle_epochs: int = 0
    max_epochs: int | None = None
    lr_factor: float = 1.0
    prune: bool = True
    clip: float | None = None
    autocast: str | None = None
    score_batches: int = 32

    def __post_init__(self) -> None:
        named(self.pruning)
        for name, (text, test) in _RULES.items():
            value = getattr(self, name)
            try:
                good = bool(test(value))
            except TypeError:
                good = False
            if not good:
                raise InputError(f"{name}={value!r} is not {text}", remedy=f"it must be {text}")

    def with_(self, **settings: Any) -> TrainConfig:
        """A copy with other settings.

        Raises:
            InputError: there is no such setting, or not with this value.
        """
        known = [field.name for field in fields(self)]
        for name in settings:
            if name not in known:
                raise InputError(
                    f"there is no setting {name!r}", remedy=f"settings are {', '.join(known)}"
                )
        return replace(self, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TrainConfig:
        """The inverse of :meth:`to_dict`."""
        return TrainConfig().with_(**values)
