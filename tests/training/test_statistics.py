"""Running statistics that lag behind the weights: estimated anew before anything relies on them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import lives
import numpy as np
import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autoeidetic
from autoeidetic.errors import InputError, LearningWarning, NonFiniteError, TaskError
from autoeidetic.training import epochs, running_statistics


def network(width: int = 24, momentum: float | None = 0.1) -> autoeidetic.EideticNet:
    """Two convolutions with batch norms."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=momentum),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=momentum),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2),
    )  # fmt: skip
    return autoeidetic.convert(model, torch.randn(2, 1, 8, 8))


def batches(task: int = 0, count: int = 64) -> list[tuple[Tensor, Tensor]]:
    """Images: in one class the upper half is brighter, or the left one."""
    generator = torch.Generator().manual_seed(1 + task)
    x, y = 3 + 2 * torch.randn(count, 1, 8, 8, generator=generator), torch.arange(count) % 2
    x[y == 1] += (torch.arange(8) < 4).view((1, 8, 1) if task % 2 == 0 else (1, 1, 8))
    return list(zip(x.split(16), y.split(16), strict=True))


def adam(net: nn.Module, lr: float = 0.003) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=lr)


SHORT: dict[str, Any] = {"max_epochs": 4, "step": 0.1, "tolerance": 0.03, "progress": False}


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.1, 0.01, None])
def test_a_task_of_few_steps_is_not_frozen_at_chance(momentum: float | None) -> None:
    """Training accuracy of 0.875, and 0.5 in eval mode with statistics of the first steps."""
    net = network(momentum=momentum)
    net.prepare_for_task(0, num_classes=2)
    history = net.train_task(batches(), optimizer=adam(net), **SHORT)
    reached = max(epoch.accuracy for epoch in history.epochs if epoch.phase == "train")
    assert reached > 0.8
    assert history.accuracy >= reached - 0.03
    net.finish_task()
    assert autoeidetic.evaluate(net, [batches()]).average == history.accuracy


def test_a_task_that_is_not_pruned_gets_them_too() -> None:
    net = network()
    net.prepare_for_task(0, num_classes=2)
    history = net.train_task(batches(), optimizer=adam(net), **SHORT, prune=False)
    net.finish_task()
    assert autoeidetic.evaluate(net, [batches()]).average >= history.accuracy > 0.8


def test_a_loop_of_ones_own() -> None:
    net = network()
    net.prepare_for_task(0, num_classes=2)
    optimizer, loss = adam(net), nn.CrossEntropyLoss()
    for x, y in batches() * 4:
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
    assert autoeidetic.evaluate(net, [batches()]).average < 0.6
    net.refresh_statistics(batches())
    net.finish_task()
    assert autoeidetic.evaluate(net, [batches()]).average > 0.8


# -- what they are --------------------------------------------------------------------------------


