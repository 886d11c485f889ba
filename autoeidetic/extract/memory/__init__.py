"""Memory: what is written through views and read from them, as values of stock operators."""

from .storages import without_storages

__all__ = ["without_storages"]
