"""Free values: the values of the backbone that no finished task owns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..common.undisturbed import undisturbed
from ..enforce.owners import Owners
from ..enforce.slots import Slot
from ..plan.call_plan import CallPlan
from . import initialise


@dataclass(frozen=True)
class FreeValues:
    """The free elements of a backbone's parameters and running statistics.

    ``slots`` tells where the tensors are held, by their names in the backbone.
    """

    backbone: nn.Module
    call_plan: CallPlan
    owners: Owners
    slots: dict[str, Slot]

    def elements(self, name: str) -> Tensor | None:
        """Which elements of a tensor are free (sizes 1 kept); None: the tensor is never changed."""
        plan = self.call_plan.plan
        if name in plan.parameters:
            entry = plan.parameters[name]
            if entry.head:
                return None
            if not entry.used:
                return torch.ones((), dtype=torch.bool)
            return ~self.owners.owned(entry.units)
        if name in plan.buffers:
            return ~self.owners.owned(plan.buffers[name])
        if name.endswith("num_batches_tracked"):  # it counts for channels that start again
            return torch.ones((), dtype=torch.bool)
        return None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that have free elements."""
        found = {}
        for name, (home, leaf) in self.slots.items():
            free = self.elements(name)
            if free is not None and bool(free.any()):
                found[name] = home[leaf]
        return found

    @torch.no_grad()
    def write(self, name: str, values: Tensor) -> None:
        """Replace the free elements of one tensor."""
        home, leaf = self.slots[name]
        free = self.elements(name)
        if free is not None:
            tensor = home[leaf]
            tensor.copy_(torch.where(free.to(tensor.device), values.to(tensor), tensor))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Replace the free elements of several tensors."""
        for name, values in state.items():
            self.write(name, values)

    def renew(self, spreads: Mapping[str, tuple[float, float]]) -> None:
        """Draw fresh values, from each module's own initialisation if it has one."""
        for path, module in self.backbone.named_modules():
            prefix = f"{path}." if path else ""
            names = [prefix + name for name in (*module._parameters, *module._buffers)]
            if not any(self.elements(name) is not None for name in names):
                continue
            own = {name: spreads.get(prefix + name, (0.0, 0.02)) for name in module._parameters}
            for name, values in initialise.fresh_values(module, own).items():
                self.write(prefix + name, values)

    def mend(self, spreads: Mapping[str, tuple[float, float]]) -> None:
        """Draw fresh values for those that are infinite or NaN: nothing could learn from them."""
        kept = {name: t.detach().clone() for name, t in self.tensors().items()}
        if all(bool(values.isfinite().all()) for values in kept.values()):
            return
        self.renew(spreads)
        for name, values in kept.items():
            home, leaf = self.slots[name]
            self.write(name, torch.where(values.isfinite(), values, home[leaf].detach()))

    @contextmanager
    def made_harmless(self, spreads: Mapping[str, tuple[float, float]]) -> Iterator[None]:
        """Within this context every free value is that of a fresh module.

        Zeros would not do: a weight norm divides by the length of its rows, and ``0 / 0`` is NaN.
        """
        tensors = self.tensors()
        before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        try:
            for name, tensor in tensors.items():  # for what no module initialises
                self.write(name, torch.zeros_like(tensor))
            with undisturbed(generators="torch", seed=0):
                self.renew(spreads)
            yield
        finally:
            for name, tensor in tensors.items():
                tensor.detach().copy_(before[name])