class Twice(nn.Module):
    """A norm that is called for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)) + self.norm(self.conv(2 * x + 1))
        return self.head(y.mean((2, 3)))


def model(norm: nn.Module, dims: int = 2) -> nn.Module:
    conv = {0: nn.Linear(3, 8), 1: nn.Conv1d(3, 8, 1), 2: nn.Conv2d(3, 8, 1), 3: nn.Conv3d(3, 8, 1)}
    pool = nn.Flatten() if not dims else (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
                                          nn.AdaptiveAvgPool3d)[dims - 1](1)  # fmt: skip
    return nn.Sequential(
        conv[dims], nn.Dropout(0.5), norm, nn.ReLU(), pool, nn.Flatten(), nn.Linear(8, 2)
    )


NORMS: dict[str, tuple[nn.Module, int]] = {
    "BatchNorm1d": (nn.BatchNorm1d(8), 0),
    "BatchNorm1d of sequences": (nn.BatchNorm1d(8), 1),
    "BatchNorm2d": (nn.BatchNorm2d(8), 2),
    "BatchNorm3d": (nn.BatchNorm3d(8), 3),
    "cumulative": (nn.BatchNorm2d(8, momentum=None), 2),
    "without affine": (nn.BatchNorm2d(8, affine=False), 2),
    "SyncBatchNorm": (nn.SyncBatchNorm(8), 2),
    "InstanceNorm1d": (nn.InstanceNorm1d(8, affine=True, track_running_stats=True), 1),
    "InstanceNorm2d": (nn.InstanceNorm2d(8, momentum=None, track_running_stats=True), 2),
    "timm": (BatchNormAct2d(8, drop_layer=nn.Dropout), 2),
}


def converted(name: str) -> tuple[autoeidetic.EideticNet, list[Tensor], nn.Module, nn.Module]:
    """A network with a norm, inputs in batches, the layer before the norm, the norm."""
    if name == "called twice":
        made, dims = lives.randomise(Twice()), 2
    else:
        norm, dims = NORMS[name]
        made = lives.randomise(model(norm, dims))
    torch.manual_seed(3)
    inputs = [1 + 2 * torch.randn(6, 3, *[4] * dims) for _ in range(5)]
    net = autoeidetic.convert(made, inputs[0])
    if name == "called twice":
        return net, inputs, net.backbone.conv, net.backbone.norm  # type: ignore[return-value]
    return net, inputs, net.backbone[0], net.backbone[2]  # type: ignore[index]


def averages(inputs: list[Tensor], before: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of every batch (every instance), averaged."""
    means, variances = [], []
    for x in inputs:
        with torch.no_grad():
            y = before(x)
        parts = y.split(1) if isinstance(norm, nn.modules.instancenorm._InstanceNorm) else [y]
        rows = torch.stack([part.transpose(0, 1).flatten(1) for part in parts])
        means.append(rows.mean(2).mean(0))
        variances.append(rows.var(2).mean(0))
    return torch.stack(means).mean(0), torch.stack(variances).mean(0)


@pytest.mark.parametrize("name", [*NORMS, "called twice"])
def test_plain_averages_and_frozen_ones_stay(name: str) -> None:
    """Without dropout, whatever the momentum is; and those of a finished task bit for bit."""
    net, inputs, before, norm = converted(name)
    net.prepare_for_task(0, num_classes=2)
    net.prune(0.5)
    for task in range(2):
        shifted = [x + 3 * task for x in inputs]
        old = [norm.running_mean.clone(), norm.running_var.clone()]
        net.refresh_statistics([(x, None) for x in shifted])
        calls = [y for x in shifted for y in (x, 2 * x + 1)] if name == "called twice" else shifted
        expected = averages(calls, before, norm)
        owned = torch.zeros(8, dtype=torch.bool)
        if task:
            owned = net.owners.owned(net.call_plan.plan.buffers[_name(net, norm)])
            assert 0 < int(owned.sum()) < 8
        for now, then, right in zip(
            (norm.running_mean, norm.running_var), old, expected, strict=True
        ):
            torch.testing.assert_close(now[~owned], right[~owned], rtol=1e-4, atol=1e-5)
            assert lives.same([now[owned]], [then[owned]])
        if task == 0:
            net.finish_task()
            said = lives.answers(net, inputs[0], 0)
            net.prepare_for_task(1, num_classes=2)
    assert lives.same(lives.answers(net, inputs[0], 0), said)
    assert net.verify(inputs[0]).ok


def _name(net: autoeidetic.EideticNet, norm: nn.Module) -> str:
    (path,) = [path for path, module in net.backbone.named_modules() if module is norm]
    return f"{path}.running_mean"


def test_of_inputs() -> None:
    """They follow no channel, and are frozen as a whole with the first task."""
    x = torch.randn(32, 4)
    made = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 8), nn.Linear(8, 2))
    net = autoeidetic.convert(made, x)
    net.prepare_for_task(0, num_classes=2)
    net.prune(0.5)
    net.refresh_statistics([(x, None)])
    torch.testing.assert_close(net.backbone[0].running_mean, x.mean(0))  # type: ignore[index]
    net.finish_task()
    net.prepare_for_task(1, num_classes=2)
    with lives.unchanged(net):
        net.refresh_statistics(Unread())


