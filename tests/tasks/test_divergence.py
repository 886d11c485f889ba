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
from torch.nn.utils import parametrizations

from autoeidetic.errors import DivergenceWarning, NonFiniteError, TaskError
from autoeidetic.net import EideticNet
from autoeidetic.proof import recheck

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


class WeightNormed(nn.Module):
    """Weights that are divided by the length of their rows, from the very first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = parametrizations.weight_norm(nn.Conv2d(3, 8, 3, padding=1))
        self.conv = parametrizations.weight_norm(nn.Conv2d(8, 8, 1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(F.relu(self.stem(x))).mean((2, 3)))


MODELS = [Conv, Normed, Grouped, WeightNormed]


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


# -- weights are finite, activations are not ------------------------------------------------------


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)[:, :16]
        for layer in self.layers:
            x = F.leaky_relu(layer(x))
        return self.head(x)


def overflowing() -> lives.Life:
    """Two steps at a learning rate of 1e5: no weight is infinite, activations are."""
    life = lives.Life(Deep(), X).first_task()
    life.prepare()
    net = life.net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e5)
    for _ in range(2):
        optimizer.zero_grad()
        lives.loss_of(net(X)).backward()
        nn.utils.clip_grad_value_(net.parameters(), 1.0)
        optimizer.step()
    assert all(p.isfinite().all() for p in net.parameters())
    assert not net(X).isfinite().all()
    return life


@pytest.mark.parametrize("model", MODELS[:3])  # a weight norm undoes the size of its weights
@pytest.mark.parametrize("size", [1e30, 3e38])
def test_a_task_that_overflows_is_not_finished(model: type[nn.Module], size: float) -> None:
    life = started(model)
    poison(life.net, size)
    with lives.unchanged(life.net), pytest.raises(NonFiniteError, match="cannot be finished") as e:
        life.net.finish_task()
    assert "rollback" in e.value.remedy
    life.net.rollback()
    life.train(lives.sgd(life.net))
    life.finish()
    life.verify()


def test_a_deep_network_that_overflows_is_not_finished() -> None:
    life = overflowing()
    message = "its units overflow, and with them .* outputs of task 0 on reference inputs"
    with lives.unchanged(life.net), pytest.raises(NonFiniteError, match=message):
        life.net.finish_task()
    with lives.unchanged(life.net), pytest.raises(NonFiniteError, match=message):
        life.net.prepare_for_task(2, num_classes=5, on_full="reuse")
    with pytest.warns(DivergenceWarning, match="task 1 has diverged"):
        life.check("overflowing")
    life.net.rollback()
    life.check("rolled back")


def test_a_finished_task_that_overflows_takes_no_earlier_one_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On some inputs only, say, so that nothing was noticed when it was finished."""
    life = overflowing()
    monkeypatch.setattr(recheck, "finished", lambda net: None)
    life.net.finish_task()
    net = life.net.eval()
    with pytest.warns(DivergenceWarning, match="task 0 is answered without them"):
        life.check("overflowing")
    with pytest.warns(DivergenceWarning):
        report = net.verify(X)
    assert [verdict.ok for verdict in report.tasks] == [True, False]
    assert report.tasks[1].nans
    assert "FINISHED TASKS ANSWER NaN" in str(report)
    net.prepare_for_task(2, num_classes=5, on_full="reuse")
    with pytest.warns(DivergenceWarning):
        life.check("the next task")


# -- while no task is open ------------------------------------------------------------------------


@pytest.mark.parametrize("recycle", ["reinit", "keep"])
def test_a_stray_batch_after_a_task_was_finished(recycle: str) -> None:
    """It leaves NaN in the running statistics of free channels."""
    life = lives.Life(Conv(), X, recycle=recycle).first_task()
    net = life.net.train()
    spoilt = X.clone()
    spoilt[0, 0, 0, 0] = math.nan
    with torch.no_grad(), pytest.warns(DivergenceWarning, match="the inputs hold infinite values"):
        net(spoilt)
    assert not net.backbone.bn.running_mean.isfinite().all()
    with pytest.warns(DivergenceWarning, match="values that no finished task owns"):
        life.check("a stray batch")
    with pytest.warns(DivergenceWarning):
        life.verify()
    life.prepare()
    assert all(tensor.isfinite().all() for tensor in net.trained_tensors().values())
    life.train(lives.sgd(net))
    life.finish()
    life.verify()


