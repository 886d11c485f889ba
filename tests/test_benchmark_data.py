"""The data, networks and baselines of the learning benchmark, on files made here."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import datasets
from torch import Tensor, nn

import autoeidetic
from benchmarks import learning_baselines as baselines
from benchmarks import learning_data as data
from benchmarks import learning_models as models
from benchmarks.learning_data import Batches, Examples, TaskData

RANDOM = np.random.default_rng(0)
EACH = 6  # examples of a class for training
KINDS = [f"n{number:08d}" for number in range(10)]


# -- small files in the formats of the real ones --------------------------------------------------


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + values.tobytes()))


def write_digits(folder: Path) -> None:
    """Ten classes; the first pixel of an image tells its class."""
    for part, each in (("train", EACH), ("t10k", 2)):
        y = np.tile(np.arange(10, dtype=np.uint8), each)
        x = RANDOM.integers(0, 256, (len(y), 28, 28), dtype=np.uint8)
        x[:, 0, 0] = y
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", x)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", y)


def write_cifar(path: Path) -> None:
    """A hundred classes; red is the class, green 100, blue 0."""
    arrays: dict[str, np.ndarray] = {"fine_names": np.array([f"kind {i}" for i in range(100)])}
    for part, each in (("train", 2), ("test", 1)):
        y = RANDOM.permutation(np.repeat(np.arange(100), each))
        x = np.zeros((len(y), 32, 32, 3), dtype=np.uint8)
        x[..., 0], x[..., 1] = y[:, None, None], 100
        arrays |= {f"x_{part}": x, f"fine_{part}": y}
    path.parent.mkdir(parents=True)
    np.savez(path, **arrays)


def write_imagenette(path: Path) -> None:
    """Ten classes of plain grey images, some stored with one channel; brightness is the class."""
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w") as archive:
        for part, each in (("train", 3), ("val", 1)):
            for label, kind in reversed(list(enumerate(KINDS))):
                for number in range(each):
                    mode, colour = ("L", 20 * label) if number == 1 else ("RGB", (20 * label,) * 3)
                    file = io.BytesIO()
                    Image.new(mode, (16, 16), colour).save(file, "JPEG", quality=95)
                    info = tarfile.TarInfo(f"imagenette224/{part}/{kind}/{number}.JPEG")
                    info.size = len(file.getvalue())
                    archive.addfile(info, io.BytesIO(file.getvalue()))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_digits(directory / data.MNIST)
    write_digits(directory / data.FASHION)
    write_cifar(directory / data.CIFAR100)
    write_imagenette(directory / data.IMAGENETTE)
    return directory


# -- tasks ----------------------------------------------------------------------------------------


def original(x: Tensor, mean: float, std: float) -> Tensor:
    return ((x * std + mean) * 255).round()


@pytest.mark.parametrize(
    ("make", "mean", "std"),
    [(data.split_mnist, 0.1307, 0.3081), (data.split_fashion, 0.2860, 0.3530)],
)
def test_digits_are_split_in_pairs(
    make: Callable[..., list[TaskData]], mean: float, std: float, files: Path
) -> None:
    tasks = make(directory=files)
    assert len(tasks) == 5
    for number, task in enumerate(tasks):
        assert task.classes == 2
        assert task.train.x.shape == (2 * EACH, 1, 28, 28)
        assert len(task.test.x) == len(task.test.y) == 4
        for x, y in (task.train, task.test):
            assert set(y.tolist()) == {0, 1}
            assert torch.equal(original(x[:, 0, 0, 0], mean, std).long(), y + 2 * number)


def test_names_of_pairs(files: Path) -> None:
    assert [task.name for task in data.split_mnist(directory=files)][:2] == ["0 and 1", "2 and 3"]
    assert data.split_fashion(directory=files)[0].name == "T-shirt and Trouser"


def test_permuted_tasks_hold_the_same_pixels_in_orders_of_their_own(files: Path) -> None:
    tasks = data.permuted_mnist(3, seed=4, directory=files)
    first = data.read_idx(files / data.MNIST / "train-images-idx3-ubyte.gz").flatten(1)
    train, test = ([task.seen(part(task)) for task in tasks] for part in (_train, _test))
    assert torch.equal(original(train[0].x, 0.1307, 0.3081).byte(), first)
    for task, seen in zip(tasks[1:], train[1:], strict=True):
        assert task.classes == 10
        assert not torch.equal(seen.x, train[0].x)
        assert torch.equal(seen.x.sort(1).values, train[0].x.sort(1).values)
        assert torch.equal(seen.y, train[0].y)
    columns = [(train[1].x == column[:, None]).all(0) for column in train[0].x.T]
    order = torch.stack(columns).int().argmax(0)
    assert torch.equal(test[1].x, test[0].x[:, order]), "test: the same order"
    x, y = next(iter(tasks[1].test_batches()))
    assert torch.equal(x, test[1].x[: len(y)])


def test_permutations_follow_the_seed(files: Path) -> None:
    sizes = ((2, 1), (3, 1), (2, 2))
    found = [data.permuted_mnist(n, seed=seed, directory=files) for n, seed in sizes]
    short, long, other = ([task.seen(task.train).x for task in tasks] for tasks in found)
    assert all(torch.equal(a, b) for a, b in zip(short, long, strict=False))
    assert not torch.equal(short[1], other[1])
    assert not torch.equal(long[1], long[2])


def test_training_images_are_held_back(files: Path) -> None:
    task = data.split_mnist(directory=files)[0]
    found = data.held_back(task, 0.25)
    assert len(found.train.y) + len(found.test.y) == len(task.train.y)
    assert 0 < len(found.test.y) < len(found.train.y)
    both = torch.cat([found.train.x, found.test.x]).flatten(1).sum(1).sort().values
    assert torch.equal(both, task.train.x.flatten(1).sum(1).sort().values)
    assert set(found.test.y.tolist()) == {0, 1}


def _train(task: data.TaskData) -> data.Examples:
    return task.train


def _test(task: data.TaskData) -> data.Examples:
    return task.test


def test_cifar_classes_are_divided_in_an_order_of_the_seed(files: Path) -> None:
    tasks = data.split_cifar100(5, seed=3, directory=files)
    found: list[int] = []
    for task in tasks:
        assert task.classes == 20
        assert task.train.x.shape == (40, 3, 32, 32)
        assert original(task.train.x[:, 1], 0.4865, 0.2564).eq(100).all()
        of = {}
        for x, y in (task.train, task.test):
            red = original(x[:, 0, 0, 0], 0.5071, 0.2673).long().tolist()
            for new, old in zip(y.tolist(), red, strict=True):
                assert of.setdefault(new, old) == old, "train and test agree"
        found += [of[label] for label in range(20)]
    assert sorted(found) == list(range(100))
    assert found != sorted(found)
    again, other = (data.split_cifar100(5, seed=s, directory=files)[0] for s in (3, 0))
    assert torch.equal(again.train.x, tasks[0].train.x)
    assert not torch.equal(other.train.x, tasks[0].train.x)


def test_classes_that_cannot_be_divided_evenly(files: Path) -> None:
    with pytest.raises(ValueError, match="100 classes cannot be divided evenly between 7 tasks"):
        data.split_cifar100(7, directory=files)


@pytest.mark.parametrize("size", [16, 8])
def test_imagenette_is_read_in_colour(size: int, files: Path) -> None:
    tasks = data.imagenette_pairs(size=size, directory=files)
    assert [len(task.train.y) for task in tasks] == [6] * 5
    assert tasks[1].name == f"{KINDS[2]} and {KINDS[3]}"
    for number, task in enumerate(tasks):
        for x, y in (task.train, task.test):
            assert x.shape[1:] == (3, size, size)
            brightness = original(x.mean((1, 2, 3)), 0.5, 0.5)
            assert (brightness - 20 * (y + 2 * number)).abs().max() <= 3  # JPEG


def test_labels_are_positions_in_the_sequence_of_classes() -> None:
    examples = Examples(torch.arange(6), torch.tensor([5, 2, 7, 2, 5, 0]))
    x, y = data.only(examples, [7, 2])
    assert x.tolist() == [1, 2, 3]
    assert y.tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"no examples of the classes \[3, 9\]"):
        data.only(examples, [9, 2, 3])


def test_pretrained_weights_get_the_names_of_timm(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    torch.save({"_a": torch.ones(2), "_b": torch.zeros(1)}, tmp_path / data.LITE0)
    (tmp_path / data.LITE0_KEYS).write_text(json.dumps({"_a": "stem.a", "_b": "b"}))
    weights = data.lite0_weights(tmp_path)
    assert set(weights) == {"stem.a", "b"}
    assert torch.equal(weights["stem.a"], torch.ones(2))


# -- what can be wrong with files -----------------------------------------------------------------


def test_the_variable_names_the_directory(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(data.VARIABLE, str(files))
    assert len(data.split_mnist()) == 5
    assert data.data_directory(tmp_path) == tmp_path, "an argument comes first"
    monkeypatch.delenv(data.VARIABLE)
    monkeypatch.setattr(data, "DEFAULT", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; set AUTOEIDETIC_DATA"):
        data.split_mnist()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"train-images-idx3-ubyte.gz is missing; put .* there"
    ):
        data.split_mnist(directory=tmp_path)


def damaged(change: Callable[[bytes], bytes], compress: bool = True) -> bytes:
    content = struct.pack(">HBBI", 0, 8, 1, 4) + bytes(4)
    if compress:
        return gzip.compress(change(content), mtime=0)
    return change(gzip.compress(content, mtime=0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (damaged(lambda c: c[:-5], compress=False), "is damaged: Compressed file ended"),
        (damaged(lambda c: b"no" + c, compress=False), "is damaged: Not a gzipped file"),
        (damaged(lambda c: c[:-1]), r"is damaged: it has 3 values, but its header says \(4,\)"),
        (damaged(lambda c: c[:6]), "is damaged: it ends in its header"),
        (damaged(lambda c: b"\0\0\x0d" + c[3:]), "is not an idx file of unsigned bytes"),
        (damaged(lambda c: b""), "is not an idx file of unsigned bytes"),
    ],
    ids=["cut", "not gzip", "short", "header", "kind", "empty"],
)
def test_a_damaged_idx_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"file\.gz {message}"):
        data.read_idx(path)


def test_an_archive_without_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / data.IMAGENETTE
    path.parent.mkdir()
    tarfile.open(path, "w").close()
    with pytest.raises(ValueError, match="has no images train/<class>"):
        data.imagenette_pairs(directory=tmp_path)


# -- batches --------------------------------------------------------------------------------------


def numbered(count: int = 10) -> tuple[Tensor, Tensor]:
    return torch.arange(count)[:, None].float(), torch.arange(count)


def order(batches: Batches) -> list[int]:
    return [label for _, y in batches for label in y.tolist()]


def test_every_example_comes_once_with_its_label() -> None:
    batches = Batches(*numbered(), 4)
    parts = list(batches)
    assert [len(y) for _, y in parts] == [4, 4, 2]
    assert len(batches) == 3
    assert all(torch.equal(x[:, 0].long(), y) for x, y in parts)
    first, second = order(batches), order(batches)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert first != list(range(10))


def test_without_shuffling_batches_are_views() -> None:
    x, y = numbered()
    parts = list(Batches(x, y, 4, shuffle=False))
    assert [p.tolist() for _, p in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert parts[1][0].data_ptr() == x[4:].data_ptr()


def test_the_default_generator_decides_unless_there_is_another() -> None:
    shared, own = Batches(*numbered(), 4), Batches(*numbered(), 4, seed=7)
    assert shared.generator is None
    torch.manual_seed(3)
    first, mine = order(shared), order(own)
    torch.manual_seed(3)
    assert order(shared) == first
    torch.manual_seed(3)
    assert order(Batches(*numbered(), 4, seed=7)) == mine
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(3).get_state()), "untouched"


def test_the_state_of_a_generator_can_be_put_back() -> None:
    batches = Batches(*numbered(), 4, seed=1)
    order(batches)
    assert batches.generator is not None
    state = batches.generator.get_state()
    epochs = [order(batches) for _ in range(3)]
    batches.generator.set_state(state)
    assert [order(batches) for _ in range(3)] == epochs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 is not positive"),
        ({"batch_size": 4, "y": torch.arange(9)}, "10 inputs for 9 labels"),
        ({"batch_size": 4, "seed": 1, "generator": torch.Generator()}, "not both"),
    ],
)
def test_wrong_arguments_of_batches(options: dict[str, Any], message: str) -> None:
    x, y = numbered()
    with pytest.raises(ValueError, match=message):
        Batches(**{"x": x, "y": y, **options})


# -- augmentation ---------------------------------------------------------------------------------


def test_images_are_moved_and_mirrored() -> None:
    """Each result is one of the 9 x 9 x 2 possible ones, and all images get their own."""
    image = torch.rand(3, 8, 8) + 1
    x = image.expand(64, -1, -1, -1)
    padded = torch.nn.functional.pad(image, [4] * 4)
    windows = [padded[:, i : i + 8, j : j + 8] for i in range(9) for j in range(9)]
    possible = torch.stack([*windows, *(window.flip(2) for window in windows)])
    found = data.crop_and_flip(x)
    assert found.shape == x.shape
    which = [(possible == each).all(3).all(2).all(1).nonzero()[:, 0].tolist() for each in found]
    assert all(len(matches) == 1 for matches in which)
    numbers = {match for (match,) in which}
    assert len(numbers) > 30
    assert 10 < sum(match >= 81 for (match,) in which) < 54, "about half are mirrored"


def test_augmentation_is_deterministic_and_leaves_the_data_alone() -> None:
    x, y = torch.rand(10, 3, 8, 6), torch.arange(10)
    before = x.clone()

    def epoch(seed: int) -> Tensor:
        batches = Batches(x, y, 4, seed=seed, transform=data.crop_and_flip)
        parts = list(batches)
        assert all(part.shape[1:] == x.shape[1:] for part, _ in parts)
        return torch.cat([part for part, _ in parts])

    assert torch.equal(epoch(1), epoch(1))
    assert not torch.equal(epoch(1), epoch(2))
    assert torch.equal(x, before)
    torch.manual_seed(5)
    first = data.crop_and_flip(x)
    torch.manual_seed(5)
    assert torch.equal(data.crop_and_flip(x), first)


# -- networks -------------------------------------------------------------------------------------

SMALL: dict[str, Callable[[], nn.Module]] = {
    "paper_mlp": lambda: models.paper_mlp(width=200),
    "small_mlp": models.small_mlp,
    "resnet18": models.resnet18,
    "resnet18_slim": models.resnet18_slim,
    "vit_tiny": lambda: models.vit_tiny(depth=2),
    "vit_tiny_slim": models.vit_tiny_slim,
}


def test_only_pretrained_networks_need_files() -> None:
    assert set(models.NETWORKS) - set(SMALL) == {"efficientnet_lite0"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_networks_are_divided_between_tasks(name: str) -> None:
    x = torch.randn(2, *models.NETWORKS[name].shape)
    net = autoeidetic.convert(SMALL[name](), x, inplace=True)
    net.prepare_for_task(0, num_classes=3)
    net.prune(0.5)
    net.finish_task()
    assert net.capacity().free == pytest.approx(0.5, abs=0.01)
    net.prepare_for_task(1, num_classes=5)
    assert net(x).shape == (2, 5)
    assert net.verify(x, rounds=1).ok


def test_the_papers_mlp() -> None:
    layers = [layer for layer in models.paper_mlp() if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in layers] == [2000, 2000, 10]
    assert [each.p for each in models.paper_mlp() if isinstance(each, nn.Dropout)] == [0.1, 0.1]


# -- baselines ------------------------------------------------------------------------------------


def task_of(name: str, classes: int, examples: Examples) -> TaskData:
    x, y = examples
    return TaskData(name, classes, Examples(x[100:], y[100:]), Examples(x[:100], y[:100]))


@pytest.fixture(scope="module")
def all_digits() -> Examples:
    raw = datasets.load_digits()
    return Examples(torch.tensor(raw.data).float() / 16, torch.tensor(raw.target))


@pytest.fixture(scope="module")
def digits(all_digits: Examples) -> list[TaskData]:
    """Three tasks of three of scikit-learn's digits."""
    kinds = [range(3), range(3, 6), range(6, 9)]
    return [task_of(f"from {k.start}", 3, data.only(all_digits, k)) for k in kinds]


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)
    )


