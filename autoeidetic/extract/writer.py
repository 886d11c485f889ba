"""Writer: writes the cut graph, one node of the captured graph after the other.

Every value of the new graph stands for a value of the captured one, cut to an extent. A position
outside of the extent is zero, or needed by nobody (:mod:`.known`).
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from ..capture.graph import operator_name
from ..common.trees import convert
from ..propagate.values import core
from .extents import Extent, Positions, both, cut, full, index, lengths, nothing
from .known import Known
from .narrow import Extents, Narrow, shape_of
from .rules import rule_of

aten = torch.ops.aten


@dataclass
class Writer:
    """Holds the new graph while it grows.

    ``attributes`` are its tensors by name; ``trainable`` the names of those that are made of
    parameters. ``tensors`` and ``ways`` (how data movement is written) are shared with the
    writers of the same pass at other sizes.
    """

    known: Known
    tensors: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    ways: dict[tuple[Any, ...], int | None] = field(default_factory=dict)
    graph: fx.Graph = field(default_factory=fx.Graph)
    attributes: dict[str, Tensor] = field(default_factory=dict)
    trainable: set[str] = field(default_factory=set)
    made: dict[fx.Node, Narrow] = field(default_factory=dict)
    current: fx.Node | None = None
    _versions: dict[tuple[Any, ...], Narrow] = field(default_factory=dict)
    _aligned: dict[tuple[Any, ...], fx.Node] = field(default_factory=dict)
    _attribute_nodes: dict[tuple[Any, ...], fx.Node] = field(default_factory=dict)

    def write(self) -> None:
        """Write every node that an output depends on."""
        with torch.no_grad():
            for node in self.known.capture.graph.nodes:
                self.current = node
                if node.op == "placeholder":
                    made = self.graph.placeholder(node.name)
                    made.meta.update(node.meta)
                    self.made[node] = Narrow(made, full(len(shape_of(node))))
                elif node.op == "output":
                    leaves = convert(node.args[0], fx.Node, self.operand)
                    self.graph.output(leaves)
                elif node.op == "call_function" and node not in self.known.folded:
                    self._write(node)

    def _write(self, node: fx.Node) -> None:
        if not self.known.is_used(node):
            return
        if node.target is python_operator.getitem:
            container, number = node.args
            rule = rule_of(operator_name(container))  # type: ignore[arg-type]
            if not rule.parts_are_separate:
                self.made[node] = self._part(node, self.made[container], number)  # type: ignore
                return
        else:
            rule = rule_of(operator_name(node))
            if node in self.known.parts:
                self.made[node] = rule.write(node, (), self)
            if node not in self.known.wanted:
                return
        # written where it is used, for what is needed there
        if not (self._moves(node) and self.known.is_scattered(node)):
            self.made[node] = self._version(node, self.known.kept(node))

    def _part(self, node: fx.Node, container: Narrow, number: Any) -> Narrow:
        assert isinstance(container.extent, dict)
        extent = container.extent[number]
        made = self.graph.call_function(python_operator.getitem, (container.node, number))
        self._describe(made, node, lengths(extent, shape_of(node)))
        return Narrow(made, extent)

    def _moves(self, node: fx.Node) -> bool:
        source: Any = node.args[0] if node.target is python_operator.getitem else node
        return rule_of(operator_name(source)).moves

    def _version(self, node: fx.Node, kept: Extent) -> Narrow:
        """Write what is kept of a node's value."""
        if node.target is python_operator.getitem:
            container: Any = node.args[0]
            return rule_of(operator_name(container)).write_part(container, node, kept, self)
        return rule_of(operator_name(node)).write(node, kept, self)

    # -- operands ------------------------------------------------------------------------------

    def have(self, given: fx.Node) -> Extent:
        """The extent that an operand has now; a folded one can be cut to any."""
        if given in self.known.folded:
            return full(self.known.folded[given].dim())
        if not self.known.is_used(given):
            return nothing(shape_of(given))
        if given not in self.made:  # written where it is used: here
            self.made[given] = self._version(given, self.known.kept(given))
        extent = self.made[given].extent
        assert isinstance(extent, tuple)
        return extent

    def positions(self, given: fx.Node, dim: int) -> Positions:
        """The positions that an operand has along a dimension; at least one.

        A product takes them as they are: those that nobody needs are multiplied by zero.
        """
        found = self.have(given)[dim]
        if found is None or found.any():
            return found
        found = found.copy()
        found[0] = True
        return found

    def unordered(self, node: fx.Node, dim: int) -> tuple[fx.Node, Tensor | None]:
        """The value of which a node only changes the order, and the order to read it in.

        Norms per level leave channels level by level and put them in order again, which a layer
        behind them need not wait for. None: the node itself.
        """
        if node.target is not aten.index_select.default or node.args[1] != dim:
            return node, None
        source, _, chosen = node.args
        order = self.attributes[str(chosen.target)]  # type: ignore[union-attr]
        if len(order) != source.meta["shape"][dim] or len(order.unique()) != len(order):  # type: ignore[union-attr]
            return node, None
        return source, order.argsort()  # type: ignore[return-value]

    def arguments(self, node: fx.Node) -> tuple[Any, Any]:
        """The arguments of a node, all operands at full size."""
        return convert((tuple(node.args), dict(node.kwargs)), fx.Node, self.operand)

    def operand(self, given: Any, want: Extent | None = None) -> Any:
        """An argument for a new node, cut or filled up with zeros to the wanted extent."""
        if not isinstance(given, fx.Node):
            return given
        if want is None:
            want = full(len(shape_of(given)))
        if given in self.known.folded:
            return self.attribute(given, want)
        if not self.known.is_used(given):
            return self._zeros(given, lengths(want, shape_of(given)))
        narrow = self.made.get(given) or self._on_demand(given, want)
        node, have = narrow.node, narrow.extent
        assert isinstance(have, tuple)
        for dim, size in enumerate(shape_of(given)):
            node = self._align(node, dim, index(have[dim], size), index(want[dim], size))
        return node

    def _on_demand(self, given: fx.Node, want: Extent) -> Narrow:
        key = (given, *(None if p is None else p.tobytes() for p in want))
        if key not in self._versions:
            kept = self.known.kept(given, both(want, self.known.need(given)))
            self._versions[key] = self._version(given, kept)
        return self._versions[key]

    def _zeros(self, given: fx.Node, shape: tuple[int, ...]) -> fx.Node:
        """Zeros in the place of a value that is nowhere needed."""
        zero = self.constant("zero", torch.zeros((), dtype=given.meta["dtype"]))
        return self.new(aten.expand.default, (zero, list(shape)), shape)

    def _align(self, node: fx.Node, dim: int, have: np.ndarray, want: np.ndarray) -> fx.Node:
        """Take the wanted positions along one dimension; those that are missing are zero."""
        if np.array_equal(have, want):
            return node
        # one value may stand for several nodes, with other positions of each
        key = (node, dim, have.tobytes(), want.tobytes())
        if key not in self._aligned:
            missing = ~np.isin(want, have)
            places = np.where(missing, len(have), np.searchsorted(have, want))
            if not missing.any():
                made = self._take(node, dim, places)
            else:
                made = self._take_padded(node, dim, places, missing)
            self._aligned[key] = made
        return self._aligned[key]

    def _take(self, node: fx.Node, dim: int, places: np.ndarray) -> fx.Node:
        shape = list(node.meta["shape"])
        shape[dim] = len(places)
        step = int(places[1] - places[0]) if len(places) > 1 else 1
        if step > 0 and (np.diff(places) == step).all():
            start, end = int(places[0]), int(places[-1]) + 1
            arguments = (node, dim, start, end, step) if step > 1 else (node, dim, start, end)
            return self.new(aten.slice.Tensor, arguments, shape)
        chosen = self.constant("index", torch.from_numpy(places))
        return self.new(aten.index_select.default, (node, dim, chosen), shape)

    def _take_padded(
        self, node: fx.Node, dim: int, places: np.ndarray, missing: np.ndarray
    ) -> fx.Node:
        shape = list(node.meta["shape"])
        size = shape[dim]
        present = (~missing).nonzero()[0]
        after = [0, 0] * (len(shape) - 1 - dim)
        whole = len(present) and np.array_equal(places[~missing], np.arange(size))
        if whole and present[-1] - present[0] + 1 == size:  # zeros before and behind
            before, behind = int(present[0]), int(len(places) - 1 - present[-1])
            shape[dim] = len(places)
            pad = [*after, before, behind]
            return self.new(aten.constant_pad_nd.default, (node, pad), shape)
        shape[dim] = size + 1
        padded = self.new(aten.constant_pad_nd.default, (node, [*after, 0, 1]), shape)
        return self._take(padded, dim, places)

    # -- tensors of the program ----------------------------------------------------------------

    def attribute(self, source: fx.Node, extent: Extent | None = None) -> Any:
        """A folded value, cut to an extent, as an attribute of the program."""
        value = self.known.folded[source]
        if not isinstance(value, Tensor):
            return value
        extent = full(value.dim()) if extent is None else extent
        key = (source, *(None if p is None else p.tobytes() for p in extent))
        if key not in self._attribute_nodes:
            self._attribute_nodes[key] = self._taken(source, value, extent)
        return self._attribute_nodes[key]

    def _taken(self, source: fx.Node, value: Tensor, extent: Extent) -> fx.Node:
        if not (value.is_floating_point() and self._has_parameters(source)):
            # a copy: the program shares no memory with the network
            return self._attribute(source, cut(value, extent).clone())
        # a parameter that is expanded stays one: copies would be trained apart
        small = core(value)
        shape = lengths(extent, value.shape)
        inside = tuple(None if n == 1 else p for n, p in zip(small.shape, extent, strict=True))
        made = self._attribute(source, cut(small, inside).clone())
        if made.meta["shape"] == shape:
            return made
        return self.new(aten.expand.default, (made, list(shape)), shape)

    def computed(self, source: fx.Node, value: Tensor) -> fx.Node:
        """A value that a rule has made from a folded one, named like it."""
        return self._attribute(source, value)

    def constant(self, name: str, value: Tensor) -> fx.Node:
        """A tensor of the program itself, such as an index."""
        key = (name, value.dtype, tuple(value.shape), value.numpy().tobytes())
        if key not in self._attribute_nodes:
            number = sum(1 for each in self.attributes if each.startswith(f"{name}_"))
            made = self._get(f"{name}_{number}", value)
            self._attribute_nodes[key] = made
        return self._attribute_nodes[key]

    def _attribute(self, source: fx.Node, value: Tensor) -> fx.Node:
        capture = self.known.capture
        name = self._unused(_name(source))
        if value.is_floating_point() and self._has_parameters(source):
            self.trainable.add(name)
        if name in capture.constants:
            name = self._unused(name.strip("_"))
        return self._get(name, value)

    def _unused(self, name: str) -> str:
        number, unique = 0, name
        while unique in self.attributes:
            number += 1
            unique = f"{name}_{number}"
        return unique

    def _has_parameters(self, source: fx.Node) -> bool:
        if source.op == "get_attr":
            return str(source.target) in self.known.capture.parameters
        return any(self._has_parameters(each) for each in source.all_input_nodes)

    def _get(self, name: str, value: Tensor) -> fx.Node:
        # one tensor for all sizes: a copy for each would not fit into memory
        shared = self.tensors.setdefault((name, value.dtype, value.shape), value)
        self.attributes[name] = shared if torch.equal(shared, value) else value
        made = self.graph.create_node("get_attr", name, name=name.replace(".", "_"))
        made.meta.update(shape=tuple(value.shape), module="", line="", scope=())
        return made

    # -- nodes ---------------------------------------------------------------------------------

    def new(self, target: Any, args: Any, shape: Sequence[int], kwargs: Any = None) -> fx.Node:
        """A node of the new graph that stands for no value of the captured one."""
        made = self.graph.call_function(target, tuple(args), kwargs or {})
        assert self.current is not None
        self._describe(made, self.current, tuple(shape))
        return made

    def call(self, node: fx.Node, target: Any, args: Any, kwargs: Any, extent: Extents) -> Narrow:
        """Write an operator whose result has this extent of the captured node's value."""
        made = self.graph.create_node(
            "call_function", target, tuple(args), dict(kwargs), name=node.name
        )
        shape = lengths(extent, shape_of(node)) if isinstance(extent, tuple) else None
        self._describe(made, node, shape)
        return Narrow(made, extent)

    def _describe(self, made: fx.Node, source: fx.Node, shape: tuple[int, ...] | None) -> None:
        for name in ("module", "line", "scope", "dtype"):
            if name in source.meta:
                made.meta[name] = source.meta[name]
        if shape is not None:
            made.meta["shape"] = shape


#: Operators that leave the elements of a tensor what they are, and the argument they take them of.
_TAKING = {"aten.index_select": 0, "aten.slice": 0, "aten.expand": 0, "aten.where": 1}
_TAKING |= {"aten.clone": 0, "aten.detach": 0, "aten.alias": 0}


def _name(source: fx.Node) -> str:
    """A name for a folded value: that of the parameter or buffer whose elements it holds."""
    root, changed = source, False
    while root.op != "get_attr":
        operands = root.all_input_nodes
        place = _TAKING.get(operator_name(root))
        changed = changed or place is None
        if place is None and len(operands) != 1:
            module = source.meta.get("module", "")
            return f"{module}.{source.name}" if module else source.name
        root = operands[0] if place is None else root.args[place]  # type: ignore[assignment]
    if not changed:
        return str(root.target)
    return f"{root.target}_{operator_name(source).removeprefix('aten.').strip('_')}"
