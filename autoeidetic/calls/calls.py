"""Calls: the ways of calling a model that were analysed, and what holds in each of them.

A network answers only for calls that were analysed. The example inputs were; any other call is
analysed when it is made for the first time, and that must find nothing that is not in force
already. All calls share the network's plan. They differ in what depends on shapes and on outputs:
the channels of what nested modules read and make, and of what the model returns.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
from torch import nn
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
#: So many calls of a kind are analysed one by one before a rule for their sizes is looked for.
_SINGLE = 3
#: So often at most.
_TRIES = 4
#: Calls that are known at a time: a number that is new in each call must not fill the memory.
_MOST = 10_000


@dataclass(frozen=True, eq=False)
class Call:
    """A way of calling the model that was analysed.

    ``units`` gives for each unit of that analysis the unit of the network's plan that has its
    elements. ``decisions``: what the code has read out of tensors in the call that was analysed.
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
        """Calls with the same digest are protected by the same masks, whoever owns what."""
        plan = self.call_plan.plan
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
    """The calls of a network that are known, by signature and, where a model looks at data, path.

    ``known`` has the calls by signature, ``paths`` the calls by signature and decisions,
    ``general`` those of which it is known for which sizes they hold, by the kind of call.
    ``single`` counts how many calls of a kind were analysed one by one.
    """

    first: Call
    known: dict[Hashable, Call] = field(default_factory=dict)
    paths: dict[Hashable, Call] = field(default_factory=dict)
    refused: dict[Hashable, AutoeideticError] = field(default_factory=dict)
    digests: dict[str, Call] = field(default_factory=dict)
    general: dict[Hashable, list[tuple[Sizes, Call]]] = field(default_factory=dict)
    single: Counter[Hashable] = field(default_factory=Counter)

    @staticmethod
    def of(examples: tuple[CallInputs, ...], made: tuple[CallPlan, ...]) -> Calls:
        """The calls that the conversion has analysed."""
        units = np.arange(made[0].plan.units + 1)
        calls = [Call(call_plan, units) for call_plan in made]
        result = Calls(calls[0])
        for inputs, call in zip(examples, calls, strict=True):
            result.known[signature(inputs.args, inputs.kwargs)] = result.one_of(call)
        return result

    def find(self, model: nn.Module, inputs: CallInputs) -> Call | None:
        """A call that is known to be like this one but for its sizes."""
        for sizes, call in self.general.get(kind(inputs.args, inputs.kwargs), ()):
            if sizes.hold(model, inputs):
                return call
        return None

    def should_generalise(self, inputs: CallInputs) -> bool:
        """Have calls of this kind been analysed one by one often enough to look for a rule?"""
        key = kind(inputs.args, inputs.kwargs)
        self.single[key] += 1
        return self.single[key] % _SINGLE == 0 and self.single[key] <= _SINGLE * _TRIES

    def one_of(self, call: Call) -> Call:
        """The call, or one that is known and protected by the same masks."""
        return self.digests.setdefault(call.digest, call)


def remember(table: dict[Hashable, Kind], key: Hashable, value: Kind) -> None:
    """Note something about a call in one of the tables, which do not grow for ever."""
    if len(table) >= _MOST:
        table.clear()
    table[key] = value


def analysed(
    model: nn.Module, examples: tuple[CallInputs, ...], first: CallPlan, call: CallInputs
) -> Call:
    """Analyse a call that no example has shown; the model is the bare one.

    By itself it is mostly found to be like the examples but for its sizes. If not, it is analysed
    together with them: a layer that it does not use may tell what another one is for.

    Raises:
        EnforcementError: the call needs something that the plan of the network does not keep.
        AutoeideticError: the call cannot be analysed.
    """
    with suppress(EnforcementError, HeadError, NoParametersError):
        return _agreed(model, first, _analysis(model, call))
    return _agreed(model, first, _analysis(model, *examples, call))


def _analysis(model: nn.Module, *calls: CallInputs) -> Analysis:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the examples were given by the conversion
        return run_analysis(model, list(calls))


def _agreed(model: nn.Module, first: CallPlan, analysis: Analysis) -> Call:
    """The last call of an analysis that finds nothing but what is in force."""
    units = translation(first.plan, analysis.plan)
    made = call_plans(model, analysis)[-1]
    _check_heads(first, made)
    return Call(made, units, analysis.capture.decisions[-1])


def generalised(model: nn.Module, first: CallPlan, inputs: CallInputs) -> Sizes | None:
    """For which sizes a call is like this one, which was analysed; None when nobody can tell."""
    found = conditions(model, inputs)
    if found is None:
        return None
    sizes, along = found
    other = sizes.other(model, inputs)
    if other is None:
        return None
    try:
        here, there = _analysis(model, inputs), _analysis(model, other)
        named = [labels(d.plan, translation(first.plan, d.plan)) for d in (here, there)]
    except AutoeideticError:
        return None
    if here.capture.way != "meta" or along != used_parameters(here):
        return None
    return sizes if alike((here, there), named) else None


def _check_heads(first: CallPlan, made: CallPlan) -> None:
    for before, now in zip(first.heads, made.heads, strict=True):
        if _about(before) != _about(now):
            raise EnforcementError(
                "the output layer is used otherwise in this call than in the examples",
                place=Place(module=before.layer),
                remedy="convert the model with this call among the examples: "
                "convert(model, [example, another])",
            )


def _about(head: HeadPlan) -> tuple[Any, ...]:
    return head.layer, head.holder, head.leaf, head.parameters, head.size, head.dim, head.nested
