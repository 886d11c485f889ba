"""Brute force for the nesting rule: scramble what is free, see whether what is kept moves.

Shares no code with the package and reads only the plain data of a plan: which class owns each
element of each parameter, which class each weight element multiplies, which classes require
which, and which modules are evaluated in a nested way.

For a set of kept classes that is closed under *requires*:

1. every weight element of a kept row that multiplies a class outside the set becomes zero;
2. every module of ``plan.nested`` runs a second time on the kept part of its inputs, parameters
   and running statistics, and its kept outputs come from that run;
3. all other elements get large random values: no bit of a kept output may move.

A trial counts as *informative* when the same scramble does move the outputs without steps 1 and
2, and the outputs depend on the kept parameters at all: such a trial could have failed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

#: Functions whose second argument is the weight.
WEIGHTED = {
    F.linear,
    F.conv1d,
    F.conv2d,
    F.conv3d,
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
    F.embedding,
    F.bilinear,
}
#: Products, in which the weight is found by where it comes from.
PRODUCTS = {
    torch.matmul,
    torch.mm,
    torch.bmm,
    torch.addmm,
    torch.baddbmm,
    torch.einsum,
    F.scaled_dot_product_attention,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.__rmatmul__,
    Tensor.mm,
    Tensor.bmm,
}


@dataclass
class Report:
    """What a series of trials found."""

    trials: int = 0
    informative: int = 0
    skipped: int = 0
    missed: list[tuple[str, float]] = field(default_factory=list)
    loose: list[tuple[int, int]] = field(default_factory=list)
    edges_tested: int = 0

    @property
    def ok(self) -> bool:
        return not self.missed

    def add(self, other: Report) -> None:
        self.trials += other.trials
        self.informative += other.informative
        self.skipped += other.skipped
        self.missed += other.missed

    def __str__(self) -> str:
        lines = [
            f"{self.trials} trials, {self.informative} informative, {self.skipped} skipped, "
            f"{len(self.missed)} missed, {len(self.loose)} of {self.edges_tested} edges loose"
        ]
        lines += [f"  missed: {text} (moved by {moved:.3g})" for text, moved in self.missed]
        return "\n".join(lines)


# ---------------------------------------------------------------- structures


def call(model: nn.Module, inputs: Any) -> Any:
    """Call a model on a tensor, a tuple of tensors or a dict of tensors."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def convert(structure: Any, change: Callable[[Tensor], Any]) -> Any:
    """The structure with every tensor replaced."""
    return pairwise(structure, structure, lambda tensor, _: change(tensor))


def pairwise(values: Any, classes: Any, change: Callable[[Tensor, Any], Any]) -> Any:
    """The structure of values, each tensor replaced by a function of itself and its classes."""
    if isinstance(values, Tensor):
        return change(values, classes)
    if classes is None:
        if any(True for _ in leaves(values)):
            raise ValueError(f"the plan says nothing about the tensors in {type(values).__name__}")
        return values
    if isinstance(values, Mapping):
        changed = {key: pairwise(values[key], classes[key], change) for key in values}
        return changed if type(values) is dict else type(values)(**changed)
    if isinstance(values, (tuple, list)):
        if len(values) != len(classes):
            raise ValueError(f"{len(values)} values but classes for {len(classes)}")
        parts = [pairwise(v, c, change) for v, c in zip(values, classes, strict=True)]
        return type(values)(*parts) if hasattr(values, "_fields") else type(values)(parts)
    return values


def leaves(structure: Any) -> Iterator[Tensor]:
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, Mapping):
        for value in structure.values():
            yield from leaves(value)
    elif isinstance(structure, (tuple, list)):
        for value in structure:
            yield from leaves(value)


# ---------------------------------------------------------------- requires


