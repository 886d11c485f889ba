"""Every rule against brute force, and brute force against broken rules.

Each operator that has a rule is run between layers (``cases.py``) and checked by the oracle,
which knows nothing of rules. Then the package is broken on purpose, one piece at a time, and
the oracle must notice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import oracle
import pytest
import torch
from cases import CASES, Case
from sweeps import every_fourth
from torch import Tensor, nn
from zoo import ZOO

import autoeidetic
from autoeidetic.capture.aliases import Aliases
from autoeidetic.couple import nesting, units
from autoeidetic.errors import AutoeideticError, UnhandledOperatorWarning
from autoeidetic.propagate.algebra import Algebra
from autoeidetic.propagate.channels import Channels
from autoeidetic.propagate.parameter_channels import ParameterChannels
from autoeidetic.propagate.propagate import _Interpreter
from autoeidetic.propagate.rules import attention, index, linear, movement, registered
from autoeidetic.propagate.tags import Tags, narrow
from autoeidetic.propagate.values import Value

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")

#: Operators with a rule that no case can run, with the reason.
UNREACHABLE = {
    "aten._scaled_dot_product_flash_attention": "CUDA only; see test_cuda_attention",
    "aten._scaled_dot_product_efficient_attention": "CUDA only; see test_cuda_attention",
}

CUDA_ATTENTION = [name.removeprefix("aten.") for name in UNREACHABLE if "attention" in name]

#: Operators through which Python code looks at values: all of these are locked, with a warning.
LOOKING = {"aten._local_scalar_dense", "aten.equal", "aten.masked_select", "aten.nonzero"}

#: Operators on which no trial can fail, with the reason.
UNINFORMATIVE = {
    "aten.masked_select": "Python learns a shape from every unit, so every output requires all",
    "aten.nonzero": "Python learns a shape from every unit, so every output requires all",
}


def seen(deps: Any) -> set[str]:
    """Operators of the graph, with and without the name of their overload."""
    return {str(node.target) for node in deps.capture.graph.nodes} | set(deps.operators)


@pytest.mark.parametrize(
    "case", every_fourth(case for listed in CASES.values() for case in listed), ids=str
)
def test_case(case: Case) -> None:
    model, inputs = cases.build(case)
    if case.operator in LOOKING:
        with pytest.warns(UnhandledOperatorWarning, match="Python code looks at a value"):
            deps = autoeidetic.analyze(model, inputs)
    else:
        deps = autoeidetic.analyze(model, inputs, on_unhandled="raise")
    assert case.operator in seen(deps)
    assert deps.capture.way == ("real" if case.real else "meta")
    report = oracle.check(model, inputs, deps.plan, samples=6, seed=0)
    assert not report.missed, str(report)
    assert bool(report.informative) != (case.operator in UNINFORMATIVE), str(report)


LOOKS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.item(),
    "float": float,
    "bool": lambda x: bool(x > 0),
    "format": lambda x: float(f"{x:.3f}"),
    "tolist": lambda x: x.reshape(1).tolist()[0],
    "numpy": lambda x: float(x.detach().numpy()),
    "array": lambda x: float(np.asarray(x.detach())),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_python_looks_at_is_locked(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x * LOOKS[name](x[0, 1, 1, 1])

    case = Case("", name, function, (cases.Made(cases.IMAGE),), real=True)
    model, inputs = cases.build(case)
    with pytest.warns(UnhandledOperatorWarning, match="Python code looks at a value"):
        deps = autoeidetic.analyze(model, inputs)
    report = oracle.check(model, inputs, deps.plan, samples=8, seed=0)
    assert report.informative
    assert not report.missed, str(report)


def test_every_rule_has_a_case() -> None:
    names = {name for name, _ in registered() if name.startswith(("aten.", "storage_write"))}
    assert names - set(CASES) == set(UNREACHABLE)
    assert not set(CASES) - names


@pytest.mark.parametrize("operator", CUDA_ATTENTION)
@pytest.mark.parametrize("masked", [False, True])
def test_cuda_attention(operator: str, masked: bool) -> None:
    """Kernels without a CPU version give the plan of the operator that stands for them all."""
    if masked and operator.endswith("flash_attention"):
        pytest.skip("this kernel takes no mask")

    class Attention(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name
            self.qkv = nn.Linear(6, 24)
            self.mask = nn.Parameter(torch.randn(1, 2, 5, 5))
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            mask = self.mask.expand(2, -1, -1, -1) if masked else None
            if self.name == "scaled_dot_product_attention":
                out = nn.functional.scaled_dot_product_attention(q, k, v, mask)
            elif self.name.endswith("efficient_attention"):
                out = getattr(cases.aten, self.name)(q, k, v, mask, False)[0]
            else:
                out = getattr(cases.aten, self.name)(q, k, v)[0]
            return self.head(out.transpose(1, 2).reshape(2, 5, 8).mean(1))

    plans = [
        autoeidetic.analyze(Attention(name), torch.randn(2, 5, 6), on_unhandled="raise").plan
        for name in ("scaled_dot_product_attention", operator)
    ]
    channels = plans[0].parameters["head.weight"].reads[0].columns[0]
    for channel in range(len(channels)):
        needed = []
        for plan in plans:
            column = int(plan.parameters["head.weight"].reads[0].columns[0, channel])
            kept = torch.zeros(plan.units + 1, dtype=torch.bool)
            kept[sorted(oracle.Requirements(plan).needs([column]))] = True
            needed.append({name: kept[entry.units] for name, entry in plan.parameters.items()})
        for name, elements in needed[0].items():
            assert torch.equal(elements, needed[1][name]), name


# ---------------------------------------------------------------- broken on purpose

Patch = pytest.MonkeyPatch
MUTATIONS: dict[str, tuple[Callable[[Patch], None], tuple[str, ...]]] = {}


def mutation(*models: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a way to break the package and the models on which that must show."""

    def add(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTATIONS[function.__name__] = (function, models)
        return function

    return add


def nothing(*_: Any, **__: Any) -> None:
    return None


def replaced(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function; the new one gets the old one as its first argument."""
    old = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: change(old, *args, **kwargs))


@mutation("spatial_gate", "attention_written", "aten.mul-gated")
def no_requirements(patch: Patch) -> None:
    patch.setattr(Channels, "require", nothing)


@mutation("residual", "aten.add-pair")
def no_joins(patch: Patch) -> None:
    patch.setattr(Channels, "join", nothing)


@mutation("outer_product", "aten.mul-crossed")
def pairs_require_one_side(patch: Patch) -> None:
    def pair(self: Tags, left: Any, right: Any) -> Any:
        derived = self.channels.new(len(left))
        self.channels.require(derived, left, self.index)
        return derived

    patch.setattr(Tags, "_pair_channels", pair)


@mutation("residual", "aten.where-three_elements")
def second_operand_forgotten(patch: Patch) -> None:
    patch.setattr(Tags, "combine", lambda self, a, b, shape=None: a.expand(shape or self.shape))


@mutation("mlp", "conv_bn_relu", "aten.linear-bias")
def weights_read_nothing(patch: Patch) -> None:
    replaced(patch, ParameterChannels, "read", lambda old, s, w, columns: old(s, w, columns * 0))


@mutation("called_on_two_streams", "called_twice", "tied_linear")
def second_use_forgotten(patch: Patch) -> None:
    def read(old: Any, self: ParameterChannels, weight: Value, columns: Tensor) -> bool:
        known = {use.parameter for use in self.reads}
        if weight.parameter is not None and weight.parameter.name in known:
            return True
        return old(self, weight, columns)

    replaced(patch, ParameterChannels, "read", read)


@mutation("lstm", "gru", "rnn")
def hidden_columns_forgotten(patch: Patch) -> None:
    def read(old: Any, self: ParameterChannels, weight: Value, columns: Tensor) -> bool:
        hidden = weight.parameter is not None and "weight_hh" in weight.parameter.name
        return old(self, weight, columns * 0 if hidden else columns)

    replaced(patch, ParameterChannels, "read", read)


@mutation("mean_channels_linear", "aten.cumsum-channels", "aten.amax-elements")
def first_unit_along_a_dimension(patch: Patch) -> None:
    patch.setattr(Tags, "reduce_tags", lambda self, tags, dims, how: narrow(tags, list(dims)))


@mutation("channels_in_batch", "unfold", "aten.linear-parameter_along_None")
def columns_of_the_first_position(patch: Patch) -> None:
    def columns(self: Tags, tags: Tensor, keep: Any) -> Tensor:
        return narrow(tags, [d for d in range(tags.dim()) if d not in keep])

    patch.setattr(Tags, "columns", columns)


@mutation("softmax_channels", "layer_norm", "aten._softmax-channels")
def mixing_forgotten(patch: Patch) -> None:
    patch.setattr(Algebra, "mix", lambda self, value, dims, how="auto": value)


@mutation("aten.avg_pool2d-elements", "aten.upsample_bicubic2d-elements")
def neighbours_forgotten(patch: Patch) -> None:
    def resample(self: Algebra, value: Value, space: int, shape: Any = None) -> Value:
        rank = len(value.shape)
        first = narrow(self.tags(value), range(rank - space, rank))
        return self.result(first, shape)

    patch.setattr(Algebra, "resample", resample)


@mutation("flip_channels", "roll_channels", "aten.flip-channels")
def movement_forgotten(patch: Patch) -> None:
    def move(old: Any, self: Algebra, value: Value, function: Any) -> Value:
        moved = old(self, value, function)
        return value if moved.shape == value.shape else moved

    replaced(patch, Algebra, "move", move)


@mutation("aten.cat-two_channels", "aten.cat-two_space_channels")
def concatenated_backwards(patch: Patch) -> None:
    replaced(
        patch, movement, "_side_by_side", lambda old, a, values, dim: old(a, values[::-1], dim)
    )


@mutation("layer_scale", "class_token", "aten.mul-parameter")
def free_parameters_stay_apart(patch: Patch) -> None:
    def pointwise(old: Any, self: Algebra, *values: Any, shape: Any = None) -> Value:
        operands = [v for v in values if isinstance(v, Value)]
        fresh = [v for v in operands if v.tags is None and v.parameter.name not in self.owners]
        if len(fresh) < len(operands):
            for value in fresh:
                self._assign_default(value.parameter)
            operands = [v for v in operands if not any(v is f for f in fresh)]
        return old(self, *operands, shape=shape)

    replaced(patch, Algebra, "pointwise", pointwise)


@mutation("token_mixing", "aten.linear-parameter_along_1")
def shared_weights_not_required(patch: Patch) -> None:
    def shared(algebra: Algebra, tags: Tensor, contracted: list[int], weight: Value) -> Value:
        mixed = algebra.reduce_tags(tags, contracted, "auto")
        algebra.own_whole(weight)
        return algebra.result(mixed.expand(algebra.shape))

    patch.setattr(linear, "shared", shared)


@mutation("conv_bn_relu")
def statistics_of_the_neighbour(patch: Patch) -> None:
    replaced(
        patch,
        ParameterChannels,
        "follow",
        lambda old, s, buffer, units: old(s, buffer, units.roll(1)),
    )


@mutation("attention_kernel", "aten.scaled_dot_product_attention-no_mask_along_1")
def attention_without_a_pattern(patch: Patch) -> None:
    def attend(a: Algebra, query: Value, key: Value, value: Value, bias: Any, shape: Any) -> Value:
        mixed = a.reduce(value, [-2], keepdim=True)
        a.tags(query), a.tags(key)
        return a.result(a.tags(mixed), shape)

    patch.setattr(attention, "attend", attend)


@mutation("indexed_table", "aten.index-computed", "aten.embedding-made")
def computed_indices_forgotten(patch: Patch) -> None:
    patch.setattr(index, "_unknown_channels", nothing)


@mutation("norm_changes_input", "norm_result_dropped", "side_entrance")
def every_module_is_closed(patch: Patch) -> None:
    patch.setattr(nesting, "_is_closed", lambda *_: True)


@mutation("functional_layer_norm_root")
def soft_edges_always_dropped(patch: Patch) -> None:
    sites = set(range(1000))
    replaced(patch, units, "_raw_edges", lambda old, propagation, nested: old(propagation, sites))


@mutation("mutated_view", "set_slice", "storage_write-two_channels")
def writes_through_views_forgotten(patch: Patch) -> None:
    patch.setattr(Aliases, "_after_write", lambda self, before, value, target: before)


@mutation("filled_tensor", "partial_conv")
def views_stay_as_they_were(patch: Patch) -> None:
    def node(old: Any, self: Aliases, tensor: Tensor) -> Any:
        return self.node_of.get(id(tensor)) or old(self, tensor)

    replaced(patch, Aliases, "node", node)


@mutation("std_conv", "scaled_weight")
def computed_weights_read_nothing(patch: Patch) -> None:
    def read(old: Any, self: ParameterChannels, weight: Value, columns: Tensor) -> bool:
        computed = weight.parameter is not None and weight.parameter.transformed
        return computed or old(self, weight, columns)

    replaced(patch, ParameterChannels, "read", read)


@mutation("aten._local_scalar_dense-channels")
def python_may_look(patch: Patch) -> None:
    patch.setattr(_Interpreter, "_lock_what_python_read", nothing)


class SideEntrance(nn.Module):
    """A norm that gets half of what it reads past its arguments."""

    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.layer_norm(x + self.left_here.pop(), (8,))

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(6, 8), nn.Linear(6, 8), self.Norm()
        self.norm.left_here = []
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.left_here += [self.second(x)] * 2
        out = self.head(self.norm(self.first(x)))
        self.norm.left_here.clear()
        return out


def side_entrance() -> tuple[nn.Module, Tensor]:
    return SideEntrance().eval(), torch.randn(2, 6)


def test_side_entrance() -> None:
    model, inputs = side_entrance()
    plan = autoeidetic.analyze(model, inputs).plan
    assert not plan.nested
    assert not oracle.check(model, inputs, plan, samples=10, seed=0).missed


def noticed(name: str) -> bool:
    """Does the oracle, or a check of the package itself, see that something is wrong?"""
    by_name = {str(case): case for listed in CASES.values() for case in listed}
    if name in by_name:
        model, inputs = cases.build(by_name[name])
    else:
        model, inputs = {**ZOO, "side_entrance": side_entrance}[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plan = autoeidetic.analyze(model, inputs).plan
            return bool(oracle.check(model, inputs, plan, samples=10, seed=0).missed)
        except (AutoeideticError, ValueError):
            return True


@pytest.mark.parametrize(
    ("name", "model"),
    [(name, model) for name, (_, models) in MUTATIONS.items() for model in models],
)
def test_broken_rules_are_seen(name: str, model: str, monkeypatch: Patch) -> None:
    MUTATIONS[name][0](monkeypatch)
    assert noticed(model)
