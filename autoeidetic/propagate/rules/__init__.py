"""Rules: what each operator does to tags. Every module of this package is imported."""

from importlib import import_module
from pkgutil import iter_modules

from .registry import find_rule, registered, rule

MODULES = tuple(sorted(info.name for info in iter_modules(__path__) if info.name != "registry"))
for _name in MODULES:
    import_module(f"{__name__}.{_name}")

__all__ = ["MODULES", "find_rule", "registered", "rule"]