class Requirements:
    """Closures under *requires*, by search."""

    def __init__(self, plan: Any) -> None:
        self.classes = int(plan.units)
        self.edges = np.asarray(plan.requires, dtype=np.int64).reshape(-1, 2)
        self.forward: dict[int, list[int]] = {}
        self.backward: dict[int, list[int]] = {}
        for a, b in self.edges.tolist():
            self.forward.setdefault(a, []).append(b)
            self.backward.setdefault(b, []).append(a)

    def _reach(self, start: Sequence[int], step: dict[int, list[int]]) -> set[int]:
        seen = set(start)
        stack = list(seen)
        while stack:
            for following in step.get(stack.pop(), ()):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        return seen

    def needs(self, classes: Sequence[int]) -> set[int]:
        """The classes and everything that they require."""
        return self._reach(classes, self.forward)

    def without(self, k: int) -> set[int]:
        """The largest closed set without class ``k``."""
        return set(range(1, self.classes + 1)) - self._reach([k], self.backward)

    def between(self, owning: set[int]) -> list[tuple[int, int]]:
        """Edges between classes that own something, through any that own nothing."""
        through = {a: bs for a, bs in self.forward.items() if a not in owning}
        pairs = {
            (a, b)
            for a in self.forward.keys() & owning
            for b in self._reach(self.forward[a], through) & owning
            if a != b
        }
        return sorted(pairs)

    def closed(self, kept: set[int]) -> bool:
        return all(b in kept or b == 0 for a in kept for b in self.forward.get(a, ()))


# ---------------------------------------------------------------- the nested network


