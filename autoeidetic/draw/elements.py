"""The elements of a drawing: plain, frozen data that every format is written from.

Ids are strings. Names, operators and source lines come from the user's model and are never markup;
each format escapes them in its own way. The description contains no layout.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = "autoeidetic-drawing"
VERSION = 1
#: Owners in a heat map other than tasks: nobody yet, and the input, which every task may read.
FREE = -1
INPUT = -2


@dataclass(frozen=True)
class Repeat:
    """Position of a block in a run of consecutive blocks of the same structure.

    ``of`` is the id of the first block, ``count`` the number of blocks.
    """

    of: str
    index: int
    count: int


@dataclass(frozen=True)
class Module:
    """A box that contains others: one call of a module, or a list of modules."""

    id: str
    path: str
    name: str
    type: str
    parent: str | None
    parameters: int
    repeat: Repeat | None = None


@dataclass(frozen=True)
class GroupRole:
    """The role of a node in a group; ``input`` if its weight reads the group."""

    group: str
    role: str


@dataclass(frozen=True)
class Node:
    """One call of a layer, one operator, an input, an output, or the place of a failure.

    ``groups`` are the groups whose parameters it has or reads; ``carries`` those whose channels its
    result holds; ``units`` is the number of units in the result. ``nested``: evaluated level by
    level.
    """

    id: str
    module: str
    kind: str
    label: str
    type: str
    path: str
    shape: tuple[int, ...] = ()
    parameters: int = 0
    parameter_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    units: int = 0
    line: str = ""
    groups: tuple[GroupRole, ...] = ()
    carries: tuple[str, ...] = ()
    locked: str = ""
    nested: bool = False


@dataclass(frozen=True)
class Edge:
    """A value that goes from one node to another.

    ``kind``: ``consumes`` (a weight reads it), ``coupled`` (goes on channel by channel),
    ``gates`` (the target needs it, and no weight that could be zeroed lies between),
    ``normalises``.
    """

    source: str
    target: str
    kind: str
    groups: tuple[str, ...]
    operator: str
    line: str


@dataclass(frozen=True)
class DrawnGroup:
    """A group of the analysis with its places in the drawing.

    ``nodes`` are its members; ``readers`` have weights that read it; ``couplers`` are the operators
    that couple its members.
    """

    id: str
    name: str
    size: int
    elements: int
    colour: int
    members: tuple[dict[str, Any], ...]
    nodes: tuple[str, ...]
    readers: tuple[str, ...]
    couplers: tuple[str, ...]
    bonds: tuple[dict[str, Any], ...]
    requires: tuple[str, ...]
    locked: str


@dataclass(frozen=True)
class TaskEntry:
    """A task of a network, with its number of classes."""

    name: str
    index: int
    classes: int


@dataclass(frozen=True)
class Failure:
    """Why and where the analysis of a model failed, so that it is drawn only in part."""

    module: str
    operator: str
    line: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Summary:
    """Key figures of a model."""

    parameters: int
    groups: int = 0
    units: int = 0
    locked_share: float = 0.0
    captured_by: str = ""
    operators: int = 0
    nested: int = 0


@dataclass(frozen=True)
class Drawing:
    """A model as boxes, arrows and groups; for a network, also its tasks and owners."""

    title: str
    summary: Summary
    modules: tuple[Module, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    # empty for a model that is drawn without an analysis (draw.failure)
    groups: tuple[DrawnGroup, ...] = ()
    tasks: tuple[TaskEntry, ...] = ()
    ownership: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which the page and other programs read."""
        return {"format": FORMAT, "version": VERSION, **_plain(asdict(self))}

    def to_json(self, indent: int | None = None) -> str:
        """:meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=True)


def _plain(value: Any) -> Any:
    """Lists instead of tuples, as in JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
