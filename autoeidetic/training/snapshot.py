"""Snapshot: everything that decides how a task's training continues, taken and restored.

A state in the middle of a task must let a killed run end with the same bits as one that was never
stopped. So it holds the network's free values and its pruned units, the moments of the optimizer,
the scheduler, the loss scale, every random generator that a step or a loader may draw from, and the
counters of the loop. The keys are those of stored files.
"""

from __future__ import annotations

from typing import Any

from ..errors import CheckpointError
from . import state
from .epochs import EpochRunner
from .progress import Progress

_SAME_OPTIMIZER = "pass the optimizer and the scheduler that the run was started with"


class Snapshots:
    """Takes and restores states of one run.

    ``rates`` are the learning rates that the optimizer came with, before any schedule.
    """

    def __init__(self, runner: EpochRunner, scheduler: Any) -> None:
        self.net, self.loader = runner.net, runner.loader
        self.optimizer, self.scheduler, self.scaler = runner.optimizer, scheduler, runner.scaler
        self.rates = [group.get("initial_lr", group["lr"]) for group in self.optimizer.param_groups]

    def take(self, progress: Progress) -> dict[str, Any]:
        """The state now. Its tensors are live ones; the store copies or writes them."""
        return {
            "network": state.of_network(self.net),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": state.of_random(self.loader),
            "progress": progress.to_dict(),
            "rates": self.rates,
            "kinds": self._kinds(),
        }

    def _kinds(self) -> list[str]:
        return [type(part).__qualname__ for part in (self.optimizer, self.scheduler)]

    def restore(self, stored: dict[str, Any]) -> Progress:
        """Go back to a state, and return the progress at that time.

        Raises:
            CheckpointError: it is of another network, or its optimizer is another one.
        """
        # All checks come before the network changes: a refused state leaves it as it was.
        state.check_network(self.net, stored["network"])
        if stored["kinds"] != self._kinds():
            raise CheckpointError(
                f"the stored optimizer and scheduler are {' and '.join(stored['kinds'])}, and not "
                f"{' and '.join(self._kinds())}",
                remedy=_SAME_OPTIMIZER,
            )
        try:
            self.optimizer.load_state_dict(stored["optimizer"])
            if self.scheduler is not None and stored["scheduler"] is not None:
                self.scheduler.load_state_dict(stored["scheduler"])
            self.scaler.load_state_dict(stored["scaler"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"the stored optimizer is another one: {error}", remedy=_SAME_OPTIMIZER
            ) from error
        state.to_network(self.net, stored["network"])
        # After the network, as restoring it may draw numbers.
        state.to_random(stored["random"], self.loader)
        self._apply_new_rates(stored["rates"])
        return Progress.from_dict(stored["progress"])

    def _apply_new_rates(self, stored: list[float]) -> None:
        """Scale the restored rates if the caller resumes with other learning rates.

        Loading brought back the rates of the stored run, with the schedule's factor in them. Only
        the ratio of the initial rates is applied, so the schedule stays where it was.
        """
        factors = [
            now / then if then else 1.0 for now, then in zip(self.rates, stored, strict=True)
        ]
        if all(factor == 1.0 for factor in factors):
            return
        for group, factor in zip(self.optimizer.param_groups, factors, strict=True):
            for name in ("lr", "initial_lr"):
                if name in group:
                    group[name] *= factor
        if hasattr(self.scheduler, "base_lrs"):
            rates = zip(self.scheduler.base_lrs, factors, strict=True)
            self.scheduler.base_lrs = [rate * factor for rate, factor in rates]
