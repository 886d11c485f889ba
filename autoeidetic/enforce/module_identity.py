"""Module identities: the modules that a network consists of, to notice when one is changed.

A network runs the user's own modules, so nothing keeps code from replacing, adding or deleting one.
The network compares before every pass:

    nothing has changed                            go on
    a module was replaced by one of the same       derive pins and guards anew: the new module is
    class, shapes and settings                     divided between tasks as the old one was
    anything else                                  raise an error: the analysis has not seen it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from ..errors import EnforcementError, Place, with_article
from .guard import original_class
from .slots import Holder

_BACKBONE, _HEADS = "backbone", "heads"


class ModuleIdentity(NamedTuple):
    """A module as it was at the last look.

    ``kind`` is its class, ``base`` its class without the guard. ``present`` and ``absent`` are
    names of parameters: a layer may have no bias.
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
class ModuleIdentities:
    """All modules of a network: ``tops`` are its backbone and its heads."""

    network: nn.Module
    tops: dict[str, nn.Module]
    modules: tuple[ModuleIdentity, ...]


def module_identities(network: nn.Module) -> ModuleIdentities:
    """The modules of a network as they are now."""
    tops = {name: network.get_submodule(name) for name in (_BACKBONE, _HEADS)}
    modules = [
        _identity(path, module)
        for name, top in tops.items()
        for path, module in top.named_modules(prefix=name)
        if not isinstance(module, torch.jit.ScriptModule)  # has no dictionaries to compare
    ]
    return ModuleIdentities(network, tops, tuple(modules))


def _identity(path: str, module: nn.Module) -> ModuleIdentity:
    parameters = module._parameters
    return ModuleIdentity(
        path,
        module,
        type(module),
        original_class(module),
        dict(module._modules),
        tuple(name for name, tensor in parameters.items() if tensor is not None),
        tuple(name for name, tensor in parameters.items() if tensor is None),
        frozenset(module._buffers),
    )


def modules_replaced(known: ModuleIdentities) -> bool:
    """Has a module been replaced by another of its kind since the last look?

    Raises:
        EnforcementError: something else was changed, which the analysis has not seen.
    """
    tops = {name: known.network._modules.get(name) for name in known.tops}
    changed = _changed(known.modules)
    if not changed and tops == known.tops:
        return False
    for name, before in known.tops.items():
        if tops[name] is not before:
            _check_alike(tops[name], before, name)
    for identity in changed:
        _check(identity)
    return True


def _changed(known: tuple[ModuleIdentity, ...]) -> list[ModuleIdentity]:
    """The modules that have changed. Written without function calls: it runs before every pass."""
    changed = []
    for identity in known:
        _, module, kind, _, children, present, absent, buffers = identity
        parameters = module._parameters
        if (
            type(module) is not kind
            or module._modules != children
            or len(parameters) != len(present) + len(absent)
            or len(module._buffers) != len(buffers)
        ):
            changed.append(identity)
            continue
        for name in present:
            if name not in parameters or parameters[name] is None:
                changed.append(identity)
        for name in absent:
            if name not in parameters or parameters[name] is not None:
                changed.append(identity)
    return changed


def _check(identity: ModuleIdentity) -> None:
    """Raises EnforcementError when a module is neither what it was nor one of the same kind."""
    _check_kind(identity.module, identity.base, identity.path)
    _check_tensors(identity)
    _check_children(identity.module._modules, identity.children, identity.path)


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
    """The class must be the same, apart from guards.

    One other class is accepted: ``nn.SyncBatchNorm.convert_sync_batchnorm`` replaces batch norms.
    """
    is_batch_norm = issubclass(before, nn.modules.batchnorm._BatchNorm)
    if original_class(now) is not before and not (
        isinstance(now, nn.SyncBatchNorm) and is_batch_norm
    ):
        _is_another(now, before, path)


def _check_tensors(identity: ModuleIdentity) -> None:
    """No parameter or buffer may come or go, except buffers that are not saved: caches."""
    module, holder = identity.module, Holder(identity.module, "_parameters", identity.path)
    for name in identity.present:
        holder.check(name)
    for name, tensor in module._parameters.items():
        if tensor is not None and name not in identity.present:
            _refuse(f"a parameter '{name}' was added", identity.path)
    for name in module._buffers.keys() - identity.buffers - module._non_persistent_buffers_set:
        _refuse(f"a buffer '{name}' was added", identity.path)


def _check_alike(now: nn.Module | None, before: nn.Module, path: str) -> None:
    """Raises EnforcementError unless a module, with all modules in it, is of the old one's kind."""
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
    """A module's own parameters and buffers, without the buffers that are not saved."""
    tensors = (*module._parameters.items(), *module._buffers.items())
    aside = module._non_persistent_buffers_set
    return {name: tensor for name, tensor in tensors if tensor is not None and name not in aside}


def _is_another(now: nn.Module | None, before: type, path: str) -> NoReturn:
    """Raises EnforcementError: a module has another class than before, or is gone."""
    what = "the backbone" if path == _BACKBONE else f"module '{_shown(path)}'"
    when = "when its task began" if path.startswith(_HEADS) else "when the model was converted"
    then, after = _names(before, None if now is None else type(now))
    _raise(f"{what} was {then} {when}, and is {after} now", path)


def _names(before: type, after: type | None) -> tuple[str, str]:
    """Names of two classes that tell them apart."""
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
    """The path as the user knows it: without the network around the model."""
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
