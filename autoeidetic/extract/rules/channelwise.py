"""Operators that need whole dimensions: norms, softmaxes, pooling, interpolation, borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx

from ..extents import Extent, Positions, full, lengths, simple
from ..narrow import Extents, Narrow, shape_of
from .registry import Rule, everything, given, register
from .through import Passed, Through, same_place

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer

aten = torch.ops.aten


class Whole(Through):
    """Works along some dimensions of its operand as a whole, and alone on each of the others."""

    def __init__(self, dims: Callable[[fx.Node, int], set[int]]) -> None:
        self.dims = dims

    def passed(self, node: fx.Node) -> list[Passed]:
        source = source_of(node)
        return [same_place(source, self.dims(node, len(shape_of(source))))]


def source_of(node: fx.Node) -> fx.Node:
    """The first argument."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _along(node: fx.Node, rank: int) -> set[int]:
    """The dimensions that an argument names."""
    dim = given(node).get("dim", -1)
    found = dim if isinstance(dim, (list, tuple)) else [-1 if dim is None else dim]
    return {int(d) % rank for d in found} if rank else set()


def _space(count: int) -> Callable[[fx.Node, int], set[int]]:
    """The last dimensions."""
    return lambda node, rank: set(range(rank - count, rank))


def _none(node: fx.Node, rank: int) -> set[int]:
    """Element by element, with several results."""
    return set()


