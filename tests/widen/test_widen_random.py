"""Columns beside random architectures: no bit of a finished task moves.

``AUTOEIDETIC_EXAMPLES`` sets how many are tried (200), and ``AUTOEIDETIC_SEED`` which ones (0):

    AUTOEIDETIC_EXAMPLES=1000 AUTOEIDETIC_SEED=1 pytest tests/widen/test_widen_random.py
"""

from __future__ import annotations

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
from torch import Tensor

import autoeidetic
from autoeidetic.errors import HeadError

EXAMPLES = int(os.environ.get("AUTOEIDETIC_EXAMPLES", "200"))
FIRST_SEED = int(os.environ.get("AUTOEIDETIC_SEED", "0"))
SHARDS = 4


@dataclass(frozen=True)
class Plan:
    """A life: the width before each task (None: it is not widened), and the part it gives up."""

    tasks: tuple[tuple[float | None, float], ...]
    transfer: bool


_TASK = st.tuples(st.sampled_from([None, 0.25, 0.5, 1.0]), st.sampled_from([0.5, 0.3, 0.7, 0.0]))


@st.composite
def plans(draw: Any) -> Plan:
    first = (None, draw(st.sampled_from([0.5, 0.3, 0.0])))
    second = (draw(st.sampled_from([0.25, 0.5])), draw(st.sampled_from([0.5, 0.3])))
    rest = draw(st.lists(_TASK, min_size=1, max_size=2))
    return Plan((first, second, *rest), draw(st.sampled_from([True, True, False])))


def answers(net: Any, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [net(x, task=task.index).clone() for task in net.tasks]


def check(spec: Spec, plan: Plan) -> int:
    """Live through a plan; how many columns are narrow."""
    torch.manual_seed(spec.seed)
    model, x = architectures.build(spec)
    net: Any = autoeidetic.convert(
        lives.randomise(model), x, forward_transfer=plan.transfer, rehearse=False
    )
    said: list[Tensor] = []
    narrow = 0
    for task, (width, fraction) in enumerate(plan.tasks):
        if width is not None:
            about = net.widen(width)
            note(str(about))
            narrow += not about.reason
        net.prepare_for_task(task, num_classes=3, on_full="reuse")
        with torch.no_grad():
            net.train()(x)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.5)
        for parameter in net.parameters():  # some of these networks cannot be trained
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        net.prune(fraction)
        net.finish_task()
        net.eval()
        found = answers(net, x)
        assert lives.same(found[:-1], said), "a finished task has moved"
        said = found
    assert net.verify(x, rounds=1).ok
    return narrow


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random(shard: int) -> None:
    narrow = 0

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
        nonlocal narrow
        try:
            narrow += check(spec, plan)
        except HeadError:  # a head whose weight serves all channels alike cannot be resized
            return

    run()
    assert narrow > 0.5 * EXAMPLES / SHARDS
