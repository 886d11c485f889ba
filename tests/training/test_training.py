"""The loop of Eidetic Learning: its phases, its faults, and what it leaves behind."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import lives
import pytest
import safetensors.torch
import timm
import torch
from sklearn import datasets
from sweeps import only
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autoeidetic
from autoeidetic.errors import (
    CheckpointError,
    InputError,
    NonFiniteError,
    StorageWarning,
    TaskError,
)
from autoeidetic.training import TrainConfig, default_optimizer, loop, store

X = torch.tensor(datasets.load_digits().images, dtype=torch.float32).flatten(1) / 16
Y = torch.tensor(datasets.load_digits().target)


def data(task: int, count: int = 200) -> tuple[Tensor, Tensor]:
    """Two digits."""
    rows = (task == Y // 2).nonzero()[:count, 0]
    return X[rows], Y[rows] % 2


def loader(task: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data(task)), batch_size=40, shuffle=True, **options)


def network(width: int = 40) -> autoeidetic.EideticNet:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2),
    )  # fmt: skip
    return autoeidetic.convert(model, torch.randn(4, 64))


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.01)


SHORT: dict[str, Any] = {
    "max_epochs": 6, "step": 0.2, "tolerance": 0.01, "recovery_epochs": 2, "progress": False,
}  # fmt: skip


def run(net: autoeidetic.EideticNet, task: int, **options: Any) -> autoeidetic.training.TaskHistory:
    net.prepare_for_task(task, num_classes=2)
    return net.train_task(loader(task), optimizer=adam(net), **{**SHORT, **options})


# -- the loop -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_papers_listing() -> None:
    """As it stands in the paper, on a timm model."""
    net = autoeidetic.convert(timm.create_model("test_resnet", num_classes=10))
    images = torch.randn(3, 8, 3, 64, 64)
    loaders = [[(x, torch.arange(8))] for x in images]
    lr = 1e-3
    for t, loader in enumerate(loaders):
        net.prepare_for_task(t, num_classes=10)
        optimizer = torch.optim.AdamW(net.parameters(), lr)
        net.train_task(loader, optimizer=optimizer, max_epochs=2, step=0.3, tolerance=1.0, most=0.6)
    net.finish_task()
    assert net.verify(images[0]).ok


def test_three_tasks_learn_and_stay() -> None:
    net = network()
    said = {}
    for task in range(3):
        history = run(net, task, max_epochs=15, step=0.1)
        assert history.accuracy > 0.98
        assert 0.2 < history.pruned < 1
        assert history.free == pytest.approx(net.capacity().free)
        net.finish_task()
        said[task] = lives.answers(net, X, task)
    for task, before in said.items():
        assert lives.same(lives.answers(net, X, task), before)
    assert net.verify(X).ok


def test_phases() -> None:
    """Training first, then rounds; every round is evaluated, and recovery may follow."""
    history = run(network(), 0, tolerance=0.0, step=0.1, recovery_epochs=2)
    phases = [epoch.phase for epoch in history.epochs]
    assert phases[:6] == ["train"] * 6
    assert phases[6] == "prune"
    assert "train" not in phases[6:]
    for _, group in itertools.groupby(phases[6:]):
        assert len(list(group)) <= 10
    recoveries = [len(list(g)) for p, g in itertools.groupby(phases) if p == "recover"]
    assert all(n <= 2 for n in recoveries)
    assert [e.number for e in history.epochs] == list(range(len(phases)))


def test_patience() -> None:
    """Training ends when the accuracy has not risen for so many epochs."""
    metric = iter([0.1, 0.2, 0.2, 0.3, 0.3, 0.3, 0.3])
    values: list[float] = []

    class Given:
        def update(self, output: Tensor, target: Tensor) -> None: ...

        def reset(self) -> None: ...

        def compute(self) -> float:
            values.append(next(metric))
            return values[-1]

    net = network()
    net.prepare_for_task(0, num_classes=2)
    history = net.train_task(
        loader(0), optimizer=adam(net), metric=Given(), patience=3, prune=False, progress=False
    )
    assert [epoch.accuracy for epoch in history.epochs] == [0.1, 0.2, 0.2, 0.3, 0.3, 0.3, 0.3]
    assert history.pruned == 0
    assert history.reason == "not pruned"


def test_undone_round_is_the_state_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a round cannot be recovered, everything is as before it."""
    net = network()
    states = []
    prune = loop.Loop._prune

    def watched(self: loop.Loop) -> None:
        states.append((lives.state(net), net.owners.pruned.copy(), self.optimizer.state_dict()))
        prune(self)

    monkeypatch.setattr(loop.Loop, "_prune", watched)
    history = run(net, 0, step=0.3, tolerance=0.0, recovery_epochs=1)
    assert "undone" in history.reason
    values, pruned, _ = states[-1]
    assert not lives.changed(net, values)
    assert (net.owners.pruned == pruned).all()
    assert history.pruned < 0.9


