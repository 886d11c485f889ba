"""Size constants: tensors whose size follows that of an input, computed from smaller ones.

Each kind that is known is kept as a small tensor, the seed, and a few steps.

    repeated       zeros(n, 8), a mask for each input of a batch    expand
    number         tensor(n)                                        mul
    progression    0, 1, 2, ... n - 1                               expand, cumsum, add
    blocks         0, 1, 4, 5, 8, 9: a few heads of each input      repeat, cumsum, add
    tiled          a mask for each window, for each input           repeat
    leading part   the first n rows of a position table             slice

A leading part is right up to the largest size that was captured. At a larger one there are too few
rows, and the operator that reads them raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor, fx

from ...capture.graph_writer import describe
from ...common.bits import same
from ...common.trees import convert
from .expressions import Quantity, Values, new_node, varies

aten = torch.ops.aten
#: Gives a number with these values: itself if it never varies, None if there is no expression.
Find = Callable[[Values], Any]


@dataclass(frozen=True)
class Step:
    """One operator on the tensor so far; some of its arguments may be quantities."""

    operator: Any
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Recipe:
    """How a constant is computed at any size: a tensor that is kept, and the steps from it."""

    seed: Tensor
    steps: tuple[Step, ...]

    def results(self, capture: int) -> list[Tensor]:
        """The seed and the result of every step, at the sizes of a capture."""
        results = [self.seed]
        for step in self.steps:
            args = convert(step.args, Quantity, lambda each: each.values[capture])
            results.append(step.operator(results[-1], *args, **dict(step.kwargs)))
        return results

    def gives(self, tensors: Sequence[Tensor]) -> bool:
        """Is the last result the tensor of each capture, bit by bit?"""
        return all(same(self.results(n)[-1], tensor) for n, tensor in enumerate(tensors))

    def write(self, attribute: fx.Node, number: Callable[[Any, fx.Node], Any]) -> fx.Node:
        """Write the steps behind the node of the seed; ``number`` gives the node of a quantity."""
        node, before = attribute, attribute.next
        for step, result in zip(self.steps, self.results(0)[1:], strict=True):
            args = convert(step.args, Quantity, lambda each: number(each, before))
            node = new_node(before, step.operator, (node, *args), attribute, **dict(step.kwargs))
            describe(node, result)
        return node


def recipe(tensors: Sequence[Tensor], find: Find) -> Recipe | None:
    """A recipe for a constant that is each of these tensors, one per capture; None without one."""
    kinds = {(each.dtype, each.dim(), each.device.type) for each in tensors}
    if len(kinds) > 1 or tensors[0].is_meta:
        return None
    shape = [find(sizes) for sizes in zip(*(each.shape for each in tensors), strict=True)]
    if None in shape:
        return None
    repeated = [d for d in range(len(shape)) if all(_repeats(each, d) for each in tensors)]
    seeds = [_without(each, repeated) for each in tensors]
    # the other dimensions have their size already: -1
    sizes = [shape[d] if d in repeated else -1 for d in range(len(shape))]
    expand = [Step(aten.expand.default, (sizes,))] if {*sizes} - {1, -1} else []
    for seed, steps in _recipes(seeds, shape, find):
        found = Recipe(seed.clone(), (*steps, *expand))
        if found.gives(tensors):
            return _with_memory_of(tensors[0], found)
    return None


def _repeats(tensor: Tensor, dim: int) -> bool:
    """Is a tensor the same at all positions along a dimension?"""
    return tensor.shape[dim] > 0 and same(tensor, tensor.narrow(dim, 0, 1).expand_as(tensor))


def _without(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    """The first position along some dimensions."""
    for dim in dims:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _with_memory_of(tensor: Tensor, found: Recipe) -> Recipe:
    """A recipe whose result is contiguous where the constant was: some operators ask for it."""
    if not tensor.is_contiguous() or found.results(0)[-1].is_contiguous():
        return found
    copy = Step(aten.clone.default, (), (("memory_format", torch.contiguous_format),))
    return Recipe(found.seed, (*found.steps, copy))


# -- kinds ---------------------------------------------------------------------------------------


def _recipes(
    seeds: Sequence[Tensor], shape: Sequence[Any], find: Find
) -> Iterator[tuple[Tensor, list[Step]]]:
    """What may be kept of tensors that repeat along no dimension, and the steps from it."""
    yield seeds[0], []
    moving = [
        d for d, sizes in enumerate(zip(*(s.shape for s in seeds), strict=True)) if varies(sizes)
    ]
    largest = max(seeds, key=Tensor.numel)
    if not moving and largest.numel() == 1:
        yield from _number(seeds, find)
    if len(moving) == 1 and largest.numel() == largest.shape[moving[0]]:
        yield from _progression(seeds, largest, moving[0], shape, find)
        yield from _blocks(seeds, largest, moving[0], find)
    if moving:
        yield from _tiles(seeds, moving, find)
    yield largest, [Step(aten.slice.Tensor, (d, 0, shape[d])) for d in moving]


def _number(seeds: Sequence[Tensor], find: Find) -> Iterator[tuple[Tensor, list[Step]]]:
    values = tuple(seed.item() for seed in seeds)
    if all(isinstance(value, (int, float)) and value == int(value) for value in values):
        number = find(tuple(map(int, values)))
        if number is not None:
            yield torch.ones_like(seeds[0]), [Step(aten.mul.Tensor, (number,))]


def _progression(
    seeds: Sequence[Tensor], largest: Tensor, dim: int, shape: Sequence[Any], find: Find
) -> Iterator[tuple[Tensor, list[Step]]]:
    """The running sum of one number: unlike arange, it follows the program to another device."""
    if largest.dtype is torch.bool or largest.is_complex() or not all(map(Tensor.numel, seeds)):
        return
    step = largest.narrow(dim, 1, 1) - largest.narrow(dim, 0, 1)
    # [1, n, 1]: n steps, of which the first one leads to the start
    sizes = [size if d == dim else 1 for d, size in enumerate(shape)]
    before = find(tuple(seed.flatten()[0].item() - step.item() for seed in seeds))
    if before is not None:
        expand = Step(aten.expand.default, (sizes,))
        running = Step(aten.cumsum.default, (dim,), (("dtype", largest.dtype),))
        yield step, [expand, running, Step(aten.add.Tensor, (before,))]


def _blocks(
    seeds: Sequence[Tensor], largest: Tensor, dim: int, find: Find
) -> Iterator[tuple[Tensor, list[Step]]]:
    """The running sum of steps that repeat: an index into a batch times heads, for instance."""
    lengths = [seed.numel() for seed in seeds]
    common, values = gcd(*lengths), largest.flatten()
    if largest.dtype is not torch.int64 or not common:
        return
    for period in range(2, min(common, len(values) // 2) + 1):
        if common % period == 0:
            # the step to each value of the second block from the one before it
            steps = values[period : 2 * period] - values[period - 1 : 2 * period - 1]
            before = find(tuple(seed.flatten()[0].item() - steps[0].item() for seed in seeds))
            counts = [find(tuple(length // period for length in lengths))]
            if before is not None and None not in counts:
                sizes = [counts[0] if d == dim else 1 for d in range(largest.dim())]
                kept = steps.view([-1 if d == dim else 1 for d in range(largest.dim())])
                repeat = Step(aten.repeat.default, (sizes,))
                running = Step(aten.cumsum.default, (dim,))
                yield kept, [repeat, running, Step(aten.add.Tensor, (before,))]


def _tiles(
    seeds: Sequence[Tensor], dims: Sequence[int], find: Find
) -> Iterator[tuple[Tensor, list[Step]]]:
    """One tile, and how often it is repeated along each dimension."""
    tile, counts = seeds[0], [1] * seeds[0].dim()
    for dim in dims:
        lengths = [seed.shape[dim] for seed in seeds]
        period = _period(seeds, dim, gcd(*lengths))
        tile = tile.narrow(dim, 0, period)
        counts[dim] = find(tuple(length // period for length in lengths))
    if None not in counts:
        yield tile, [Step(aten.repeat.default, (counts,))]


def _period(tensors: Sequence[Tensor], dim: int, common: int) -> int:
    """The smallest part of a common length that all tensors repeat; all of it without one."""
    for period in range(2, common):
        if common % period == 0:
            # [..., n, ...] -> [..., n / period, period, ...], the same along the first of them
            tiles = (each.unflatten(dim, (-1, period)) for each in tensors)
            if all(_repeats(each, dim) for each in tiles):
                return period
    return common
