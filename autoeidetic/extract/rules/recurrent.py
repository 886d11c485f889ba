"""Recurrent layers: hidden units leave with the rows of all their gates, and the columns they are.

One call has all layers and directions, its cells, with one hidden size. Cells that keep fewer units
than others are filled up with units whose weights are zero: they start at zero and stay there.

    weight_ih [gates * H, I]     row g * H + u is gate g of unit u
    weight_hh [gates * H, P]     P = H, or the size of a projection
    weight_hr [P, H]             the projection of an LSTM
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx

from ..extents import Extent, Positions, full, simple
from ..narrow import Extents, Narrow, shape_of
from .registry import Rule, given, register

if TYPE_CHECKING:
    from ..known import Known
    from ..writer import Writer

aten = torch.ops.aten
#: How many gates a cell has, and which of them makes the new value: it is zero if that one is.
_GATES = {"lstm": (4, 2), "gru": (3, 2), "rnn_tanh": (1, 0), "rnn_relu": (1, 0)}


@dataclass(frozen=True)
class Cell:
    """One layer in one direction: which unit reads what, as boolean matrices.

    ``inputs [H, I]`` and ``hidden [H, P]`` are reads of any gate, ``new_inputs``, ``new_hidden``
    and ``new_bias [H]`` those of the gate that makes the new value, ``projects [P, H]``.
    """

    inputs: np.ndarray
    hidden: np.ndarray
    new_inputs: np.ndarray
    new_hidden: np.ndarray
    new_bias: np.ndarray
    projects: np.ndarray | None

    def out(self, units: np.ndarray) -> np.ndarray:
        """The outputs that some units have a part in."""
        return units if self.projects is None else (self.projects & units).any(1)

    def units(self, outputs: np.ndarray) -> np.ndarray:
        """The units that have a part in some outputs."""
        return outputs if self.projects is None else (self.projects & outputs[:, None]).any(0)


@dataclass(frozen=True)
class Kept:
    """What is kept of a cell, or needed: units, outputs, and the inputs that they read."""

    units: np.ndarray
    outputs: np.ndarray
    inputs: np.ndarray


class Call:
    """A call of a recurrent operator: which units may be other than zero, which are needed."""

    def __init__(self, node: fx.Node, known: Known) -> None:
        self.node, self.known = node, known
        a = given(node)
        self.kind = str(node.target._schema.name).split("::")[1]  # type: ignore[union-attr]
        self.x: fx.Node = a["input"] if "input" in a else a["data"]
        self.states: list[fx.Node] = a["hx"] if self.kind == "lstm" else [a["hx"]]
        self.params: list[fx.Node] = a["params"]
        self.biases = bool(a["has_biases"])
        self.layers = int(a["num_layers"])
        self.directions = 2 if a["bidirectional"] else 1
        count = self.layers * self.directions
        self.each = len(self.params) // count
        self.cells = [self._cell(number) for number in range(count)]

    def of_cell(self, number: int) -> list[fx.Node]:
        """The parameters of a cell."""
        return self.params[number * self.each : (number + 1) * self.each]

    def _cell(self, number: int) -> Cell:
        values: list[Tensor] = [self.known.value(each) for each in self.of_cell(number)]
        gates, new = _GATES[self.kind]
        split = [(v != 0).cpu().unflatten(0, (gates, -1)) for v in values[: 2 + 2 * self.biases]]
        projects = values[-1] if len(values) > len(split) else None
        size = split[0].shape[1]
        bias = [each[new] for each in split[2:]]
        return Cell(
            inputs=split[0].any(0).numpy(),
            hidden=split[1].any(0).numpy(),
            new_inputs=split[0][new].numpy(),
            new_hidden=split[1][new].numpy(),
            new_bias=(bias[0] | bias[1]).numpy() if bias else np.zeros(size, bool),
            projects=None if projects is None else (projects != 0).cpu().numpy(),
        )

    # -- forward: which units are never zero ------------------------------------------------------

    def supports(self) -> list[np.ndarray]:
        """The units of each cell that may be other than zero."""
        found: list[np.ndarray] = []
        inputs = _mask(self.known.support(self.x)[-1], shape_of(self.x)[-1])
        for layer in range(self.layers):
            outputs = []
            for number in range(layer * self.directions, (layer + 1) * self.directions):
                cell = self.cells[number]
                starts = [self._start(state, number) for state in self.states]
                units = cell.new_bias | (cell.new_inputs & inputs).any(1)
                if cell.projects is None or len(starts) > 1:
                    units = units | starts[-1]  # of an LSTM, the state of its units
                units = _grown(
                    units,
                    lambda now, cell=cell, start=starts[0]: (  # type: ignore[misc]
                        cell.new_hidden & (cell.out(now) | start)
                    ).any(1),
                )
                found.append(units)
                outputs.append(cell.out(units))
            inputs = np.concatenate(outputs)
        return found

    def _start(self, state: fx.Node, number: int) -> np.ndarray:
        """Where the initial state of a cell may be other than zero."""
        inside = self.known.support(state)
        size = shape_of(state)[-1]
        if any(positions is not None and not positions.any() for positions in inside):
            return np.zeros(size, bool)
        if inside[0] is not None and not inside[0][number]:
            return np.zeros(size, bool)
        return _mask(inside[-1], size)

    # -- backward: which units are needed ----------------------------------------------------------

    def needs(self, wanted: dict[int, Extent]) -> list[Kept]:
        """What is needed of each cell: units that may be other than zero, and what they read."""
        supports = self.supports()
        found: list[Kept] = []
        size = len(self.cells[0].out(supports[0]))
        above = self._wanted(wanted.get(0), size * self.directions)
        for layer in reversed(range(self.layers)):
            below: Any = False
            cells = []
            for direction in range(self.directions):
                number = layer * self.directions + direction
                cell, live = self.cells[number], supports[number]
                outputs = above[direction * size : (direction + 1) * size]
                outputs = outputs | self._wanted_state(wanted.get(1), number, size)
                units = self._wanted_state(wanted.get(2), number, len(live))
                units = (units | cell.units(outputs)) & live
                units = _grown(
                    units,
                    lambda now, cell=cell, live=live: (  # type: ignore[misc]
                        live & cell.units((cell.hidden & now[:, None]).any(0))
                    ),
                )
                outputs = outputs | (cell.hidden & units[:, None]).any(0)
                inputs = (cell.inputs & units[:, None]).any(0)
                below = below | inputs
                cells.append(Kept(units, outputs, inputs))
            found = cells + found
            above = below
        return found

    @staticmethod
    def _wanted(extent: Extent | None, size: int) -> np.ndarray:
        return np.zeros(size, bool) if extent is None else _mask(extent[-1], size)

    @staticmethod
    def _wanted_state(extent: Extent | None, number: int, size: int) -> np.ndarray:
        if extent is None or (extent[0] is not None and not extent[0][number]):
            return np.zeros(size, bool)
        return _mask(extent[-1], size)


def _grown(units: np.ndarray, more: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The smallest set around some units that has all that it asks for."""
    while True:
        grown = units | more(units)
        if (grown == units).all():
            return units
        units = grown