def test_tolerance_decides_how_much_is_pruned() -> None:
    strict = run(network(), 0, tolerance=0.0, recovery_epochs=0, step=0.1)
    lax = run(network(), 0, tolerance=1.0, recovery_epochs=0, step=0.1)
    assert strict.pruned < lax.pruned


def test_most_that_is_pruned() -> None:
    """The last round is cut to what was asked, whatever the tolerance would allow."""
    history = run(network(), 0, tolerance=1.0, recovery_epochs=0, step=0.2, most=0.5)
    assert history.pruned == pytest.approx(0.5, abs=0.05)
    assert history.rounds == 3
    assert history.reason == "50% are pruned, as asked"


def test_learning_rate_while_pruning() -> None:
    """A factor of the rate that the optimizer came with, whatever a scheduler made of it."""
    net = network()
    net.prepare_for_task(0, num_classes=2)
    optimizer = adam(net)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    history = net.train_task(
        loader(0), optimizer=optimizer, scheduler=scheduler, **{**SHORT, "lr_factor": 0.25}
    )
    rates = {
        phase: [e.lr for e in history.epochs if e.phase == phase] for phase in ("train", "prune")
    }
    assert rates["train"] == pytest.approx([0.01 * 0.5**n for n in range(6)])
    assert set(rates["prune"]) == {0.0025}


def test_settling() -> None:
    """After the last round, undone or not: epochs with falling rates that prune nothing."""
    history = run(network(), 0, step=0.3, tolerance=0.0, recovery_epochs=1, settle_epochs=4)
    settled = [epoch for epoch in history.epochs if epoch.phase == "settle"]
    assert list(history.epochs[-4:]) == settled
    assert [epoch.lr for epoch in settled] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    assert {epoch.pruned for epoch in settled} == {history.pruned}
    unpruned = run(network(), 0, prune=False, settle_epochs=2)
    assert [epoch.phase for epoch in unpruned.epochs][-3:] == ["train", "settle", "settle"]


def test_scheduler_of_batches_rests_while_pruning() -> None:
    """One cycle over the batches of training, and not one step more."""
    net = network()
    net.prepare_for_task(0, num_classes=2)
    optimizer = adam(net)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=6 * 5)
    history = net.train_task(
        loader(0), optimizer=optimizer, scheduler=scheduler, scheduler_every="batch",
        **{**SHORT, "tolerance": 0.0, "lr_factor": 0.5},
    )  # fmt: skip
    assert {e.lr for e in history.epochs if e.phase != "train"} == {0.5 * 0.02 / 25}
    assert any(e.phase == "recover" for e in history.epochs)


def test_small_groups_are_pruned_too() -> None:
    """A step of 5 % of 8 units is less than one: it adds up."""
    net = network(width=8)
    history = run(net, 0, step=0.05, tolerance=1.0)
    assert history.pruned > 0.8
    assert all(0 < share.free < share.size for share in net.capacity().groups)


@pytest.mark.parametrize("by", only(["l2"], ["l1", "l2", "taylor", "random", "hybrid"]))
def test_scores(by: str) -> None:
    net = network()
    history = run(net, 0, pruning=by, tolerance=0.05)
    assert history.pruned > 0
    net.finish_task()
    run(net, 1, pruning=by, tolerance=0.05)
    assert net.verify(X).ok


def test_multi_label_and_dense() -> None:
    torch.manual_seed(0)
    labels = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4))
    dense = nn.Sequential(nn.Conv2d(3, 20, 1), nn.ReLU(), nn.Conv2d(20, 4, 1))
    x, images = torch.randn(60, 6), torch.randn(8, 3, 6, 6)
    many = (x[:, :4] > 0).float()
    pixels = images.argmax(1)
    for model, inputs, target in ((labels, x, many), (dense, images, pixels)):
        net = autoeidetic.convert(model, inputs)
        net.prepare_for_task(0)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
        history = net.train_task(
            [(inputs, target)], optimizer=optimizer, max_epochs=60, progress=False, patience=60
        )
        assert history.accuracy > 0.9