def test_in_a_module_that_is_run_level_by_level() -> None:
    """Runs for levels that do not learn are not counted: the average is right all the same."""

    class Mixed(nn.Module):
        """Mixes channels by a softmax, with a norm inside."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x).softmax(1)

    x = torch.randn(40, 3)
    made = lives.randomise(nn.Sequential(nn.Linear(3, 8), Mixed(), nn.Linear(8, 2)))
    net = autoeidetic.convert(made, x)
    for task in range(2):
        net.prepare_for_task(task, num_classes=2)
        if task == 0:
            net.prune(0.5)
            net.finish_task()
            said = lives.answers(net, x, 0)
    assert any(guard.whole is not None for guard in net.guards.values())
    net.refresh_statistics([(part, None) for part in x.split(10)])
    norm: Any = net.backbone[1].norm  # type: ignore[index,union-attr]
    mean, _ = averages(list(x.split(10)), net.backbone[0], norm)  # type: ignore[index]
    free = ~net.owners.owned(net.call_plan.plan.buffers["1.norm.running_mean"])
    torch.testing.assert_close(norm.running_mean[free], mean[free], rtol=1e-4, atol=1e-5)
    assert lives.same(lives.answers(net, x, 0), said)


# -- what stays as it is --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [True, False])
def test_nothing_else_changes(mode: bool) -> None:
    """Parameters, gradients, modes, momenta, hooks, and every generator."""
    net = network()
    net.prepare_for_task(0, num_classes=2)
    x, y = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    nn.functional.cross_entropy(net(x), y).backward()
    net.train(mode)
    net.backbone[0].training = not mode  # type: ignore[index]
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, generator=generator)

    def everything() -> list[Any]:
        statistics = ("running_mean", "running_var", "num_batches_tracked")
        values = {n: v for n, v in lives.state(net).items() if not n.endswith(statistics)}
        return [
            [value.tolist() for value in values.values()],
            [None if p.grad is None else p.grad.tolist() for p in net.parameters()],
            [module.training for module in net.modules()],
            [getattr(module, "momentum", 0) for module in net.modules()],
            [len(module._forward_pre_hooks) for module in net.modules()],
            torch.get_rng_state().tolist(), generator.get_state().tolist(),
            random.getstate(), np.random.get_state()[1].tolist(),  # type: ignore[union-attr]
        ]  # fmt: skip

    before, mean = everything(), net.backbone[1].running_mean.clone()  # type: ignore[index,union-attr,operator]
    net.refresh_statistics(loader)
    assert everything() == before
    assert not torch.equal(net.backbone[1].running_mean, mean)  # type: ignore[index,union-attr,arg-type]


class Unread:
    """A loader that must not be read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a batch was read")


class KeepsItsStatistics(nn.Sequential):
    """Fine-tuning with the statistics that the norm came with."""

    def train(self, mode: bool = True) -> KeepsItsStatistics:
        super().train(mode)
        self[2].eval()
        return self


@pytest.mark.parametrize(
    "made",
    [
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.Conv2d(8, 2, 1)),
        model(nn.BatchNorm2d(8, track_running_stats=False)),
        model(nn.InstanceNorm2d(8)),
        model(nn.BatchNorm2d(8, momentum=0.0)),
        KeepsItsStatistics(*model(nn.BatchNorm2d(8))),
    ],
    ids=["none", "not tracked", "instance norm", "no momentum", "kept in eval mode"],
)
def test_no_batch_is_read_where_nothing_lags(made: nn.Module) -> None:
    net = autoeidetic.convert(made, torch.randn(4, 3, 4, 4))
    net.prepare_for_task(0, num_classes=2)
    net.train()
    with lives.unchanged(net):
        net.refresh_statistics(Unread())


