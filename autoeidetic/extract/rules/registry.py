"""The registry: how each operator is cut to the part of its result that is kept.

A rule answers three questions about a node:

    support    outside of which extent is the result zero?
    need       which extents of the operands does the needed part of the result depend on?
    write      the operator on narrow operands, with an extent that its result then has

The base class answers for any operator: everything may be non-zero, everything is needed, and the
operator runs as it is, at full size. Other rules are better and must mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx

from ...common.trees import leaves
from ..extents import Extent, full
from ..narrow import Extents, Narrow

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer


class Rule:
    """Any operator, at full size."""

    parts_are_separate = False  # each of several results is a value of its own (split)
    moves = False  # the result can be written again for another extent at no cost

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        """The dimensions of the result, or of one of several, along which channels lie.

        Where an operator keeps the shape of an operand, they are that operand's.
        """
        shape = part.meta["shape"]
        found: frozenset[int] = frozenset()
        for operand in leaves((node.args, node.kwargs), fx.Node):
            if operand in known.channels:
                if operand.meta["shape"] != shape:
                    return frozenset(range(len(shape)))
                found |= known.channels[operand]
        return found

    def support(self, node: fx.Node, known: Known) -> Extents:
        """The extent outside of which the result is zero."""
        return everything(node)

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        """Demand from the operands what a part of the result depends on.

        For a node with several results, ``known.parts[node]`` has what is wanted of each.
        """
        for operand in leaves((node.args, node.kwargs), fx.Node):
            known.demand(operand, full(len(operand.meta["shape"])))

    def need_part(self, node: fx.Node, part: fx.Node, wanted: Extent, known: Known) -> None:
        """The same for one of several separate results."""
        raise NotImplementedError

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        """Write the operator on narrow operands; at least what is kept of the result."""
        args, kwargs = out.arguments(node)
        return out.call(node, node.target, args, kwargs, everything(node))

    def write_part(self, node: fx.Node, part: fx.Node, kept: Extent, out: Writer) -> Narrow:
        """Write one of several separate results."""
        raise NotImplementedError


def everything(node: fx.Node) -> Extents:
    """The whole of the result."""
    if "shape" in node.meta:
        return full(len(node.meta["shape"]))
    return {int(part.args[1]): full(len(part.meta["shape"])) for part in node.users}  # type: ignore[arg-type]


_RULES: dict[str, Rule] = {}
_ANY = Rule()
#: Does a rule hold for a call?
When: TypeAlias = "Callable[[fx.Node, Known], bool]"


class Sometimes(Rule):
    """A rule that holds for some calls of an operator; others have another rule, or none."""

    def __init__(self, rule: Rule, when: When, otherwise: Rule = _ANY) -> None:
        self.rule, self.when, self.otherwise = rule, when, otherwise
        self.moves = rule.moves

    def of(self, node: fx.Node, known: Known) -> Rule:
        """The rule of this call."""
        return self.rule if self.when(node, known) else self.otherwise

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        return self.of(node, known).channels(node, part, known)

    def support(self, node: fx.Node, known: Known) -> Extents:
        return self.of(node, known).support(node, known)

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        self.of(node, known).need(node, wanted, known)

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        return self.of(node, out.known).write(node, kept, out)


def register(names: str, rule: Rule, when: When | None = None, otherwise: Rule = _ANY) -> None:
    """Give operators (``aten`` names, split at blanks) a rule; a second one is an error."""
    for name in names.split():
        if name in _RULES:
            raise ValueError(f"{name} has a rule already")
        _RULES[name] = rule if when is None else Sometimes(rule, when, otherwise)


def rule_of(operator: str) -> Rule:
    """The rule of an operator, by its name in the graph."""
    return _RULES.get(operator.removeprefix("aten."), _ANY)


def given(node: fx.Node) -> dict[str, Any]:
    """The arguments of a node by their names in the operator's schema, with defaults."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    result = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    result.update(zip((a.name for a in schema.arguments), node.args, strict=False))
    result.update(node.kwargs)
    return result


def aten(name: str) -> Any:
    """The default overload of an ATen operator."""
    return getattr(torch.ops.aten, name).default