def test_own_step_function_clip_and_autocast() -> None:
    net = network()
    net.prepare_for_task(0, num_classes=2)
    seen: list[torch.dtype] = []

    def step(model: nn.Module, batch: Any) -> tuple[Tensor, Any, Any]:
        output = model(batch["x"])
        seen.append(output.dtype)
        return nn.functional.cross_entropy(output.float(), batch["y"]), output, batch["y"]

    batches = [{"x": x, "y": y} for x, y in loader(0)]
    history = net.train_task(
        batches, optimizer=adam(net), step_function=step, clip=0.5, autocast="bfloat16", **SHORT
    )
    assert set(seen) == {torch.bfloat16}
    assert history.accuracy > 0.9
    net.finish_task()
    assert net.verify(X).ok


def test_progress_bar(capfd: pytest.CaptureFixture[str]) -> None:
    run(network(), 0)
    assert capfd.readouterr().err == ""
    run(network(), 0, progress=True)
    shown = capfd.readouterr().err
    for text in ("task 0: train", "task 0: prune", "accuracy=", "pruned=", "free="):
        assert text in shown


def test_config_can_be_saved() -> None:
    config = TrainConfig(pruning="taylor", step=0.1, max_epochs=3)
    assert TrainConfig.from_dict(config.to_dict()) == config
    history = run(network(), 0, config=config)
    assert sum(e.phase == "train" for e in history.epochs) == SHORT["max_epochs"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"step": 0}, "step=0"),
        ({"step": "a"}, "step='a'"),
        ({"patience": 0}, "patience=0"),
        ({"pruning": "no"}, "there is no score 'no'"),
        ({"stp": 0.1}, "there is no setting 'stp'"),
        ({"autocast": "int8"}, "autocast='int8'"),
        ({"scheduler_every": "day"}, "scheduler_every='day'"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], text: str) -> None:
    net = network()
    net.prepare_for_task(0, num_classes=2)
    with lives.unchanged(net), pytest.raises(InputError, match=text):
        net.train_task(loader(0), progress=False, **settings)


def test_wrong_batches() -> None:
    net = network()
    with pytest.raises(TaskError, match="but no task is open"):
        net.train_task(loader(0), progress=False)
    net.prepare_for_task(0, num_classes=2)
    for batches, text in (
        ([], "no batches"),
        ((batch for batch in [data(0)]), "can be read once"),
        ([torch.zeros(2, 64)], "not a pair"),
        ([(torch.zeros(2, 64), torch.zeros(3))], "targets of shape"),
    ):
        with pytest.raises(InputError, match=text):
            net.train_task(batches, progress=False)


# -- faults ---------------------------------------------------------------------------------------


class KilledError(Exception):
    pass


def life(directory: Path | None, stop_after: int | None = None) -> dict[str, Any]:
    """Two tasks; a stop after so many passes is like a kill: nothing is tidied up."""
    net = network()
    passes = itertools.count(1)

    def count(epoch: autoeidetic.training.Epoch) -> None:
        if stop_after is not None and next(passes) == stop_after:
            raise KilledError

    for task in range(2):
        net.prepare_for_task(task, num_classes=2)
        optimizer = adam(net)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        net.train_task(
            loader(task), optimizer=optimizer, scheduler=scheduler, checkpoint=directory,
            on_epoch=count, **{**SHORT, "max_epochs": 3, "step": 0.3, "settle_epochs": 2},
        )  # fmt: skip
    net.finish_task()
    return lives.state(net) | {"owners": torch.from_numpy(net.owners.task), "next": torch.rand(3)}


@pytest.mark.slow
def test_resumed_is_the_same_as_uninterrupted(tmp_path: Path) -> None:
    """Bit for bit, wherever it was stopped; in the files and in the memory."""
    whole = life(None)
    total = 0
    for number in itertools.count(1):
        directory = tmp_path / str(number)
        try:
            life(directory, stop_after=number)
        except KilledError:
            torch.manual_seed(99 + number)  # a new process has other random numbers
            again = life(directory)
            assert again.keys() == whole.keys()
            assert all(torch.equal(again[name], whole[name]) for name in whole), number
            total += 1
        else:
            break
    assert total >= 8


