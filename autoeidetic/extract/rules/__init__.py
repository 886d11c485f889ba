"""Rules: how each operator is cut. Every module of this package is imported."""

from importlib import import_module
from pkgutil import iter_modules

from .registry import Rule, rule_of

for _info in iter_modules(__path__):
    import_module(f"{__name__}.{_info.name}")

__all__ = ["Rule", "rule_of"]
