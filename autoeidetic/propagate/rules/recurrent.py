"""Recurrent layers: a hidden channel is its gate rows together.

weight_ih (gates * hidden, inputs)     row g * hidden + c belongs to hidden channel c
weight_hh (gates * hidden, hidden)     the same rows; reads the layer's own output
weight_hr (projected, hidden)          LSTM with a projection: the output has its rows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra import Algebra
from ..values import Value
from .registry import aten, rule

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _kind(algebra: Algebra) -> str:
    return algebra.node.target._schema.name.split("::")[1]  # type: ignore[union-attr]


def _run(
    algebra: Algebra,
    x: Value,
    states: Sequence[Value],
    parameters: Sequence[Value],
    biases: bool,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Channels of the last layer's output, and of the final states of each layer and direction."""
    # parameters: `each` tensors for layer 0 forward, layer 0 backward, layer 1 forward, ..
    # layer l + 1 reads the outputs of both directions of layer l, side by side
    kind = _kind(algebra)
    directions = 2 if bidirectional else 1
    each = len(parameters) // (layers * directions)
    tags = algebra.tags(x)
    seen = algebra.columns(tags, [tags.dim() - 1]).reshape(-1)
    hidden_channels, cell_channels = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            weights = parameters[cell * each : (cell + 1) * each]
            starts = [_state(algebra, s, cell) for s in states]
            out, inner = _cell(algebra, kind, seen, starts, weights, biases)
            outputs.append(out)
            hidden_channels.append(out)
            cell_channels.append(inner)
        seen = torch.cat(outputs)
    return seen, hidden_channels, cell_channels


def _state(algebra: Algebra, state: Value, cell: int) -> Tensor:
    """Channels of an initial state of one layer and direction."""
    tags = algebra.tags(state)
    tags = tags[cell] if tags.dim() > 1 else tags
    return algebra.columns(tags, [tags.dim() - 1]).reshape(-1)


def _cell(
    algebra: Algebra,
    kind: str,
    seen: Tensor,
    starts: Sequence[Tensor],
    weights: Sequence[Value],
    biases: bool,
) -> tuple[Tensor, Tensor]:
    """Channels of the output and of the inner state of one layer and direction."""
    # This order makes a straight line of the loop over time: the hidden channels exist before
    # weight_hh reads them, and the initial state is combined with them, because step 0 reads it
    # through the same weight that later reads the layer's own output.
    #     LSTM, hidden 2      rows of a weight   i0 i1 f0 f1 g0 g1 o0 o1
    #                         channels           1  2  1  2  1  2  1  2
    gates = _GATES[kind]
    from_input, from_hidden, *rest = weights
    size = from_input.shape[0] // gates
    channels = torch.from_numpy(algebra.channels.new(size))
    if kind == "lstm" and len(starts) > 1:
        channels = algebra.combine(channels, starts[1], channels.shape)
    # rest: two biases or none, then the projection, if there is one
    projection = rest[-1] if len(rest) == 2 * biases + 1 else None
    rows = channels.repeat(gates)
    _own(algebra, from_input, rows)
    algebra.read(from_input, seen.view(1, -1))
    out = channels
    if projection is not None:
        algebra.role(projection, "output")
        out = algebra.own_rows(projection, [0]).reshape(-1)
        algebra.read(projection, channels.view(1, -1))
    if starts:
        out = algebra.combine(out, starts[0], out.shape)
    _own(algebra, from_hidden, rows)
    algebra.read(from_hidden, out.view(1, -1))
    for bias in rest[: 2 * biases]:
        _own(algebra, bias, rows)
    return out, channels


def _own(algebra: Algebra, parameter: Value, rows: Tensor) -> None:
    """Give the rows of a parameter their channels; those of one used before are joined."""
    algebra.role(parameter, "recurrent")
    view = [-1] + [1] * (len(parameter.shape) - 1)
    tags = rows.view(view).expand(parameter.shape)
    algebra.pointwise(Value(parameter.shape, tags), parameter, shape=parameter.shape)


def _final(algebra: Algebra, channels: list[Tensor], batch: tuple[int, ...]) -> Value:
    """The final states of all layers and directions: (layers * directions, batch, channels)."""
    stacked = torch.stack(channels)
    shape = (stacked.shape[0], *batch, stacked.shape[1])
    return Value(shape, stacked.view(shape[0], *[1] * len(batch), -1).expand(shape))


def _states(hidden: Any) -> list[Value]:
    return list(hidden) if isinstance(hidden, (list, tuple)) else [hidden]


@rule(*[packet.input for packet in aten("lstm gru rnn_tanh rnn_relu")])
def recurrent(
    algebra: Algebra,
    x: Value,
    hidden: Any,
    parameters: list[Value],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    given = _states(hidden)
    starts = [] if all(s.is_constant for s in given) else given  # mostly zeros, which bind nothing
    out, hidden_channels, cell_channels = _run(
        algebra, x, starts, parameters, biases, layers, bidirectional
    )
    shape = (*x.shape[:-1], len(out))
    batch = given[0].shape[1:-1]
    results = [Value(shape, out.view([1] * (len(shape) - 1) + [-1]).expand(shape))]
    results.append(_final(algebra, hidden_channels, batch))
    if _kind(algebra) == "lstm":
        results.append(_final(algebra, cell_channels, batch))
    return results


@rule(*[packet.data for packet in aten("lstm gru rnn_tanh rnn_relu")])
def packed_recurrent(
    algebra: Algebra,
    x: Value,
    batch_sizes: Value,
    hidden: Any,
    parameters: list[Value],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> list[Value]:
    return recurrent(
        algebra, x, hidden, parameters, biases, layers, dropout, train, bidirectional, False
    )


@rule(*aten("_pack_padded_sequence"))
def pack(algebra: Algebra, x: Value, lengths: Value, batch_first: bool) -> list[Value]:
    # (batch, time, CHANNELS) -> (entries, CHANNELS): batch and time become one dimension, in an
    # order that depends on the lengths
    mixed = algebra.reduce(x, [0, 1], how="join")
    parts = {p.args[1]: p for p in algebra.node.users}
    shape = parts[0].meta["shape"]
    sizes = algebra.constant(parts[1].meta["shape"]) if 1 in parts else algebra.constant(())
    return [algebra.result(algebra.tags(mixed), shape), sizes]