def test_no_batch_is_read_in_a_full_network() -> None:
    net = network()
    net.prepare_for_task(0, num_classes=2)
    net.finish_task()
    net.prepare_for_task(1, num_classes=2, on_full="reuse")
    with lives.unchanged(net):
        net.refresh_statistics(Unread())


@pytest.mark.parametrize("listed", [True, False])
def test_few_batches_suffice(listed: bool) -> None:
    """The first ones, or of a list some that are spread evenly."""
    net = network()
    net.prepare_for_task(0, num_classes=2)
    x = torch.arange(100.0).view(-1, 1, 1, 1, 1) + torch.randn(100, 2, 1, 8, 8)
    loader = [(each, None) for each in x]
    read: list[int] = []
    net.register_forward_pre_hook(lambda _, args: read.append(round(float(args[0].mean()))))
    given: Any = loader if listed else DataLoader(TensorDataset(x.flatten(0, 1)), batch_size=2)
    net.refresh_statistics(given)
    assert len(read) == running_statistics.BATCHES
    assert max(read) > 90 if listed else max(read) < 40
    net.refresh_statistics(given, batches=3)
    assert len(read) == running_statistics.BATCHES + 3


def test_training_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With shuffled batches: what is drawn for the estimate is not missing later."""

    def losses() -> list[float | None]:
        x, y = (torch.cat(parts) for parts in zip(*batches(), strict=True))
        net = network()
        net.prepare_for_task(0, num_classes=2)
        loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
        history = net.train_task(
            loader, optimizer=adam(net), max_epochs=2, step=0.1, most=0.2, tolerance=1.0,
            settle_epochs=2, progress=False,
        )  # fmt: skip
        return [epoch.loss for epoch in history.epochs]

    estimated = losses()
    monkeypatch.setattr(epochs, "estimate", lambda *_: None)
    with pytest.warns(LearningWarning, match="in train mode and of"):
        assert losses() == estimated
    assert len(estimated) == 6


# -- what goes wrong ------------------------------------------------------------------------------


def failing(after: int) -> Iterator[Any]:
    yield from batches()[:after]
    raise KeyboardInterrupt("stopped")


def test_all_or_nothing() -> None:
    net = network()
    with pytest.raises(TaskError, match=r"refresh_statistics\(\) was called without an open task"):
        net.refresh_statistics(batches())
    net.prepare_for_task(0, num_classes=2)
    x = batches()[0][0]
    wrong: list[tuple[Any, type[BaseException], str]] = [
        (failing(2), KeyboardInterrupt, "stopped"),
        ([], InputError, "the loader gave no batches"),
        ([(x, None, 1)], InputError, "a batch is a tuple of 3 values"),
        (3, InputError, "loader is a int"),
        ([(x, None), (x * float("nan"), None)], NonFiniteError, "'1.running_mean' would be"),
    ]
    for loader, error, text in wrong:
        with lives.unchanged(net), pytest.raises(error, match=text):
            net.refresh_statistics(loader)
    with lives.unchanged(net), pytest.raises(InputError, match="batches=0 is not a number"):
        net.refresh_statistics(batches(), batches=0)
    assert [module.momentum for module in net.modules() if hasattr(module, "momentum")] == [0.1] * 2


# -- warnings -------------------------------------------------------------------------------------


def test_warning_when_evaluation_is_far_below_training() -> None:
    """Batches of one class each: their statistics tell the class, running ones do not."""
    x, y = (torch.cat(parts) for parts in zip(*batches(count=128), strict=True))
    order = y.argsort()
    x, y = x[order] + 20 * y[order].view(-1, 1, 1, 1), y[order]

    class Centred(nn.Module):
        """The mean over the batch is known in training, and another one in evaluation."""

        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3)) if self.training else 0 * x.mean((2, 3))

    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), Centred(), nn.Linear(8, 2))
    net = autoeidetic.convert(made, x[:2], rehearse=False)
    net.prepare_for_task(0, num_classes=2)
    with pytest.warns(LearningWarning) as caught:
        net.train_task(
            [(x, y)], optimizer=adam(net, 0.05), max_epochs=30, patience=30, progress=False
        )
    first = str(caught[0].message)
    assert "task 0 has an accuracy of 100.00% in train mode and of 50.00% in eval mode" in first
    assert "remedy: if it has batch norms, mix the classes in every batch" in first
    assert caught[0].filename == __file__


def noise(count: int) -> list[tuple[Tensor, Tensor]]:
    """Nothing to be learned, a fifth of which is of class 1."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.zeros(count, 4), (torch.rand(count, generator=generator) < 0.2).long())]