def budget(epochs: int = 1, seed: int = 0) -> baselines.Budget:
    return baselines.Budget(epochs, 32, lambda p: torch.optim.Adam(p, lr=0.02), seed=seed)


@pytest.mark.parametrize("run", [baselines.finetune, baselines.frozen, baselines.separate])
def test_baselines_learn_the_task_at_hand(run: Any, digits: list[TaskData], tmp_path: Path) -> None:
    outcome = run(perceptron, digits, budget(), tmp_path / "task0.pt")
    assert [len(row) for row in outcome.accuracy] == [1, 2, 3]
    assert all(row[-1] > 0.8 for row in outcome.accuracy), outcome
    assert outcome.seconds > 0
    random_state = torch.get_rng_state()
    again = run(perceptron, digits, budget(), tmp_path / "task0.pt")  # task 0 from its file
    assert again.accuracy == outcome.accuracy
    assert torch.equal(torch.get_rng_state(), random_state)


def test_fine_tuning_forgets(all_digits: Examples, tmp_path: Path) -> None:
    """The same digits with their pixels in other orders, in a narrow network."""

    def narrow() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    x, y = all_digits
    permuted = [Examples(x[:, torch.randperm(64)], y) for _ in range(3)]
    tasks = [task_of(f"order {number}", 10, each) for number, each in enumerate(permuted)]
    rows = baselines.finetune(narrow, tasks, budget(epochs=5), tmp_path / "0.pt").accuracy
    assert rows[2][0] < rows[0][0] - 0.2, rows


