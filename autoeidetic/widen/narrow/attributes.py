"""Sizes that the model's code keeps in attributes: numbers of heads, sizes of splits, tables.

Nothing says which attribute is a size. A change is tried on all modules of a class at once, and
kept if more of the graph of the copy is as predicted.

    Attention.num_heads = 6        the graph stops to agree at view(2, 197, 3, 6, 64), where
                                   (2, 197, 3, 2, 64) was predicted
    Attention.num_heads = 2        it agrees up to the next block, and beyond
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from ...capture.graph import Capture
from .build import STOCK, STOCK_SIZES, cut
from .match import compute_nodes
from .shapes import Shapes

#: Sizes before and after; how often each occurs.
Sizes = Counter[tuple[int, int]]
#: Attributes of torch's modules, and numbers that are never channels.
_NEVER = frozenset(nn.Module().__dict__) | frozenset(
    "kernel_size stride padding dilation output_padding".split()
)
_PLAIN = (int, float, str, bytes, bool, type(None), Tensor, nn.Module)


@dataclass(frozen=True)
class Attribute:
    """An attribute of all modules of a class, or of objects of a class that modules hold.

    ``rank``: which of the sizes that its value may stand for.
    """

    owner: type
    name: str
    rank: int = 0


@dataclass(frozen=True)
class Holder:
    """A module, or an object that a module holds, with the sizes around it."""

    owner: Any
    path: str


def holders(model: nn.Module) -> Iterator[Holder]:
    """Everything in a model whose attributes may be sizes."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        yield Holder(module, path)
        for value in _held(module):
            if id(value) not in seen:
                seen.add(id(value))
                yield Holder(value, path)


def _held(module: nn.Module) -> Iterator[Any]:
    """Objects that a module holds, such as the configuration of a model of transformers."""
    for name, value in vars(module).items():
        plain = isinstance(value, (*_PLAIN, dict, list, tuple, set)) or callable(value)
        if name not in _NEVER and not plain and hasattr(value, "__dict__"):
            yield value


@dataclass(frozen=True)
class Neighbourhoods:
    """The sizes that occur in and around each module, before and after."""

    captured: Capture
    shapes: Shapes

    @cached_property
    def _own(self) -> dict[str, Sizes]:
        """The sizes of values that a module computes or reads itself, by its path."""
        found: dict[str, Sizes] = defaultdict(Counter)
        for node in compute_nodes(self.captured):
            for each in (node, *node.all_input_nodes):
                found[node.meta["module"]].update(self.sizes_of(each))
        for name, positions in self.shapes.parameters.items():
            shape = tuple(self.captured.parameters[name].shape)
            new = self.shapes.size(shape, positions)
            found[name.rpartition(".")[0]].update(zip(shape, new, strict=True))
        return found

    def sizes_of(self, node: fx.Node) -> list[tuple[int, int]]:
        """The sizes of a node's value before and after, dimension by dimension."""
        shape = node.meta.get("shape", ())
        return list(zip(shape, self.shapes.guesses.get(node, shape), strict=True))

    def around(self, path: str) -> Sizes:
        """The sizes in a module; a module that computes nothing itself has those of its parts."""
        if path not in self._around:
            own = self._own.get(path)
            if not own:
                parts = [v for p, v in self._own.items() if not path or p.startswith(f"{path}.")]
                own = sum(parts, Counter())
            self._around[path] = own
        return self._around[path]

    @cached_property
    def _around(self) -> dict[str, Sizes]:
        return {}

    def below(self, path: str) -> Sizes:
        """The sizes in a module and in all of its parts."""
        if path not in self._below:
            parts = [
                v for p, v in self._own.items() if not path or p == path or p.startswith(f"{path}.")
            ]
            self._below[path] = sum(parts, Counter())
        return self._below[path]

    @cached_property
    def _below(self) -> dict[str, Sizes]:
        return {}

    def candidates(self, path: str, value: int) -> list[int]:
        """What a size may have become, the most frequent first."""
        found: Sizes = Counter()
        # a module that is not called, such as a table of biases, lends its attributes to the next
        for sizes in (self.around(path), self.below(path), self.around(path.rpartition(".")[0])):
            fitting = {(a, b): n for (a, b), n in sizes.items() if a == value and b != a}
            if fitting:
                found.update(fitting)
                break
        return [new for (_, new), _ in found.most_common()]


def change(
    model: nn.Module, attribute: Attribute, sizes: Neighbourhoods
) -> list[Callable[[], None]]:
    """Change an attribute wherever it is a size; returns what undoes it."""
    undo: list[Callable[[], None]] = []
    for holder in holders(model):
        if type(holder.owner) is not attribute.owner:
            continue
        before = _get(holder.owner, attribute.name)
        after = resized(before, holder.path, sizes, attribute.rank)
        if after is not None:
            _set(holder.owner, attribute.name, after)
            undo.append(lambda o=holder.owner, v=before: _set(o, attribute.name, v))  # type: ignore[misc]
    return undo


