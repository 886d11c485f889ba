"""Slots: where a module holds a tensor, and the traces that a write to the tensor leaves.

A tensor is never kept by reference: code may replace a parameter (``module.weight = ...``,
``torch.func``, a move to another device), and the pins must hold for the new one.

    slot = (holder, name)      holder = a module's ``_parameters`` or ``_buffers``
    holder[name]               the tensor that is there now

What tells that a tensor may have changed since the last look:

    replaced                   another ``id``
    moved                      another ``data_ptr``
    written in place           another version counter (``_version``)
    written through ``.data``  nothing: see ``spot_checks.py``
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..common.torch_modes import PLAIN, unsupported_tensor
from ..errors import EnforcementError, Place


@dataclass(frozen=True)
class Holder:
    """A module's parameters or buffers (``kind``), looked up anew at each access."""

    module: nn.Module
    kind: str
    path: str = ""

    def __getitem__(self, name: str) -> Tensor:
        self.check(name)
        return self.module.__dict__[self.kind][name]

    def check(self, name: str) -> None:
        """Raises EnforcementError when the tensor is gone, or can no longer keep frozen values."""
        if type(self.get(name)) not in PLAIN:  # quick; a few other classes are accepted, too
            self.check_closely(name)

    def check_closely(self, name: str) -> None:
        """The same, also for tensors that only look like plain ones: those of ``torch.func``."""
        tensor = self.get(name)
        if tensor is None:
            raise EnforcementError(
                f"module '{self.path}' ({type(self.module).__name__}) has no '{name}' any more",
                place=Place(module=self.path.removeprefix("backbone.")),
                remedy="undo what was done to it after the conversion (a parametrization, weight "
                "norm, pruning masks, FSDP without use_orig_params); such things belong to a model "
                "before it is converted",
            )
        strange = unsupported_tensor(tensor)
        if strange is not None:
            raise EnforcementError(
                f"'{self.path}.{name}' is now {strange.kind}, which cannot keep frozen values",
                place=Place(module=self.path.removeprefix("backbone.")),
                remedy=strange.remedy,
            )

    def get(self, name: str) -> Tensor | None:
        """The tensor, without a check; None when there is none."""
        tensors = self.module.__dict__[self.kind]  # a scripted module has no dict, and no ``get``
        return tensors[name] if name in tensors else None  # noqa: SIM401

    def is_cache(self, name: str) -> bool:
        """Is it a buffer that the model makes by itself, perhaps of another shape each time?"""
        return self.kind == "_buffers" and name in self.module._non_persistent_buffers_set


#: A holder, and the name of a tensor in it.
Slot = tuple[Holder, str]


def tensor_slots(module: nn.Module, prefix: str = "") -> dict[str, Slot]:
    """The slot of each parameter and buffer of a module, by name.

    A module that occurs in several places is listed under each of its paths.
    """
    found: dict[str, Slot] = {}
    for path, inner in module.named_modules(prefix=prefix, remove_duplicate=False):
        for kind in ("_parameters", "_buffers"):
            for name, tensor in inner.__dict__[kind].items():
                if tensor is not None:
                    found[f"{path}.{name}" if path else name] = (Holder(inner, kind, path), name)
    return found


def tensor_in(slot: Slot) -> Tensor:
    """The tensor that a slot holds now."""
    holder, name = slot
    return holder[name]


def is_cache(slot: Slot) -> bool:
    """Does the slot hold a buffer that the model makes by itself?"""
    holder, name = slot
    return holder.is_cache(name)


# -- traces of writes --------------------------------------------------------------------------

#: (id, version counter, address) of a tensor.
Version = tuple[int, int, int]
#: The version before the first look; no tensor has it.
NEVER_SEEN: Version = (0, -1, 0)


def versions(tensors: list[Tensor]) -> list[Version]:
    """A version changes when its tensor is replaced, moved or written to, unless by ``.data``."""
    # inference tensors have no version counter
    return [(id(t), 0 if t.is_inference() else t._version, t.data_ptr()) for t in tensors]


def address(version: Version) -> tuple[int, int]:
    """The part of a version that changes only when a tensor is replaced or moved."""
    return version[0], version[2]
