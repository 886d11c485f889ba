"""Models with habits that once led the analysis or the guards astray, one test for each."""

from __future__ import annotations

import copy
import functools
import pickle
import types
from collections.abc import Callable
from typing import Any

import lives
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoeidetic
from autoeidetic.enforce.nested import Level, _restricted
from autoeidetic.errors import CaptureError, EnforcementError


class Body(nn.Module):
    """Two layers and a head; what happens between them is given."""

    def __init__(self, between: Callable[[Body, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x).relu()
        return self.head(self.second(a) if self.between is None else self.between(self, a))


def inputs(batch: int = 4) -> Tensor:
    return torch.randn(batch, 6, generator=torch.Generator().manual_seed(3))


def in_second_task(model: nn.Module, x: Any, **options: Any) -> autoeidetic.EideticNet:
    """A network with half its units frozen and the other half free."""
    net = autoeidetic.convert(lives.randomise(model), x, **options)
    net.prepare_for_task(0, num_classes=4)
    net.prune(0.5)
    net.finish_task()
    net.prepare_for_task(1, num_classes=3)
    return net


def remembers(model: nn.Module, x: Any, **options: Any) -> None:
    """Nothing that is learned later moves a bit of a finished task."""
    net = in_second_task(model, x, **options)
    before = lives.answers(net, x, 0)
    lives.train(net, x, [lives.adamw(net)])
    assert lives.same(lives.answers(net, x, 0), before)
    assert net.verify(x).ok


# -- values without elements ----------------------------------------------------------------------


class Experts(nn.Module):
    """Each row goes to the expert that its gate chooses; ``chosen`` forces the gate."""

    def __init__(self, gather: bool, chosen: int | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Unflatten(1, (2, 4)), nn.Flatten()) for _ in range(3)
        )
        self.head = nn.Linear(8, 3)
        self.gather = gather
        self.chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        weight, best = self.gate(x).softmax(-1).max(-1)
        if self.chosen is not None:
            best = torch.where(weight > -1, self.chosen, best)
        rows = [torch.where(best == n)[0] for n in range(len(self.experts))]
        outs = [
            expert(a[r]) * weight[r, None] for expert, r in zip(self.experts, rows, strict=True)
        ]
        if self.gather:
            return self.head(a + torch.cat(outs)[torch.cat(rows).argsort()])
        for r, out in zip(rows, outs, strict=True):
            a = a.index_add(0, r, out)
        return self.head(a)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gather", [False, True])
def test_expert_without_tokens(gather: bool) -> None:
    """It is analysed like the others, for with other inputs it gets some."""
    net = in_second_task(Experts(gather, chosen=0), inputs())
    before = lives.state(net)
    net.backbone.chosen = 2
    said = lives.answers(net, inputs(), 0)
    lives.train(net, inputs(), [lives.adamw(net)])
    assert lives.same(lives.answers(net, inputs(), 0), said)
    assert net.verify(inputs()).tasks[0].changed == 0  # another function than was sealed
    learned = "backbone.experts.2.0.weight" in lives.changed(net, before)
    assert learned == gather  # a write to computed places ties all that is written together


def test_cat_of_nothing() -> None:
    remembers(Body(lambda s, a: torch.cat([a[:0], s.second(a), a[:0]])), inputs())
    remembers(Body(lambda s, a: s.second(a) + torch.cat([a[:0], a[4:]]).sum()), inputs())
    remembers(Body(lambda s, a: s.second(a) + torch.cat([a[:0], a[:0]], 1).sum()), inputs())


# -- computed weights -----------------------------------------------------------------------------


class Centred(nn.Linear):
    """A weight that is computed, in a function that has a place for it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)


def test_input_of_the_weights_shape() -> None:
    net = in_second_task(nn.Sequential(nn.Linear(6, 8), Centred(8, 8), nn.Linear(8, 3)), inputs())
    (whole,) = lives.answers(net, inputs(8), 0)  # as many samples as channels
    (part,) = lives.answers(net, inputs(8)[:4], 0)
    torch.testing.assert_close(whole[:4], part)


class ProductBeside(nn.Module):
    """A product of activations that have the shape of a computed weight in some batches."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 6))
        self.v = nn.Parameter(torch.randn(6, 6))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        beside = torch.matmul(x * 2, self.v)
        w = self.w - self.w.mean(1, keepdim=True)
        return torch.cat([self.function(x.repeat(1, 1, 1), w).sum(0), beside], 1)


def beside(function: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), ProductBeside(function), nn.Linear(14, 3))


def test_product_beside_a_computed_weight() -> None:
    net = in_second_task(beside(F.linear), inputs())
    (whole,) = lives.answers(net, inputs(8), 1)
    (part,) = lives.answers(net, inputs(8)[:4], 1)
    torch.testing.assert_close(whole[:4], part)


def test_products_that_cannot_be_told_apart() -> None:
    net = in_second_task(beside(lambda x, w: x @ w.t()), inputs())
    lives.answers(net, inputs(), 1)
    with pytest.raises(EnforcementError, match=r"by chance(.|\n)*F.linear"):
        lives.answers(net, inputs(8), 1)
    lives.answers(net, inputs(), 1)  # what was counted before the error is forgotten


# -- hooks and other ways around the class's forward -----------------------------------------------


def hooked(after: bool) -> nn.Module:
    model = Body()
    if after:
        model.second.register_forward_hook(lambda m, args, out: F.normalize(out, dim=1))
    else:
        model.second.register_forward_pre_hook(lambda m, args: (args[0].softmax(1),))
    return model


