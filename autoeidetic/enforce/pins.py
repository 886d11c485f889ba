"""Pins: elements of parameters and buffers that may never change again.

Two kinds. A *frozen* element belongs to a finished task: its value is kept in a store and put back
whenever something moved it. A *zero* keeps what is hidden from a unit in training out
of it. Gradients of both are zero. Whether something moved is seen by version counters, addresses
and a few elements before every forward pass; after every step of any ``torch.optim.Optimizer`` on
the network's parameters everything is put back without asking, for an optimizer may write through
``.data``, which leaves no trace.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..common.bits import bits, same
from ..common.torch_modes import PLAIN, unsupported_tensor
from ..errors import EnforcementError, Place
from .frozen_values import Store
from .pass_lock import PassLock
from .spot_checks import Spots, spread


@dataclass(frozen=True)
class Home:
    """A module's parameters or buffers, looked up anew each time: code may replace them."""

    module: nn.Module
    kind: str
    path: str = ""

    def __getitem__(self, name: str) -> Tensor:
        self.check(name)
        return self.module.__dict__[self.kind][name]

    def check(self, name: str) -> None:
        """Raises EnforcementError when there is no such tensor any more, or no plain one."""
        if type(self.get(name)) not in PLAIN:  # of other classes some will do
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
        held = self.module.__dict__[self.kind]  # not always a dict: a script has its own
        return held[name] if name in held else None  # noqa: SIM401

    def is_cache(self, name: str) -> bool:
        """Is it a buffer that the model makes by itself, perhaps of another shape each time?"""
        return self.kind == "_buffers" and name in self.module._non_persistent_buffers_set


#: Where a tensor is held, and its name there.
Slot = tuple[Home, str]


