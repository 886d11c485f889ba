"""Parts: the modules that a network consists of, to notice when one is exchanged for another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from .blueprint import Blueprint
from .errors import EnforcementError, Place, with_article
from .layers.guard import original_class
from .pins import Slot


@dataclass(frozen=True)
class Part:
    """A module in the place where it is held; ``kind`` is its class, ``base`` without its guard."""

    path: str
    home: dict[str, nn.Module | None]
    name: str
    module: nn.Module
    kind: type
    base: type


def parts(network: nn.Module, home: dict[str, nn.Module | None]) -> list[Part]:
    """A module, which is held under the name "backbone", and all modules below it."""
    root = Part("", home, "backbone", network, type(network), original_class(network))
    return [root] + [
        Part(
            f"{inside}.{name}" if inside else name,
            module._modules,
            name,
            child,
            type(child),
            original_class(child),
        )
        for inside, module in network.named_modules()
        for name, child in module._modules.items()
        if child is not None
    ]


def exchanged(known: Iterable[Part]) -> bool:
    """Is a module another one than it was?

    Raises:
        EnforcementError: it is of another kind, which the analysis has not seen.
    """
    changed = [p for p in known if not (_now(p) is p.module and type(p.module) is p.kind)]
    for part in changed:
        now = _now(part)
        if now is None or not _alike(original_class(now), part.base):
            module = f"module '{part.path}'" if part.path else "the backbone"
            before, after = _names(part.base, None if now is None else type(now))
            raise EnforcementError(
                f"{module} was {before} when the model was converted, and is {after} now",
                place=Place(module=part.path),
                remedy="put back what was there. torch.compile, torch.jit.trace, torch.export and "
                "DistributedDataParallel take the network as a whole; other changes (adapters, "
                "parametrizations) belong to the model before it is converted",
            )
    return bool(changed)


def _names(before: type, after: type | None) -> tuple[str, str]:
    """What to call two classes to tell them apart."""
    if after is None:
        return with_article(before.__name__), "gone"
    if before.__name__ != after.__name__:
        return with_article(before.__name__), with_article(after.__name__)
    return f"a {before.__module__}.{before.__name__}", f"a {after.__module__}.{after.__name__}"


def _now(part: Part) -> nn.Module | None:
    return part.home[part.name] if part.name in part.home else None  # noqa: SIM401


def _alike(now: type, before: type) -> bool:
    """The same class; ``nn.SyncBatchNorm.convert_sync_batchnorm`` makes its own of batch norms."""
    batch_norm = nn.modules.batchnorm._BatchNorm
    return now is before or (now is nn.SyncBatchNorm and issubclass(before, batch_norm))


def check_shapes(slots: dict[str, Slot], blueprint: Blueprint) -> None:
    """Has a backbone all that the plan divides, in the shapes that it had?

    Raises:
        EnforcementError: it has not.
    """
    plan = blueprint.plan
    divided = {name: entry.owner for name, entry in plan.parameters.items() if not entry.head}
    for name, classes in (divided | plan.buffers).items():
        slot = slots.get(f"backbone.{name}")
        shape = None if slot is None else tuple(slot[0][slot[1]].shape)
        if shape != tuple(classes.shape):
            now = "is gone" if shape is None else f"has the shape {shape}"
            raise EnforcementError(
                f"'{name}' {now}; it had {tuple(classes.shape)} when the model was converted",
                place=Place(module=name.rpartition(".")[0]),
                remedy="put the module back that was there",
            )
