"""Attention: queries and keys of a head are mixed into its pattern, which the values require.

query (.., n, d)  key (.., m, d)     pattern (.., n, m): one derived channel for each head
value (.., m, e)                     result  (.., n, e): channel e of the value requires it
"""

from __future__ import annotations

from typing import Any

from ..algebra import Algebra
from ..values import Value
from .registry import aten, rule, side_results


def attend(
    algebra: Algebra, query: Value, key: Value, value: Value, bias: Value | None, shape: Any
) -> Value:
    """softmax(query @ key^T + bias) @ value, for tags."""
    #     q (heads, n, 1), k (heads, 1, m)     ->  pattern (heads, n, m)     one tag for each head
    #     p (heads, n, 1), v (heads, 1, e)     ->  result  (heads, n, e)     e requires its head's p
    # The derived channel of the pattern is of no use but to the values, so units.py merges the
    # queries and keys of a head into one unit each.
    turned = algebra.move(key, lambda t: t.transpose(-1, -2))
    q, k = algebra.contract(query, turned, -1, -2)
    size = (*shape[:-1], key.shape[-2])
    pattern = Value(size, algebra.combine(_lead(q, size), _lead(k, size), size))
    if bias is not None:
        pattern = algebra.pointwise(pattern, bias, shape=size)
    pattern = algebra.mix(pattern, [-1])  # the softmax over keys
    p, v = algebra.contract(pattern, value, -1, -2)
    return Value(tuple(shape), algebra.combine(_lead(p, shape), _lead(v, shape), shape))


def _lead(tags: Any, shape: Any) -> Any:
    """Tags expanded along the batch dimensions of the result."""
    return tags.expand(*shape[:-2], *tags.shape[-2:])


@rule(*aten("scaled_dot_product_attention"))
def scaled_dot_product_attention(
    algebra: Algebra,
    query: Value,
    key: Value,
    value: Value,
    mask: Any = None,
    *_: Any,
    **options: Any,
) -> Value:
    if options.get("enable_gqa") and key.shape[-3] != query.shape[-3]:
        # grouped queries: key head 0 serves query heads 0 .. repeats - 1
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (
            algebra.move(v, lambda t: t.repeat_interleave(repeats, -3)) for v in (key, value)
        )
    return attend(algebra, query, key, value, mask, algebra.shape)


@rule(
    *aten(
        "_scaled_dot_product_flash_attention_for_cpu"
        " _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
    )
)
def fused_attention(
    algebra: Algebra, query: Value, key: Value, value: Value, *args: Any, **kwargs: Any
) -> list[Value]:
    mask = kwargs.get("attn_mask", next((a for a in args if isinstance(a, Value)), None))
    shape = (*query.shape[:-1], value.shape[-1])
    result = attend(algebra, query, key, value, mask, shape)
    return [result, *side_results(algebra, [query, key, mask], 8)]
