"""Convolutions: channels are cut like those of a layer; groups stay of equal size.

groups 2, outputs 4 of each      x . x .   . . . x      x: kept
as many of each                  x . x .   o . . x      o: fills up, its weights are zero
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx

from ..extents import Extent, Positions, cut, full, simple
from ..narrow import Narrow, shape_of
from .registry import Rule, given, register

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer


@dataclass(frozen=True)
class Layout:
    """The sizes of a convolution, whichever way round its weight is.

    ``channel`` is the dimension of channels, ``outs`` and ``ins`` are channels of each group.
    """

    transposed: bool
    channel: int
    groups: int
    outs: int
    ins: int

    def by_group(self, weight: Tensor) -> Tensor:
        """The weight as [groups, outputs, inputs, ...]."""
        if self.transposed:  # [groups * inputs, outputs, ...]
            return weight.unflatten(0, (self.groups, self.ins)).transpose(1, 2)
        return weight.unflatten(0, (self.groups, self.outs))

    def joined(self, weight: Tensor) -> Tensor:
        """The weight as the operator takes it, of one by groups."""
        return (weight.transpose(1, 2) if self.transposed else weight).flatten(0, 1)


@dataclass(frozen=True)
class Channels:
    """The channels of a cut convolution: for each group that stays, those that go in and out.

    ``outputs [groups, m]`` and ``inputs [groups, n]`` are channel numbers, the same count in every
    group; ``fills [groups, m]`` tells which outputs only fill up their group.
    """

    inputs: np.ndarray
    outputs: np.ndarray
    fills: np.ndarray


def layout(node: fx.Node) -> Layout:
    """The sizes of a convolution."""
    a = given(node)
    transposed = bool(a.get("transposed", "transpose" in str(node.target)))
    channel = len(shape_of(node)) - len(shape_of(a["weight"])) + 1  # 0 without a batch
    groups = int(a["groups"])
    outs = shape_of(node)[channel] // groups
    return Layout(transposed, channel, groups, outs, shape_of(a["input"])[channel] // groups)


class Convolution(Rule):
    """x [N, I, ...], weight [O, I / groups, ...]; transposed: weight [I, O / groups, ...]."""

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        # channels along space, too, where each position is computed by itself
        own = known.channels.get(given(node)["input"], frozenset())
        return own | {layout(node).channel}

    def support(self, node: fx.Node, known: Known) -> Extent:
        a, at = given(node), layout(node)
        result = list(full(len(shape_of(node))))
        reads, learned = _reads(node, known), known.is_learned(a["weight"])
        if learned:
            reads = np.ones_like(reads)
        inputs = known.support(a["input"])[at.channel]
        if inputs is not None:
            reads = reads & inputs.reshape(at.groups, 1, at.ins)
        rows = reads.any(2).reshape(-1)
        bias = known.value(a.get("bias"))
        if bias is not None:
            rows = rows | learned | (bias != 0).cpu().numpy()
        result[at.channel] = simple(rows)
        return tuple(result)

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        at, reads = layout(node), _reads(node, known)
        rows = wanted[at.channel]
        if rows is not None:
            reads = reads & rows.reshape(at.groups, at.outs, 1)
        inputs = simple(reads.any(1).reshape(-1))
        known.demand(given(node)["input"], _with(node, wanted, inputs))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        a, at = given(node), layout(node)
        x = a["input"]
        chosen = self.chosen(node, out.known, kept[at.channel])
        if at.groups == 1 and not out.known.is_folded(x):
            # whatever is there of the input: columns that no kept output reads are zero
            have = out.positions(x, at.channel)
            numbers = np.arange(at.ins) if have is None else have.nonzero()[0]
            chosen = Channels(numbers[None], chosen.outputs, chosen.fills)
        inputs = _positions(chosen.inputs, at.groups * at.ins)
        outputs = _positions(chosen.outputs, at.groups * at.outs)
        operand = out.operand(x, _with(node, kept, inputs))
        extent = _with(node, kept, outputs)
        operand, weight = self._weight(node, operand, chosen, inputs, outputs, out)
        bias = a.get("bias")
        if bias is not None:
            filled = torch.from_numpy(chosen.fills.reshape(-1))
            own = out.known.value(bias)
            bias = out.operand(bias, (outputs,))
            if filled.any():
                taken = own[torch.from_numpy(chosen.outputs.reshape(-1)).to(own.device)]
                bias = out.computed(a["bias"], taken.masked_fill(filled.to(own.device), 0))
        arguments = {**a, "input": operand, "weight": weight, "bias": bias}
        arguments["groups"] = len(chosen.outputs)
        names = [each.name for each in node.target._schema.arguments]  # type: ignore[union-attr]
        return out.call(node, node.target, [arguments[name] for name in names], {}, extent)

    def chosen(self, node: fx.Node, known: Known, wanted: Positions) -> Channels:
        """The channels that a cut convolution has, given the outputs that are wanted."""
        at, reads = layout(node), _reads(node, known)
        rows = np.ones((at.groups, at.outs), bool)
        if wanted is not None:
            rows = wanted.reshape(at.groups, at.outs)
        columns = np.asarray((reads & rows[:, :, None]).any(1))
        used = np.asarray(rows.any(1))
        (chosen,) = used.nonzero()
        numbers = chosen[:, None]
        outputs, inputs = _evened(rows[used]), _evened(columns[used])
        fills = ~np.take_along_axis(rows[used], outputs, 1)
        return Channels(inputs + numbers * at.ins, outputs + numbers * at.outs, fills)

    def _weight(
        self,
        node: fx.Node,
        operand: fx.Node,
        chosen: Channels,
        inputs: Positions,
        outputs: Positions,
        out: Writer,
    ) -> tuple[fx.Node, fx.Node]:
        """The rows and columns of the weight for these channels, and the operand they multiply."""
        source, at = given(node)["weight"], layout(node)
        value: Tensor = out.known.value(source)
        if at.groups == 1 and not chosen.fills.any():
            rest = full(value.dim() - 2)
            extent = (inputs, outputs, *rest) if at.transposed else (outputs, inputs, *rest)
            earlier, order = out.unordered(operand, at.channel)
            if order is None:
                return operand, out.operand(source, extent)
            # channels in another order: the columns of the weight follow them
            moved = cut(value, extent).index_select(int(not at.transposed), order.to(value.device))
            return earlier, out.computed(source, moved)
        if inputs is None and outputs is None and not chosen.fills.any():
            return operand, out.operand(source)
        return operand, out.computed(source, _cut(at, value, chosen))


def _reads(node: fx.Node, known: Known) -> np.ndarray:
    """Which outputs of a group read which of its inputs: bool [groups, outputs, inputs]."""
    weight = layout(node).by_group(known.value(given(node)["weight"]) != 0)
    return (weight.flatten(3).any(3) if weight.dim() > 3 else weight).cpu().numpy()


def _with(node: fx.Node, extent: Extent, channels: Positions) -> Extent:
    """The extent with other channels; whole along space where positions do not stay apart."""
    a, at = given(node), layout(node)
    kernel = shape_of(a["weight"])[2:]
    space = [
        positions if size == 1 and _each(a["stride"], dim) == 1 and not _padded(a, dim) else None
        for dim, (positions, size) in enumerate(zip(extent[at.channel + 1 :], kernel, strict=True))
    ]
    return (*extent[: at.channel], channels, *space)


def _each(sizes: Any, dim: int) -> int:
    """The size for a dimension, if there is one for each, or one for all."""
    if isinstance(sizes, (list, tuple)):
        return int(sizes[dim] if len(sizes) > 1 else sizes[0])
    return int(sizes)


def _padded(a: dict[str, Any], dim: int) -> bool:
    # "same" and "valid" add nothing to a kernel of size 1
    paddings = [a["padding"], a.get("output_padding", 0)]
    return any(not isinstance(each, str) and _each(each, dim) != 0 for each in paddings)


def _cut(at: Layout, weight: Tensor, chosen: Channels) -> Tensor:
    """The weight for these channels; zero for outputs that fill up."""
    groups = torch.from_numpy(chosen.outputs[:, 0] // at.outs)[:, None, None]
    rows = torch.from_numpy(chosen.outputs % at.outs)[:, :, None]
    columns = torch.from_numpy(chosen.inputs % at.ins)[:, None, :]
    places = tuple(each.to(weight.device) for each in (groups, rows, columns))
    taken = at.by_group(weight)[places]  # [groups, m, n, ...]
    taken[torch.from_numpy(chosen.fills).to(weight.device)] = 0
    return at.joined(taken)


def _evened(chosen: np.ndarray) -> np.ndarray:
    """The chosen channels of each group, with more of the group where others have more."""
    count = max(1, int(chosen.sum(1).max()))
    # chosen channels first, then others, each in ascending order
    order = np.argsort(~chosen, axis=1, kind="stable")[:, :count]
    return np.sort(order, axis=1)


def _positions(numbers: np.ndarray, size: int) -> Positions:
    found = np.zeros(size, bool)
    found[numbers.reshape(-1)] = True
    return simple(found)


def _has_known_weight(node: fx.Node, known: Known) -> bool:
    a = given(node)
    return known.is_folded(a["weight"]) and known.is_folded(a.get("bias"))


register(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution",
    Convolution(),
    when=_has_known_weight,
)