def _place(owner: Any, name: str) -> dict[str, Any]:
    """The dict that holds an attribute: past properties and overridden ``__setattr__``."""
    if isinstance(owner, nn.Module):
        for tensors in (owner._parameters, owner._buffers):
            if name in tensors:
                return tensors
    return vars(owner)


def _get(owner: Any, name: str) -> Any:
    return _place(owner, name).get(name)


def _set(owner: Any, name: str, value: Any) -> None:
    _place(owner, name)[name] = value


def resized(value: Any, path: str, sizes: Neighbourhoods, rank: int = 0) -> Any:
    """The value of an attribute with all sizes in it changed; None if there are none.

    Dicts are left alone: they describe models (timm's ``pretrained_cfg``, with the image size).
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        found = sizes.candidates(path, value)
        return found[rank] if rank < len(found) else None
    if isinstance(value, Tensor):
        return _resized_tensor(value, path, sizes, rank)
    if type(value) in (tuple, list):
        new = [resized(item, path, sizes, rank) for item in value]
        if all(item is None for item in new):
            return None
        pairs = zip(new, value, strict=True)
        return type(value)(old if item is None else item for item, old in pairs)
    return None


def _resized_tensor(value: Tensor, path: str, sizes: Neighbourhoods, rank: int) -> Tensor | None:
    """The first positions along each dimension of a table that is a size."""
    found = [resized(int(size), path, sizes, rank) for size in value.shape]
    if all(size is None for size in found):
        return None
    along = tuple(
        None if new is None else np.arange(old) < new
        for old, new in zip(value.shape, found, strict=True)
    )
    made = cut(value, along)
    return nn.Parameter(made, value.requires_grad) if isinstance(value, nn.Parameter) else made


def set_scales(model: nn.Module, sizes: Neighbourhoods) -> None:
    """Let factors ``size ** -0.5`` of attention follow the size of a head, which has no graph."""
    for holder in holders(model):
        for name, value in list(vars(holder.owner).items()):
            if "scale" not in name or not isinstance(value, float) or not 0 < value < 0.5:
                continue
            size = round(value**-2)
            new = {b for a, b in sizes.around(holder.path) if a == size}
            # another size that is the same number, and stays, leaves it open which one is meant
            if abs(size**-0.5 - value) < 1e-6 * value and len(new) == 1:
                _set(holder.owner, name, new.pop() ** -0.5)


def suspects(
    model: nn.Module, captured: Capture, node: fx.Node, sizes: Neighbourhoods, followed: set[str]
) -> Iterator[tuple[Attribute, ...]]:
    """Sets of attributes to change because of a node that disagrees, the likeliest first.

    The innermost module around the node comes first; in each module first the attributes whose
    value is a size of the node, then all that may be sizes.
    """
    changed = {
        old
        for each in (node, *node.all_input_nodes)
        for old, new in sizes.sizes_of(each)
        if old != new
    }
    called = {call.path for call in captured.calls.values()}
    paths = [captured.calls[number].path for number in reversed(node.meta["scope"])]
    modules = dict(model.named_modules())
    near: dict[str, None] = {}
    for path in paths or [""]:
        prefix = f"{path}." if path else ""
        parts = (prefix + name for name, _ in modules[path].named_children())
        near.update(dict.fromkeys((path, *(part for part in parts if part not in called))))
    for rank in range(2):
        for path in (path for path in near if path in modules):
            found = list(_attributes(modules[path], path, sizes, rank, followed))
            exact = [a for a, value in found if changed & set(_integers(value))]
            every = [a for a, _ in found]
            seen: set[tuple[Attribute, ...]] = set()
            for trial in ((*exact,), *((a,) for a in exact), *((a,) for a in every), (*every,)):
                if trial and trial not in seen:
                    seen.add(trial)
                    yield trial


def _attributes(
    module: nn.Module, path: str, sizes: Neighbourhoods, rank: int, followed: set[str]
) -> Iterator[tuple[Attribute, Any]]:
    """The attributes of a module, and of objects that it holds, which may be sizes."""
    for owner in (module, *_held(module)):
        items = dict(vars(owner))
        if owner is module:
            prefix = f"{path}." if path else ""
            tensors = {**module._parameters, **module._buffers}
            items.update({n: t for n, t in tensors.items() if prefix + n not in followed})
        for name, value in items.items():
            if name in _NEVER or _is_set(owner, name):
                continue
            if resized(value, path, sizes, rank) is not None:
                yield Attribute(type(owner), name, rank), value


def _is_set(owner: Any, name: str) -> bool:
    """Does :func:`~.build.copy_with` set it, from the shapes of parameters?"""
    return isinstance(owner, STOCK) and name in vars(owner) and name in STOCK_SIZES


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, Tensor):
        yield from value.shape
    elif isinstance(value, int):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _integers(item)