class Masking(TorchFunctionMode):
    """Multiplies weights that are computed from parameters by a mask, where they are used."""

    def __init__(self, net: Nested) -> None:
        super().__init__()
        self.net = net
        #: what is computed from parameters and constants alone: the tensor (so that it stays
        #: alive and its id its own) and the parameters it comes from
        self.origin: dict[int, tuple[Tensor, frozenset[str]]] = {
            id(buffer): (buffer, frozenset()) for buffer in net.model.buffers()
        }
        for name, parameter in net.parameters.items():
            self.origin[id(parameter)] = (parameter, frozenset([name]))

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        read = list(leaves([args, kwargs]))
        if func in WEIGHTED or func in PRODUCTS:
            args, kwargs = self.masked(func, args, kwargs)
        out = func(*args, **kwargs)
        if all(id(tensor) in self.origin for tensor in read):
            parameters = frozenset().union(*(self.origin[id(tensor)][1] for tensor in read))
            for result in leaves(out):
                self.origin.setdefault(id(result), (result, parameters))
        return out

    def masked(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        module = self.net.path[-1]
        masks = self.net.masks.get(module, [])
        if not masks:
            return args, kwargs

        def protect(tensor: Tensor) -> Tensor:
            if id(tensor) not in self.origin or isinstance(tensor, nn.Parameter):
                return tensor
            parameters = self.origin[id(tensor)][1]
            for entry in masks:
                if entry.parameter in parameters:
                    tensor = entry.apply(tensor)
            return tensor

        if func in WEIGHTED and len(args) > 1:
            return (args[0], protect(args[1]), *args[2:]), kwargs
        if func in WEIGHTED:
            return args, {**kwargs, "weight": protect(kwargs["weight"])}
        return convert(args, protect), convert(kwargs, protect)


@dataclass
class Mask:
    """The zeros of one transformed read."""

    parameter: str
    module: str
    operator: str
    keep: Tensor
    applied: bool = False

    def apply(self, weight: Tensor) -> Tensor:
        for keep in (self.keep, self.keep.mT if self.keep.dim() == 2 else self.keep):
            if keep.shape == weight.shape:
                self.applied = True
                return torch.where(keep, weight, torch.zeros_like(weight))
        raise ValueError(
            f"read of {self.parameter} in {self.module!r}: columns of shape "
            f"{tuple(self.keep.shape)} for a computed weight of shape {tuple(weight.shape)}"
        )


class Nested:
    """A private copy of a model that can be run protected or unprotected, scrambled or not."""

    def __init__(self, model: nn.Module, inputs: Any, plan: Any, seed: int = 0) -> None:
        self.plan = plan
        self.model, self.inputs = prepared(model, inputs)
        self.parameters = dict(self.model.named_parameters())
        self.buffers = {name: b for name, b in self.model.named_buffers() if name in plan.buffers}
        missing = set(self.parameters) - set(plan.parameters)
        if missing:
            raise ValueError(f"parameters that are not in the plan: {sorted(missing)}")
        randomize(self.model, seed)
        self.base = self.state()
        self.kept = torch.ones(plan.units + 1, dtype=torch.bool)
        self.path: list[str] = [""]
        self.masks: dict[str, list[Mask]] = {}
        self.protected = False
        self.inside = 0
        self.nested = {entry.module: entry for entry in plan.nested}
        self.calls: dict[str, int] = {}
        for name, module in self.model.named_modules():
            module.forward = self.wrapped(name, module, module.forward)

    # values

    def state(self) -> dict[str, Tensor]:
        held = {**self.parameters, **self.buffers}
        return {name: tensor.detach().clone() for name, tensor in held.items()}

    def classes_of(self, name: str) -> Tensor:
        if name in self.parameters:
            return self.plan.parameters[name].units
        return self.plan.buffers[name]

    def write(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in {**self.parameters, **self.buffers}.items():
                tensor.copy_(state[name])

    def scrambled(
        self, state: dict[str, Tensor], where: Tensor, seed: int, scale: float
    ) -> dict[str, Tensor]:
        """The state with random values wherever the class is marked."""
        generator = torch.Generator().manual_seed(seed)
        changed = {}
        for name, value in state.items():
            if not value.is_floating_point():
                changed[name] = value
                continue
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64) * scale
            if name.endswith("running_var"):
                noise = noise.abs() + 0.1
            changed[name] = torch.where(where[self.classes_of(name)], noise.to(value.dtype), value)
        return changed

    def zeroed(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state with the zeros of the nesting rule (transformed reads become masks)."""
        self.masks = {}
        state = dict(state)
        for name, entry in self.plan.parameters.items():
            row = self.kept[entry.units]
            for read in entry.reads:
                if read.transformed:
                    keep = ~self.kept[read.rows] | self.kept[read.columns]
                    mask = Mask(name, read.module, str(read.operator), keep)
                    self.masks.setdefault(read.module, []).append(mask)
                else:
                    zero = row & ~self.kept[read.columns]
                    state[name] = torch.where(zero, torch.zeros_like(state[name]), state[name])
        return state

    # running

    def wrapped(
        self, name: str, module: nn.Module, forward: Callable[..., Any]
    ) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.path.append(name)
            try:
                if not self.protected or name not in self.nested:
                    return forward(*args, **kwargs)
                return self.twice(name, module, forward, args, kwargs)
            finally:
                self.path.pop()

        return run

    def twice(
        self,
        name: str,
        module: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self.inside > 1:
            return forward(*args, **kwargs)
        index = self.calls.get(name, 0)
        self.calls[name] = index + 1
        if self.inside:
            return forward(*args, **kwargs)
        classes = self.nested[name].calls[index]
        given = {key: value for key, value in kwargs.items() if any(True for _ in leaves(value))}
        kept_args = pairwise(args, classes.args, self.restricted)
        kept_kwargs = {
            **kwargs,
            **pairwise(given, {key: classes.kwargs[key] for key in given}, self.restricted),
        }
        self.inside = 1
        try:
            everything = forward(*args, **kwargs)
            self.inside = 2
            with self.restricted_state(module):
                kept = forward(*kept_args, **kept_kwargs)
        finally:
            self.inside = 0
        results = iter(list(leaves(kept)))
        return pairwise(
            everything,
            classes.outputs,
            lambda value, cls: torch.where(self.kept_elements(value, cls), next(results), value),
        )

    def kept_elements(self, value: Tensor, classes: Any) -> Tensor:
        if classes is None:
            raise ValueError("the plan gives no classes for a tensor of a nested module")
        if classes.shape != value.shape:
            raise ValueError(
                f"classes of shape {tuple(classes.shape)} for values of {tuple(value.shape)}"
            )
        return self.kept[classes]

    def restricted(self, value: Tensor, classes: Any) -> Tensor:
        return torch.where(self.kept_elements(value, classes), value, torch.zeros_like(value))

    @contextlib.contextmanager
    def restricted_state(self, module: nn.Module) -> Iterator[None]:
        """The module's own parameters and statistics with everything that is free set to zero."""
        names = {id(tensor): name for name, tensor in {**self.parameters, **self.buffers}.items()}
        held = [t for t in [*module.parameters(), *module.buffers()] if id(t) in names]
        before = [t.detach().clone() for t in held]
        with torch.no_grad():
            for tensor in held:
                tensor.copy_(self.restricted(tensor, self.classes_of(names[id(tensor)])))
            yield
            for tensor, value in zip(held, before, strict=True):
                tensor.copy_(value)

    def run(self, state: dict[str, Tensor], *, protected: bool) -> Any:
        """The outputs for these parameters; protected: nested evaluation and masks are on."""
        self.write(state)
        self.protected = protected
        self.calls = {}
        fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            inputs = convert(self.inputs, torch.clone)
            with torch.no_grad(), Masking(self) if protected and self.masks else _nothing():
                return call(self.model, inputs)
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)

    # comparing

    def moved(self, before: Any, after: Any) -> float:
        """How far the kept outputs moved: 0.0 means that not a single bit did."""
        worst = 0.0

        def compare(pair: tuple[Tensor, Tensor], kept: Tensor) -> None:
            nonlocal worst
            a, b = pair[0][kept], pair[1][kept]
            if torch.equal(a, b) or (a.is_floating_point() and _same_with_nan(a, b)):
                return
            distance = (a.double() - b.double()).abs()
            worst = max(worst, float(distance.nan_to_num(nan=float("inf")).max()), 5e-324)

        found = iter(list(leaves(after)))
        pairwise(
            before,
            self.plan.outputs[0],
            lambda value, cls: compare((value, next(found)), self.kept_elements(value, cls)),
        )
        return worst

    def outputs_kept(self, outputs: Any) -> int:
        """Number of output elements whose class is kept (constants do not count)."""
        counts: list[int] = []
        pairwise(
            outputs,
            self.plan.outputs[0],
            lambda value, cls: counts.append(
                int((self.kept_elements(value, cls) & (cls > 0)).sum())
            ),
        )
        return sum(counts)


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def _same_with_nan(a: Tensor, b: Tensor) -> bool:
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and torch.equal(a[~nan], b[~nan])


def prepared(model: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """A copy in double precision (where the model allows it) in eval mode, and its inputs."""
    for tensor in leaves(inputs):
        if tensor.is_floating_point() and not tensor.any():
            raise ValueError("an input of zeros shows nothing")

    def double(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    wide = copy.deepcopy(model).double().eval()
    wide_inputs = convert(inputs, double)
    try:
        with torch.no_grad():
            call(wide, convert(wide_inputs, torch.clone))
    except RuntimeError:
        return copy.deepcopy(model).eval(), inputs
    return wide, wide_inputs


def randomize(model: nn.Module, seed: int) -> None:
    """Random parameters and running statistics: no zeros, no ones, no symmetric rows."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)

    def between(tensor: Tensor, low: float, high: float) -> Tensor:
        uniform = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        return low + (high - low) * uniform

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and parameter[0].numel() > 1:
                parameter.copy_(normal(parameter) * 1.4 / parameter[0].numel() ** 0.5)
            else:
                sign = torch.where(between(parameter, 0, 1) < 0.3, -1.0, 1.0)
                parameter.copy_(sign * between(parameter, 0.4, 1.4))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(normal(buffer) * 0.5)
            elif name.endswith("running_var"):
                buffer.copy_(between(buffer, 0.5, 1.5))


# ---------------------------------------------------------------- trials


def _trial(net: Nested, kept: set[int], *, seeds: int, what: str) -> Report:
    report = Report(trials=1)
    net.kept = torch.zeros(net.plan.units + 1, dtype=torch.bool)
    net.kept[[0, *kept]] = True
    free = ~net.kept
    state = net.zeroed(net.base)
    before = net.run(state, protected=True)
    if not net.outputs_kept(before):
        return Report(skipped=1)
    for masks in net.masks.values():
        for mask in masks:
            if not mask.applied and not bool(mask.keep.all()):
                text = f"{what}: read of {mask.parameter} in {mask.module!r} never happened"
                report.missed.append((text, float("nan")))
    for seed in range(seeds):
        distance = _distance(net, state, before, free, seed)
        if distance:
            report.missed.append((f"{what}, scramble {seed}", distance))
    if _informative(net, state, before, free):
        report.informative = 1
    return report


def _distance(net: Nested, state: dict[str, Tensor], before: Any, free: Tensor, seed: int) -> float:
    """How far a scramble of the free values moves the kept outputs.

    The claim is about finite values: zero times a free value that overflowed is not a number.
    So when something is, the scramble is repeated on a smaller scale.
    """
    scale = (1.0, 8.0)[seed % 2]
    while True:
        after = net.run(net.scrambled(state, free, seed + 1, scale), protected=True)
        distance = net.moved(before, after)
        if distance < float("inf") or scale < 0.01:
            return distance
        scale /= 8


def _informative(net: Nested, state: dict[str, Tensor], before: Any, free: Tensor) -> bool:
    if not any(bool(free[net.classes_of(name)].any()) for name in state):
        return False
    other = net.zeroed(net.scrambled(net.base, net.kept, 101, 0.7))
    if not net.moved(before, net.run(other, protected=True)):
        return False
    plain = net.run(net.base, protected=False)
    return any(
        net.moved(plain, net.run(net.scrambled(net.base, free, seed, scale), protected=False)) > 0
        for seed, scale in ((1, 1.0), (2, 8.0))
    )


def check_kept(
    model: nn.Module, inputs: Any, plan: Any, kept: Sequence[int] | set[int], *, seeds: int = 2
) -> Report:
    """One trial: with exactly these classes kept (closed under requires), does anything move?"""
    wanted = {int(k) for k in kept} - {0}
    if not Requirements(plan).closed(wanted):
        raise ValueError("the kept classes are not closed under requires")
    return _trial(Nested(model, inputs, plan), wanted, seeds=seeds, what=f"{len(wanted)} kept")


def check(
    model: nn.Module,
    inputs: Any,
    plan: Any,
    *,
    samples: int = 8,
    seed: int = 0,
    edges: int = 0,
    seeds: int = 2,
) -> Report:
    """Trials on many kept sets.

    For ``samples`` random classes, the largest closed set without that class; half as many closed
    sets grown from random classes together with all that the outputs need. ``edges`` requires
    edges are tested for looseness, which is never a failure.
    """
    net = Nested(model, inputs, plan, seed)
    requirements = Requirements(plan)
    generator = np.random.default_rng(seed)
    report = Report()
    classes = generator.permutation(np.arange(1, plan.units + 1))
    for k in _spread(plan, classes.tolist())[:samples]:
        kept = requirements.without(k)
        report.add(_trial(net, kept, seeds=seeds, what=f"without class {k} ({_members(plan, k)})"))
    head = output_classes(plan)
    for number in range((samples + 1) // 2):
        share = (0.1, 0.3, 0.5, 0.8)[number % 4]
        drawn = classes[generator.random(len(classes)) < share].tolist()
        kept = requirements.needs([*head, *drawn])
        if len(kept) < plan.units:
            what = f"random set {number} of {len(kept)}/{plan.units} classes"
            report.add(_trial(net, kept, seeds=seeds, what=what))
    if edges:
        pairs = requirements.between(_owning(plan))
        for index in generator.permutation(len(pairs))[:edges].tolist():
            a, b = pairs[index]
            _looseness(net, requirements, a, b, report)
    return report


def _spread(plan: Any, classes: list[int]) -> list[int]:
    """The classes in an order that visits every parameter before it comes back to one."""
    first: dict[int, str] = {}
    for name, entry in plan.parameters.items():
        for k in entry.units.unique().tolist():
            first.setdefault(k, name)
    classes = [k for k in classes if k in first] + [k for k in classes if k not in first]
    seen: dict[str, int] = {}
    turn = {}
    for k in classes:
        name = first.get(k, "")
        turn[k] = seen.get(name, 0)
        seen[name] = turn[k] + 1
    return sorted(classes, key=lambda k: turn[k])


def output_classes(plan: Any) -> list[int]:
    """Classes of the outputs and of the heads' own parameters."""
    found = {int(k) for tensor in leaves(plan.outputs) for k in tensor.unique().tolist()}
    for entry in plan.parameters.values():
        if entry.head:
            found.update(int(k) for k in entry.units.unique().tolist())
    return sorted(found - {0})


def _looseness(net: Nested, requirements: Requirements, a: int, b: int, report: Report) -> None:
    """Is ``a`` really moved by ``b``? Keep all that does not need ``b``, and ``a`` without it."""
    kept = requirements.without(b) | (requirements.needs([a]) - {b})
    net.kept = torch.zeros(net.plan.units + 1, dtype=torch.bool)
    net.kept[[0, *kept]] = True
    only_a, only_b = torch.zeros_like(net.kept), torch.zeros_like(net.kept)
    only_a[a] = True
    only_b[b] = True
    state = net.zeroed(net.base)
    before = net.run(state, protected=True)
    visible = net.run(net.zeroed(net.scrambled(state, only_a, 7, 1.0)), protected=True)
    if not net.moved(before, visible):
        return
    report.edges_tested += 1
    scrambles = [net.scrambled(state, only_b, seed, scale) for seed, scale in ((1, 1.0), (2, 8.0))]
    if not any(net.moved(before, net.run(scramble, protected=True)) for scramble in scrambles):
        report.loose.append((a, b))


def _owning(plan: Any) -> set[int]:
    """Classes that own an element of a parameter."""
    return {k for entry in plan.parameters.values() for k in entry.units.unique().tolist()}


def _members(plan: Any, k: int) -> str:
    """Where a class lives, for messages: the first parameters that it owns elements of."""
    names = [name for name, entry in plan.parameters.items() if bool((entry.units == k).any())]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
