"""Common nodes: equal computations of a captured graph become one.

A network whose heads cannot share a pass answers for each task in a pass of its own. All these
passes compute the same body, and in the graph of a program it is there once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, fx

from ..capture.graph import Capture
from ..common.digests import Hasher


def merge_equal_nodes(captured: Capture) -> None:
    """Replace each node by the first one that computes the same from the same operands."""
    first: dict[Hashable, fx.Node] = {}
    for node in list(captured.graph.nodes):
        key = _key(node, captured)
        if key is None:
            continue
        other = first.setdefault(key, node)
        if other is not node:
            node.replace_all_uses_with(other)
            captured.graph.erase_node(node)


def _key(node: fx.Node, captured: Capture) -> Hashable | None:
    """What a node computes; None for one that stays by itself."""
    if node.op == "get_attr":
        value = captured.constants.get(str(node.target))
        return None if value is None else _content(value)
    target: Any = node.target
    if node.op != "call_function" or node.meta.get("read_by_python"):
        return None
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        return None  # two draws are two values
    return target, _hashable(node.args), _hashable(dict(node.kwargs))


def _content(value: Tensor) -> Hashable | None:
    if value.is_meta:
        return None
    hasher = Hasher()
    hasher.update(value)
    return hasher.digest()


def _hashable(value: Any) -> Hashable:
    if isinstance(value, (tuple, list)):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    return type(value), value  # 1, 1.0 and True are equal