@pytest.mark.parametrize("after", [False, True])
def test_hooks_that_mix(after: bool) -> None:
    model = hooked(after)
    deps = autoeidetic.analyze(model, inputs())
    assert "second" not in {nested.module for nested in deps.plan.nested}
    assert "forward" not in model.second.__dict__
    remembers(model, inputs())


def test_hook_for_all_modules() -> None:
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, args, out: out.softmax(1) if isinstance(m, nn.ReLU) else None
    )
    try:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
        remembers(model, inputs())
    finally:
        handle.remove()


class TwoMixtures(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a.softmax(1), b.softmax(1)], 1)


class SwappingHook(Body):
    """A hook that computes nothing, but hands its values on in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.mix = TwoMixtures()
        self.mix.register_forward_pre_hook(lambda m, args: args[::-1])

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        return self.head(self.mix(a, self.second(a.relu())))


def test_hook_that_swaps() -> None:
    remembers(SwappingHook(), inputs())


def test_hooks_that_only_look() -> None:
    """A module stays one that is evaluated level by level, also with a forward of its own."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Softmax(1), nn.Linear(8, 3))
    own = model[1].forward = types.MethodType(nn.Softmax.forward, model[1])
    model[1].register_forward_hook(lambda m, args, out: None)
    model[1].register_forward_pre_hook(lambda m, args: args)
    deps = autoeidetic.analyze(model, inputs())
    assert [nested.module for nested in deps.plan.nested] == ["1"]
    assert model[1].__dict__["forward"] is own


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("wrap", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_from_hooks(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """The old forms of weight and spectral norm compute the weight in a hook.

    That of weight norm cannot be copied, so it cannot be rehearsed.
    """
    model = nn.Sequential(nn.Linear(6, 8), wrap(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3))
    remembers(model, inputs(), inplace=True, rehearse=False)


def centred(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight - layer.weight.mean(1, keepdim=True), layer.bias)


def test_forward_of_one_module() -> None:
    model = Body()
    model.second.forward = types.MethodType(centred, model.second)
    remembers(model, inputs())


def test_forward_of_one_module_is_kept() -> None:
    """Through copies, pickles and until the guard is taken away."""
    model = Body()
    model.second.forward = functools.partial(centred, model.second)  # type: ignore[method-assign]
    net = in_second_task(model, inputs())
    before = lives.answers(net, inputs(), 0)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        second = twin.backbone.second
        assert second._forward_aside.args[0] is second
        assert lives.same(lives.answers(twin, inputs(), 0), before)
    second = net.backbone.second
    aside = second._forward_aside
    autoeidetic.enforce.guard.guard(second, None)
    assert second.__dict__["forward"] is aside
    assert not hasattr(second, "_forward_aside")


# -- values on unseen ways -------------------------------------------------------------------------


@torch.library.custom_op("hard_models::scale", mutates_args=("x",))
def scale(x: Tensor, y: Tensor) -> None:
    x.mul_(y.flip(1))


@torch.library.custom_op("hard_models::scale_", mutates_args=("y",))
def scale_second_(x: Tensor, y: Tensor) -> None:
    y.mul_(x.flip(1))


@pytest.mark.parametrize("operator", [scale, scale_second_])
def test_operators_that_write(operator: Any) -> None:
    class Writes(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            operator(b.detach(), a.detach())
            return b

    model = Body(lambda s, a: s.write(a, s.second(a)))
    model.write = Writes()
    with pytest.raises(CaptureError, match="writes into its arguments") as caught:
        autoeidetic.analyze(model, inputs())
    assert caught.value.module == "write"
    assert "hard_models.scale" in caught.value.operator
    assert "test_hard_models.py" in caught.value.line
    assert "returns the result" in caught.value.remedy


UNSEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda a: torch.tensor([a.sum(), a.mean()])[0],
    "as_tensor": lambda a: torch.as_tensor(([a[0, 0]], [a[0, 1]])).sum(),
    "asarray": lambda a: torch.asarray([a[0, 0], a[0, 1]]).sum(),
    "new_tensor": lambda a: a.new_tensor([a[0, 0], a[0, 1]]).sum(),
    "parameter": lambda a: nn.Parameter(a.detach()).flip(1),
    "strided": lambda a: a[:, 4:].as_strided((4, 4), (8, 1), 0).repeat(1, 2),
}


@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.filterwarnings("ignore")
def test_unseen_ways(name: str) -> None:
    remembers(Body(lambda s, a: s.second(a) * UNSEEN[name](a)), inputs())


def test_replaced_data() -> None:
    def between(model: Body, a: Tensor) -> Tensor:
        b = torch.zeros(4, 8)
        b.data = a.flip(1)
        return model.second(a) * b

    with pytest.raises(CaptureError, match=r"data of a tensor is replaced(.|\n)*copy_"):
        autoeidetic.analyze(Body(between), inputs())


def test_holder_listed_twice() -> None:
    """What a level hides comes back, also where a parameter has two names."""
    layer = nn.Linear(2, 2)
    twice = nn.ModuleList([layer, layer])
    weight = layer.weight
    hidden = torch.zeros(2, 2, dtype=torch.bool)
    level = Level(0, [], [("0", "weight", hidden), ("1", "weight", hidden)], learns=False)
    with _restricted(twice, level):
        assert not layer._parameters["weight"].any()
    assert layer._parameters["weight"] is weight