def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    whole = life(tmp_path)
    again = life(tmp_path, stop_after=1)
    assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_kept_files(tmp_path: Path) -> None:
    life(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "task-0.safetensors", "task-1.safetensors",
    ]  # fmt: skip


def test_checkpoint_of_another_network(tmp_path: Path) -> None:
    run(network(), 0, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="is of another network"):
        run(network(width=30), 0, checkpoint=tmp_path)
    net = network()
    net.prepare_for_task(0, num_classes=3)
    with pytest.raises(CheckpointError, match=r"is of task 0 with .* classes; the open task"):
        net.train_task(loader(0), checkpoint=tmp_path, progress=False)


def test_checkpoint_after_other_tasks(tmp_path: Path) -> None:
    """The state of task 1 does not fit on another task 0."""
    net = network()
    run(net, 0)
    run(net, 1, checkpoint=tmp_path)
    other = network()
    run(other, 0, max_epochs=3)
    other.prepare_for_task(1, num_classes=2)
    with lives.unchanged(other), pytest.raises(CheckpointError, match=r"another network|differs"):
        other.train_task(loader(1), optimizer=adam(other), checkpoint=tmp_path, progress=False)


def test_lower_rate_after_divergence(tmp_path: Path) -> None:
    """The remedy that the error tells helps: the new rate counts, not the stored one."""

    def train(lr: float, on_epoch: Any = None) -> autoeidetic.training.TaskHistory:
        net = network()
        net.prepare_for_task(0, num_classes=2)
        optimizer = torch.optim.Adam(net.parameters(), lr=lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1)
        return net.train_task(
            loader(0), optimizer=optimizer, scheduler=scheduler, checkpoint=tmp_path,
            on_epoch=on_epoch, **{**SHORT, "max_epochs": 4, "prune": False},
        )  # fmt: skip

    def stop(epoch: autoeidetic.training.Epoch) -> None:
        if epoch.number == 2:
            raise KilledError

    with pytest.raises(KilledError):
        train(0.01, stop)
    history = train(0.005)
    assert [e.lr for e in history.epochs] == pytest.approx([0.01, 0.01, 0.005, 0.0005])


