"""Narrow values: values of a cut graph, with what they hold of the captured ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import fx

from .extents import Extent

#: The extent of a result; of an operator with several results, by their numbers.
Extents: TypeAlias = Extent | dict[int, Extent]


@dataclass(frozen=True)
class Narrow:
    """A value of the new graph, and the extent of the captured value that it holds."""

    node: fx.Node
    extent: Extents


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's value."""
    return tuple(node.meta["shape"])
