"""When training diverges, finished tasks keep their bits, and there is a way back."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import lives
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoeidetic.errors import DivergenceWarning, NonFiniteError, TaskError
from autoeidetic.net import EideticNet

X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Conv(nn.Module):
    """Batch norm, a residual and a head on pooled features."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        return self.head((x + self.conv(x)).mean((2, 3)))


class Normed(nn.Module):
    """Layer norm and attention, where channels meet without a weight between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(18, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.flatten(1).unflatten(1, (6, 18)))
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((x + self.out(mixed)).mean(1))


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.conv = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


MODELS = [Conv, Normed, Grouped]


def started(model: type[nn.Module], **options: str) -> lives.Life:
    """Task 0 is finished, task 1 in training."""
    return lives.Life(model(), X, **options).first_task().second_task()


@torch.no_grad()
def poison(net: EideticNet, value: float) -> None:
    """A value in every free element of every parameter of the backbone."""
    for name, tensor in net.free.tensors().items():
        if tensor.is_floating_point() and "running" not in name:
            net.free.write(name, torch.full_like(tensor, value))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_finished_tasks_keep_their_bits(model: type[nn.Module], value: float) -> None:
    life = started(model)
    net = life.net.eval()
    poison(net, value)
    with torch.no_grad():
        assert not net(X).isfinite().all()
        with pytest.warns(DivergenceWarning, match="task 1 has diverged"):
            assert torch.equal(net(X, task=0), life.said[0][0])
        with pytest.warns(DivergenceWarning):
            together = net(X, task="all")
        assert torch.equal(together[0], life.said[0][0])
        with pytest.warns(DivergenceWarning):
            assert net.verify(X).ok


@pytest.mark.parametrize("model", MODELS)
def test_train_mode_is_no_exception(model: type[nn.Module]) -> None:
    """A teacher asked in train mode: the right bits or a clear error, never a silent NaN."""
    life = started(model)
    net = life.net.train()
    poison(net, math.nan)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            output = net(X, task=0)
        except NonFiniteError:
            return
    assert torch.equal(output, life.said[0][0]) or any(
        issubclass(w.category, DivergenceWarning) for w in caught
    )
    assert output.isfinite().all()


@pytest.mark.parametrize("model", MODELS)
def test_one_infinite_element_is_enough(model: type[nn.Module]) -> None:
    life = started(model)
    net = life.net.eval()
    name, tensor = next(iter(net.free.tensors().items()))
    spoilt = tensor.detach().clone()
    first = net.free.elements(name).expand(tensor.shape).reshape(-1)
    spoilt.view(-1)[int(first.nonzero()[0])] = math.inf
    with torch.no_grad():
        net.free.write(name, spoilt)
    with torch.no_grad(), pytest.warns(DivergenceWarning):
        assert torch.equal(net(X, task=0), life.said[0][0])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [1e18, 1e30, 3e38])
def test_overflowing_activations(model: type[nn.Module], size: float) -> None:
    """Weights are finite, what they compute is not."""
    life = started(model)
    net = life.net.eval()
    poison(net, size)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(net(X, task=0), life.said[0][0])
        assert torch.equal(net(X, task="all")[0], life.said[0][0])
    assert {w.category for w in caught} <= {DivergenceWarning}


def test_written_through_data() -> None:
    """A NaN that leaves no trace in version counters is found in the output."""
    life = started(Conv)
    net = life.net.eval()
    with torch.no_grad():
        net(X, task=0)  # remembers that everything is finite
    free = net.free.elements("stem.weight").expand(net.backbone.stem.weight.shape)
    net.backbone.stem.weight.data[free] = math.nan
    with torch.no_grad(), pytest.warns(DivergenceWarning):
        assert torch.equal(net(X, task=0), life.said[0][0])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_finishing_is_refused_and_changes_nothing(model: type[nn.Module], value: float) -> None:
    life = started(model)
    poison(life.net, value)
    before = {name: t.clone() for name, t in life.net.state_dict().items()}
    tasks, owners = life.net.tasks, life.net.owners
    with pytest.raises(NonFiniteError, match="cannot be finished") as caught:
        life.net.finish_task()
    assert "rollback" in caught.value.remedy
    assert caught.value.module
    now = life.net.state_dict()
    assert now.keys() == before.keys()
    assert all(torch.equal(now[n].nan_to_num(7), before[n].nan_to_num(7)) for n in now)
    assert life.net.tasks == tasks
    assert life.net.owners is owners


def test_preparing_the_next_task_is_refused_as_well() -> None:
    life = started(Conv)
    life.net.prune(0.5)
    poison(life.net, math.nan)
    with pytest.raises(NonFiniteError):
        life.net.prepare_for_task(2, num_classes=3)
    assert len(life.net.tasks) == 2
    assert life.net.open_task == 1


def test_non_finite_head_and_statistics() -> None:
    life = started(Conv)
    with torch.no_grad():
        life.net.heads["1"]["head"].bias[0] = math.inf
    with pytest.raises(NonFiniteError, match="heads"):
        life.net.finish_task()
    life.net.rollback()
    with torch.no_grad():
        life.net.free.write("bn.running_var", torch.full((8,), math.nan))
    with pytest.raises(NonFiniteError, match="running_var"):
        life.net.finish_task()


# -- the way back ---------------------------------------------------------------------------------


def diverge(life: lives.Life) -> None:
    """A learning rate for which there is no excuse, until nothing is finite."""
    net = life.net
    optimizer = torch.optim.SGD(net.parameters(), lr=1e30, momentum=0.9)
    net.train()
    for _ in range(4):
        optimizer.zero_grad()
        lives.loss_of(net(X)).backward()
        optimizer.step()
    assert not all(p.isfinite().all() for p in net.parameters())


def prune_and_train(life: lives.Life) -> None:
    life.train(lives.sgd(life.net))
    life.net.prune(0.5)
    life.train(lives.sgd(life.net))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("spoil", [diverge, prune_and_train])
@pytest.mark.parametrize("recycle", ["reinit", "keep"])
@pytest.mark.parametrize("task", [0, 1])
def test_rollback(
    model: type[nn.Module], spoil: Callable[[lives.Life], None], recycle: str, task: int
) -> None:
    """Bit for bit the network that prepare_for_task made, and training goes on as from there."""
    life = lives.Life(model(), X, recycle=recycle)
    if task:
        life.first_task()
    life.prepare()
    start = lives.state(life.net)
    said = lives.answers(life.net, X, task)
    spoil(life)
    assert lives.changed(life.net, start)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    life.net.rollback()
    assert torch.equal(torch.get_rng_state(), before)
    assert not lives.changed(life.net, start)
    assert not life.net.owners.pruned.any()
    assert lives.same(lives.answers(life.net, X, task), said)
    life.check("rolled back")
    life.train(lives.sgd(life.net))
    life.prune()
    life.finish()
    life.verify()


def test_training_after_a_rollback_is_training_from_the_start() -> None:
    torch.manual_seed(0)
    first = started(Conv)
    torch.manual_seed(0)
    second = started(Conv)
    first.net.rollback()
    diverge(second)
    second.net.rollback()
    for life in (first, second):
        life.train(lives.adamw(life.net), steps=3)
    assert not lives.changed(first.net, lives.state(second.net))


def test_rollback_needs_an_open_task() -> None:
    life = lives.Life(Conv(), X).first_task()
    with lives.unchanged(life.net), pytest.raises(TaskError, match="but no task is open"):
        life.net.rollback()


class Masked(nn.Module):
    """A buffer that is infinite on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((5, 5), -math.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mask.softmax(-1) @ self.stem(x))


def test_infinite_masks_are_no_divergence() -> None:
    x = torch.randn(2, 5, 4)
    life = lives.live(Masked(), x)
    life.net.prepare_for_task(3, num_classes=2, on_full="reuse")
    life.net.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(life.net(x, task=0), life.said[0][0])
