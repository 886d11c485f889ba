"""Pins: elements of parameters and buffers that may never change again.

Two kinds, here in the weight of a layer while task 1 is in training:

                  columns of task 0   of task 1   pruned
    rows of task 0        F               F         F       F  frozen: the value that task 0 had
    rows of task 1        w               w         0       0  zero: hides a column from a row
    pruned rows           .               .         .       w  learns      .  not used by any task

A *frozen* element belongs to a finished task: a copy of its value is kept, and put back whenever
something moved it. (Where a row of task 0 meets a column of task 1, the frozen value is a zero.) A
*zero* keeps a column out of a row in training that may not read it. Gradients of both are zero.

When they are imposed:

    after every step of an optimizer     without looking: weight decay and momentum move pinned
                                         elements in spite of zero gradients, and an optimizer may
                                         write through ``.data``, which moves no version counter
    before a training pass               where a step has not just done it: a loop written by hand
    before the first eval pass after     everywhere: some optimizers write again after their step
    a step
    before every other eval pass         where a version or an address has changed, or a spot check
                                         fails: comparing all values would cost too much
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..common.bits import same
from ..errors import EnforcementError, Place
from .elements import Elements
from .frozen_values import FrozenValues
from .pass_lock import PassLock
from .slots import NEVER_SEEN, Slot, Version, address, is_cache, tensor_in, versions
from .spot_checks import SpotCheck


@dataclass(frozen=True)
class Pin:
    """The pinned elements of one tensor of the network; None where there are none of a kind."""

    name: str
    frozen: Elements | None
    zeros: Elements | None

    def holds(self, tensor: Tensor, values: Tensor) -> bool:
        """Does a tensor have these frozen values?"""
        return self.frozen is None or self.frozen.holds(tensor, values)

    def to(self, device: torch.device) -> Pin:
        frozen = None if self.frozen is None else self.frozen.to(device)
        return Pin(self.name, frozen, None if self.zeros is None else self.zeros.to(device))


class Pins(nn.Module):
    """The pinned elements of a network; states of the network hold copies of their values."""

    def __init__(self, lock: PassLock) -> None:
        super().__init__()
        self.lock = lock
        self._frozen_values = FrozenValues()
        # Pin number n is of the tensor in slot n, which had shape n when the pins were bound and
        # version n when they were imposed last (no versions: they never were).
        self._pins: tuple[Pin, ...] = ()
        self._slots: list[Slot] = []
        self._shapes: list[torch.Size] = []
        self._versions: list[Version] = []
        # Of the tensors at the addresses they had when pins were imposed last. A buffer that a
        # model makes anew as it likes has a check of its own, by pin number, with its address.
        self._spot_check: SpotCheck | None = None
        self._cache_checks: dict[int, tuple[tuple[int, int], SpotCheck]] = {}
        self._just_imposed: set[int] = set()  # pin numbers: an optimizer's step was the last event
        self._look_everywhere = False  # at the next pass: versions may not tell all
        self.changes = 0  # grows whenever a tensor may hold other values than before
        self._gradient_hooks: list[Any] = []
        self._hooked_tensors: list[tuple[int, bool]] = []
        self._backward_restricted: frozenset[str] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        # a copy has tensors of its own: its network binds the pins to them
        seen: dict[str, Any] = {"_versions": [], "_spot_check": None, "_cache_checks": {}}
        return {**self.__dict__, "_gradient_hooks": [], "_slots": [], **seen}

    def values(self, name: str) -> Tensor:
        """The frozen values of a tensor, in the type that it has now."""
        slot = next(s for pin, s in zip(self._pins, self._slots, strict=True) if pin.name == name)
        return self._frozen_values.like(name, tensor_in(slot))

    @property
    def frozen_values(self) -> FrozenValues:
        """The values of all frozen elements."""
        return self._frozen_values

    def restore(self, frozen_values: FrozenValues) -> None:
        """Go back to earlier frozen values; ``bind`` must follow."""
        self._frozen_values = frozen_values

    def frozen(self) -> list[Pin]:
        """The pins that hold values of finished tasks."""
        return [pin for pin in self._pins if pin.frozen is not None]

    def bind(
        self,
        pins: Iterable[Pin],
        slots: dict[str, Slot],
        backward_restricted: Iterable[str] = (),
        *,
        freeze: bool,
    ) -> None:
        """Replace all pins by these.

        Gradients of ``backward_restricted`` parameters have no frozen part: their layer's backward
        leaves it out. With ``freeze`` the frozen values are taken from the tensors as they are now;
        without it the ones kept here stay.
        """
        pins = tuple(pins)
        tensors = {pin.name: tensor_in(slots[pin.name]) for pin in pins}
        pins = tuple(pin.to(tensors[pin.name].device) for pin in pins)
        for name, tensor in tensors.items():
            self._frozen_values.move(name, tensor.device)
        if freeze:
            self._freeze(pins, tensors)
        self._pins, self._slots = pins, [slots[pin.name] for pin in pins]
        self._shapes = [tensors[pin.name].shape for pin in pins]
        self._versions, self._just_imposed = [], set()
        self._spot_check, self._cache_checks = None, {}
        self._backward_restricted = frozenset(backward_restricted)
        self._hook_gradients()

    def _hook_gradients(self) -> None:
        """Register hooks that clear pinned elements of gradients."""
        for hook in self._gradient_hooks:
            hook.remove()
        self._gradient_hooks = []
        self._hooked_tensors = _hook_targets(self.tensors())
        for pin, tensor in zip(self._pins, self.tensors(), strict=True):
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                frozen = None if pin.name in self._backward_restricted else pin.frozen
                if frozen is not None or pin.zeros is not None:
                    hook = tensor.register_hook(_gradient_hook(frozen, pin.zeros))
                    self._gradient_hooks.append(hook)

    def _freeze(self, pins: tuple[Pin, ...], tensors: dict[str, Tensor]) -> None:
        """Copy the frozen elements of tensors; those frozen before keep their exact values."""
        frozen_before = {pin.name: pin.frozen for pin in self._pins}
        values = {}
        for pin in pins:
            if pin.frozen is not None:
                tensor, before = tensors[pin.name].detach(), frozen_before.get(pin.name)
                wide = None if before is None else self._frozen_values.widened(pin.name, tensor)
                if wide is not None and before is not None:
                    # frozen in float32, now in half: the tensor has rounded values, the copy exact
                    before.put(wide, self._frozen_values.exact(pin.name))
                    tensor = wide
                values[pin.name] = pin.frozen.take(tensor)
        self._frozen_values = FrozenValues(values)

    def tensors(self) -> list[Tensor]:
        """The tensors that hold pinned elements."""
        return [tensor_in(slot) for slot in self._slots]

    def impose(self) -> None:
        """Put every pinned value back.

        A tensor that has its values already is not written to: a write would move its version
        counter, and autograd would refuse the backward pass of what was computed with it.
        """
        self._impose(range(len(self._pins)))
        if self._spot_check is None:
            self._spot_check = SpotCheck(self._samples())

    @torch.no_grad()
    def _samples(self) -> Iterator[Tensor]:
        """A few frozen elements of each tensor."""
        for pin, slot, tensor in zip(self._pins, self._slots, self.tensors(), strict=True):
            if pin.frozen is not None and not tensor.is_meta and not is_cache(slot):
                yield from pin.frozen.samples(tensor.detach())

    def concerned(self, stepped: set[int]) -> bool:
        """Does one of these tensors (``stepped``: their ids) have pinned elements?"""
        return any(id(holder.get(name)) in stepped for holder, name in self._slots)

    def look_everywhere(self) -> None:
        """At the next pass, compare every pinned value: a write may leave no trace."""
        self._look_everywhere = True

    def after_step(self, stepped: set[int]) -> None:
        """Put pinned values back in the tensors that an optimizer has just stepped (their ids).

        Without looking: a write through ``.data`` moves no version counter.
        Nothing else is written to: the step may be taken in the middle of a backward pass.
        """
        numbers = [
            n for n, (holder, name) in enumerate(self._slots) if id(holder.get(name)) in stepped
        ]
        if numbers:
            self._impose(numbers, surely=True)
            self._just_imposed.update(numbers)
            self._look_everywhere = True
            self.changes += 1

    @torch.no_grad()
    def _impose(self, numbers: Iterable[int], *, surely: bool = False) -> None:
        """Put the values of some pins back; ``surely``: also where they are in place."""
        tensors = self.tensors()
        if _hook_targets(tensors) != self._hooked_tensors:
            self._hook_gradients()
        if not self._versions:
            self._versions = [NEVER_SEEN] * len(tensors)
        for number in numbers:
            pin, tensor, cache = self._pins[number], tensors[number], is_cache(self._slots[number])
            if not cache:
                _check_shape(pin, tensor.shape, self._shapes[number])
            # a cache of another shape than the frozen one is for inputs of another size
            if not cache or tensor.shape == self._frozen_values.exact(pin.name).shape:
                self._impose_one(pin, tensor.detach(), surely)
            (now,) = versions([tensor])
            if cache and pin.frozen is not None and pin.frozen.everything and not tensor.is_meta:
                check = SpotCheck(pin.frozen.samples(tensor.detach()))
                self._cache_checks[number] = address(now), check
            if not cache and address(now) != address(self._versions[number]):
                self._spot_check = None
            self._versions[number] = now

    def _impose_one(self, pin: Pin, tensor: Tensor, surely: bool) -> None:
        if tensor.is_meta:
            return
        if pin.frozen is not None:
            values = self._frozen_values.like(pin.name, tensor)
            if pin.frozen.everything:
                _check_shape(pin, tensor.shape, values.shape)
            if surely or not pin.frozen.holds(tensor, values):
                pin.frozen.put(tensor, values)
        if pin.zeros is not None and (surely or pin.zeros.any_bit(tensor)):
            pin.zeros.clear(tensor)

    def before_forward(self, training: bool) -> None:
        """Put values back where they may have moved.

        A training pass compares every tensor that a step has not just corrected: a loop written by
        hand may write through ``.data``. The first eval pass after a step compares all: an
        optimizer may write after its step. Later ones rely on versions and spot checks.
        """
        skipped, self._just_imposed = self._just_imposed if training else set(), set()
        everywhere, self._look_everywhere = training or self._look_everywhere, False
        tensors = self.tensors()
        now = versions(tensors)
        replaced = self._addresses(now) != self._addresses(self._versions)
        if replaced or self._spot_check is None or self._spot_check.moved():
            self.changes += 1
            self.impose()
            return
        numbers = [
            number
            for number, (before, version) in enumerate(zip(self._versions, now, strict=True))
            if before != version or (everywhere and number not in skipped)
        ]
        numbers += [
            number
            for number, (place, check) in self._cache_checks.items()
            # a check has views into the tensor it was made of: it says nothing of a new one
            if place == address(now[number]) and number not in numbers and check.moved()
        ]
        self.changes += bool(numbers)
        if numbers or (training and _hook_targets(tensors) != self._hooked_tensors):
            self._impose(numbers)

    def _addresses(self, seen: list[Version]) -> list[tuple[int, int]]:
        """Addresses of all tensors but caches, which a model makes anew as it likes."""
        pairs = zip(self._slots, seen, strict=False)  # before the first look, none were seen
        return [address(version) for slot, version in pairs if not is_cache(slot)]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Saves copies: code that writes into a state must not reach the frozen values."""
        for name in self._frozen_values:
            destination[prefix + _key(name)] = self._frozen_values.exact(name).clone()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Compares only: a loaded state must agree with the frozen values, and replaces none."""
        errors: list[str] = args[-1]
        errors.extend(self._differences(state_dict, prefix))

    def check(self, state_dict: Any, prefix: str) -> None:
        """The same comparison, before anything is loaded.

        Raises:
            RuntimeError: as ``load_state_dict`` does; the state is another network's.
        """
        found = list(self._differences(state_dict, prefix))
        if found:
            raise RuntimeError("\n\t".join(["Nothing was loaded:", *found]))

    def _differences(self, state_dict: Any, prefix: str) -> Iterator[str]:
        for name in self._frozen_values:
            mine, other = self._frozen_values.exact(name), state_dict.get(prefix + _key(name))
            if other is None:
                yield f"the state has no frozen values for {name}"
            elif not same(other.to(mine), mine):
                yield (
                    f"frozen values of {name} differ from those of this network; "
                    "use autoeidetic.load to open a saved network"
                )


def _check_shape(pin: Pin, now: torch.Size, before: torch.Size) -> None:
    if now != before:
        raise EnforcementError(
            f"'{pin.name}' has the shape {tuple(now)}; it had {tuple(before)}",
            place=Place(module=pin.name.removeprefix("backbone.").rpartition(".")[0]),
            remedy="put it back: finished tasks need it as it was (FSDP cuts tensors into shards; "
            "DistributedDataParallel leaves them whole)",
        )


def _hook_targets(tensors: list[Tensor]) -> list[tuple[int, bool]]:
    """Changes when gradient hooks must be registered anew."""
    return [(id(tensor), tensor.requires_grad) for tensor in tensors]


def _key(name: str) -> str:
    """The name of a tensor in a state, where dots separate modules."""
    return name.replace(".", "/")


def _gradient_hook(
    frozen: Elements | None, zeros: Elements | None
) -> Callable[[Tensor | None], Tensor | None]:
    """A hook that clears pinned elements of a gradient."""

    def clear(gradient: Tensor | None) -> Tensor | None:
        if gradient is None:  # a compiled backward pass omits gradients that are zero
            return None
        if frozen is not None:
            gradient = frozen.cleared(gradient)
        if zeros is not None:
            gradient = zeros.cleared(gradient)
        return gradient

    return clear