@dataclass(frozen=True)
class Where:
    """A set of elements: all, whole slices along one dimension, or a mask.

    ``index`` are the slices; ``mask`` has the tensor's rank and may have size 1 where it does
    not vary.
    """

    dim: int | None = None
    index: Tensor | None = None
    mask: Tensor | None = None

    @property
    def everything(self) -> bool:
        return self.index is None and self.mask is None

    @staticmethod
    def of(mask: Tensor) -> Where | None:
        """The elements that a (broadcastable) mask marks; None when it marks none."""
        if not bool(mask.any()):
            return None
        if bool(mask.all()):
            return Where()
        long = [d for d, n in enumerate(mask.shape) if n > 1]
        if len(long) == 1:
            return Where(dim=long[0], index=mask.reshape(-1).nonzero().reshape(-1))
        return Where(mask=mask)

    def to(self, device: torch.device) -> Where:
        move = lambda t: None if t is None else t.to(device)  # noqa: E731
        return Where(self.dim, move(self.index), move(self.mask))

    def take(self, tensor: Tensor) -> Tensor:
        """A copy of the marked elements."""
        if self.index is not None and self.dim is not None:
            return tensor.index_select(self.dim, self.index)
        if self.mask is not None:
            return tensor[self.mask.expand(tensor.shape)]
        return tensor.clone()

    def some(self, tensor: Tensor) -> list[Tensor]:
        """A few of the marked elements, spread over the tensor: views without dimensions."""
        if self.index is not None and self.dim is not None:
            own = [len(self.index) if d == self.dim else n for d, n in enumerate(tensor.shape)]
            before = [(at[: self.dim], at[self.dim], at[self.dim + 1 :]) for at in spread(own)]
            places = [(*left, int(self.index[n]), *right) for left, n, right in before]
        elif self.mask is not None:
            marked = self.mask.nonzero()
            places = [tuple(marked[n].tolist()) for (n,) in spread(marked.shape[:1])]
        else:
            places = spread(tensor.shape)
        return [tensor[place] for place in places]

    def holds(self, tensor: Tensor, values: Tensor) -> bool:
        """Are these the marked elements?"""
        now = tensor if self.everything else self.take(tensor)
        return same(now, values)

    def any(self, tensor: Tensor) -> bool:
        """Has one of the marked elements a bit that zero has not?"""
        if self.mask is not None and not tensor.is_complex():
            return bool(((bits(tensor) != 0) & self.mask).any())
        return bool(bits(tensor if self.everything else self.take(tensor)).any())

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Write the marked elements in place."""
        if self.index is not None and self.dim is not None:
            tensor.index_copy_(self.dim, self.index, values.to(tensor.dtype))
        elif self.mask is not None:
            tensor.masked_scatter_(self.mask, values.to(tensor.dtype))
        else:
            tensor.copy_(values)

    def cleared(self, tensor: Tensor) -> Tensor:
        """A copy with zeros at the marked elements."""
        if tensor.is_sparse:
            return self.cleared(tensor.to_dense()).to_sparse()
        if self.index is not None and self.dim is not None:
            return tensor.index_fill(self.dim, self.index, 0)
        if self.mask is not None:
            return tensor.masked_fill(self.mask, 0)
        return torch.zeros_like(tensor)

    def clear(self, tensor: Tensor) -> None:
        if self.index is not None and self.dim is not None:
            tensor.index_fill_(self.dim, self.index, 0)
        elif self.mask is not None:
            tensor.masked_fill_(self.mask, 0)
        else:
            tensor.zero_()


@dataclass(frozen=True)
class Pin:
    """What is pinned in one tensor of the network."""

    name: str
    frozen: Where | None
    zeros: Where | None

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
        self._pins: tuple[Pin, ...] = ()
        self._store = Store()
        self._slots: list[Slot] = []
        self._shapes: list[torch.Size] = []
        self._seen: list[_State] = []
        self._spots: Spots | None = None  # of the tensors that were seen last
        self._cache_spots: dict[int, tuple[tuple[int, int], Spots]] = {}  # of those models make
        self._fresh: set[int] = set()  # numbers of pins that an optimizer's step has just imposed
        self._stepped = False  # has there been one since the last look?
        self.changes = 0  # grows whenever a tensor may hold other values than before
        self._hooks: list[Any] = []
        self._hooked: list[tuple[int, bool]] = []
        self._covered: frozenset[str] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        looks: dict[str, Any] = {"_seen": [], "_spots": None, "_cache_spots": {}}
        return {**self.__dict__, "_hooks": [], "_slots": [], **looks}

    def values(self, name: str) -> Tensor:
        """The frozen values of a tensor, in the type that it has now."""
        slot = next(s for pin, s in zip(self._pins, self._slots, strict=True) if pin.name == name)
        return self._store.like(name, _tensor(slot))

    @property
    def store(self) -> Store:
        """All frozen values."""
        return self._store

    def put_back(self, store: Store) -> None:
        """Take an earlier store; ``bind`` must follow."""
        self._store = store

    def frozen(self) -> list[Pin]:
        """The pins that hold values of finished tasks."""
        return [pin for pin in self._pins if pin.frozen is not None]

    def bind(
        self,
        pins: Iterable[Pin],
        slots: dict[str, Slot],
        covered: Iterable[str] = (),
        *,
        freeze: bool,
    ) -> None:
        """Take over these pins.

        Gradients of ``covered`` parameters come without their frozen part already. With
        ``freeze`` the frozen values are those that the tensors have now; else the ones held here.
        """
        pins = tuple(pins)
        tensors = {pin.name: _tensor(slots[pin.name]) for pin in pins}
        pins = tuple(pin.to(tensors[pin.name].device) for pin in pins)
        for name, tensor in tensors.items():
            self._store.move(name, tensor.device)
        if freeze:
            self._freeze(pins, tensors)
        self._pins, self._slots = pins, [slots[pin.name] for pin in pins]
        self._shapes = [tensors[pin.name].shape for pin in pins]
        self._seen, self._spots, self._cache_spots, self._fresh = [], None, {}, set()
        self._covered = frozenset(covered)
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        """Hooks that keep pinned elements out of gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._hooked = _hookable(self.tensors())
        for pin, tensor in zip(self._pins, self.tensors(), strict=True):
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                frozen = None if pin.name in self._covered else pin.frozen
                if frozen is not None or pin.zeros is not None:
                    self._hooks.append(tensor.register_hook(_gradient_hook(frozen, pin.zeros)))

    def _freeze(self, pins: tuple[Pin, ...], tensors: dict[str, Tensor]) -> None:
        before = {pin.name: pin.frozen for pin in self._pins}
        values = {}
        for pin in pins:
            if pin.frozen is not None:
                now, then = tensors[pin.name].detach(), before.get(pin.name)
                wide = None if then is None else self._store.widened(pin.name, now)
                if wide is not None and then is not None:  # the network was rounded meanwhile
                    then.put(wide, self._store.exact(pin.name))
                    now = wide
                values[pin.name] = pin.frozen.take(now)
        self._store = Store(values)

    def tensors(self) -> list[Tensor]:
        """The tensors that hold pinned elements."""
        return [_tensor(slot) for slot in self._slots]

    def impose(self) -> None:
        """Put every pinned value back.

        A tensor that holds its values already is not written to, for its writing would break the
        backward pass of what was computed with it.
        """
        self._impose(range(len(self._pins)))
        if self._spots is None:
            self._spots = Spots(self._some())

    @torch.no_grad()
    def _some(self) -> Iterator[Tensor]:
        """A few frozen elements of each tensor."""
        for pin, slot, tensor in zip(self._pins, self._slots, self.tensors(), strict=True):
            if pin.frozen is not None and not tensor.is_meta and not _is_cache(slot):
                yield from pin.frozen.some(tensor.detach())

    def concerned(self, stepped: set[int]) -> bool:
        """Has one of these tensors (their ids) pinned elements?"""
        return any(id(slot[0].get(slot[1])) in stepped for slot in self._slots)

    def look_everywhere(self) -> None:
        """At the next pass: somebody may write, or has written, without a trace."""
        self._stepped = True

    def after_step(self, stepped: set[int]) -> None:
        """Put back what an optimizer has just stepped, without looking: ids of its tensors.

        Nothing else is written to: the step may be taken in the middle of a backward pass.
        """
        own = [n for n, slot in enumerate(self._slots) if id(slot[0].get(slot[1])) in stepped]
        if own:
            self._impose(own, surely=True)
            self._fresh.update(own)
            self._stepped = True
            self.changes += 1

    @torch.no_grad()
    def _impose(self, numbers: Iterable[int], *, surely: bool = False) -> None:
        tensors = self.tensors()
        if _hookable(tensors) != self._hooked:
            self._clear_gradients()
        if not self._seen:
            self._seen = [_NEVER] * len(tensors)
        for number in numbers:
            pin, tensor, cache = self._pins[number], tensors[number], _is_cache(self._slots[number])
            if not cache:
                _check_shape(pin, tensor.shape, self._shapes[number])
            if not cache or tensor.shape == self._store.exact(pin.name).shape:
                self._impose_one(pin, tensor.detach(), surely)
            (now,) = state([tensor])
            if cache and pin.frozen is not None and pin.frozen.everything and not tensor.is_meta:
                self._cache_spots[number] = _address(now), Spots(pin.frozen.some(tensor.detach()))
            if not cache and _address(now) != _address(self._seen[number]):
                self._spots = None
            self._seen[number] = now

    def _impose_one(self, pin: Pin, tensor: Tensor, surely: bool) -> None:
        if tensor.is_meta:
            return
        if pin.frozen is not None:
            values = self._store.like(pin.name, tensor)
            if pin.frozen.everything:
                _check_shape(pin, tensor.shape, values.shape)
            if surely or not pin.frozen.holds(tensor, values):
                pin.frozen.put(tensor, values)
        if pin.zeros is not None and (surely or pin.zeros.any(tensor)):
            pin.zeros.clear(tensor)

    def before_forward(self, training: bool) -> None:
        """Put values back where they may have moved.

        In training, that is everywhere where a step has not just done it: a loop written by hand
        may write through ``.data``. In the first pass of an evaluation it is everywhere, for an
        optimizer may have written after its step; later, a few elements of each tensor must do.
        """
        fresh, self._fresh = self._fresh if training else set(), set()
        look, self._stepped = training or self._stepped, False
        tensors = self.tensors()
        now = state(tensors)
        exchanged = self._addresses(now) != self._addresses(self._seen)
        if exchanged or self._spots is None or self._spots.moved():
            self.changes += 1
            self.impose()
            return
        numbers = [
            number
            for number, (then, current) in enumerate(zip(self._seen, now, strict=True))
            if then != current or (look and number not in fresh)
        ]
        numbers += [
            number
            for number, (address, spots) in self._cache_spots.items()  # while it is the same tensor
            if address == _address(now[number]) and number not in numbers and spots.moved()
        ]
        self.changes += bool(numbers)
        if numbers or (training and _hookable(tensors) != self._hooked):
            self._impose(numbers)

    def _addresses(self, states: list[_State]) -> list[tuple[int, int]]:
        """Of the tensors that are looked at; a model makes its caches anew as it likes."""
        pairs = zip(self._slots, states, strict=False)  # nothing may have been seen yet
        return [_address(each) for slot, each in pairs if not _is_cache(slot)]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Copies, so that nobody who writes into a state writes into what is frozen."""
        for name in self._store:
            destination[prefix + _key(name)] = self._store.exact(name).clone()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """A foreign state never replaces frozen values: it must agree with them."""
        errors: list[str] = args[-1]
        errors.extend(self._differences(state_dict, prefix))

    def check(self, state_dict: Any, prefix: str) -> None:
        """The same before anything is loaded.

        Raises:
            RuntimeError: the state is another network's, as ``load_state_dict`` has it.
        """
        found = list(self._differences(state_dict, prefix))
        if found:
            raise RuntimeError("\n\t".join(["Nothing was loaded:", *found]))

    def _differences(self, state_dict: Any, prefix: str) -> Iterator[str]:
        for name in self._store:
            mine, other = self._store.exact(name), state_dict.get(prefix + _key(name))
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


def _tensor(slot: Slot) -> Tensor:
    home, name = slot
    return home[name]


def _hookable(tensors: list[Tensor]) -> list[tuple[int, bool]]:
    return [(id(tensor), tensor.requires_grad) for tensor in tensors]


def _is_cache(slot: Slot) -> bool:
    home, name = slot
    return home.is_cache(name)


_State = tuple[int, int, int]
_NEVER: _State = (0, -1, 0)


def state(tensors: list[Tensor]) -> list[_State]:
    """Changes when a tensor is replaced, moved or written to (but not through ``.data``)."""
    return [(id(t), 0 if t.is_inference() else t._version, t.data_ptr()) for t in tensors]


def _address(state: _State) -> tuple[int, int]:
    """The same as long as a tensor is neither replaced nor moved."""
    return state[0], state[2]


def _key(name: str) -> str:
    return name.replace(".", "/")


def _gradient_hook(
    frozen: Where | None, zeros: Where | None
) -> Callable[[Tensor | None], Tensor | None]:
    def clear(gradient: Tensor | None) -> Tensor | None:
        if gradient is None:  # compiled backward passes leave out what is zero
            return None
        if frozen is not None:
            gradient = frozen.cleared(gradient)
        if zeros is not None:
            gradient = zeros.cleared(gradient)
        return gradient

    return clear


# -- optimizers --------------------------------------------------------------------------------

_watched: weakref.WeakSet[Pins] = weakref.WeakSet()


def watch(pins: Pins) -> None:
    """From now on, steps of optimizers end with the pinned values in place."""
    _watched.add(pins)


def _stepped(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    """No pass of a network from here on until its pinned values are back in place."""
    if not _watched or torch.compiler.is_compiling():
        return None
    stepped = _stepped(optimizer)
    concerned = sorted(
        (pins for pins in list(_watched) if pins.concerned(stepped)), key=lambda p: p.lock.number
    )
    for pins in concerned:
        pins.lock.begin_step(sys._getframe(1))
    if not concerned or not any(map(callable, (*args[1:], *kwargs.values()))):
        return None
    lend = partial(_lending, concerned)
    return (args[0], *map(lend, args[1:])), {name: lend(value) for name, value in kwargs.items()}


def _lending(concerned: list[Pins], closure: Any) -> Any:
    """A closure for the time of which others may use the networks: it runs passes of its own.

    Its backward pass may do so in another thread, which would wait for ever.
    """
    if not callable(closure):
        return closure

    @wraps(closure)
    def lent(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for pins in concerned:
                pins.look_everywhere()
                stack.enter_context(pins.lock.lent())
            return closure(*args, **kwargs)

    return lent


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not _watched:
        return
    stepped = _stepped(optimizer)
    held = None if torch.compiler.is_compiling() else sys._getframe(1)
    for pins in list(_watched):
        try:
            pins.after_step(stepped)
        finally:
            if held is not None:
                pins.lock.end_step(held)


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)
