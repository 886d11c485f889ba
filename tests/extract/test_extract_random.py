"""Extraction of random lives on random architectures: the program is the network.

``AUTOEIDETIC_EXAMPLES`` sets how many are tried (300), and ``AUTOEIDETIC_SEED`` which ones (0):

    AUTOEIDETIC_EXAMPLES=2000 AUTOEIDETIC_SEED=1 pytest tests/extract/test_extract_random.py -k 0
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any

import architectures
import lives
import pytest
import torch
from architectures import Spec
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autoeidetic
from autoeidetic import EideticNet
from autoeidetic.errors import HeadError
from extract.untouched import untouched

EXAMPLES = int(os.environ.get("AUTOEIDETIC_EXAMPLES", "300"))
FIRST_SEED = int(os.environ.get("AUTOEIDETIC_SEED", "0"))
SHARDS = 6
#: Largest differences, relative to the largest value. In single precision what is folded is
#: rounded, and random networks divide by small numbers.
CLOSE = {torch.float64: 1e-8, torch.float32: 1e-3}


@dataclass(frozen=True)
class Plan:
    """A life: for each task the part that is pruned and the size of the head; what is extracted."""

    tasks: tuple[tuple[float, int], ...]
    transfer: bool
    asked: Any
    double: bool


_TASK = st.tuples(st.sampled_from([0.5, 0.3, 0.7, 0.9, 0.0, 1.0]), st.integers(1, 5))


@st.composite
def plans(draw: Any) -> Plan:
    tasks = tuple(draw(st.lists(_TASK, min_size=2, max_size=3)))
    number = st.integers(0, len(tasks) - 1)
    asked = draw(st.one_of(number, st.lists(number, min_size=1, max_size=3), st.just("all")))
    return Plan(tasks, draw(st.booleans()), asked, draw(st.sampled_from([True, True, False])))


def grown(model: nn.Module, x: Tensor, plan: Plan) -> EideticNet:
    """A network that has finished the tasks of a plan, with other numbers everywhere."""
    net: EideticNet = autoeidetic.convert(model, x, forward_transfer=plan.transfer)
    for task, (fraction, classes) in enumerate(plan.tasks):
        net.prepare_for_task(task, num_classes=classes, on_full="reuse")
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
        net.pins.impose()
        net.prune(fraction)
        net.finish_task()
    return net.eval()


def doubled(program: nn.Module) -> nn.Module:
    """The same program in double precision."""
    other: Any = copy.deepcopy(program).double()
    wide = lambda kind: torch.float64 if kind is torch.float32 else kind  # noqa: E731
    for node in other.graph.nodes:
        node.args, node.kwargs = (
            pytree.tree_map_only(torch.dtype, wide, each) for each in (node.args, node.kwargs)
        )
    other.recompile()
    return other


def difference(expected: Tensor, found: Tensor) -> float:
    assert expected.shape == found.shape
    gap = float((expected - found).abs().max())
    return gap / max(float(expected.abs().max()), 1e-12)


def check(spec: Spec, plan: Plan) -> float:
    """Extract what the plan asks for; the part of the network's parameters that is left."""
    torch.manual_seed(spec.seed)
    kind = torch.float64 if plan.double else torch.float32
    model, x = architectures.build(spec)
    net = grown(lives.randomise(model).to(kind), x.to(kind), plan)
    with untouched(net):
        program = net.extract(plan.asked)
    note(str(program.report))
    asked = range(len(plan.tasks)) if plan.asked == "all" else plan.asked
    numbers = [asked] if isinstance(asked, int) else list(asked)
    wide, narrow = copy.deepcopy(net).double(), doubled(program)
    assert "x: dimension 0" in program.report.dynamic
    assert "autoeidetic" not in program.code
    other = torch.randn(7, *x.shape[1:], dtype=torch.float64)
    with torch.no_grad():
        found = narrow(other)
        found = [found] if isinstance(asked, int) else found
        for number, each in zip(numbers, found, strict=True):
            assert difference(wide(other, task=number), each) < CLOSE[kind]
    assert program(other.to(kind)) is not None
    return float(program.report.parameters_after / program.report.parameters_before)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random(shard: int) -> None:
    smaller = 0

    @seed(1000 * FIRST_SEED + shard)
    @settings(
        max_examples=-(-EXAMPLES // SHARDS),
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(architectures.architectures(3), plans())
    def run(spec: Spec, plan: Plan) -> None:
        nonlocal smaller
        try:
            smaller += check(spec, plan) < 0.95
        except HeadError:  # a head whose weight serves all channels alike cannot be resized
            return

    run()
    assert smaller > 0.5 * EXAMPLES / SHARDS
