"""The algebra of tags: the few operations from which every rule is made.

A rule receives this as its first argument. Each operation takes and returns ``Value``s and
writes what it learns (units, couplings, owners of parameter elements, reads through weights)
into the tables of the analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from .units import Array, Units
from .values import (
    ParameterView,
    Value,
    array,
    compress,
    constant,
    core,
    is_zero,
    varies,
    vector,
)

_MOST_PAIRS = 1 << 20
_FEW_BRANCHES = 4


@dataclass(frozen=True)
class WeightRead:
    """A weight's use: the unit that each of its elements multiplies (0: constant or none)."""

    parameter: str
    columns: Tensor
    transformed: bool
    node: int


@dataclass
class Algebra:
    """Tables of one analysis, and the operations on values."""

    units: Units = field(default_factory=Units)
    owners: dict[str, Tensor] = field(default_factory=dict)
    parameter_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    roles: dict[tuple[str, str], int] = field(default_factory=dict)  # (parameter, role) -> node
    reads: list[WeightRead] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    mixing_nodes: list[int] = field(default_factory=list)
    node: fx.Node = None  # type: ignore[assignment]
    index: int = 0

    # -- what a rule asks about its node --------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the node's result."""
        return self.node.meta["shape"]

    def role(self, value: Value, role: str) -> None:
        """Remember how a parameter is used: output, depthwise, norm, shared, ..."""
        if value.parameter is not None:
            self.roles.setdefault((value.parameter.name, role), self.index)

    # -- simple results -------------------------------------------------------------------

    def result(self, tags: Tensor, shape: Sequence[int] | None = None) -> Value:
        shape = self.shape if shape is None else tuple(shape)
        return Value(shape, tags if tuple(tags.shape) == shape else tags.expand(shape))

    def constant(self, shape: Sequence[int] | None = None) -> Value:
        return constant(self.shape if shape is None else tuple(shape))

    def move(self, value: Value, function: Callable[[Tensor], Tensor]) -> Value:
        """Data movement: what happens to the elements happens to their tags."""
        view = value.parameter
        if view is not None:
            view = replace(
                view,
                coords=tuple(
                    None if c is None else compress(function(c)) for c in view.coordinates()
                ),
            )
        tags = None if value.tags is None else compress(function(value.tags))
        if tags is None:
            assert view is not None and view.coords is not None
            moved = next((c for c in view.coords if c is not None), None)
            shape = tuple(moved.shape) if moved is not None else self.shape
            return Value(shape, None, view)
        return Value(tuple(tags.shape), tags, view)

    # -- tags of a value ------------------------------------------------------------------

    def tags(self, value: Value) -> Tensor:
        """The tags of a value; a parameter that has met nothing yet gets units of its own."""
        if value.tags is not None:
            return value.tags
        view = value.parameter
        assert view is not None
        if not self._is_assigned(view):
            self._assign_default(view)
        return self._owner_tags(view, value.shape)

    def _is_assigned(self, view: ParameterView) -> bool:
        return view.name in self.owners

    def _assign_default(self, view: ParameterView) -> None:
        """Units along the dimension that most likely holds channels."""
        shape = view.shape
        long = [d for d, n in enumerate(shape) if n > 1]
        if view.coords is not None:
            kept = [d for d in long if view.coords[d] is not None]
            if not kept:
                self._own_whole(view)
                return
            long = kept
        if not long:
            self._own_whole(view)
            return
        dim = long[0] if shape[0] > 1 and len(shape) > 1 and long[0] == 0 else long[-1]
        self.owners[view.name] = vector(self.units.new(shape[dim]), dim, shape)

    def _own_whole(self, view: ParameterView) -> None:
        unit = torch.from_numpy(self.units.new(1))
        self.owners[view.name] = unit.view([1] * len(view.shape)).expand(view.shape)

    def _fill(self, view: ParameterView) -> Tensor:
        """The owners of a parameter with a unit for each element that has none yet."""
        owner = self.owners[view.name]
        if bool((core(owner) < 0).any()):
            missing = owner < 0
            dense = owner.clone()
            rest = self.units.new(1)
            dense[missing] = int(rest[0])
            owner = self.owners[view.name] = compress(dense)
        return owner

    def _owner_tags(self, view: ParameterView, shape: tuple[int, ...]) -> Tensor:
        owner = self.owners[view.name]
        if view.coords is None:
            return self._fill(view)
        dims = varies(owner)
        whole = [d for d in dims if view.coords[d] is None]
        if whole:
            owner = self._reduce(self._fill(view), whole, "hard")
            dims = varies(owner)
        if not dims:
            tags = self._fill(view) if not whole else owner
            return core(tags).reshape(-1)[0].expand(shape)
        small = core(owner)
        index = tuple(
            core(view.coords[d]) if d in dims else 0  # type: ignore[arg-type]
            for d in range(owner.dim())
        )
        found = small[index]
        if bool((found < 0).any()):  # a part of the parameter that was not used before
            missing = found < 0
            fresh = torch.from_numpy(self.units.new(int(missing.sum())))
            found = found.clone()
            found[missing] = fresh
            self._write_owner(view, compress(found.expand(shape)))
        return compress(found.expand(shape))

    # -- owners of parameter elements ----------------------------------------------------

    def _write_owner(self, view: ParameterView, tags: Tensor) -> None:
        """Give the parameter's elements seen at each position of ``tags`` that unit."""
        if view.coords is None:
            self.owners[view.name] = tags
            return
        straight = self._undo_permutation(view, tags)
        if straight is not None and view.name not in self.owners:
            self.owners[view.name] = straight
            return
        old = self.owners.get(view.name)
        dense = (
            torch.full((_numel(view.shape),), -1, dtype=torch.int64)
            if old is None
            else old.reshape(-1).clone()
        )
        self._scatter(view, tags, dense)
        self.owners[view.name] = compress(dense.view(view.shape))

    def _scatter(self, view: ParameterView, tags: Tensor, dense: Tensor) -> None:
        """Write tags through the coordinates; where two meet at one element, join them."""
        assert view.coords is not None
        flat = torch.zeros((), dtype=torch.int64)
        step, steps = 1, []
        for size in reversed(view.shape):
            steps.append(step)
            step *= size
        everything = torch.zeros(1, dtype=torch.int64)
        for coordinate, size, step in zip(view.coords, view.shape, reversed(steps), strict=True):
            if coordinate is None:
                offsets = torch.arange(size) * step
                everything = (everything[:, None] + offsets[None]).reshape(-1)
            else:
                flat = flat + core(coordinate) * step
        flat, small = torch.broadcast_tensors(flat, core(tags))
        index = (flat.reshape(-1, 1) + everything[None]).reshape(-1)
        written = small.reshape(-1, 1).expand(-1, len(everything)).reshape(-1)
        before = dense[index]
        dense[index] = torch.where(before > 0, before, written)
        after = dense[index].numpy()
        written = written.numpy()
        clash = (after != written) & (written > 0) & (after > 0)
        if clash.any():
            self.units.join(after[clash], written[clash], self.index)

    @staticmethod
    def _undo_permutation(view: ParameterView, tags: Tensor) -> Tensor | None:
        """Tags in the parameter's own shape when it was only transposed or (un)squeezed."""
        assert view.coords is not None
        if tags.numel() != _numel(view.shape):
            return None
        order: list[int] = []
        for coordinate, size in zip(view.coords, view.shape, strict=True):
            if coordinate is None:
                return None
            if size == 1:
                continue
            dims = varies(coordinate)
            if len(dims) != 1 or coordinate.shape[dims[0]] != size or dims[0] in order:
                return None
            if not torch.equal(core(coordinate).reshape(-1), torch.arange(size)):
                return None
            order.append(dims[0])
        rest = [d for d in range(tags.dim()) if d not in order]
        if any(tags.shape[d] != 1 for d in rest):
            return None
        return tags.permute(order + rest).reshape(view.shape)

    def own_rows(self, weight: Value, dims: Sequence[int]) -> Tensor:
        """Units of a weight's rows, which lie along ``dims`` of its present shape.

        Returns tags over those dimensions only, in the weight's shape (size 1 elsewhere).
        """
        view = weight.parameter
        if weight.tags is None and view is not None and not self._is_assigned(view):
            size = [n if d in dims else 1 for d, n in enumerate(weight.shape)]
            units = torch.from_numpy(self.units.new(_numel(size))).view(size)
            self._write_owner(view, units.expand(weight.shape))
            return units
        others = [d for d in range(len(weight.shape)) if d not in dims]
        return self._reduce(self.tags(weight), others, "hard")

    def own_whole(self, weight: Value) -> Tensor:
        """One unit for the whole weight: it serves many channels alike."""
        view = weight.parameter
        if weight.tags is None and view is not None and not self._is_assigned(view):
            unit = torch.from_numpy(self.units.new(1)).view([1] * len(weight.shape))
            self._write_owner(view, unit.expand(weight.shape))
            return unit
        return self._reduce(self.tags(weight), range(len(weight.shape)), "hard")

    def read(self, weight: Value, columns: Tensor) -> bool:
        """Note which unit each weight element multiplies; False when there is no weight to zero."""
        view = weight.parameter
        if view is None:
            return False
        columns = columns.expand(weight.shape)
        if is_zero(columns):
            return True
        if not view.transformed and view.coords is not None:
            straight = self._undo_permutation(view, columns)
            if straight is None:
                if any(c is None for c in view.coords):
                    return False
                dense = torch.zeros(_numel(view.shape), dtype=torch.int64)
                self._scatter(view, columns, dense)
                straight = compress(dense.view(view.shape))
            columns = straight
        self.reads.append(WeightRead(view.name, columns, view.transformed, self.index))
        return True

    def follow(self, buffer: Value | None, units: Tensor) -> None:
        """A buffer whose elements belong to channels, such as a running mean."""
        if buffer is not None and buffer.buffer:
            known = self.buffers.get(buffer.buffer)
            if known is not None:
                self._combine(known, units, units.shape)
            self.buffers[buffer.buffer] = units

    # -- pointwise ------------------------------------------------------------------------

    def pointwise(self, *values: Any, shape: Sequence[int] | None = None) -> Value:
        """Element by element: one-to-one joins, one against many is required by the many."""
        shape = self.shape if shape is None else tuple(shape)
        operands = [v for v in values if isinstance(v, Value)]
        parameters = [v for v in operands if v.parameter is not None]
        if parameters and all(v.parameter is not None or v.is_constant for v in operands):
            return self._pointwise_parameters(parameters, shape)
        tags: Tensor | None = None
        waiting = []
        for value in operands:
            if value.tags is None and not self._is_assigned(value.parameter):  # type: ignore[arg-type]
                waiting.append(value)
                continue
            other = self.tags(value)
            tags = other.expand(shape) if tags is None else self._combine(tags, other, shape)
        assert tags is not None
        for value in waiting:
            self._adopt(value, tags, shape)
            self.role(value, "free")
            tags = self._combine(tags, self.tags(value), shape)
        return Value(shape, tags)

    def _pointwise_parameters(self, values: list[Value], shape: tuple[int, ...]) -> Value:
        """Parameters among themselves: the result is still a weight, but a transformed one."""
        largest = max(values, key=lambda v: _numel(v.shape))
        view = largest.parameter
        assert view is not None
        names = {v.parameter.name for v in values if v.parameter is not None}
        coords = tuple(None if c is None else c.expand(shape) for c in view.coordinates())
        if len(names) == 1 and all(v.tags is None for v in values):
            for value in values:
                assert value.parameter is not None
                other = value.parameter.coordinates()
                coords = tuple(
                    None if a is None or b is None else a
                    for a, b in zip(coords, other, strict=True)
                )
            return Value(shape, None, replace(view, coords=coords, transformed=True))
        tags = self.tags(largest).expand(shape)
        for value in values:
            if value is not largest:
                if value.tags is None and not self._is_assigned(value.parameter):  # type: ignore[arg-type]
                    self._adopt(value, tags, shape)
                    self.role(value, "free")
                tags = self._combine(tags, self.tags(value), shape)
        return Value(shape, tags, replace(view, coords=coords, transformed=True))

    def _adopt(self, value: Value, tags: Tensor, shape: tuple[int, ...]) -> None:
        """Let a parameter's elements take the units they meet."""
        view = value.parameter
        assert view is not None
        if is_zero(tags):
            self._assign_default(view)
            return
        padded = (1,) * (len(shape) - len(value.shape)) + value.shape
        tags = tags.expand(shape)
        moving = varies(tags)
        if any(padded[d] == 1 for d in moving):  # one element meets many units: its own unit
            size = [padded[d] if d in moving else 1 for d in range(len(shape))]
            units = torch.from_numpy(self.units.new(_numel(size))).view(size)
        else:
            units = core(tags)
            blank = units == 0
            if bool(blank.any()):
                units = units.clone()
                units[blank] = torch.from_numpy(self.units.new(int(blank.sum())))
        drop = len(shape) - len(value.shape)
        units = units.reshape(units.shape[drop:]).expand(value.shape)
        self._write_owner(view, units)

    def scale(self, value: Value, parameter: Value | None, dim: int) -> Value:
        """A one-dimensional parameter applied along ``dim``: a bias, a norm's weight."""
        if parameter is None:
            return value
        tags = self.tags(value)
        view = parameter.parameter
        fresh = (
            parameter.tags is None
            and view is not None
            and view.coords is None
            and not self._is_assigned(view)
        )
        dim = dim % tags.dim()
        if fresh and all(d == dim for d in varies(tags)):
            units = core(tags).reshape(-1).expand(parameter.shape)
            if bool((units == 0).any()):
                units = units.clone()
                blank = units == 0
                units[blank] = torch.from_numpy(self.units.new(int(blank.sum())))
                tags = vector(units.numpy(), dim, value.shape)
            self.owners[view.name] = units  # type: ignore[union-attr]
            return Value(value.shape, tags)
        view_shape = [1] * tags.dim()
        view_shape[dim] = -1
        moved = self.move(parameter, lambda t: t.reshape(view_shape))
        return self.pointwise(Value(value.shape, tags), moved, shape=value.shape)

    def combine(self, left: Tensor, right: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Pointwise combination of two tag tensors."""
        return self._combine(left, right, self.shape if shape is None else tuple(shape))

    def _combine(self, left: Tensor, right: Tensor, shape: Sequence[int]) -> Tensor:
        shape = tuple(shape)
        left, right = left.expand(shape), right.expand(shape)
        small_left, small_right = core(left), core(right)
        if small_right.numel() == 1 and int(small_right) == 0:
            return left
        if small_left.numel() == 1 and int(small_left) == 0:
            return right
        small_left, small_right = torch.broadcast_tensors(small_left, small_right)
        size = small_left.shape
        a = self.units.find(small_left.reshape(-1).numpy())
        b = self.units.find(small_right.reshape(-1).numpy())
        out = self._combine_arrays(a, b)
        return torch.from_numpy(out).view(size).expand(shape)

    def _combine_arrays(self, a: Array, b: Array) -> Array:
        out = np.where(a == 0, b, a)
        both = (a != 0) & (b != 0) & (a != b)
        if not both.any():
            return out
        left, right = a[both], b[both]
        pairs, inverse = np.unique(left * self.units.count + right, return_inverse=True)
        pair_left, pair_right = pairs // self.units.count, pairs % self.units.count
        partners_of_left = _multiplicity(pair_left)
        partners_of_right = _multiplicity(pair_right)
        one_to_one = (partners_of_left == 1) & (partners_of_right == 1)
        self.units.join(pair_left[one_to_one], pair_right[one_to_one], self.index)
        tag = pair_left.copy()
        many_left = (partners_of_left == 1) & (partners_of_right > 1)
        self.units.require(pair_left[many_left], pair_right[many_left], self.index)
        many_right = (partners_of_left > 1) & (partners_of_right == 1)
        self.units.require(pair_right[many_right], pair_left[many_right], self.index)
        tag[many_right] = pair_right[many_right]
        crossed = (partners_of_left > 1) & (partners_of_right > 1)
        if crossed.any():
            tag[crossed] = self._pair_units(pair_left[crossed], pair_right[crossed])
        out[both] = tag[inverse]
        return out

    def _pair_units(self, left: Array, right: Array) -> Array:
        """Many against many: a derived unit for each pair, or one class when there are too many."""
        if len(left) > _MOST_PAIRS:
            self.units.join(left[:-1], left[1:], self.index)
            self.units.require(right, left, self.index)
            return right
        derived = self.units.new(len(left))
        self.units.require(derived, left, self.index)
        self.units.require(derived, right, self.index)
        return derived

    # -- reduction and mixing ----------------------------------------------------------------

    def reduce(
        self, value: Value, dims: Sequence[int] | None, keepdim: bool = False, how: str = "auto"
    ) -> Value:
        """Sum, mean, max ... over dimensions: mixes the units along them.

        ``how``: ``auto`` decides between the others; ``join`` makes them one class; ``soft``
        derives a unit whose edges are dropped when the place is evaluated level by level;
        ``hard`` derives a unit that requires them all, always.
        """
        rank = len(value.shape)
        over = list(range(rank)) if not dims else sorted({d % rank for d in dims})
        if not rank:
            over = []
        if value.parameter is not None and value.tags is None:
            return self._reduce_parameter(value, over, keepdim)
        tags = self._reduce(self.tags(value), over, how)
        if not keepdim:
            tags = tags.reshape([n for d, n in enumerate(tags.shape) if d not in over])
        return Value(tuple(tags.shape), tags)

    def _reduce_parameter(self, value: Value, over: list[int], keepdim: bool) -> Value:
        mixed = self._collapse(value, over).parameter
        assert mixed is not None and mixed.coords is not None
        shape = [1 if d in over else n for d, n in enumerate(value.shape)]
        coords = [None if c is None else _narrow(c, over) for c in mixed.coords]
        if not keepdim:
            shape = [n for d, n in enumerate(value.shape) if d not in over]
            coords = [None if c is None else c.reshape(shape) for c in coords]
        return Value(tuple(shape), None, replace(mixed, coords=tuple(coords)))

    def _collapse(self, value: Value, over: Sequence[int]) -> Value:
        """A parameter mixed along some dimensions of its present shape."""
        view = value.parameter
        assert view is not None
        coords = tuple(
            None if c is None or set(varies(c)) & set(over) else c for c in view.coordinates()
        )
        return Value(value.shape, None, replace(view, coords=coords, transformed=True))

    def _reduce(self, tags: Tensor, dims: Sequence[int], how: str) -> Tensor:
        """Tags with size 1 along ``dims``."""
        over = [d for d in varies(tags) if d in dims]
        small = _narrow(tags, [d for d in dims if d not in over])
        if not over:
            return small
        compact = core(small)
        kept = [d for d in range(tags.dim()) if d not in over]
        size = [compact.shape[d] for d in kept]
        rows = self.units.find(
            compact.permute(kept + over).reshape(_numel(size), -1).numpy()
        )
        mixed = self._mix_rows(rows, how)
        shape = [1 if d in over else compact.shape[d] for d in range(tags.dim())]
        target = [1 if d in dims else n for d, n in enumerate(tags.shape)]
        return torch.from_numpy(mixed).view(shape).expand(target)

    def _mix_rows(self, rows: Array, how: str) -> Array:
        """One tag for each row of units: the single unit in it, or what mixing makes of them."""
        highest = rows.max(axis=1)
        several = ((rows != highest[:, None]) & (rows != 0)).any(axis=1)
        if not several.any():
            return highest
        chosen = rows[several]
        if len(chosen) == 1:
            distinct, inverse = chosen, np.zeros(1, np.int64)
        else:
            _, first, inverse = np.unique(
                _row_hashes(chosen), return_index=True, return_inverse=True
            )
            distinct = chosen[first]
        sets = [np.unique(row[row != 0]) for row in distinct]
        highest = highest.copy()
        if how == "auto":
            how = "join" if self._are_branches(sets) else "soft"
        if how == "join":
            for members in sets:
                self.units.join(members[:-1], members[1:], self.index)
            derived = np.array([members[0] for members in sets])
        else:
            derived = self.units.derive(sets, self.index, self._site() if how == "soft" else -1)
        highest[several] = derived[inverse.reshape(-1)]
        return highest

    @staticmethod
    def _are_branches(sets: list[Array]) -> bool:
        """A few branches summed channel by channel, rather than channels mixed with each other."""
        width = max(len(members) for members in sets)
        if width > _FEW_BRANCHES or width > len(sets):
            return False
        flat = np.concatenate(sets)
        return len(np.unique(flat)) == len(flat)

    def _site(self) -> int:
        if not self.mixing_nodes or self.mixing_nodes[-1] != self.index:
            self.mixing_nodes.append(self.index)
        return len(self.mixing_nodes) - 1

    def mix(self, value: Value, dims: Sequence[int], how: str = "auto") -> Value:
        """Every element along ``dims`` depends on all of them: softmax, norms, cumsum, ..."""
        rank = len(value.shape)
        over = [d % rank for d in dims] if rank else []
        if value.parameter is not None and value.tags is None:
            return self._collapse(value, over)
        tags = self.tags(value)
        if not set(varies(tags)) & set(over):
            return replace(value, const=None, buffer="")
        return Value(value.shape, self._combine(tags, self._reduce(tags, over, how), value.shape))

    def mix_everything(self, values: Sequence[Any]) -> Tensor:
        """A single tag that requires every unit in the values: always sound, never fine."""
        found = [np.zeros(1, np.int64)]
        for value in values:
            if isinstance(value, Value):
                tags = self.tags(value)
                found.append(np.unique(self.units.find(array(tags))))
        row = np.unique(np.concatenate(found))[None]
        return torch.from_numpy(self._mix_rows(row, "hard"))[0]

    def resample(self, value: Value, space: int, shape: Sequence[int] | None = None) -> Value:
        """Pooling and interpolation: the last ``space`` dimensions are mixed and resized."""
        rank = len(value.shape)
        over = list(range(rank - space, rank))
        reduced = self.reduce(value, over, keepdim=True)
        shape = self.shape if shape is None else tuple(shape)
        if reduced.tags is None:
            return self.move(reduced, lambda t: t.expand(shape))
        return Value(shape, reduced.tags.expand(shape))

    # -- contraction ------------------------------------------------------------------------

    def contract(self, left: Value, right: Value, over_left: int, over_right: int) -> tuple[
        Tensor, Tensor
    ]:
        """Both operands with the contracted dimension mixed down to size 1."""
        return (
            self._reduce(self.tags(left), [over_left % len(left.shape)], "hard"),
            self._reduce(self.tags(right), [over_right % len(right.shape)], "hard"),
        )

    def columns(self, tags: Tensor, keep: Sequence[int]) -> Tensor:
        """One unit per position along ``keep``: a weight is shared over all other dimensions."""
        others = [d for d in range(tags.dim()) if d not in keep]
        return self._reduce(tags, others, "join")

    def is_shared(self, tags: Tensor, contracted: Sequence[int]) -> bool:
        """Does the weight mix positions, while the units lie along other dimensions?

        Then its rows serve all units alike (token mixing). When units vary along both, the
        treatment that mixes less is chosen.
        """
        moving = varies(tags)
        along = [d for d in moving if d in contracted]
        across = [d for d in moving if d not in contracted]
        if not across:
            return False
        compact = core(tags).permute(across + [d for d in range(tags.dim()) if d not in across])
        rows = self.units.find(
            compact.reshape(_numel([tags.shape[d] for d in across]), -1).numpy()
        )
        if not along:
            return len(np.unique(rows[rows != 0])) > 1
        return _distinct(rows) < _distinct(rows.T)


def _distinct(rows: Array) -> int:
    """The largest number of different units in one row."""
    ordered = np.sort(rows, axis=1)
    fresh = (ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] != 0)
    return int(fresh.sum(axis=1).max(initial=0)) + 1


def _row_hashes(rows: Array) -> Array:
    """A number per row that is the same for rows with the same elements in any order."""
    mixed = rows.astype(np.uint64)
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        return mixed.sum(axis=1, dtype=np.uint64)


def _multiplicity(items: Array) -> Array:
    """How often each item occurs, item by item."""
    _, inverse, counts = np.unique(items, return_inverse=True, return_counts=True)
    return counts[inverse]


def _narrow(tags: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        if tags.shape[dim] != 1:
            tags = tags.narrow(dim, 0, 1)
    return tags


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