def small() -> autoeidetic.EideticNet:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net = autoeidetic.convert(made, torch.randn(2, 4))
    net.prepare_for_task(0, num_classes=2)
    return net


@pytest.mark.parametrize("prune", [True, False])
def test_warning_when_a_task_ends_at_chance(prune: bool) -> None:
    text = r"task 0 has learned next to nothing: its accuracy on 400 .* data is \d\d\.\d\d%, and"
    with pytest.warns(LearningWarning, match=text):
        small().train_task(noise(400), max_epochs=30, prune=prune, progress=False)


def test_no_warning_about_chance_without_a_reason() -> None:
    """Too few targets to tell; a tolerance that allows it; another metric; a single class."""
    options: dict[str, Any] = {"max_epochs": 3, "progress": False, "step": 0.5}
    small().train_task(noise(90), **options)
    small().train_task(noise(400), **options, tolerance=1.0)
    small().train_task(noise(400), **options, metric=lambda output, target: 0.5)
    small().train_task([(torch.zeros(400, 4), torch.zeros(400).long())], **options)


def test_chance_with_a_loss_of_ones_own() -> None:
    """It may prefer rare classes: an accuracy below the share of the largest may be right."""
    options: dict[str, Any] = {"max_epochs": 30, "prune": False, "progress": False}
    rare = nn.CrossEntropyLoss(weight=torch.tensor([0.24, 0.76]))
    x, y = torch.randn(400, 4), (torch.arange(400) % 5 == 0).long()
    x[:, 0] += 2 * y
    net = small()
    net.train_task([(x, y)], **options, patience=30, optimizer=adam(net, 0.03), loss=rare)
    with pytest.warns(LearningWarning, match=r"data is 20\.\d\d%, and guessing has 50\.00%"):
        small().train_task(noise(400), **options, loss=nn.CrossEntropyLoss(rare.weight * 100))


def test_chance_of_several_labels() -> None:
    """Of classes it is the share of the largest, of labels there is none."""
    from autoeidetic.training.learning_warnings import Targets

    nan, targets = float("nan"), Targets()
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, nan], [1.0, 1.0]])
    targets.update(torch.zeros(4, 2), labels)
    assert targets.number() == 7
    assert np.isnan(targets.majority())
    targets.reset()
    dense = torch.tensor([[[0, 1], [2, 2]], [[2, -100], [1, 2]]])
    targets.update(torch.zeros(2, 3, 2, 2), dense)
    targets.update(torch.zeros(2, 3, 2, 2), dense)
    assert (targets.number(), targets.majority(), targets.guessing()) == (14, 8 / 14, 1 / 3)


def test_warning_when_nothing_could_be_pruned() -> None:
    x = torch.randn(64, 4)
    text = r"task 0 has given up none of its units.*\n  remedy: pass a smaller step, a higher"
    net = small()
    with pytest.warns(LearningWarning, match=text):
        net.train_task(
            [(x, (x[:, 0] * x[:, 1] > 0).long())], max_epochs=60, patience=60, step=0.9,
            recovery_epochs=0, progress=False, optimizer=adam(net, 0.05),
        )  # fmt: skip
    net.prune(0.5)
    net.finish_task()
    assert net.capacity().free == pytest.approx(0.5)
