"""Environment: the date, seeds and package versions of a run."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

_PACKAGES = ("autoeidetic", "torch", "torchvision", "timm", "numpy")


def date(given: datetime | str | None) -> str:
    """A date as text; now if none is given.

    >>> date(datetime(2025, 1, 31, 12))
    '2025-01-31T12:00:00'
    """
    if isinstance(given, str):
        return given
    return (given or datetime.now(timezone.utc)).isoformat(timespec="seconds")


def seeds(given: Mapping[str, int] | int | None) -> dict[str, int]:
    """Seeds by name; torch's present one if none is given.

    >>> seeds(7)
    {'torch': 7}
    """
    if isinstance(given, Mapping):
        return {str(name): int(seed) for name, seed in given.items()}
    return {"torch": torch.initial_seed() if given is None else int(given)}


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that the bits of results depend on."""
    found = {package: version_of(package) for package in _PACKAGES}
    return {"python": platform.python_version(), **{p: own for p, own in found.items() if own}}


def version_of(package: str) -> str:
    """The version of an installed package; empty when it is not installed.

    >>> version_of("no-such-package")
    ''
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first settings that differ, in words.

    >>> difference({"lr": 0.1, "step": 1}, {"lr": 0.2, "step": 1})
    'lr was 0.1 and is 0.2'
    """
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{n} was {old.get(n)!r} and is {new.get(n)!r}" for n in names[:3])
