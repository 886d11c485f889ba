"""Parts: the modules that a network consists of, to notice when somebody changes them.

A network runs the user's own modules, so nobody is kept from exchanging, adding or deleting one. A
module that is exchanged for its like is divided as the one before it; everything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from ..errors import EnforcementError, Place, with_article
from .guard import original_class
from .pins import Home

_BACKBONE, _HEADS = "backbone", "heads"


class Part(NamedTuple):
    """A module as it was when it was looked at last.

    ``kind`` is its class, ``base`` that without its guard. ``present`` and ``absent`` are names of
    its parameters: a layer may have no bias.
    """

    path: str
    module: nn.Module
    kind: type
    base: type
    children: dict[str, nn.Module | None]
    present: tuple[str, ...]
    absent: tuple[str, ...]
    buffers: frozenset[str]


@dataclass(frozen=True)
class Parts:
    """The modules in a network's backbone and heads; ``network`` holds the two."""

    network: nn.Module
    tops: dict[str, nn.Module]
    inside: tuple[Part, ...]


def parts(network: nn.Module) -> Parts:
    """Look at a network's backbone and heads, and at all modules in them."""
    tops = {name: network.get_submodule(name) for name in (_BACKBONE, _HEADS)}
    inside = [
        _part(path, module)
        for name, top in tops.items()
        for path, module in top.named_modules(prefix=name)
        if not isinstance(module, torch.jit.ScriptModule)  # has no dictionaries to look at
    ]
    return Parts(network, tops, tuple(inside))


def _part(path: str, module: nn.Module) -> Part:
    held = module._parameters
    return Part(
        path,
        module,
        type(module),
        original_class(module),
        dict(module._modules),
        tuple(name for name, tensor in held.items() if tensor is not None),
        tuple(name for name, tensor in held.items() if tensor is None),
        frozenset(module._buffers),
    )


def exchanged(known: Parts) -> bool:
    """Has a module been exchanged for another of its kind since the last look?

    Raises:
        EnforcementError: something else was changed, which the analysis has not seen.
    """
    others = {name: known.network._modules.get(name) for name in known.tops}
    changed = _changed(known.inside)
    if not changed and others == known.tops:
        return False
    for name, before in known.tops.items():
        if others[name] is not before:
            _check_alike(others[name], before, name)
    for part in changed:
        _check(part)
    return True


def _changed(known: tuple[Part, ...]) -> list[Part]:
    """Modules that are not what they were. Runs before every pass, hence without calls."""
    changed = []
    for part in known:
        _, module, kind, _, children, present, absent, buffers = part
        held = module._parameters
        if (
            type(module) is not kind
            or module._modules != children
            or len(held) != len(present) + len(absent)
            or len(module._buffers) != len(buffers)
        ):
            changed.append(part)
            continue
        for name in present:
            if name not in held or held[name] is None:
                changed.append(part)
        for name in absent:
            if name not in held or held[name] is not None:
                changed.append(part)
    return changed


def _check(part: Part) -> None:
    """Raises EnforcementError when a module is not what it was, nor like it."""
    _check_kind(part.module, part.base, part.path)
    _check_tensors(part)
    _check_children(part.module._modules, part.children, part.path)


def _check_children(
    now: Mapping[str, nn.Module | None], before: Mapping[str, nn.Module | None], path: str
) -> None:
    for name in dict(before) | dict(now):
        old, new, inside = before.get(name), now.get(name), _join(path, name)
        if old is None and new is not None:
            _refuse(f"a {_name(new)} was added", inside)
        if old is not None and new is not old:
            _check_alike(new, old, inside)


def _check_kind(now: nn.Module, before: type, path: str) -> None:
    """Of the same class, but for its guard.

    ``nn.SyncBatchNorm.convert_sync_batchnorm`` makes its own of batch norms.
    """
    is_batch_norm = issubclass(before, nn.modules.batchnorm._BatchNorm)
    if original_class(now) is not before and not (
        isinstance(now, nn.SyncBatchNorm) and is_batch_norm
    ):
        _is_another(now, before, path)