def _border(node: fx.Node, rank: int) -> set[int]:
    """The dimensions that padding makes longer."""
    return {rank - 1 - place // 2 for place, n in enumerate(given(node)["pad"]) if n}


class Sampled(Through):
    """``grid_sampler(x [N, C, H, W], grid [N, h, w, 2])``: channels and places pass."""

    keeps_zero = True  # beyond the border, too

    def passed(self, node: fx.Node) -> list[Passed]:
        grid: Any = node.args[1]
        space = range(2, len(shape_of(node)))
        return [
            Passed(source_of(node), (None, 1, *(None for _ in space))),
            Passed(grid, (None, *space, None), carries=False),
        ]


class Fractional(Through):
    """``fractional_max_pool2d(x [N, C, H, W], ..., samples [N, C, 2])``: each channel by itself."""

    def __init__(self, space: int) -> None:
        self.space = space

    def passed(self, node: fx.Node) -> list[Passed]:
        source = source_of(node)
        rank = len(shape_of(source))
        channel = rank - 1 - self.space
        samples = Passed(given(node)["random_samples"], (None, channel, None), carries=False)
        return [same_place(source, range(channel + 1, rank)), samples]


class Complex(Through):
    """``view_as_complex``, ``view_as_real``: the parts of numbers lie along the last dimension."""

    keeps_zero = True

    def passed(self, node: fx.Node) -> list[Passed]:
        source = source_of(node)
        return [same_place(source, {len(shape_of(node))})]

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        source = source_of(node)
        extent = self._rest(node, kept)
        inside = (*extent, None)[: len(shape_of(source))]
        operand = out.operand(source, inside)
        shape = lengths(inside, shape_of(source))
        # parts of numbers have to lie side by side in memory
        memory = {"memory_format": torch.contiguous_format}
        operand = out.new(aten.clone.default, (operand,), shape, memory)
        return out.call(node, node.target, (operand,), {}, extent)


class BatchNorm(Through):
    """Statistics and affine parameters for each channel, dimension 1."""

    def passed(self, node: fx.Node) -> list[Passed]:
        rest = (None,) * (len(shape_of(x := given(node)["input"])) - 2)
        others = [each for name, each in given(node).items() if name != "input"]
        nodes = [each for each in others if isinstance(each, fx.Node)]
        return [Passed(x, (None, 1, *rest)), *(Passed(each, (1,), False) for each in nodes)]

    def support(self, node: fx.Node, known: Known) -> Extents:
        if "shape" not in node.meta:
            return everything(node)
        found = list(full(len(shape_of(node))))
        found[1] = affine_support(node, known)
        return tuple(found)


def affine_support(node: fx.Node, known: Known) -> Positions:
    """The channels of a norm whose weight or bias is not zero; all, if they are not known."""
    weight, bias = given(node).get("weight"), given(node).get("bias")
    if weight is None or not known.is_folded(weight) or not known.is_folded(bias):
        return None
    if known.is_learned(weight) or known.is_learned(bias):
        return None
    scaled: Tensor = known.value(weight) != 0
    if bias is not None:
        scaled = scaled | (known.value(bias) != 0)
    return simple(scaled.cpu().numpy())


class LayerNorm(Through):
    """Whole along the last dimensions; affine parameters are those of all channels."""

    def passed(self, node: fx.Node) -> list[Passed]:
        x = source_of(node)
        rank = len(shape_of(x))
        count = len(given(node)["normalized_shape"])
        return [same_place(x, range(rank - count, rank))]

    def support(self, node: fx.Node, known: Known) -> Extents:
        if "shape" not in node.meta or len(given(node)["normalized_shape"]) > 1:
            return everything(node)
        return (*full(len(shape_of(node)) - 1), affine_support(node, known))


class GroupNorm(Rule):
    """Statistics over the channels of a group: groups are kept or dropped as a whole."""

    def _channels(self, node: fx.Node, wanted: Positions) -> Positions:
        groups = int(node.args[1])  # type: ignore[arg-type]
        if wanted is None:
            return None
        used = wanted.reshape(groups, -1)
        return simple(np.repeat(used.any(1), used.shape[1]))

    def support(self, node: fx.Node, known: Known) -> Extent:
        return (None, affine_support(node, known), *full(len(shape_of(node)) - 2))

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        channels = self._channels(node, wanted[1])
        known.demand(node.args[0], (None, channels, *full(len(shape_of(node)) - 2)))
        for other in node.args[2:4]:
            if isinstance(other, fx.Node):
                known.demand(other, (channels,))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        channels = self._channels(node, kept[1])
        extent = (None, channels, *full(len(shape_of(node)) - 2))
        count = shape_of(node)[1]
        groups = int(node.args[1])  # type: ignore[arg-type]
        if channels is not None:
            groups = int(channels.sum()) // (count // groups)
        parameters = [out.operand(each, (channels,)) for each in node.args[2:4]]
        operand = out.operand(node.args[0], extent)
        return out.call(
            node, node.target, (operand, groups, *parameters, *node.args[4:]), {}, extent
        )


class Gated(Rule):
    """``glu``: the first half along a dimension, times the sigmoid of the second."""

    def _dim(self, node: fx.Node) -> int:
        return int(given(node)["dim"]) % len(shape_of(node))

    def _twice(self, node: fx.Node, extent: Extent) -> Extent:
        dim = self._dim(node)
        positions = extent[dim]
        both = None if positions is None else np.concatenate([positions, positions])
        return (*extent[:dim], both, *extent[dim + 1 :])

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        return known.channels[source_of(node)]

    def support(self, node: fx.Node, known: Known) -> Extent:
        dim, inside = self._dim(node), list(known.support(source_of(node)))
        if inside[dim] is not None:
            inside[dim] = simple(inside[dim][: shape_of(node)[dim]])  # type: ignore[index]
        return tuple(inside)

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        known.demand(source_of(node), self._twice(node, wanted))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        operand = out.operand(source_of(node), self._twice(node, kept))
        return out.call(node, node.target, (operand, *node.args[1:]), {}, kept)


class Folded(Rule):
    """``col2im``: x [N, C * k * k, L] -> [N, C, H, W], blocks that overlap are added."""

    def _blocks(self, node: fx.Node, extent: Extent) -> Extent:
        count = shape_of(source_of(node))[-2] // shape_of(node)[-3]
        channels = extent[-3]
        rows = None if channels is None else np.repeat(channels, count)
        return (*extent[:-3], rows, None)

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        rank = len(shape_of(node))
        return frozenset(d for d in known.channels[source_of(node)] if d < rank - 2)

    def support(self, node: fx.Node, known: Known) -> Extent:
        *lead, rows, _ = known.support(source_of(node))
        if rows is not None:
            rows = simple(np.asarray(rows.reshape(shape_of(node)[-3], -1).any(1)))
        return (*lead, rows, None, None)

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        known.demand(source_of(node), self._blocks(node, wanted))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        operand = out.operand(source_of(node), self._blocks(node, kept))
        extent = (*kept[:-2], None, None)
        return out.call(node, node.target, (operand, *node.args[1:]), {}, extent)


def _bits(node: fx.Node, rank: int) -> set[int]:
    """The dimension in which elements of another type have other numbers."""
    return set() if shape_of(node) == shape_of(source_of(node)) else {rank - 1}


#: Padding by a number; with zeros it is a movement.
BORDER = Whole(_border)
#: The same memory as another type.
BITS = Whole(_bits)
register(
    "_softmax _log_softmax _safe_softmax cumsum cumprod logcumsumexp sort topk cummax cummin "
    "_fft_c2c _fft_r2c _fft_c2r",
    Whole(_along),
)
register("native_dropout log_sigmoid_forward", Whole(_none))
register("upsample_nearest1d upsample_linear1d _upsample_nearest_exact1d", Whole(_space(1)))
register(
    "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d "
    "adaptive_max_pool2d upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d "
    "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    Whole(_space(2)),
)
register(
    "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d "
    "upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d",
    Whole(_space(3)),
)
register("fractional_max_pool2d", Fractional(2))
register("fractional_max_pool3d", Fractional(3))
register("grid_sampler_2d grid_sampler_3d", Sampled())
register("view_as_complex view_as_real", Complex())
register(
    "batch_norm instance_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training",
    BatchNorm(),
)
register("layer_norm rms_norm native_layer_norm", LayerNorm())
register("group_norm", GroupNorm())
register("glu", Gated())
register("col2im", Folded())
