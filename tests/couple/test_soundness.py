"""No dependency is missed: the analysis against brute force.

The oracle (``oracle.py``) knows nothing of the rules. It scrambles everything that a plan calls
free and demands that kept outputs do not move by a single bit, on one tiny model per hazard and
on random architectures. It is itself tested on plans that were broken on purpose.

``AUTOEIDETIC_EXAMPLES`` sets how many random architectures are tried (300), and
``AUTOEIDETIC_SEED`` which ones (0).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import architectures
import numpy as np
import oracle
import pytest
import torch
from hypothesis import HealthCheck, given, note, seed, settings
from sweeps import every_fourth
from zoo import ZOO

import autoeidetic
from autoeidetic.errors import UnhandledOperatorWarning

EXAMPLES = int(os.environ.get("AUTOEIDETIC_EXAMPLES", "300"))
FIRST_SEED = int(os.environ.get("AUTOEIDETIC_SEED", "0"))
SHARDS = 6

#: Models on which no trial can fail, with the reason.
UNINFORMATIVE = {
    "tied_embedding_output": "every output reads every channel of the embedding through the "
    "embedding's own elements, so it requires all of them",
}

#: Models with an operator that can only be handled by mixing everything it reads.
UNHANDLED = {"orthogonal_weight": "aten.linalg_householder_product"}

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models: threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def account(model: torch.nn.Module, plan: Any) -> None:
    """Every element of every parameter belongs to a class."""
    parameters = dict(model.named_parameters())
    assert set(plan.parameters) == set(parameters)
    for name, parameter in parameters.items():
        owner = plan.parameters[name].units
        assert owner.shape == parameter.shape, name
        assert owner.dtype == torch.int64, name
        assert int(owner.min()) >= 1, name
        assert int(owner.max()) <= plan.units, name
        for read in plan.parameters[name].reads:
            assert int(read.columns.min()) >= 0, name
            assert int(read.columns.max()) <= plan.units, name
    requires = np.asarray(plan.requires)
    assert requires.shape[1:] == (2,)
    if len(requires):
        assert requires.min() >= 0
        assert requires.max() <= plan.units


@pytest.mark.parametrize("name", every_fourth(sorted(ZOO)))
def test_zoo(name: str) -> None:
    model, inputs = ZOO[name]()
    if name in UNHANDLED:
        with pytest.warns(UnhandledOperatorWarning, match=UNHANDLED[name]):
            deps = autoeidetic.analyze(model, inputs)
    else:
        deps = autoeidetic.analyze(model, inputs)
    plan = deps.plan
    account(model, plan)
    assert all(int(c.max()) <= plan.units for c in deps.values.values() if c.numel())
    report = oracle.check(model, inputs, plan, samples=10, seed=0)
    assert not report.missed, str(report)
    if name in UNINFORMATIVE:
        assert not report.informative, f"{name} is no longer uninformative: {report}"
    else:
        assert report.informative, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_architectures(shard: int) -> None:
    informative = 0

    @seed(1000 * FIRST_SEED + shard)
    @settings(
        max_examples=-(-EXAMPLES // SHARDS),
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(architectures.architectures())
    def run(spec: architectures.Spec) -> None:
        nonlocal informative
        model, inputs = architectures.build(spec)
        plan = autoeidetic.analyze(model, inputs).plan
        account(model, plan)
        report = oracle.check(model, inputs, plan, samples=6, seed=spec.seed)
        note(str(report))
        assert not report.missed
        informative += bool(report.informative)

    run()
    assert informative > 0.9 * EXAMPLES / SHARDS


# ---------------------------------------------------------------- the oracle can fail


def plain(plan: Any) -> SimpleNamespace:
    """A copy of a plan's data that can be changed."""
    names = ("units", "requires", "parameters", "buffers", "nested", "outputs")
    return SimpleNamespace(**{name: getattr(plan, name) for name in names})


def broken(name: str, change: Any) -> oracle.Report:
    """The oracle's report on a zoo model with a damaged plan; the intact plan must pass."""
    model, inputs = ZOO[name]()
    plan = plain(autoeidetic.analyze(model, inputs).plan)
    samples = plan.units
    assert not oracle.check(model, inputs, plan, samples=samples, seed=1).missed
    change(plan)
    return oracle.check(model, inputs, plan, samples=samples, seed=1)


@pytest.mark.parametrize("name", ["spatial_gate", "attention_written", "token_mixing"])
def test_dropped_requirements_are_seen(name: str) -> None:
    def drop(plan: SimpleNamespace) -> None:
        assert len(plan.requires)
        plan.requires = plan.requires[:0]

    assert broken(name, drop).missed


def test_one_dropped_requirement_is_seen() -> None:
    """Every single edge onto the gate of a one-channel gate matters."""
    model, inputs = ZOO["spatial_gate"]()
    plan = plain(autoeidetic.analyze(model, inputs).plan)
    gate = int(plan.parameters["gate.weight"].units.flatten()[0])
    edges = np.flatnonzero(plan.requires[:, 1] == gate)
    assert len(edges)
    for edge in edges:
        damaged = plain(plan)
        damaged.requires = np.delete(plan.requires, edge, axis=0)
        kept = oracle.Requirements(damaged).without(gate)
        assert oracle.check_kept(model, inputs, damaged, kept).missed


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("mlp", "2.weight"),
        ("residual", "body.0.weight"),
        ("grouped_conv", "1.weight"),
        ("lstm", "recurrence.weight_hh_l0"),
        ("std_conv", "1.weight"),
        ("tied_transposed", "encoder.weight"),
        ("flatten_head", "2.weight"),
        ("matmul_parameter", "w"),
    ],
)
def test_blank_columns_are_seen(name: str, parameter: str) -> None:
    def blank(plan: SimpleNamespace) -> None:
        entry = plan.parameters[parameter]
        assert entry.reads
        reads = tuple(
            dataclasses.replace(read, columns=torch.zeros_like(read.columns))
            for read in entry.reads
        )
        changed = dataclasses.replace(entry, reads=reads)
        plan.parameters = {**plan.parameters, parameter: changed}

    assert broken(name, blank).missed


@pytest.mark.parametrize(
    "name", ["layer_norm", "group_norm", "functional_layer_norm", "class_token"]
)
def test_removed_nested_modules_are_seen(name: str) -> None:
    def remove(plan: SimpleNamespace) -> None:
        assert plan.nested
        plan.nested = ()

    assert broken(name, remove).missed


def test_wrong_statistics_are_seen() -> None:
    """A running statistic of a free channel that is called kept."""

    def shift(plan: SimpleNamespace) -> None:
        plan.buffers = {name: classes.roll(1) for name, classes in plan.buffers.items()}

    assert broken("conv_bn_relu", shift).missed


def test_zero_inputs_are_refused() -> None:
    model, inputs = ZOO["mlp"]()
    plan = autoeidetic.analyze(model, inputs).plan
    with pytest.raises(ValueError, match="zeros"):
        oracle.check(model, torch.zeros_like(inputs), plan)


def test_open_sets_are_refused() -> None:
    model, inputs = ZOO["spatial_gate"]()
    plan = autoeidetic.analyze(model, inputs).plan
    with pytest.raises(ValueError, match="closed"):
        oracle.check_kept(model, inputs, plan, [int(np.asarray(plan.requires)[0, 0])])
