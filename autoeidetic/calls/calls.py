"""Calls: the analysed ways of calling a model, and what holds for each of them.

A network only answers calls that were analysed. The conversion analyses the example inputs. Any
other call is analysed when it is first made, and accepted if the network's plan already enforces
everything that its analysis finds. All calls share that plan. They differ in what depends on shapes
and outputs: the channels that nested modules read and return, and those of the model's output.

    signature(call)   known? use it
    kind(call)        known for ranges of sizes, and these sizes are in range? use it
    otherwise         analyse it, compare it with the plan, remember it or its refusal
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..common.inputs import CallInputs
from ..enforce.owners import FREE, Owners
from ..errors import AutoeideticError, EnforcementError, HeadError, NoParametersError, Place
from ..plan.analysis import Analysis, run_analysis
from ..plan.call_plan import CallPlan, HeadPlan, call_plans
from .agreement import canonical, labels, translation
from .signature import kind, signature
from .sizes import Sizes, alike, conditions, used_parameters

Array = np.ndarray
Kind = TypeVar("Kind")
#: Calls of a kind that are analysed one by one before a rule for their sizes is looked for: the
#: search takes an export and two analyses, which a model with two or three sizes need not pay.
_SINGLE = 3
#: How often such a rule is looked for, per kind.
_TRIES = 4
#: The largest size of a table: an argument with a new number in each call must not fill the memory.
_MOST = 10_000


@dataclass(frozen=True, eq=False)
class Call:
    """An analysed way of calling the model.

    ``units`` maps each unit of this analysis to the unit of the network's plan with its elements.
    ``decisions`` are the values that the model's code read out of tensors in the analysed call.
    """

    call_plan: CallPlan
    units: Array
    decisions: tuple[Hashable, ...] = ()

    def __deepcopy__(self, memo: Any) -> Call:
        return self  # immutable: copies of a network share it

    def owners(self, owners: Owners) -> Owners:
        """The owners of the network's units as owners of the units of this analysis."""
        plan = self.call_plan.plan
        if plan is owners.plan:
            return owners
        has = plan.elements > 0
        return replace(
            owners,
            plan=plan,
            task=np.where(has, owners.task[self.units], FREE).astype(owners.task.dtype),
            pruned=has & owners.pruned[self.units],
            outside=plan.outside,
            locked=has & owners.locked[self.units],
        )

    @cached_property
    def digest(self) -> str:
        """Calls with the same digest are protected by the same masks, whoever owns the units."""
        plan = self.call_plan.plan
        # units by names that all analyses share, and without sizes along which nothing varies:
        # calls that differ in batch size or image size have one digest, and one set of masks
        named = labels(plan, self.units)
        content: list[Any] = [
            self.call_plan.split,
            self.call_plan.joint,
            self.call_plan.looks,
            [head.reads for head in self.call_plan.heads],
        ]
        trees: list[Any] = [self.call_plan.outputs, [head.inputs for head in self.call_plan.heads]]
        for nested in self.call_plan.nested:
            content.append((nested.module, nested.enclosed, len(nested.calls)))
            trees += [(call.args, call.kwargs, call.outputs) for call in nested.calls]
            for norm in (norm for norms in nested.norms or () for norm in norms):
                content.append((norm.operator, norm.groups))
                trees.append((norm.inputs, norm.outputs))
        content += [
            None if leaf is None else canonical(leaf, named)
            for tree in trees
            for leaf in pytree.tree_leaves(tree)
        ]
        return blake2b(repr(content).encode(), digest_size=16).hexdigest()