def _check_tensors(part: Part) -> None:
    """Nothing may go or come but what a model makes by itself: buffers that are not saved."""
    module, home = part.module, Home(part.module, "_parameters", part.path)
    for name in part.present:
        home.check(name)
    for name, tensor in module._parameters.items():
        if tensor is not None and name not in part.present:
            _refuse(f"a parameter '{name}' was added", part.path)
    for name in module._buffers.keys() - part.buffers - module._non_persistent_buffers_set:
        _refuse(f"a buffer '{name}' was added", part.path)


def _check_alike(now: nn.Module | None, before: nn.Module, path: str) -> None:
    """Is a module, with all modules in it, like the one that was there before it?"""
    if now is None:
        _is_another(None, type(before), path)
    _check_kind(now, original_class(before), path)
    old, new = _own(before), _own(now)
    for name, tensor in old.items():
        _check_shape(new.get(name), tensor, _join(path, name), path)
    for name in new.keys() - old.keys():
        _refuse(f"a {_name(before)} was exchanged for one with a '{name}'", path)
    was, settings = before.extra_repr(), now.extra_repr()
    if settings != was:
        _refuse(f"a {_name(before)}({was}) was made a {_name(now)}({settings})", path)
    _check_children(now._modules, before._modules, path)


def _check_shape(now: Tensor | None, before: Tensor, name: str, path: str) -> None:
    then = tuple(before.shape)
    if now is None or tuple(now.shape) != then:
        fact = "is gone" if now is None else f"has the shape {tuple(now.shape)}"
        _raise(f"'{_shown(name)}' {fact}; it had {then} before", path)
    if now.dtype != before.dtype:
        _raise(f"'{_shown(name)}' is of {now.dtype}; it was of {before.dtype} before", path)


def _own(module: nn.Module) -> dict[str, Tensor]:
    """A module's own parameters and buffers, but for the ones that are not saved."""
    tensors = (*module._parameters.items(), *module._buffers.items())
    aside = module._non_persistent_buffers_set
    return {name: tensor for name, tensor in tensors if tensor is not None and name not in aside}


def _is_another(now: nn.Module | None, before: type, path: str) -> NoReturn:
    """Raises EnforcementError: a module is of another class than it was, or gone."""
    what = "the backbone" if path == _BACKBONE else f"module '{_shown(path)}'"
    when = "when its task began" if path.startswith(_HEADS) else "when the model was converted"
    then, after = _names(before, None if now is None else type(now))
    _raise(f"{what} was {then} {when}, and is {after} now", path)


def _names(before: type, after: type | None) -> tuple[str, str]:
    """What to call two classes to tell them apart."""
    if after is None:
        return with_article(before.__name__), "gone"
    if before.__name__ != after.__name__:
        return with_article(before.__name__), with_article(after.__name__)
    return f"a {before.__module__}.{before.__name__}", f"a {after.__module__}.{after.__name__}"


def _name(module: nn.Module) -> str:
    return type(module).__name__


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(path: str) -> str:
    """Modules of the user's model go by the names they have in it."""
    return path.removeprefix(f"{_BACKBONE}.")


def _refuse(fact: str, path: str) -> NoReturn:
    _raise(f"{fact} after the conversion", path)


def _raise(fact: str, path: str) -> NoReturn:
    remedy = (
        "put back what was there. torch.compile, torch.jit.trace, torch.export and "
        "DistributedDataParallel take the network as a whole; other changes (adapters, "
        "parametrizations) belong to the model before it is converted"
    )
    if path.startswith(_HEADS):
        remedy = (
            "put back what prepare_for_task made, or load the network from a file; a head is of "
            "the kind of the model's own output layer, and its size is num_classes"
        )
    raise EnforcementError(fact, place=Place(module=_shown(path)), remedy=remedy)