def test_fewer_epochs_than_were_trained(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        life(tmp_path, stop_after=3)
    net = network()
    net.prepare_for_task(0, num_classes=2)
    optimizer = adam(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    history = net.train_task(
        loader(0), optimizer=optimizer, scheduler=scheduler, checkpoint=tmp_path,
        **{**SHORT, "max_epochs": 1},
    )  # fmt: skip
    assert sum(e.phase == "train" for e in history.epochs) == 3


def test_another_optimizer(tmp_path: Path) -> None:
    net = network()
    run(net, 0, checkpoint=tmp_path)
    again = network()
    again.prepare_for_task(0, num_classes=2)
    groups = [{"params": [p]} for p in again.parameters()]
    with lives.unchanged(again), pytest.raises(CheckpointError, match="optimizer is another one"):
        again.train_task(
            loader(0), optimizer=torch.optim.Adam(groups), checkpoint=tmp_path, **SHORT
        )


def test_another_kind_of_optimizer(tmp_path: Path) -> None:
    run(network(), 0, checkpoint=tmp_path)
    net = network()
    net.prepare_for_task(0, num_classes=2)
    with lives.unchanged(net), pytest.raises(CheckpointError, match="are Adam and NoneType"):
        net.train_task(loader(0), optimizer=lives.sgd(net), checkpoint=tmp_path, **SHORT)


@pytest.mark.parametrize("spoil", [lambda b: b[: len(b) // 2], lambda b: b"{}", lambda b: b""])
def test_damaged_checkpoint(tmp_path: Path, spoil: Any) -> None:
    run(network(), 0, checkpoint=tmp_path)
    file = tmp_path / "task-0.safetensors"
    file.write_bytes(spoil(file.read_bytes()))
    net = network()
    net.prepare_for_task(0, num_classes=2)
    with lives.unchanged(net), pytest.raises(CheckpointError, match=r"task-0\.safetensors"):
        net.train_task(loader(0), checkpoint=tmp_path, progress=False)


def test_unwritable_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    net = network()
    net.prepare_for_task(0, num_classes=2)
    with lives.unchanged(net), pytest.raises(CheckpointError, match="cannot keep checkpoints"):
        net.train_task(loader(0), checkpoint=file / "below", progress=False)


def test_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on, and an earlier state stays readable."""
    whole = life(None)
    save_file, calls = safetensors.torch.save_file, itertools.count()

    def sometimes(*args: Any, **kwargs: Any) -> None:
        if next(calls) % 3 == 2:
            raise OSError(28, "No space left on device")
        save_file(*args, **kwargs)

    monkeypatch.setattr(safetensors.torch, "save_file", sometimes)
    with pytest.warns(StorageWarning, match="No space left"):
        again = life(tmp_path)
    assert all(torch.equal(again[name], whole[name]) for name in whole)
    assert not list(tmp_path.glob("*.tmp"))


def test_files_fit_together_when_some_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the state from before a round could not be written: the same bits again."""
    whole = life(None)
    write = store.Directory._write

    def never_before(self: store.Directory, name: str, state: Any) -> None:
        if name == store.BEFORE:
            raise CheckpointError("cannot be written: no space left", remedy="")
        write(self, name, state)

    monkeypatch.setattr(store.Directory, "_write", never_before)
    with pytest.warns(StorageWarning), pytest.raises(KilledError):
        life(tmp_path, stop_after=5)
    monkeypatch.undo()
    again = life(tmp_path)
    assert all(torch.equal(again[name], whole[name]) for name in whole)


@pytest.mark.parametrize("directory", [False, True])
def test_divergence_goes_back(tmp_path: Path, directory: bool) -> None:
    """To the last good epoch, in the network, the optimizer and the files."""
    net = network()
    run(net, 0)
    net.finish_task()
    said = lives.answers(net, X, 0)
    net.prepare_for_task(1, num_classes=2)
    states: list[dict[str, Tensor]] = []
    x, y = data(1)
    calls = itertools.count()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = nn.functional.cross_entropy(output, target)
        return value * float("nan") if next(calls) == 17 else value

    def keep(epoch: autoeidetic.training.Epoch) -> None:
        states.append(lives.state(net))

    optimizer = adam(net)
    with pytest.raises(NonFiniteError, match="back where it was after 3 epochs"):
        net.train_task(
            [(x, y)] * 5, optimizer=optimizer, loss=loss, on_epoch=keep,
            checkpoint=tmp_path if directory else None, **SHORT,
        )  # fmt: skip
    assert len(states) == 3
    assert not lives.changed(net, states[-1])
    assert lives.same(lives.answers(net, X, 0), said)
    net.train_task([(x, y)] * 5, optimizer=optimizer, **SHORT)
    net.finish_task()
    assert net.verify(X).ok


def test_values_that_diverge_without_the_loss() -> None:
    """The last step of an epoch may leave NaN behind."""
    net = network()
    net.prepare_for_task(0, num_classes=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=float("inf"))
    with pytest.raises(NonFiniteError, match="back where it was after 0 epochs"):
        net.train_task([data(0)], optimizer=optimizer, progress=False)
    assert all(p.isfinite().all() for p in net.parameters())


def test_interrupt_leaves_a_usable_checkpoint(tmp_path: Path) -> None:
    net = network()
    net.prepare_for_task(0, num_classes=2)

    def interrupt(epoch: autoeidetic.training.Epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        net.train_task(
            loader(0), optimizer=adam(net), checkpoint=tmp_path, on_epoch=interrupt, **SHORT
        )
    again = network()
    again.prepare_for_task(0, num_classes=2)
    history = again.train_task(loader(0), optimizer=adam(again), checkpoint=tmp_path, **SHORT)
    assert history.epochs[2].phase == "train"


def test_the_default_optimizer_is_fused_where_it_can_be() -> None:
    weights = nn.Linear(3, 2)
    optimizer = default_optimizer(weights.parameters(), 0.1)
    assert optimizer.defaults["fused"] is True
    assert optimizer.defaults["lr"] == 0.1
    weights(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    complex_ones = [*weights.parameters(), nn.Parameter(torch.ones(2, dtype=torch.complex64))]
    assert not default_optimizer(complex_ones).defaults["fused"]
    elsewhere = nn.Linear(3, 2, device="meta").parameters()
    assert not default_optimizer(elsewhere).defaults["fused"]