def _mask(positions: Positions, size: int) -> np.ndarray:
    return np.ones(size, bool) if positions is None else positions


class Recurrent(Rule):
    """lstm, gru, rnn_tanh, rnn_relu: the output, and the last states of all cells."""

    def channels(self, node: fx.Node, part: fx.Node, known: Known) -> frozenset[int]:
        last = len(shape_of(part)) - 1
        return frozenset({last} if part.args[1] == 0 else {0, last})

    def support(self, node: fx.Node, known: Known) -> Extents:
        call = Call(node, known)
        units = call.supports()
        outputs = [cell.out(own) for cell, own in zip(call.cells, units, strict=True)]
        last = {0: np.concatenate(outputs[-call.directions :])}
        last |= {1: np.logical_or.reduce(outputs), 2: np.logical_or.reduce(units)}
        found: dict[int, Extent] = {}
        for part in node.users:
            number: Any = part.args[1]
            found[number] = (*full(len(shape_of(part)) - 1), simple(last[number]))
        return found

    def need(self, node: fx.Node, wanted: Extent, known: Known) -> None:
        call = Call(node, known)
        needs = call.needs(known.parts[node])
        inputs = np.logical_or.reduce([each.inputs for each in needs[: call.directions]])
        known.demand(call.x, (*full(len(shape_of(call.x)) - 1), simple(inputs)))
        units = [np.logical_or.reduce([each.units for each in needs])]
        units.insert(0, np.logical_or.reduce([each.outputs for each in needs]))
        sizes = given(node).get("batch_sizes")  # of a packed sequence
        if sizes is not None:
            known.demand(sizes, (None,))
        for state, own in zip(call.states, units, strict=False):
            known.demand(state, (*full(len(shape_of(state)) - 1), simple(own)))

    def write(self, node: fx.Node, kept: Extent, out: Writer) -> Narrow:
        call = Call(node, out.known)
        wanted = out.known.parts[node]
        needs = call.needs(wanted)
        shown = _states_shown(wanted, (1, 2), call)
        units = outputs = _evened([each.units for each in needs], shown)
        if call.cells[0].projects is not None:
            live = [
                each.outputs & cell.out(each.units)
                for each, cell in zip(needs, call.cells, strict=True)
            ]
            outputs = _evened(live, _states_shown(wanted, (1,), call))
            # a projection is told by its size, which is another one than that of the units
            least = len(outputs[0]) + 1
            units = _evened([each.units for each in needs], shown, least)
        columns = out.positions(call.x, -1)
        written = _Cells(call, needs, units, outputs, _mask(columns, shape_of(call.x)[-1]), out)
        lead = full(len(shape_of(call.x)) - 1)
        arguments = {
            **given(node),
            "params": [each for n in range(len(call.cells)) for each in written.parameters(n)],
        }
        arguments["input" if "input" in arguments else "data"] = out.operand(
            call.x, (*lead, columns)
        )
        states = [
            written.state(state, own)
            for state, own in zip(call.states, (outputs, units), strict=False)
        ]
        arguments["hx"] = states if call.kind == "lstm" else states[0]
        if "batch_sizes" in arguments:
            arguments["batch_sizes"] = out.operand(arguments["batch_sizes"])
        names = [each.name for each in node.target._schema.arguments]  # type: ignore[union-attr]
        return out.call(
            node,
            node.target,
            [arguments[name] for name in names],
            {},
            _made(call, wanted, units, outputs),
        )


