"""Apply: run the rule of an operator, or the rules of its decomposition."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table

from ..capture.capture import capture_function
from ..capture.graph import ABSENT, place
from ..common.trees import convert, leaves
from ..errors import AutoeideticError, RuleError
from .algebra import Algebra
from .rules import find_rule
from .values import Value, constant


def apply_rule(algebra: Algebra, node: fx.Node, args: Sequence[Any], kwargs: Any) -> Any:
    """Run the operator's rule; None when it has none."""
    found = find_rule(node.target)
    if found is None:
        return None
    try:
        result = found(algebra, *args, **kwargs)
    except AutoeideticError:
        raise
    except Exception as error:
        raise RuleError(
            f"the rule {found.__module__}.{found.__qualname__} failed: "
            f"{type(error).__name__}: {error}",
            place=place(node),
            remedy="register your own rule for one overload of this operator with "
            "@autoeidetic.rule, or report the model",
        ) from error
    if result is None:
        raise RuleError(
            f"the rule {found.__module__}.{found.__qualname__} returned nothing",
            place=place(node),
            remedy="return a Value, or a list of them for an operator with several results",
        )
    return result


def decomposed(algebra: Algebra, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Apply rules to the operators of its ATen decomposition; None if that is not possible."""
    function = decomposition_table.get(node.target)  # type: ignore[call-overload]
    if function is None:
        return None
    operands = leaves((args, kwargs), Value)
    stand = lambda v: torch.empty(v.shape, device="meta")  # noqa: E731
    try:
        inner = capture_function(function, *convert((args, kwargs), Value, stand))
    except Exception:  # a decomposition that needs dtypes or data we do not have
        return None
    # while the steps run, the algebra's node is the step, which rules ask for shapes; its index
    # stays that of the outer node, so that events name an operator of the model's graph
    outer_node, bound = algebra.node, iter(operands)
    values: dict[fx.Node, Any] = {}
    try:
        for step in inner.graph.nodes:
            if step.op == "placeholder":
                values[step] = next(bound)
            elif step.op == "get_attr":
                values[step] = constant(step.meta["shape"], step.meta.get("const"))
            elif step.target is python_operator.getitem:
                values[step] = values[step.args[0]][step.args[1]]
            elif step.op == "call_function":
                algebra.node = step
                step.meta["line"] = outer_node.meta["line"]
                step_args = [lookup(a, values) for a in step.args]
                step_kwargs = {k: lookup(a, values) for k, a in step.kwargs.items()}
                values[step] = apply_rule(algebra, step, step_args, step_kwargs)
                if values[step] is None:
                    return None
    finally:
        algebra.node = outer_node
    return lookup(inner.outputs[0], values)


def lookup(value: Any, values: dict[fx.Node, Any]) -> Any:
    """An argument of a node, with values in the place of nodes."""
    if isinstance(value, fx.Node):
        return values[value]
    if isinstance(value, (tuple, list)):
        return [lookup(item, values) for item in value]
    return None if value is ABSENT else value
