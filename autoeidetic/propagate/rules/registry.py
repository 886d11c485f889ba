"""The registry: one small function per operator family, one signature.

A rule is called as ``rule(algebra, *args, **kwargs)`` with the operator's own arguments, in
which every tensor is a :class:`~autoeidetic.propagate.values.Value`, and returns a ``Value`` for
the result (a list of them for several results).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch

from ...common.trees import leaves
from ...errors import RuleError
from ..algebra import Algebra
from ..values import ZERO, Value, holds_nothing

Rule = Callable[..., Any]
_RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a rule for operators, given as ``torch.ops.lib.op`` or one overload of it.

    Example:
        >>> import torch, autoeidetic
        >>> @torch.library.custom_op("doctest::halve", mutates_args=())
        ... def halve(x: torch.Tensor) -> torch.Tensor:
        ...     return x / 2
        >>> @halve.register_fake
        ... def _(x):
        ...     return torch.empty_like(x)
        >>> @autoeidetic.rule(torch.ops.doctest.halve)
        ... def halve_rule(algebra, x):
        ...     return algebra.pointwise(x)

    Raises:
        RuleError: a target is not an operator, or already has a rule.
    """
    if not targets:
        raise RuleError("rule() needs at least one operator", remedy="@rule(torch.ops.mylib.myop)")
    for target in targets:
        if not callable(target):
            raise RuleError(
                f"{target!r} is not an operator",
                remedy="pass torch.ops.mylib.myop or one overload of it, or a function",
            )
        if target in _RULES:
            raise RuleError(
                f"{_name(target)} already has a rule: {_RULES[target].__module__}."
                f"{_RULES[target].__qualname__}",
                remedy="register one rule per operator; name an overload to be more specific",
            )

    def register(function: Rule) -> Rule:
        kept = _keeps_channels_of_empty_values(function)
        for target in targets:
            _RULES[target] = kept
        return kept

    return register


def _keeps_channels_of_empty_values(function: Rule) -> Rule:
    """Wrap a rule so that a result without elements keeps its channels.

    An expert that gets no tokens computes tensors of shape (0, channels); with other inputs they
    have elements. A rule that runs its operator on the tags loses them there, because an empty
    tensor holds no tags. Such a result is given one tag that requires everything the operator
    reads.
    """

    @wraps(function)
    def kept(algebra: Algebra, *args: Any, **kwargs: Any) -> Any:
        result = function(algebra, *args, **kwargs)
        parts = result if isinstance(result, list) else [result]
        # holds_nothing, not numel() == 0: a rule may have kept tags under an empty shape
        lost = [
            isinstance(p, Value) and p.tags is not None and holds_nothing(p.tags) for p in parts
        ]
        if not any(lost):
            return result
        tags = algebra.mix_everything(leaves((args, kwargs), Value))
        parts = [
            Value(part.shape, tags.expand(part.shape)) if gone else part
            for part, gone in zip(parts, lost, strict=True)
        ]
        return parts if isinstance(result, list) else parts[0]

    return kept


def find_rule(target: Any) -> Rule | None:
    """The rule of an overload, or else of its operator: the more specific one wins."""
    found = _RULES.get(target)
    if found is None and isinstance(target, torch._ops.OpOverload):
        found = _RULES.get(target._overloadpacket)
    return found


def registered() -> Iterator[tuple[str, Rule]]:
    """Every operator with a rule, by name."""
    return iter(sorted(((_name(t), r) for t, r in _RULES.items()), key=lambda pair: pair[0]))


def _name(target: Any) -> str:
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target)
    return str(getattr(target, "__name__", target))


def arguments(algebra: Algebra, args: Sequence[Any], kwargs: Any = None) -> dict[str, Any]:
    """The arguments of the current node's operator after the first, by name, with defaults."""
    # by the schema, because overloads of one operator have their arguments at different positions
    schema: Any = algebra.node.target._schema  # type: ignore[union-attr]
    rest = schema.arguments[1:]
    given = {a.name: a.default_value for a in rest if a.has_default_value()}
    given.update(zip((a.name for a in rest), args, strict=False))
    given.update(kwargs or {})
    return given


def side_results(algebra: Algebra, operands: Sequence[Any], count: int) -> list[Value]:
    """The results after the first, which may depend on everything the operator reads.

    The operands are mixed only if one of these results is used: an unused mask or seed must not tie
    them together.
    """
    parts = {user.args[1]: user for user in algebra.node.users}
    is_read = any(index != 0 and part.users for index, part in parts.items())
    tags = algebra.mix_everything(operands) if is_read else ZERO
    shapes = [parts[i].meta["shape"] if i in parts else () for i in range(1, count + 1)]
    return [Value(shape, tags.expand(shape)) for shape in shapes]


def part_like(algebra: Algebra, index: int, value: Value) -> Value:
    """One of several results, or a constant where the operator leaves it empty."""
    part = next((user for user in algebra.node.users if user.args[1] == index), None)
    shape = value.shape if part is None else part.meta["shape"]
    return value if shape == value.shape else algebra.constant(shape)


def aten(names: str) -> list[Any]:
    """The ATen operators of these names that this version of PyTorch has."""
    return [getattr(torch.ops.aten, n) for n in names.split() if hasattr(torch.ops.aten, n)]