def test_a_step_while_no_task_is_open() -> None:
    life = lives.Life(Conv(), X).first_task()
    net = life.net
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    with pytest.warns(DivergenceWarning, match=r"prepare_for_task\(1\) gives what is free"):
        life.check("a stray step")


# -- inputs that are not finite -------------------------------------------------------------------


@pytest.mark.parametrize("open_task", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_are_not_blamed_on_a_task(value: float, open_task: bool) -> None:
    life = started(Conv)
    if not open_task:
        life.finish()
    net = life.net.eval()
    spoilt = X.clone()
    spoilt[0] = value
    with torch.no_grad(), pytest.warns(DivergenceWarning) as caught:
        said = net(spoilt, task=0)
    assert "the inputs hold infinite values or NaN" in str(caught[0].message)
    assert len(caught) == 1
    assert not said[0].isfinite().any()
    assert lives.same([said[1:]], [life.said[0][0][1:]])
    life.check("spoilt inputs")


class LogOfInputs(nn.Module):
    """Answers NaN to negative inputs, whatever it has learned, and hides a class on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(F.relu(self.stem(x))), x.log()


def test_answers_that_are_not_finite_by_themselves_are_nobodys_fault() -> None:
    x = torch.randn(4, 4)
    life = lives.Life(LogOfInputs(), x)
    for _ in range(2):
        life.net.prepare_for_task(len(life.net.tasks), num_classes=3)
        life.net.prune(0.5)
        life.net.finish_task()
    net = life.net.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert net(x, task=0)[1].isnan().any()
        assert net.verify(x.abs()).ok
        report = net.verify(x)
    assert not report.ok
    assert "NaN, though the inputs are finite" in str(report)


# -- compiled -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("task", [0, "all"])
@pytest.mark.parametrize("value", [math.nan, 1e30])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_compiled_network_answers_rightly_or_raises(
    fullgraph: bool, value: float, task: int | str
) -> None:
    life = overflowing() if value == 1e30 else started(Conv)
    net = life.net.eval()
    torch.compiler.reset()
    program = torch.compile(net, backend="aot_eager", fullgraph=fullgraph)
    life.net.rollback()
    spoilt = X.clone()
    spoilt[0, 0, 0, 0] = math.nan
    with torch.no_grad():
        answer = program(X, task=task)
        torch.testing.assert_close(answer if task == 0 else answer[0], life.said[0][0])
        answer = program(spoilt, task=task)  # nobody's fault but the input's
        assert not (answer if task == 0 else answer[0]).isfinite().all()
        poison(net, value)
        if value == 1e30:
            net.free.write("layers.0.weight", torch.full((16, 16), 1e38))
        with pytest.raises(NonFiniteError, match="task 0 answers NaN in a compiled network"):
            program(X, task=task)
    with pytest.warns(DivergenceWarning):
        life.check("compiled")
    net.rollback()
    teacher = program(X.clone().requires_grad_(), task=0)
    teacher.sum().backward()


def test_a_compiled_network_may_answer_nan_by_itself() -> None:
    x = torch.randn(4, 4)
    net = lives.Life(LogOfInputs(), x).net
    net.prepare_for_task(0, num_classes=3)
    net.finish_task()
    torch.compiler.reset()
    program = torch.compile(net.eval(), backend="aot_eager", fullgraph=True)
    with torch.no_grad(), pytest.warns(DivergenceWarning, match="answers NaN to finite inputs"):
        assert program(x, task=0)[1].isnan().any()


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


def test_the_warning_names_the_callers_line() -> None:
    net = started(Conv).net.eval()
    with pytest.warns(DivergenceWarning, match="the inputs hold") as inputs:
        net(X * math.inf, task=0)
    with torch.no_grad():
        net.backbone.stem.weight.fill_(math.nan)
    with pytest.warns(DivergenceWarning, match="task 1 has diverged") as alone:
        net(X, task=0)
    with pytest.warns(DivergenceWarning, match="task 1 has diverged") as together:
        net(X, task="all")
    assert {each.filename for each in (*inputs, *alone, *together)} == {__file__}
