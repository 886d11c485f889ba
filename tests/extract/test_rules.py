"""Every rule: programs of one tiny model per operator and per hazard are right, and small.

Right: they answer as the network does. Small: they hold no more parameters than the answers depend
on, which brute force finds out (``dependence.py``). A rule that is broken fails the first test, one
that silently computes everything the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import cases
import lives
import pytest
import torch
from cases import CASES, Case
from sweeps import every_fourth
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from zoo import ZOO

import autoeidetic
from autoeidetic import EideticNet
from autoeidetic.errors import ExtractionError
from autoeidetic.extract import extract
from autoeidetic.extract.program import Program
from autoeidetic.extract.rules import Rule, registry
from autoeidetic.extract.rules.convolution import Convolution
from autoeidetic.extract.rules.movement import Movement
from autoeidetic.extract.rules.overwriting import Overwrite
from autoeidetic.extract.rules.pointwise import Pointwise
from autoeidetic.extract.rules.products import Contraction
from extract.dependence import Dependence
from extract.networks import called, disturb, far

pytestmark = [
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported"),
    pytest.mark.filterwarnings("ignore::autoeidetic.errors.UnhandledOperatorWarning"),
]
Patch = pytest.MonkeyPatch
ALL = [case for listed in CASES.values() for case in listed]
RANDOM = [case for case in ALL if case.operator == "aten.bernoulli"]

#: Operators all of whose cases need all channels: these get channels along the last dimension.
TURNED = """
abs clone _to_copy xlogy complex zero log_sigmoid_forward native_dropout squeeze unfold
pixel_shuffle any amin logsumexp mean nansum std var count_nonzero norm linalg_vector_norm prod max
min mode aminmax std_mean var_mean topk sort cumprod logcumsumexp _log_softmax _safe_softmax
_embedding_bag_forward_only
""".split()


def turned(case: Case) -> Case:
    made = [o for o in case.operands if isinstance(o, cases.Made)]
    last = {o: replace(o, along=len(o.shape) - 1) for o in made}
    operands = tuple(last.get(o, o) for o in case.operands)  # type: ignore[call-overload]
    return replace(case, variant=f"{case.variant}_turned", operands=operands)


SWEEP = [case for case in ALL if not case.real and case not in RANDOM]
SWEEP += [turned(CASES[f"aten.{name}"][0]) for name in TURNED]
CLASSES = (3, 2)


def doubled(inputs: Any) -> Any:
    to_double = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
    return pytree.tree_map_only(Tensor, to_double, inputs)


def others(inputs: Any) -> Any:
    """Inputs of the same shapes with other values."""

    def other(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.randn_like(tensor)
        return tensor.flip(tuple(range(tensor.dim())))

    return pytree.tree_map_only(Tensor, other, inputs)


def grown(model: nn.Module, inputs: Any) -> EideticNet:
    """A network of two tasks, which share a model that may be too small for them."""
    torch.manual_seed(0)
    net: EideticNet = autoeidetic.convert(
        lives.randomise(model).double(), doubled(inputs), rehearse=False
    )
    for task, count in enumerate(CLASSES):
        net.prepare_for_task(task, num_classes=count, on_full="reuse")
        disturb(net)
        net.prune(0.5)
        net.finish_task()
    return net.eval()


@contextmanager
def of_one_size(*, any_batch: bool = False) -> Iterator[None]:
    """Sizes that vary are tested elsewhere, and take longer than everything here."""
    found = extract.variations
    first = lambda *inputs: found(*inputs)[: int(any_batch)]  # noqa: E731
    with mock.patch.object(extract, "variations", first):
        yield


def agrees(net: EideticNet, program: Program, inputs: Any, task: Any) -> bool:
    return far(called(net, inputs, task=task), called(program, inputs)) < 1e-9


# -- one model for each operator ------------------------------------------------------------------


@dataclass(frozen=True)
class Extracted:
    """The network of a case and a program for each of its tasks."""

    case: Case
    net: EideticNet
    inputs: Tensor
    programs: tuple[Program, ...]


@pytest.fixture(scope="module", params=every_fourth(SWEEP), ids=str)
def extracted(request: pytest.FixtureRequest) -> Extracted:
    return programs_of(request.param)


def programs_of(case: Case) -> Extracted:
    model, inputs = cases.build(case)
    net = grown(model, inputs)
    with of_one_size():
        programs = tuple(net.extract(task) for task in range(len(CLASSES)))
    return Extracted(case, net, doubled(inputs), programs)


def test_case(extracted: Extracted) -> None:
    for task, program in enumerate(extracted.programs):
        for scale in (1, 3):
            inputs = scale * others(extracted.inputs)
            assert agrees(extracted.net, program, inputs, task)


@pytest.mark.parametrize("case", every_fourth(case for case in ALL if case.real), ids=str)
def test_what_looks_at_data_is_refused(case: Case) -> None:
    net = grown(*cases.build(case))
    with pytest.raises(ExtractionError, match="looks at data"):
        net.extract(0)


@pytest.mark.parametrize("case", RANDOM, ids=str)
def test_random_numbers_are_refused(case: Case) -> None:
    net = grown(*cases.build(case))
    with pytest.raises(ExtractionError, match="random numbers in eval mode"):
        net.extract(0)


@pytest.mark.parametrize("name", every_fourth(sorted(set(ZOO) - {"tied_embedding_output"})))
def test_zoo(name: str) -> None:
    model, inputs = ZOO[name]()
    net = grown(model, inputs)
    with of_one_size():
        first = net.extract(0)
    with of_one_size(any_batch=True):
        together = net.extract("all")
    other = others(doubled(inputs))
    assert agrees(net, first, other, 0)
    assert agrees(net, together, other, "all")


# -- smallness ------------------------------------------------------------------------------------

#: Programs that hold more than their answers depend on, by the reason why.
LARGER = {
    "what is needed is no box of positions, and the smallest box around it is kept": """
        aten.cat-parameter_rows aten.addmv-parameter_along_1
        aten.layer_norm-two_dims_along_1 aten.layer_norm-two_dims_along_2""",
    "features that are always zero are no box, and the head reads them": """
        aten.tril-channels aten.triu-channels aten.diag_embed-channels
        aten.cumprod-channels aten._fft_r2c-channels aten._fft_r2c-space_channels""",
    "what is computed from parameters alone is kept in place of them, for each use": """
        aten.mul-outer aten.flip-parameter aten.index-table aten.index-table_of_heads
        aten.scatter-of_parameter_computed aten.scatter_add-of_parameter_computed
        aten.scatter_reduce-of_parameter_computed aten.index_add-of_parameter_computed
        aten.index_copy-of_parameter_computed aten.index_reduce-of_parameter_computed
        aten.index_put-of_parameter_computed aten._unsafe_index_put-of_parameter_computed
        aten.put-of_parameter_computed""",
    "a norm of two levels has affine parameters for each": """
        aten.layer_norm-along_2 aten.rms_norm-along_2""",
    "groups are filled up to equal size": """
        aten.conv1d-2_groups_along_1""",
    "channels along space stay whole, where positions are not kept apart": """
        aten.conv1d-shifted""",
    "results of other shapes are used, too": """
        aten.native_batch_norm-along_1 aten._native_batch_norm_legit-along_1
        aten.native_group_norm-along_1 aten.native_layer_norm-along_1""",
    "a value that is computed fills, so everything is read": """
        aten.index_fill-value_channels""",
}
REASONS = {name: reason for reason, names in LARGER.items() for name in names.split()}

#: Cases of which brute force misses outcomes: steps hide most of what the answers depend on.
UNSEEN = """
aten.all-channels aten.all-keepdim aten.all-whole_channels aten.any-channels aten.any-keepdim
aten.any-whole_channels aten.amax-whole_channels aten.max-branches_channels
aten.topk-branches_channels aten.sort-channels aten.sort-stable_channels aten.cummax-channels
aten.cummin-channels aten.gather-computed aten.index_put-mask_two_channels
aten.index_fill-of_parameter_computed
""".split()


def has_channels(case: Case) -> bool:
    """Units along a dimension? One for each element is mostly a set that no box describes."""
    return all(o.along is not None for o in case.operands if isinstance(o, cases.Made))


def is_small(extracted: Extracted, task: int) -> bool:
    program = extracted.programs[task]
    found = Dependence(extracted.net, task, extracted.inputs)
    held = program.report.parameters_after
    if held == 2 * CLASSES[task]:  # no feature is left: the head reads one that is zero
        held = CLASSES[task]
    return found.reaches(held)


def test_smallness(extracted: Extracted) -> None:
    if not has_channels(extracted.case):
        for program in extracted.programs:
            assert program.report.parameters_after <= program.report.parameters_before
        return
    name = str(extracted.case)
    if name not in UNSEEN:
        small = all(is_small(extracted, task) for task in range(len(CLASSES)))
        assert small or name in REASONS, "the program is larger than brute force allows"
        assert not small or name not in REASONS, "the program is small: it needs no reason"


def test_exceptions_are_cases() -> None:
    assert {*REASONS, *UNSEEN} <= {str(case) for case in SWEEP if has_channels(case)}


# -- broken on purpose ----------------------------------------------------------------------------

BY_NAME = {str(case): case for case in SWEEP}


@pytest.mark.parametrize(
    "name",
    [
        "aten.add-pair", "aten.slice-channels", "aten.cat-two_channels", "aten.linear-bias",
        "aten.conv2d-1_groups_along_1", "aten.batch_norm-along_1", "aten.index_copy-fixed_channels",
        "aten.lstm.input-1_layers_started", "aten.mean-channels_turned",
    ],
)  # fmt: skip
def test_a_rule_that_computes_everything_is_seen(name: str, monkeypatch: Patch) -> None:
    case = BY_NAME[name]
    assert all(is_small(programs_of(case), task) for task in range(len(CLASSES)))
    monkeypatch.delitem(registry._RULES, case.operator.removeprefix("aten.").partition(".")[0])
    assert not all(is_small(programs_of(case), task) for task in range(len(CLASSES)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Pointwise, "aten.add-pair"),
        (Movement, "aten.slice-channels"),
        (Contraction, "aten.linear-bias"),
        (Convolution, "aten.conv2d-1_groups_along_1"),
        (Overwrite, "aten.index_copy-fixed_channels"),
    ],
)
def test_a_rule_that_needs_too_little_is_seen(
    kind: type[Rule], name: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(kind, "need", lambda *_: None)
    with pytest.raises(ExtractionError, match="differs from the network"):
        programs_of(BY_NAME[name])
