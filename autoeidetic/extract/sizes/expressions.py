"""Size expressions: numbers that depend on sizes of tensors, found from their values.

A model is captured at several input sizes. A number that differs between the captures is a function
of sizes, and the simplest expression that has its value in all of them is taken for that function.

    captures                     1   2   3
    size of x, dimension 1       8   9  17
    number in a view            32  36  68      ->  size * 4
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import gcd
from typing import Any, TypeAlias

import torch
from torch import fx

#: The values of one number, one per capture.
Values: TypeAlias = tuple[Any, ...]
#: The largest divisor in a sum that is divided, (size + c) // d: patches and strides are smaller.
_LARGEST_DIVISOR = 64


@dataclass(frozen=True)
class Quantity:
    """A number that depends on sizes: its value in every capture, and how it is computed.

    ``operands`` are quantities and plain numbers; of the size of a tensor, a node and a dimension.
    """

    values: Values
    function: Callable[..., Any]
    operands: tuple[Any, ...]

    def __add__(self, other: Quantity | int) -> Quantity:
        return _combined(operator.add, self, other)

    def __sub__(self, other: Quantity | int) -> Quantity:
        return _combined(operator.sub, self, other)

    def __rsub__(self, other: int) -> Quantity:
        return _combined(operator.sub, other, self)

    def __mul__(self, other: Quantity | int) -> Quantity:
        return _combined(operator.mul, self, other)

    def __floordiv__(self, other: int) -> Quantity:
        return _combined(operator.floordiv, self, other)

    def __mod__(self, other: int) -> Quantity:
        return _combined(operator.mod, self, other)

    def __truediv__(self, other: int) -> Quantity:
        return _combined(operator.truediv, self, other)

    def __rtruediv__(self, other: int) -> Quantity:
        return _combined(operator.truediv, other, self)

    def __pow__(self, other: float) -> Quantity:
        return _combined(operator.pow, self, other)


def _combined(
    function: Callable[..., Any], left: Quantity | float, right: Quantity | float
) -> Quantity:
    count = len((left if isinstance(left, Quantity) else right).values)  # type: ignore[union-attr]
    pairs = zip(_values(left, count), _values(right, count), strict=True)
    return Quantity(tuple(function(a, b) for a, b in pairs), function, (left, right))


def _values(number: Quantity | float, count: int) -> Values:
    return number.values if isinstance(number, Quantity) else (number,) * count


def varies(values: Values) -> bool:
    """Does a number differ between captures?"""
    return len(set(values)) > 1


# -- the search --------------------------------------------------------------------------------


def expression(
    target: Values, own: Sequence[Quantity], earlier: Sequence[Quantity]
) -> Quantity | None:
    """The first expression that has the values of ``target``; None if there is none.

    ``own`` are sizes of the operands of the operator that the number belongs to, ``earlier`` all
    numbers that are known before it. All of them vary.
    """
    if all(isinstance(value, int) for value in target):
        candidates = _integers(target, own, earlier)
    else:
        candidates = _fractions(target, (*own, *earlier))
    return next((each for each in candidates if each.values == target), None)


def _integers(
    target: Values, own: Sequence[Quantity], earlier: Sequence[Quantity]
) -> Iterator[Quantity]:
    """Candidates, likely ones first.

    Several may fit: where all captured sizes are even, twice the size of an operand can be the size
    of an earlier tensor. Operands come first. If that is a mistake, other sizes raise an error,
    because a shape does not fit; the size of an unrelated tensor may fit and be wrong.
    """
    products = [*_products(own, 2), *_products(own, 3)]
    yield from own
    yield from products
    yield from _with_one_constant((*own, *products), own, target)
    yield from earlier
    mixed = [(a, b) for a in own or earlier for b in earlier]
    pairs = [pair for a, b in mixed for pair in (a - b, b - a, a + b)]
    pairs = [*pairs, *_products(earlier, 2)]
    yield from _with_one_constant(earlier, (), target)
    yield from pairs
    yield from _with_one_constant(pairs, earlier, target)
    for size in (*own, *earlier):
        yield from _with_two_constants(size, target)


def _products(sizes: Iterable[Quantity], count: int) -> Iterator[Quantity]:
    for first, *others in combinations_with_replacement(sizes, count):
        for other in others:
            first = first * other
        yield first


def _with_one_constant(
    numbers: Sequence[Quantity], sizes: Sequence[Quantity], target: Values
) -> Iterator[Quantity]:
    """Candidates with a constant that follows from some of the values.

    A number that varies has two values at least: the others decide whether the constant is right.
    """
    for number in numbers:
        yield from _linear(number, target)
    for size in sizes:
        yield from _periodic(size, target)
    for number in numbers:
        yield from _rounded(number, target)


def _linear(size: Quantity, target: Values) -> Iterator[Quantity]:
    """``c * size``, ``size // c`` without a remainder, and ``size + c``."""
    known, wanted = size.values[0], target[0]
    if known and wanted % known == 0:
        yield size * (wanted // known)
    divisor = known // wanted if wanted else 0
    if divisor and all(a == v * divisor for a, v in zip(size.values, target, strict=True)):
        yield size // divisor
    yield size + (wanted - known)


def _rounded(size: Quantity, target: Values) -> Iterator[Quantity]:
    """``size / c`` rounded down or up, if only one divisor fits."""
    pairs = [(a, v) for a, v in zip(size.values, target, strict=True) if v > 0]
    if not pairs or min(target) < 0 or min(size.values) < 0:
        return
    divisor = min(a // v for a, v in pairs)  # a larger one would be too large for some pair
    if divisor > 1 and (size // (divisor - 1)).values != target:
        yield size // divisor
    divisor = max(-(-a // v) for a, v in pairs)  # a smaller one would be too small
    if divisor > 1 and _rounded_up(size, divisor + 1).values != target:
        yield _rounded_up(size, divisor)


def _rounded_up(size: Quantity, divisor: int) -> Quantity:
    return (size + (divisor - 1)) // divisor


def _periodic(size: Quantity, target: Values) -> Iterator[Quantity]:
    """``-size % c`` and ``size % c``, which pad to a multiple of ``c``, and these plus a number."""
    for addend in dict.fromkeys((0, min(target))):
        remainders = [value - addend for value in target]
        if min(remainders) < 0:
            continue
        for signed in (0 - size, size):
            pairs = zip(signed.values, remainders, strict=True)
            modulus = _modulus([value - remainder for value, remainder in pairs], remainders)
            if modulus is not None:
                yield signed % modulus + addend if addend else signed % modulus


def _modulus(multiples: Sequence[int], remainders: Sequence[int]) -> int | None:
    """The smallest number that divides all multiples and is larger than all remainders."""
    common = gcd(*multiples)
    larger = range(max(remainders) + 1, common + 1)
    return next((number for number in larger if common % number == 0), None)


def _with_two_constants(size: Quantity, target: Values) -> Iterator[Quantity]:
    """``c * size + d``, and ``(size + c) // d`` where the values leave one choice."""
    points = dict(zip(size.values, target, strict=True))
    if len(points) < 3:
        return
    (a, v), (b, w) = list(points.items())[:2]
    if (w - v) % (b - a) == 0:
        slope = (w - v) // (b - a)
        yield size * slope + (v - slope * a)
    found = []
    for divisor in range(2, _LARGEST_DIVISOR + 1):
        # v * d <= a + c < (v + 1) * d for all pairs
        least = max(v * divisor - a for a, v in points.items())
        most = min((v + 1) * divisor - a for a, v in points.items()) - 1
        found += [(divisor, addend) for addend in range(least, most + 1)]
    if len(found) == 1:
        divisor, addend = found[0]
        yield (size + addend) // divisor


def _fractions(target: Values, sizes: Iterable[Quantity]) -> Iterator[Quantity]:
    """Candidates for floats: means, scales and roots."""
    for size in sizes:
        known, wanted = size.values[0], target[0]
        if not known or not wanted:
            continue
        yield size / 1
        yield round(wanted * known) / size
        yield size / (round(known / wanted) or 1)
        yield size**0.5
        yield size**-0.5


# -- the numbers of a graph --------------------------------------------------------------------


class Sizes:
    """The numbers that are known up to some node of a graph, and the nodes that compute them."""

    def __init__(self) -> None:
        self._of: dict[fx.Node, list[Quantity]] = {}
        # the first quantity with these values: later tensors of the same size add nothing
        self._earlier: dict[Values, Quantity] = {}
        self._nodes: dict[Quantity, fx.Node] = {}

    def add(self, node: fx.Node, shapes: Sequence[tuple[int, ...]]) -> None:
        """Note the sizes of a tensor: its shape in each capture."""
        if len({len(shape) for shape in shapes}) != 1:
            return
        lengths = enumerate(zip(*shapes, strict=True))
        self._of[node] = [
            Quantity(values, torch.ops.aten.sym_size.int, (node, dim))
            for dim, values in lengths
            if varies(values)
        ]
        for size in self._of[node]:
            self._earlier.setdefault(size.values, size)

    def find(self, target: Values, operands: Iterable[fx.Node]) -> Any:
        """A number with these values: itself if it never varies, None if there is no expression.

        ``operands`` are the tensors whose sizes are the most likely ones.
        """
        if not varies(target):
            return target[0]
        own = {size.values: size for node in operands for size in self._of.get(node, ())}
        found = expression(target, list(own.values()), list(self._earlier.values()))
        if found is not None:
            self._earlier.setdefault(target, found)
        return found

    def write(self, number: Any, before: fx.Node) -> Any:
        """The node that computes a quantity; anything else stays what it is."""
        if not isinstance(number, Quantity):
            return number
        if number not in self._nodes:
            self._nodes[number] = self._write(number, before)
        return self._nodes[number]

    def _write(self, number: Quantity, before: fx.Node) -> fx.Node:
        source = number.operands[0]
        if isinstance(source, fx.Node):
            # right behind the tensor, which need not stay in memory for its size
            return new_node(_behind(source), number.function, number.operands, before)
        operands = tuple(self.write(each, before) for each in number.operands)
        return new_node(before, number.function, operands, before)


def _behind(node: fx.Node) -> fx.Node:
    """The node before which to write what belongs behind a node: all placeholders come first."""
    following = node.next
    while following.op == "placeholder":
        following = following.next
    return following


def new_node(
    before: fx.Node, function: Any, args: tuple[Any, ...], place: fx.Node, **kwargs: Any
) -> fx.Node:
    """A new node of the graph, which belongs to the place of another one in the user's model."""
    name = "size" if function is torch.ops.aten.sym_size.int else None
    with before.graph.inserting_before(before):
        node = before.graph.create_node("call_function", function, args, kwargs, name)
    node.meta.update({key: place.meta.get(key, "") for key in ("module", "line")})
    node.meta["scope"] = place.meta.get("scope", ())
    return node
