"""Extract: one task of a network, or some, as a program of their own.

which tasks       the pass that is captured                     task_pass.py
captured, cut     one narrow graph for all sizes of inputs      cutting.py
finished          the user's names, structure and spelling      finish.py
compared          with the network, at other sizes              same_answers.py
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..common.inputs import CallInputs, whole_number
from ..common.torch_modes import is_transforming
from ..common.undisturbed import undisturbed
from ..errors import ExtractionError, TaskError
from ..plan.call_plan import ATTACHED
from ..routing.prediction import check_router
from ..tasks import reference
from ..tasks.network import Network
from ..tasks.protection import device_of
from . import compare, costs, finish, limits
from .cutting import Cut, cut
from .program import ExtractReport, Program
from .same_answers import Compared, compared_with, take_back
from .sizes import Variation, variations
from .task_pass import TaskPass


@dataclass(frozen=True)
class Asked:
    """The tasks that a program answers for: their numbers, the tasks that answer for them, names.

    ``single``: the program returns the outputs of one task, not a list. ``routes``: it finds the
    task by itself. ``headless``: it returns what the model does, without a head.
    """

    numbers: tuple[int, ...]
    answering: tuple[int, ...]
    names: tuple[str, ...]
    single: bool
    routes: bool
    headless: bool = False


def extract(network: Network, task: Any) -> Program:
    """See :meth:`autoeidetic.EideticNet.extract`."""
    asked = asked_tasks(network, task)
    needed = network.by_column(asked.answering)
    if len(needed) == 1 and not asked.routes:
        network = needed[0][0]  # the first column has the same tasks, and the user's names
    _check(network)
    return _extract(network, asked)


def extract_slim(network: Network) -> Program:
    """The whole model with what its only task, which may still be open, has kept."""
    _check(network)
    return _extract(network, _whole_model(network))


def measure(network: Network) -> tuple[int, int]:
    """Parameters and multiply-adds that such a program would have."""
    _check(network)
    asked = _whole_model(network)
    inputs = _inputs(network, _rows(network, asked))
    made = _pass(network, asked)
    found = cut(made.capture, inputs, ())
    parameters = sum(found.attributes[name].numel() for name in found.trainable)
    return parameters, costs.multiply_adds(found.module(), finish.arguments(inputs).args)


def costs_before(network: Network) -> tuple[int, int]:
    """Parameters and multiply-adds of the model itself."""
    asked = _whole_model(network)
    parameters = costs.parameters(network, asked.answering, asked.headless)
    return parameters, costs.of_network(
        network, asked.answering, _inputs(network, _rows(network, asked))
    )


def _whole_model(network: Network) -> Asked:
    headless = network.call_plan.heads[0].layer == ATTACHED
    return Asked((0,), (0,), (), single=True, routes=False, headless=headless)


def _pass(network: Network, asked: Asked) -> TaskPass:
    return TaskPass(network, asked.answering, routes=asked.routes, headless=asked.headless)


def _extract(network: Network, asked: Asked) -> Program:
    with undisturbed(trainable=True, autocast=(device_of(network.backbone, "").type,)):
        source, rows, double = _working_copy(network, asked)
        made = _pass(source, asked)
        inputs = _with_a_batch(made, _inputs(source, rows))
        names = finish.input_names(source.backbone, inputs)
        found, compared = _cut_and_compared(made, asked, inputs, names)
        if _is_batch_fixed(found, inputs):  # then at the example's, not at that of a few rows
            inputs = _inputs(source, None)
            found, compared = _cut_and_compared(made, asked, inputs, names)
        limits.write_checks(found.graph, inputs, found.varying, found.pinned)
        report = ExtractReport(
            tasks=asked.names,
            parameters_before=costs.parameters(network, asked.answering, asked.headless),
            parameters_after=sum(found.attributes[name].numel() for name in found.trainable),
            multiply_adds_before=costs.of_network(source, asked.answering, inputs),
            multiply_adds_after=costs.multiply_adds(found.module(), finish.arguments(inputs).args),
            difference=compared.difference,
            compared_in="float64" if double else finish.type_name(compare.only_type(network)),
            compared_at=compared.shapes,
            dynamic=tuple(name for each in found.varying for name in each.names),
            fixed=tuple(found.fixed),
            limits=limits.texts(found.varying),
        )
        if double:
            take_back(made, found, inputs, compared.answer, compare.only_type(network))
        rows = None if _is_batch_fixed(found, inputs) else rows
        example = finish.arguments(_inputs(network, rows)).args
        return Program.of(found.attributes, found.graph, report, found.trainable, example)


def _working_copy(network: Network, asked: Asked) -> tuple[Network, int | None, bool]:
    """A copy of the network, which learns other calls; the rows of its example that it takes.

    The last value tells if it is in double precision. There a mistake is no rounding, and what is
    folded is rounded only once.
    """
    if compare.can_double(network):
        source = _copied(network).double()
        # code that casts to a type of its own runs in no other one
        for rows in _answered(source, asked):
            return source, rows, True
    source = _copied(network)
    return source, _rows(source, asked), False


def _rows(network: Network, asked: Asked) -> int | None:
    """The rows of the example that a network takes: a few, or all of them (None)."""
    return next(_answered(network, asked), None)


def _answered(network: Network, asked: Asked) -> Iterator[int | None]:
    """The numbers of rows of the example that the network answers.

    A few rows are enough, unless the model only takes the batch size of its example, or its inputs
    have no batch.
    """
    for rows in dict.fromkeys((reference.few_rows(network.networks[0]), None)):
        with suppress(Exception):  # the model's own code may raise anything
            _pass(network, asked).answer(_inputs(network, rows), stock_norms=True)
            yield rows


def _copied(network: Network) -> Network:
    source = copy.deepcopy(network)
    for each in source.networks:
        for parameter in each.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                # those of a program can be trained; for others torch runs operators without
                # gradient
                parameter.requires_grad_(True)
        if each.diverged():  # what finished tasks do not read; NaN times zero would be NaN
            with torch.no_grad():
                for tensor in each.trained_tensors().values():
                    tensor.nan_to_num_(0, 0, 0)
    return source


def _with_a_batch(made: TaskPass, inputs: CallInputs) -> CallInputs:
    """The same inputs with a batch of two, if the model takes it: a size of 1 is broadcast."""
    for batch in variations(inputs)[:1]:
        number, dim = batch.places[0]
        if finish.arguments(inputs).args[number].shape[dim] == 1:
            with suppress(Exception):  # the model's own code may raise anything
                larger = batch.apply(inputs, 1)
                made.capture(larger)
                return larger
    return inputs


def _is_batch_fixed(found: Cut, inputs: CallInputs) -> bool:
    varying = {place for each in found.varying for place in each.places}
    return any(not varying.issuperset(batch.places) for batch in variations(inputs)[:1])


def _cut_and_compared(
    made: TaskPass, asked: Asked, inputs: CallInputs, names: Sequence[str]
) -> tuple[Cut, Compared]:
    """The cut graph, once it answers as the network does; sizes at which it does not are fixed."""
    wanted = variations(inputs, names)
    fixed: list[str] = []
    pinned: list[Variation] = []
    single = asked.answering[0] if asked.single else None
    while True:
        found = cut(made.capture, inputs, wanted)
        found.fixed += fixed
        found.pinned += pinned
        finish.finish(found, names, single, asked.routes)
        compared = compared_with(made, found, inputs, asked.single)
        if compared.wrong is None:
            found.varying = list(compared.varying)
            return found, compared
        pinned.append(compared.wrong)
        fixed.append(f"{compared.wrong.name}: the program has other answers at other sizes")
        wanted = [each for each in wanted if not set(each.places) & set(compared.wrong.places)]


# -- what is asked for ---------------------------------------------------------------------------


def asked_tasks(network: Network, task: Any) -> Asked:
    """The tasks that were asked for: a number, a name, a list of those, or "all".

    Raises:
        TaskError: there is no such task, or it is not finished.
    """
    finished = [each.index for each in network.tasks if each.finished]
    if isinstance(task, str) and task == "all" and "all" not in _names(network):
        routes = network.router is not None
        if routes:
            check_router(network)
        if not finished:
            raise TaskError("no task is finished", remedy="train a task and call finish_task()")
        return _asked(network, finished, single=False, routes=routes)
    if isinstance(task, (list, tuple)):
        if not task:
            raise TaskError("the list of tasks is empty", remedy='name tasks, or pass "all"')
        return _asked(network, [_number(network, each) for each in task], False, False)
    return _asked(network, [_number(network, task)], single=True, routes=False)


def _asked(network: Network, numbers: Sequence[int], single: bool, routes: bool) -> Asked:
    for number in numbers:
        if not network.tasks[number].finished:
            raise TaskError(
                f"task {number} ('{network.tasks[number].name}') is still open",
                remedy="call finish_task() first: an open task still changes",
            )
    return Asked(
        numbers=tuple(numbers),
        answering=tuple(network.answering_task(number) for number in numbers),
        names=tuple(network.tasks[number].name for number in numbers),
        single=single,
        routes=routes,
    )


def _names(network: Network) -> list[str]:
    return [each.name for each in network.tasks]


def _number(network: Network, task: Any) -> int:
    count, names = len(network.tasks), _names(network)
    number = whole_number(task)
    if number is not None and 0 <= number < count:
        return number
    if isinstance(task, str) and names.count(task) == 1:
        return names.index(task)
    known = ", ".join(f"{n} ('{name}')" for n, name in enumerate(names)) or "there is none yet"
    fact = f"task {task!r} does not exist"
    if isinstance(task, str) and task in names:
        fact = f"several tasks are called {task!r}"
    raise TaskError(fact, remedy=f"pass a number or a name: {known}")


def _check(network: Network) -> None:
    """Check that the network can be made a program.

    Raises:
        ExtractionError: it cannot.
    """
    network.follow()
    bodies = [each.backbone for each in network.networks]
    if any(t.is_meta for body in bodies for t in (*body.parameters(), *body.buffers())):
        raise ExtractionError(
            "the network is on the meta device, so there are no values to extract",
            remedy="load it on the CPU or another device",
        )
    if any(each.call_plan.looks for each in network.networks):
        raise ExtractionError(
            "the model's Python code looks at data, so its path depends on the inputs; a program "
            "has one path",
            remedy="compute with tensors instead of numbers (torch.where instead of if)",
        )
    if is_transforming():
        raise ExtractionError(
            "extract() was called inside of a torch.func transform",
            remedy="extract first, and transform the program",
        )
    for each in network.networks:
        if each.diverged():
            each.pins.impose()


def _inputs(network: Network, rows: int | None) -> CallInputs:
    """Inputs like the first example, or some rows of it, with values."""
    args, kwargs = reference.inputs(network.networks[0], rows)
    device = device_of(network.backbone, "")
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to(device), (args, kwargs))
    return CallInputs(args, kwargs)
