"""Whatever optimizer: every one that torch and timm have, and those that write behind the back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import timm.optim
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autoeidetic
from autoeidetic.common.bits import same
from autoeidetic.enforce.pins import Pins
from autoeidetic.enforce.spot_checks import SpotCheck, sample_indices
from autoeidetic.net import EideticNet

X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 0, 1])
RATE, DECAY = 0.05, 0.1
STEPS = 3

#: They need a GPU with a library of its own, or gradients that are sparse.
ELSEWHERE = ("bnb", "fused", "SparseAdam")


class Small(nn.Module):
    """Convolutions, a batch norm, a residual sum, a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.levels = nn.BatchNorm2d(8), nn.LayerNorm(12)
        self.hidden, self.head = nn.Linear(8, 12), nn.Linear(12, 4)
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.uniform_(parameter, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = x + self.norm(self.conv(x)).relu()
        return self.head(F.gelu(self.levels(self.hidden(x.mean((2, 3))))))


@pytest.fixture(scope="module")
def second_task() -> EideticNet:
    torch.manual_seed(0)
    net = autoeidetic.convert(Small(), X)
    net.prepare_for_task(0, num_classes=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(STEPS):
        step(net, optimizer)
    net.prune(0.5)
    net.finish_task()
    net.prepare_for_task(1, num_classes=4)
    return net


@pytest.fixture
def net(second_task: EideticNet) -> EideticNet:
    torch.manual_seed(1)
    return copy.deepcopy(second_task)


def answer(net: EideticNet) -> Tensor:
    """Of the finished task, in the mode the network is in."""
    with torch.no_grad():
        return net(X, task=0)


def step(net: EideticNet, optimizer: Any) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net.train()(X + 0.1 * torch.randn_like(X)), LABELS)
        loss.backward(create_graph=getattr(optimizer, "is_second_order", False))
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def of_torch(name: str) -> Callable[[nn.Module], Any]:
    def make(net: nn.Module) -> Any:
        kind = getattr(torch.optim, name)
        matrices = [p for p in net.parameters() if p.dim() == 2]
        decay = {} if name in ("LBFGS", "Rprop") else {"weight_decay": DECAY}
        return kind(matrices if name == "Muon" else net.parameters(), lr=RATE, **decay)

    return make


def of_timm(name: str) -> Callable[[nn.Module], Any]:
    return lambda net: timm.optim.create_optimizer_v2(
        net, opt=name, lr=RATE, weight_decay=DECAY, momentum=0.9
    )


def optimizers() -> Iterator[Any]:
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and kind is not torch.optim.Optimizer:
            if not name.startswith(ELSEWHERE):
                yield pytest.param(of_torch(name), id=f"torch-{name}")
    for name in timm.optim.list_optimizers():
        if not name.startswith(ELSEWHERE):
            yield pytest.param(of_timm(name), id=f"timm-{name}")


@pytest.mark.filterwarnings("ignore")  # whatever an optimizer has to say
@pytest.mark.parametrize("make", list(optimizers()))
def test_no_optimizer_moves_a_finished_task(net: EideticNet, make: Callable[..., Any]) -> None:
    said = answer(net.eval())
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer = make(net)
    with torch.compiler.set_stance("force_eager"):  # one of timm's would need a C compiler
        for _ in range(STEPS):
            step(net, optimizer)
            assert same(answer(net.eval()), said)
    changed = [name for name, p in net.named_parameters() if not same(p.detach(), before[name])]
    assert any(name.startswith("backbone.") for name in changed), "it has not trained anything"


class ModeOfItsOwn(torch.optim.SGD):
    """Like optimizers without a schedule: for evaluation, averages take the place of weights.

    They are written through ``.data``, after the network has changed its mode.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), lr=RATE, weight_decay=DECAY)
        self.other = {p: torch.randn_like(p) for p in net.parameters()}

    def swap(self) -> None:
        for parameter, other in self.other.items():
            mine = parameter.detach().clone()
            parameter.data.lerp_(other, 0.5)
            self.other[parameter] = mine


@pytest.mark.parametrize("looks_first", [True, False])
def test_an_optimizer_that_swaps_weights(net: EideticNet, looks_first: bool) -> None:
    said = answer(net.eval())
    optimizer = ModeOfItsOwn(net)
    for _ in range(STEPS):
        step(net, optimizer)
        net.eval()
        if looks_first:
            assert same(answer(net), said)
        optimizer.swap()
        assert same(answer(net), said)
        assert same(answer(net), said)


def test_an_average_that_is_swapped_in(net: EideticNet) -> None:
    """As exponential averages are used, begun in the first task and never told of the second."""
    said = answer(net.eval())
    average = [torch.rand_like(p) for p in net.parameters()]
    own = [p.detach().clone() for p in net.parameters()]
    for parameter, value in zip(net.parameters(), average, strict=True):
        parameter.data.copy_(value)
    assert same(answer(net), said)
    for parameter, value in zip(net.parameters(), own, strict=True):
        parameter.data.copy_(value)
    assert same(answer(net), said)


def test_the_first_evaluation_after_a_step_looks_everywhere(net: EideticNet) -> None:
    """One element that no spot is at."""
    said = answer(net.eval())
    step(net, torch.optim.SGD(net.parameters(), lr=RATE))
    net.eval()
    frozen = net.pins.frozen()[0]
    rows = net.get_parameter(frozen.name)
    rows.data[int(frozen.frozen.index[1]), 0, 0, 1] += 1.0
    assert not net.pins._spot_check.moved()
    assert same(answer(net), said)


def test_without_the_looks_it_moves(net: EideticNet, monkeypatch: pytest.MonkeyPatch) -> None:
    said = answer(net.eval())
    monkeypatch.setattr(SpotCheck, "moved", lambda self: False)
    ModeOfItsOwn(net).swap()
    assert not same(answer(net), said)
    net.train().eval()
    assert same(answer(net), said)
    monkeypatch.setattr(Pins, "before_forward", lambda self, training: None)
    ModeOfItsOwn(net).swap()
    assert not same(answer(net), said)


# -- where the spots are --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (5,), (0, 3), (7, 3), (2, 3, 5), (64, 3, 3, 3)])
def test_spots_are_spread(shape: tuple[int, ...]) -> None:
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    places = [int(numbers[place]) for place in sample_indices(shape)]
    assert len(set(places)) == len(places) == min(8, numbers.numel())
    if numbers.numel():
        assert places[0] == 0
        assert places[-1] == numbers.numel() - 1
        assert max(b - a for a, b in zip(places, places[1:] + [numbers.numel()], strict=True)) <= (
            numbers.numel() / 7 + 1
        )


def test_spots_are_frozen_elements(net: EideticNet) -> None:
    """Every one holds the value that is pinned there; what is free may change without notice."""
    for pin in net.pins.frozen():
        tensor = dict(net.named_parameters()) | dict(net.named_buffers())
        here = torch.zeros_like(tensor[pin.name], dtype=torch.bool)
        pin.frozen.put(here, pin.frozen.take(torch.ones_like(here)))
        assert all(bool(spot) for spot in pin.frozen.samples(here)), pin.name
        assert pin.frozen.samples(here)
    answer(net.eval())
    net.free.renew(net.spreads)
    assert not net.pins._spot_check.moved()


def test_types_and_layouts(second_task: EideticNet) -> None:
    for move in (
        lambda net: net.double(),
        lambda net: net.to(torch.bfloat16),
        lambda net: net.to(memory_format=torch.channels_last),
        copy.deepcopy,
    ):
        net = move(copy.deepcopy(second_task)).eval()
        x = X.to(net.backbone.stem.weight.dtype)
        with torch.no_grad():
            said = net(x, task=0)
            for parameter in net.parameters():
                parameter.data.mul_(0.5)
            assert same(net(x, task=0), said)


def test_a_cache_that_is_made_anew_costs_no_look_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Caches(Small):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.scale = torch.full((4,), 2.0)
            return super().forward(x) * self.scale

    net = autoeidetic.convert(Caches(), X)
    net.prepare_for_task(0)
    net.finish_task()
    said = answer(net.eval())
    looks = []
    impose = Pins.impose
    monkeypatch.setattr(Pins, "impose", lambda self: (looks.append(1), impose(self)))
    old = []  # kept, so that each one has an address of its own
    for _ in range(3):
        old.append(net.backbone.scale)
        assert same(answer(net), said)
    assert not looks
    ModeOfItsOwn(net).swap()
    assert same(answer(net), said)
    assert looks


def test_tensors_can_still_be_exchanged(net: EideticNet) -> None:
    """A view that holds on to a parameter must not keep torch from swapping it."""
    said = answer(net.eval())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert same(answer(net), said)