def _states_shown(wanted: dict[int, Extent], parts: tuple[int, ...], call: Call) -> list[bool]:
    """The cells whose last states are wanted: they show the same units."""
    found = [False] * len(call.cells)
    for part in parts:
        if part in wanted:
            cells = wanted[part][0]
            found = [shown or cells is None or bool(cells[n]) for n, shown in enumerate(found)]
    return found


def _evened(kept: list[np.ndarray], shown: list[bool], least: int = 1) -> list[np.ndarray]:
    """As many positions in each cell, and the same ones in those that are shown side by side."""
    together = [own for own, same in zip(kept, shown, strict=True) if same]
    if together:
        union = np.logical_or.reduce(together)
        kept = [union if same else own for own, same in zip(kept, shown, strict=True)]
    count = max(least, *(int(own.sum()) for own in kept))
    return [np.sort(np.argsort(~own, kind="stable")[:count]) for own in kept]


def _made(
    call: Call, wanted: dict[int, Extent], units: list[np.ndarray], outputs: list[np.ndarray]
) -> dict[int, Extent]:
    """The extents of the results."""
    size = shape_of(call.states[0])[-1]
    found: dict[int, Extent] = {}
    for part in call.node.users:
        number: Any = part.args[1]
        lead = full(len(shape_of(part)) - 1)
        if number == 0:
            last = outputs[-call.directions :]
            places = np.concatenate([own + size * n for n, own in enumerate(last)])
        else:
            cells = _states_shown(wanted, (number,), call)
            places = (outputs if number == 1 else units)[cells.index(True) if any(cells) else 0]
        chosen = np.zeros(shape_of(part)[-1], bool)
        chosen[places] = True
        found[number] = (*lead, simple(chosen))
    return found