@pytest.mark.parametrize("run", [baselines.frozen, baselines.separate])
def test_what_is_frozen_or_separate_stays(run: Any, digits: list[TaskData], tmp_path: Path) -> None:
    rows = run(perceptron, digits, budget(), tmp_path / "task0.pt").accuracy
    for earlier, later in itertools.pairwise(rows):
        assert later[:-1] == earlier


def test_a_frozen_body_does_not_move(digits: list[TaskData]) -> None:
    model = baselines.MultiHead(perceptron())
    model.freeze_body()
    model.add_head(3)
    before = {name: value.clone() for name, value in model.body.state_dict().items()}
    optimizer = torch.optim.Adam(model.trained(), lr=0.02)
    baselines.train_epochs(model, Batches(*digits[0].train, 32), optimizer, 1)
    after = model.body.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_train_epochs_steps_the_schedule_and_returns_the_losses(digits: list[TaskData]) -> None:
    model = baselines.MultiHead(perceptron())
    model.add_head(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loader = Batches(*digits[0].train, 32)
    losses = baselines.train_epochs(model, loader, optimizer, 3, schedule)
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert optimizer.param_groups[0]["lr"] == 0.5 / 8


def test_accuracy_counts_right_answers_of_the_asked_task() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor, task: int = 0) -> Tensor:
            assert not self.training
            return nn.functional.one_hot(x.long() + task, 10).float()

    x, y = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 1, 2, 4, 5])
    assert baselines.accuracy(Fixed(), x, y, batch_size=2) == 3 / 5
    assert baselines.accuracy(Fixed(), x, y, task=1) == 2 / 5


@pytest.mark.parametrize("name", ["resnet18_slim", "vit_tiny_slim"])
def test_the_last_linear_layer_becomes_the_heads(name: str) -> None:
    model = baselines.MultiHead(SMALL[name]())
    model.add_head(3)
    model.add_head(5)
    x = torch.randn(2, *models.NETWORKS[name].shape)
    assert model(x).shape == (2, 5)
    assert model(x, task=0).shape == (2, 3)
    assert model.body(x).shape == (2, model.features)


def test_a_model_without_a_linear_layer_has_no_head() -> None:
    with pytest.raises(ValueError, match="ReLU has no linear layer to take as its head"):
        baselines.MultiHead(nn.ReLU())