@dataclass
class Calls:
    """The known calls of a network.

    ``known`` has them by signature, ``paths`` by signature and decisions (for a model whose code
    looks at data), and ``general`` by kind, with the sizes for which each holds. ``refused`` has
    the errors of calls that do not fit the plan. ``single`` counts, per kind, the calls that were
    analysed one by one, and ``shapes`` has those of their tensors.
    """

    first: Call
    known: dict[Hashable, Call] = field(default_factory=dict)
    paths: dict[Hashable, Call] = field(default_factory=dict)
    refused: dict[Hashable, AutoeideticError] = field(default_factory=dict)
    digests: dict[str, Call] = field(default_factory=dict)
    general: dict[Hashable, list[tuple[Sizes, Call]]] = field(default_factory=dict)
    single: Counter[Hashable] = field(default_factory=Counter)
    shapes: dict[Hashable, set[tuple[tuple[int, ...], ...]]] = field(default_factory=dict)

    @staticmethod
    def of(examples: tuple[CallInputs, ...], made: tuple[CallPlan, ...]) -> Calls:
        """The calls that the conversion analysed."""
        units = np.arange(made[0].plan.units + 1)
        calls = [Call(call_plan, units) for call_plan in made]
        result = Calls(calls[0])
        for inputs, call in zip(examples, calls, strict=True):
            result.known[signature(inputs.args, inputs.kwargs)] = result.one_of(call)
            own = kind(inputs.args, inputs.kwargs)
            result.shapes.setdefault(own, set()).add(_shapes(inputs))
        return result

    def find(self, model: nn.Module, inputs: CallInputs) -> Call | None:
        """A known call that differs from this one in nothing but sizes."""
        for sizes, call in self.general.get(kind(inputs.args, inputs.kwargs), ()):
            if sizes.hold(model, inputs):
                return call
        return None

    def should_generalise(self, inputs: CallInputs) -> bool:
        """Count an analysed call; is it time to look for a rule for the sizes of its kind?"""
        key = kind(inputs.args, inputs.kwargs)
        self.single[key] += 1
        if self.single[key] <= _SINGLE * _TRIES:
            self.shapes.setdefault(key, set()).add(_shapes(inputs))
        return self.single[key] % _SINGLE == 0 and self.single[key] <= _SINGLE * _TRIES

    def give_up(self, inputs: CallInputs) -> None:
        """Look for no rule for the sizes of this kind any more."""
        self.single[kind(inputs.args, inputs.kwargs)] = _SINGLE * _TRIES

    def varied(self, inputs: CallInputs) -> list[set[int]]:
        """The dimensions of each tensor in which calls of this kind have differed."""
        calls = self.shapes.get(kind(inputs.args, inputs.kwargs), set())
        return [
            {dim for dim, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1}
            for shapes in zip(*calls, strict=True)
        ]

    def one_of(self, call: Call) -> Call:
        """The known call that is protected by the same masks, if there is one; else the call."""
        return self.digests.setdefault(call.digest, call)


def _shapes(inputs: CallInputs) -> tuple[tuple[int, ...], ...]:
    leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor))


def remember(table: dict[Hashable, Kind], key: Hashable, value: Kind) -> None:
    """Store something about a call in one of the tables, which are bounded."""
    # emptied, not trimmed: a call that was dropped is analysed again, with the same result
    if len(table) >= _MOST:
        table.clear()
    table[key] = value


def analysed(
    model: nn.Module, examples: tuple[CallInputs, ...], first: CallPlan, call: CallInputs
) -> Call:
    """Analyse a call that no example covers; ``model`` is the bare one, without guards.

    Raises:
        EnforcementError: the call needs something that the network's plan does not enforce.
        AutoeideticError: the call cannot be analysed.
    """
    # alone first: that is quick, and mostly the call differs from the examples in sizes only. If it
    # does not fit, together with them: a layer whose readers this call skips looks like a head
    with suppress(EnforcementError, HeadError, NoParametersError):
        return _agreed(model, first, _analysis(model, call))
    return _agreed(model, first, _analysis(model, *examples, call))


def _analysis(model: nn.Module, *calls: CallInputs) -> Analysis:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the conversion has given those of the examples
        return run_analysis(model, list(calls))


def _agreed(model: nn.Module, first: CallPlan, analysis: Analysis) -> Call:
    """The last call of an analysis, if the plan already enforces all that the analysis finds."""
    units = translation(first.plan, analysis.plan)
    made = call_plans(model, analysis)[-1]
    _check_heads(first, made)
    return Call(made, units, analysis.capture.decisions[-1])


def generalised(
    model: nn.Module, first: CallPlan, inputs: CallInputs, varied: Sequence[Collection[int]]
) -> Sizes | None:
    """The sizes for which a call is like this analysed one; None if they cannot be determined.

    ``varied``: the dimensions of each tensor that calls of this kind differ in.
    """
    found = conditions(model, inputs, varied)
    if found is None:
        return None
    sizes, parameters = found
    other = sizes.other(model, inputs)
    if other is None:
        return None
    try:
        here, there = _analysis(model, inputs), _analysis(model, other)
        named = [labels(d.plan, translation(first.plan, d.plan)) for d in (here, there)]
    except AutoeideticError:
        return None
    # the exporter's conditions speak of the path that it took: it must be the path that was
    # analysed, as the order in which parameters are used shows
    if here.capture.way != "meta" or parameters != used_parameters(here):
        return None
    return sizes if alike((here, there), named) else None


def _check_heads(first: CallPlan, made: CallPlan) -> None:
    for before, now in zip(first.heads, made.heads, strict=True):
        if _about(before) != _about(now):
            raise EnforcementError(
                "this call uses the output layer differently from the examples",
                place=Place(module=before.layer),
                remedy="convert the model with this call among the examples: "
                "convert(model, [example, another])",
            )


def _about(head: HeadPlan) -> tuple[Any, ...]:
    return head.layer, head.holder, head.leaf, head.parameters, head.size, head.dim, head.nested