@dataclass(frozen=True)
class _Cells:
    """Writes the parameters and initial states of cells that keep some units and outputs."""

    call: Call
    needs: list[Kept]
    units: list[np.ndarray]
    outputs: list[np.ndarray]
    inputs: np.ndarray
    out: Writer

    def parameters(self, number: int) -> list[fx.Node]:
        """The parameters of a cell, cut; zero for units that only fill up."""
        call = self.call
        layer = number // call.directions
        gates, _ = _GATES[call.kind]
        units, live = self.units[number], self.needs[number].units
        columns = self.inputs.nonzero()[0]
        if layer:  # the outputs of both directions of the layer below, side by side
            below = self.outputs[(layer - 1) * call.directions : layer * call.directions]
            size = shape_of(call.states[0])[-1]
            columns = np.concatenate([own + size * n for n, own in enumerate(below)])
        found = []
        for place, source in enumerate(call.of_cell(number)):
            value: Tensor = call.known.value(source)
            if place == call.each - 1 and call.cells[number].projects is not None:
                made = _taken(value, self.outputs[number], units, ~live[units])
            else:
                parts = value.unflatten(0, (gates, -1)).unbind(0)
                read = columns if place == 0 else self.outputs[number] if place == 1 else None
                made = torch.cat([_taken(each, units, read, None, ~live[units]) for each in parts])
            same = made.shape == value.shape and torch.equal(made, value)
            found.append(self.out.operand(source) if same else self.out.computed(source, made))
        return found

    def state(self, source: fx.Node, chosen: list[np.ndarray]) -> fx.Node:
        """An initial state: of each cell its own units."""
        shape = shape_of(source)
        size, lead = shape[-1], full(len(shape) - 1)
        union = np.zeros(size, bool)
        union[np.concatenate(chosen)] = True
        if all(np.array_equal(own, chosen[0]) for own in chosen):
            return self.out.operand(source, (*lead, simple(union)))
        if not self.out.known.is_used(source) and not self.out.known.is_folded(source):
            some = np.arange(size) < len(chosen[0])  # zeros, whichever they are
            return self.out.operand(source, (*lead, simple(some)))
        whole = self.out.operand(source, (*lead, simple(union)))
        numbers = union.nonzero()[0]
        rest = (*shape[1:-1], len(chosen[0]))
        parts = []
        for number, own in enumerate(chosen):
            part = self.out.new(aten.select.int, (whole, 0, number), (*shape[1:-1], len(numbers)))
            places = torch.from_numpy(np.searchsorted(numbers, own))
            index = self.out.constant("index", places)
            last = len(shape) - 2
            parts.append(self.out.new(aten.index_select.default, (part, last, index), rest))
        return self.out.new(aten.stack.default, (parts,), (len(chosen), *rest))


def _taken(
    value: Tensor,
    rows: np.ndarray,
    columns: np.ndarray | None,
    no_columns: np.ndarray | None = None,
    no_rows: np.ndarray | None = None,
) -> Tensor:
    """Rows and columns of a parameter; those that only fill up are zero."""
    taken = value[torch.from_numpy(rows).to(value.device)]
    if columns is not None:
        taken = taken[:, torch.from_numpy(columns).to(value.device)]
    if no_rows is not None:
        taken[torch.from_numpy(no_rows).to(value.device)] = 0
    if no_columns is not None:
        taken[:, torch.from_numpy(no_columns).to(value.device)] = 0
    return taken


def _has_known_weights(node: fx.Node, known: Known) -> bool:
    return all(known.is_folded(each) for each in given(node)["params"])


register("lstm gru rnn_tanh rnn_relu", Recurrent(), when=_has_known_weights)
