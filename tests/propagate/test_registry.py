"""The registry: rule files are found, duplicates raise, users' operators are handled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic.errors import RuleError, UnhandledOperatorError, UnhandledOperatorWarning
from autoeidetic.propagate import rules
from autoeidetic.propagate.rules import registry

COUNT = """
import json, autoeidetic.propagate.rules as rules
modules = [rule.__module__.rpartition(".")[2] for _, rule in rules.registered()]
print(json.dumps({name: modules.count(name) for name in rules.MODULES}))
"""


@pytest.mark.slow
def test_every_rule_file_registers_something() -> None:
    """In a process of its own, so that no other test has imported them."""
    result = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True
    )
    counts = json.loads(result.stdout)
    files = {p.stem for p in Path(rules.__file__).parent.glob("*.py")} - {"__init__", "registry"}
    assert set(counts) == files
    assert min(counts.values()) > 0, counts
    assert sum(counts.values()) > 250


def test_registered_is_sorted_and_unique() -> None:
    names = [name for name, _ in rules.registered()]
    assert names == sorted(names)
    assert len(names) == len(set(names))


def test_second_registration_raises() -> None:
    with pytest.raises(RuleError, match=r"aten\.add already has a rule") as caught:
        autoeidetic.rule(torch.ops.aten.add)(lambda algebra, *args: args[0])
    assert "pointwise" in str(caught.value)
    assert "name an overload to be more specific" in caught.value.remedy


def test_what_is_no_operator_raises() -> None:
    with pytest.raises(RuleError, match="'add' is not an operator"):
        autoeidetic.rule("add")
    with pytest.raises(RuleError, match="at least one operator"):
        autoeidetic.rule()


def test_an_overload_comes_before_its_operator(forget: None) -> None:
    found = registry.find_rule(torch.ops.aten.add.Tensor)
    assert found is registry.find_rule(torch.ops.aten.add)

    @autoeidetic.rule(torch.ops.aten.add.Tensor)
    def mine(algebra: Any, *args: Any, **kwargs: Any) -> Any:
        return algebra.pointwise(*args)

    assert registry.find_rule(torch.ops.aten.add.Tensor) is mine
    assert registry.find_rule(torch.ops.aten.add.Scalar) is found


# -- a user's own operators ---------------------------------------------------------------------


@torch.library.custom_op("autoeidetic_test::swap_halves", mutates_args=())
def swap_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([second * 2, first * 3], -1)


@swap_halves.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("autoeidetic_test::twins", mutates_args=())
def twins(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, (x + y).sum(-1)


@twins.register_fake
def _(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1])


class Swaps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(swap_halves(self.first(x).relu()))


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(4, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        product, total = twins(self.first(x), self.second(x))
        return self.last(product) + total[:, None]


def owners(deps: Any, name: str) -> np.ndarray:
    return deps.plan.parameters[name].units[:, 0].numpy()


@pytest.mark.parametrize("model", [Swaps(), Twins()], ids=["one result", "two results"])
def test_without_a_rule_everything_is_mixed_and_said(model: nn.Module) -> None:
    x = torch.rand(5, 4)
    with pytest.warns(UnhandledOperatorWarning) as caught:
        deps = autoeidetic.analyze(model, x)
    (warning,) = caught
    text = str(warning.message)
    operator = "swap_halves" if isinstance(model, Swaps) else "twins"
    assert f"autoeidetic_test.{operator}" in text
    assert f"{__file__}:" in text
    assert f"@autoeidetic.rule(torch.ops.autoeidetic_test.{operator})" in text
    assert warning.filename == __file__
    assert [found.place.operator for found in deps.unhandled] == [f"autoeidetic_test.{operator}"]
    report = oracle.check(model.eval(), x, deps.plan, samples=8, seed=0)
    assert not report.missed, str(report)
    assert len(set(owners(deps, "first.weight"))) == 1
    assert deps.locked.share > 0


def test_on_unhandled_raise() -> None:
    with pytest.raises(UnhandledOperatorError) as caught:
        autoeidetic.analyze(Swaps(), torch.rand(5, 4), on_unhandled="raise")
    error = caught.value
    assert error.operator == "autoeidetic_test.swap_halves"
    assert error.line.startswith(f"{__file__}:")
    assert "@autoeidetic.rule(torch.ops.autoeidetic_test.swap_halves)" in error.remedy


def test_with_a_rule(forget: None) -> None:
    @autoeidetic.rule(torch.ops.autoeidetic_test.swap_halves)
    def swap(algebra: Any, x: Any) -> Any:
        return algebra.move(x, lambda t: t.roll(t.shape[-1] // 2, -1))

    model, x = Swaps().eval(), torch.rand(5, 4)
    deps = autoeidetic.analyze(model, x, on_unhandled="raise")
    assert not deps.unhandled
    units = owners(deps, "first.weight")
    assert len(set(units)) == 6
    (read,) = deps.plan.parameters["last.weight"].reads
    assert read.columns[0].tolist() == np.roll(units, 3).tolist()
    report = oracle.check(model, x, deps.plan, samples=8, seed=0)
    assert not report.missed, str(report)
    assert report.informative


def test_a_wrong_rule_is_caught_by_the_oracle(forget: None) -> None:
    """The check above can fail."""

    @autoeidetic.rule(torch.ops.autoeidetic_test.swap_halves)
    def forgetful(algebra: Any, x: Any) -> Any:
        return algebra.pointwise(x)

    model, x = Swaps().eval(), torch.rand(5, 4)
    deps = autoeidetic.analyze(model, x)
    assert oracle.check(model, x, deps.plan, samples=8, seed=0).missed


def test_a_rule_with_the_wrong_shape(forget: None) -> None:
    @autoeidetic.rule(torch.ops.autoeidetic_test.swap_halves)
    def shrink(algebra: Any, x: Any) -> Any:
        return algebra.reduce(x, [-1])

    with pytest.raises(RuleError, match="gave shape") as caught:
        autoeidetic.analyze(Swaps(), torch.rand(5, 4))
    assert caught.value.operator == "autoeidetic_test.swap_halves"
    assert "correct the rule" in caught.value.remedy


def test_a_rule_that_fails(forget: None) -> None:
    @autoeidetic.rule(torch.ops.autoeidetic_test.swap_halves)
    def broken(algebra: Any, x: Any) -> Any:
        raise KeyError("oops")

    with pytest.raises(RuleError, match="KeyError: 'oops'") as caught:
        autoeidetic.analyze(Swaps(), torch.rand(5, 4))
    assert "broken" in caught.value.fact
    assert caught.value.line.startswith(f"{__file__}:")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_rule_that_returns_nothing(forget: None) -> None:
    """It must not count as "no rule": that would pass in silence."""

    @autoeidetic.rule(torch.ops.autoeidetic_test.swap_halves)
    def silent(algebra: Any, x: Any) -> Any:
        return None

    with pytest.raises(RuleError):
        autoeidetic.analyze(Swaps(), torch.rand(5, 4))


def test_a_conversion_warns_at_the_callers_line() -> None:
    with pytest.warns(UnhandledOperatorWarning) as caught:
        autoeidetic.convert(Swaps(), torch.rand(5, 4))
    assert {warning.filename for warning in caught} == {__file__}
