"""Same answers: a program is compared with its network before anybody gets it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..common.inputs import CallInputs
from ..errors import ExtractionError
from . import compare, finish
from .cutting import Cut
from .limits import has_limits, limited
from .sizes import Variation
from .task_pass import TaskPass

#: Captures use the ways before this one to make other sizes.
_UNSEEN = 4
#: How much larger than the network's own rounding that of a program may be, which adds up numbers
#: in another order.
_TIMES_ROUNDING = 10


@dataclass(frozen=True)
class Compared:
    """The largest difference from the network, and the shapes at which it was sought.

    ``wrong`` is a variation of sizes under which the program is not the network; ``varying`` are
    the others, with the limits within which it is. ``answer`` is the network's own answer to the
    example.
    """

    difference: float
    shapes: tuple[tuple[int, ...], ...]
    answer: Any
    wrong: Variation | None = None
    varying: tuple[Variation, ...] = ()


def compared_with(made: TaskPass, found: Cut, inputs: CallInputs, single: bool) -> Compared:
    """Compare a program with its network, at sizes that were captured and at others.

    Raises:
        ExtractionError: they differ by more than rounding at the sizes of the example.
    """
    program = found.module()
    answer = finish.plain(made.answer(inputs))
    try:
        outcome = _outcome(program, inputs, answer, single)
    except Exception as error:  # shapes that do not fit
        raise compare.broken(error) from error
    if outcome.wrong:
        _check_repeatable(made, program, inputs, answer)
        raise compare.refusal(outcome.difference, outcome.limit, found.writer, inputs)
    worst, shapes = outcome.difference, [_shape(inputs)]
    beyond: set[int] = set()  # sizes at which they differ, which limits exclude
    together, alone = _other_sizes(inputs, found.varying)
    other = _other_outcome(made, program, together, single) if alone else None
    if other is not None and not other.wrong:
        worst, alone = max(worst, other.difference), []
        shapes.append(_shape(together))
    explained = other is None  # the model does not take these sizes
    for variation, call in alone:
        one = _other_outcome(made, program, call, single)
        if one is not None and one.wrong:
            if not has_limits(variation, inputs, call):
                return Compared(one.difference, (), answer, variation)
            beyond.update(variation.sizes_in(call))
            explained = True
        elif one is not None:
            worst = max(worst, one.difference)
            shapes.append(_shape(call))
    if alone and not explained:  # the batch comes first
        return Compared(float("inf"), (), answer, alone[-1][0])
    varying: list[Variation] = []
    for variation in found.varying:
        right = partial(_same, made, program, single)
        base = inputs if variation.is_batch else _one_row(inputs, found.varying)
        within = limited(variation, base, right, beyond)
        if within is None:
            return Compared(float("inf"), (), answer, variation)
        varying.append(within)
    return Compared(worst, tuple(shapes), answer, None, tuple(varying))


@dataclass(frozen=True)
class _Outcome:
    """The difference of two answers, and the largest that is rounding."""

    difference: float
    limit: float

    @property
    def wrong(self) -> bool:
        return self.difference > self.limit or math.isinf(self.difference)


def _outcome(program: fx.GraphModule, call: CallInputs, expected: Any, single: bool) -> _Outcome:
    answered, limit = compare.run(program, finish.arguments(call))
    return _Outcome(compare.difference(expected[0] if single else expected, answered), limit)


def _other_outcome(
    made: TaskPass, program: fx.GraphModule, call: CallInputs, single: bool
) -> _Outcome | None:
    """The same for a call with other sizes; None if the network does not take them."""
    try:
        expected = finish.plain(made.answer(call))
    except Exception:  # the model's own code may raise anything
        return None
    try:
        return _outcome(program, call, expected, single)
    except Exception:  # shapes that do not fit
        return _Outcome(float("inf"), float("inf"))


def _same(made: TaskPass, program: fx.GraphModule, single: bool, call: CallInputs) -> bool:
    """Is the program the network, or does the model not take the call?"""
    for analysed in (False, True):  # an analysis takes long, and rarely changes an answer
        try:
            expected = finish.plain(made.answer(call, analysed=analysed))
        except Exception:
            return True
        with suppress(Exception):  # shapes that do not fit
            if not _outcome(program, call, expected, single).wrong:
                return True
    return False


def _shape(call: CallInputs) -> tuple[int, ...]:
    return tuple(finish.arguments(call).args[0].shape)


def _other_sizes(
    inputs: CallInputs, varying: Sequence[Variation]
) -> tuple[CallInputs, list[tuple[Variation, CallInputs]]]:
    """A call in which all sizes are such that no capture has seen, and one for each of them.

    The first has a single row, and the others are needed if it fails: passes in double precision
    take long.
    """
    together, alone = inputs, []
    for each in varying:
        together = _at_unseen(together, each)
        alone.append((each, _at_unseen(inputs, each)))
    return together, alone


def _at_unseen(inputs: CallInputs, variation: Variation) -> CallInputs:
    return variation.at(inputs, 1) if variation.is_batch else variation.apply(inputs, _UNSEEN)


def _one_row(inputs: CallInputs, varying: Sequence[Variation]) -> CallInputs:
    """The same call with one row, if the size of the batch varies."""
    for each in varying:
        inputs = each.at(inputs, 1) if each.is_batch else inputs
    return inputs


def _check_repeatable(
    made: TaskPass, program: fx.GraphModule, call: CallInputs, answer: Any
) -> None:
    """Raises ExtractionError for a network that answers with random numbers.

    One that sets the seed itself repeats its answers, and its program does not.
    """
    again = finish.plain(made.answer(call, seed=1))
    answers = [compare.run(program, finish.arguments(call), seed=seed)[0] for seed in (0, 1)]
    if compare.difference(answer, again) > 0 or compare.difference(*answers) > 0:
        raise ExtractionError(
            "the model draws random numbers in eval mode, so that it has no answer to compare with",
            remedy="draw them in train mode only (self.training), or pass them as an input",
        )


def take_back(
    made: TaskPass, found: Cut, inputs: CallInputs, answer: Any, kind: torch.dtype
) -> None:
    """Take a graph from double precision to the type of its network, and compare once more.

    ``answer`` is the network's answer in double precision. The copy of the network, which nobody
    needs any more, changes its type as well.

    Raises:
        ExtractionError: they differ by more than rounding.
    """
    wide = _real(answer)
    finish.as_before(found, kind)
    made.network.to(kind)
    to_kind = lambda t: t.to(kind) if t.dtype is torch.float64 else t  # noqa: E731
    call = CallInputs(*pytree.tree_map_only(Tensor, to_kind, (inputs.args, inputs.kwargs)))
    try:
        expected = _real(made.answer(call))
    except Exception:  # not every operator is there for every type
        return
    try:
        answered, limit = compare.run(found.module(), finish.arguments(call))
    except Exception as error:
        raise compare.broken(error) from error
    differs = compare.difference(expected, _real(answered))
    limit = max(limit, _TIMES_ROUNDING * compare.difference(expected, wide))
    if differs > limit:
        raise compare.refusal(differs, limit)


def _real(answer: Any) -> list[Tensor]:
    """The outputs that are real numbers: labels of near ties depend on rounding."""
    tensors = [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor)]
    return [tensor.double() for tensor in tensors if tensor.is_floating_point()]
