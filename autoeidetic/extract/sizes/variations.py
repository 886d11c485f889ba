"""Variations: the sizes of a call's inputs that may vary, and the same call with other sizes.

    input_ids (2, 8), mask (2, 8)    the batch: dimension 0 of both; the length: dimension 1 of both
    x (2, 3, 32, 32)                 the batch; channels; height; width; height and width together

Whether the model runs with other sizes is for the caller to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...common.inputs import CallInputs

#: How other sizes are made, the best ways first; some models accept only some of them. Large steps
#: change what is made with large strides. 2 n + 1 stays odd if it is halved and rounded up, n + 31
#: if rounded down: they tell expressions apart that are equal where everything divides. Multiples
#: are for models that insist on them, smaller sizes for those whose largest size is the example's.
_BATCHES: tuple[Callable[[int], int], ...] = (
    lambda n: n + 1,
    lambda n: n + 3,
    lambda n: 2 * n,
    lambda n: 3 * n,
)
_LENGTHS: tuple[Callable[[int], int], ...] = (
    lambda n: n + 1,
    lambda n: 2 * n + 1,
    lambda n: n - 1,
    lambda n: n // 2,
    lambda n: 2 * n,
    lambda n: 3 * n,
)
_EXTENTS: tuple[Callable[[int], int], ...] = (
    lambda n: n + 32 if n >= 32 else 2 * n,
    lambda n: 2 * n + 1,
    lambda n: n + 31,
    lambda n: n + 64 if n >= 32 else 3 * n,
    lambda n: 2 * n,
    lambda n: 3 * n,
    lambda n: n // 2,
)


@dataclass(frozen=True)
class Variation:
    """Sizes of a call's inputs that vary together.

    ``places`` are pairs of an input's number, among the tensors of the call, and a dimension;
    ``arguments`` are the names of these inputs; ``ways`` make another size from a size.
    ``captured`` are the sizes of the first place that are known to work; beyond ``least`` and
    ``most`` it does not. ``equal``: height and width must be the same.
    """

    places: tuple[tuple[int, int], ...]
    arguments: tuple[str, ...]
    ways: tuple[Callable[[int], int], ...]
    captured: tuple[int, ...] = ()
    least: int | None = None
    most: int | None = None
    equal: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each size, such as ``x: dimension 0``."""
        pairs = zip(self.arguments, self.places, strict=True)
        return tuple(f"{argument}: dimension {dim}" for argument, (_, dim) in pairs)

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    @property
    def is_batch(self) -> bool:
        """Is it the number of rows of a batch?"""
        return self.ways is _BATCHES

    def sizes_in(self, inputs: CallInputs) -> list[int]:
        """The sizes of a call that vary, one for each place."""
        leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return [tensors[number].shape[dim] for number, dim in self.places]

    def alone(self) -> list[Variation]:
        """The sizes of an input that has several in this variation, one by one."""
        pairs = list(zip(self.places, self.arguments, strict=True))
        inputs = [number for number, _ in self.places]
        return [
            replace(self, places=(place,), arguments=(name,))
            for place, name in pairs
            if inputs.count(place[0]) > 1
        ]

    def at(self, inputs: CallInputs, size: int) -> CallInputs:
        """The same call with one size at all places."""
        return replace(self, ways=(lambda _: size,)).apply(inputs, 1)

    def apply(self, inputs: CallInputs, how: int) -> CallInputs:
        """The same call with other sizes, in one of ``len(ways)`` ways, counted from 1.

        Values are repeated or cut, so that indices stay in range and masks stay masks.
        """
        items, spec = pytree.tree_flatten((inputs.args, inputs.kwargs))
        places = [place for place, item in enumerate(items) if isinstance(item, Tensor)]
        for number, dim in self.places:
            items[places[number]] = _resized(items[places[number]], dim, self.ways[how - 1])
        args, kwargs = pytree.tree_unflatten(items, spec)
        # what the code reads out of tensors may depend on their sizes
        return replace(inputs, args=args, kwargs=kwargs, decisions=None)


def _resized(tensor: Tensor, dim: int, way: Callable[[int], int]) -> Tensor:
    size = tensor.shape[dim]
    index = torch.arange(max(way(size), 1), device=tensor.device) % size
    # in the order of the memory, which the result then has as well: channels last, for instance
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    back = [order.index(d) for d in range(tensor.dim())]
    return tensor.detach().permute(order).index_select(order.index(dim), index).permute(back)


def variations(inputs: CallInputs, names: Sequence[str] | None = None) -> list[Variation]:
    """The sizes of a call that may vary, one after another, the batch first.

    ``names`` are those of the tensors of the call; without them, those of keyword arguments and
    numbers for the others.
    """
    found = pytree.tree_flatten_with_path((inputs.args, inputs.kwargs))[0]
    tensors = [(path, leaf) for path, leaf in found if isinstance(leaf, Tensor)]
    if names is None:
        names = [_name(path, number) for number, (path, _) in enumerate(tensors)]
    shapes = [tuple(leaf.shape) for _, leaf in tensors]
    return [
        Variation(tuple(places), tuple(names[number] for number, _ in places), ways)
        for places, ways in _groups(shapes)
    ]


def _name(path: Sequence[object], number: int) -> str:
    """The name of an input: the keyword that it is passed by, or the capture's own."""
    keys = [each.key for each in path if isinstance(each, pytree.MappingKey)]
    return ".".join(map(str, keys)) if keys else f"input_{number}"


def _groups(
    shapes: Sequence[tuple[int, ...]],
) -> Iterator[tuple[list[tuple[int, int]], tuple[Callable[[int], int], ...]]]:
    """The sizes that vary together, and the ways in which they do."""
    sizes = {(n, d): size for n, shape in enumerate(shapes) for d, size in enumerate(shape)}
    batch = next((size for (_, d), size in sizes.items() if d == 0), None)
    together = [place for place, size in sizes.items() if place[1] == 0 and size == batch]
    if batch:
        yield together, _BATCHES
    # one size along one dimension of several inputs is one length; a size of 1 is broadcast
    others = [(d, size) for (n, d), size in sizes.items() if (n, d) not in together and size > 1]
    for dim, length in dict.fromkeys(others):
        places = [(n, d) for (n, d), size in sizes.items() if (d, size) == (dim, length)]
        # dimension 1 of an image has its channels, which a model has a fixed number of
        places = [
            (n, d) for n, d in places if (n, d) not in together and (d > 1 or len(shapes[n]) < 4)
        ]
        if places:
            yield places, _EXTENTS if _is_extent(places, shapes) else _LENGTHS
    images = [(n, len(shape)) for n, shape in enumerate(shapes) if len(shape) >= 4]
    if images:
        yield [(n, rank - back) for n, rank in images for back in (2, 1)], _EXTENTS


def _is_extent(places: Sequence[tuple[int, int]], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Is it the height or the width of an image?"""
    return all(len(shapes[number]) >= 4 and dim >= 2 for number, dim in places)
