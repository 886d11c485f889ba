"""Same answers: a program is compared with its network before anybody gets it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..common.inputs import CallInputs
from ..errors import ExtractionError
from . import compare, finish
from .cutting import Cut
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

    ``wrong`` is a variation of sizes under which the program is not the network.
    """

    difference: float
    shapes: tuple[tuple[int, ...], ...]
    wrong: Variation | None = None


def compared_with(made: TaskPass, found: Cut, inputs: CallInputs, single: bool) -> Compared:
    """Compare a program with its network, at sizes that were captured and at others.

    Raises:
        ExtractionError: they differ by more than rounding at the sizes of the example.
    """
    program = found.module()
    worst, shapes = 0.0, []
    for variation, call in _other_sizes(inputs, found.varying):
        try:
            expected = finish.plain(made.answer(call))
        except Exception:
            if variation is None:
                raise
            continue  # no size that the model takes
        given = finish.arguments(call)
        try:
            answered, limit = compare.run(program, given)
        except Exception as error:  # shapes that do not fit
            if variation is not None:
                return Compared(float("inf"), (), variation)
            raise compare.broken(error) from error
        differs = compare.difference(expected[0] if single else expected, answered)
        if differs > limit:
            if variation is not None:
                return Compared(differs, (), variation)
            _check_repeatable(made, program, call, (expected, answered))
            raise compare.refusal(differs, limit, found.writer, inputs)
        worst = max(worst, differs)
        shapes += [tuple(tensor.shape) for tensor in given.args[:1]]
    return Compared(worst, tuple(shapes))


def _other_sizes(
    inputs: CallInputs, varying: Sequence[Variation]
) -> Iterator[tuple[Variation | None, CallInputs]]:
    """The inputs as they are, then with sizes that no capture has seen."""
    yield None, inputs
    for variation in varying[:1]:  # the batch
        alone = replace(variation, ways=(lambda n: 1,))
        yield variation, alone.apply(inputs, 1)
    for variation in varying:
        yield variation, variation.apply(inputs, _UNSEEN)


def _check_repeatable(made: TaskPass, program: Any, call: CallInputs, answers: Any) -> None:
    """Raises ExtractionError for a network that answers with random numbers.

    One that sets the seed itself repeats its answers, and its program does not.
    """
    again = finish.plain(made.answer(call, seed=1))
    answered, _ = compare.run(program, finish.arguments(call), seed=1)
    if compare.difference(answers, (again, answered)) > 0:
        raise ExtractionError(
            "the model draws random numbers in eval mode, so that it has no answer to compare with",
            remedy="draw them in train mode only (self.training), or pass them as an input",
        )


def take_back(made: TaskPass, found: Cut, inputs: CallInputs, kind: torch.dtype) -> None:
    """Take a graph from double precision to the type of its network, and compare once more.

    The copy of the network, which nobody needs any more, changes its type as well.

    Raises:
        ExtractionError: they differ by more than rounding.
    """
    wide = _real(made.answer(inputs))
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
