"""Tasks from real images, held in memory, and batches to train on.

Files are read from the given directory, else from the directory in the environment variable
AUTOEIDETIC_DATA, else from ``../shared/data`` next to the repository.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

VARIABLE = "AUTOEIDETIC_DATA"
DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"

MNIST = "mnist"
FASHION = "fashion-mnist"
CIFAR100 = "cifar100/cifar100_subset_250train_50test_per_class.npz"
IMAGENETTE = "imagenette224/imagenette224_subset_60train_20val_per_class.tar"
LITE0 = "weights/efficientnet-lite0-57934424.pth"
LITE0_KEYS = "weights/efficientnet_lite0_timm_keymap.json"

FASHION_NAMES = "T-shirt Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Boot".split()
IMAGENETTE_NAMES = {
    "n01440764": "tench",
    "n02102040": "springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}

Directory = str | os.PathLike[str] | None
Transform = Callable[[Tensor, torch.Generator | None], Tensor]


class Examples(NamedTuple):
    """Images and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class TaskData:
    """A task: its number of classes, normalised images, labels from 0 to ``classes - 1``.

    ``view`` makes the inputs of the task from images that several tasks share.
    """

    name: str
    classes: int
    train: Examples
    test: Examples
    view: Callable[[Tensor], Tensor] | None = None

    def batches(self, size: int, transform: Transform | None = None) -> Batches:
        """Batches to train on."""
        return Batches(*self.train, size, transform=self._seen(transform))

    def test_batches(self) -> Batches:
        """All test examples, in order."""
        return Batches(*self.test, 500, shuffle=False, transform=self._seen(None))

    def seen(self, examples: Examples) -> Examples:
        """Stored examples as the task has them."""
        return examples if self.view is None else Examples(self.view(examples.x), examples.y)

    def _seen(self, transform: Transform | None) -> Transform | None:
        view = self.view
        if view is None:
            return transform
        return lambda x, generator: view(x if transform is None else transform(x, generator))


@dataclass(frozen=True)
class Images:
    """A data set as stored: uint8 images (N, channels, height, width) and all labels."""

    train: Examples
    test: Examples
    mean: tuple[float, ...]
    std: tuple[float, ...]
    names: tuple[str, ...]


# -- tasks ----------------------------------------------------------------------------------------


def permuted_mnist(
    tasks: int = 10, seed: int = 0, *, directory: Directory = None
) -> list[TaskData]:
    """All ten digits in every task, with the 784 pixels in a different order for each task.

    Task 0 has the original order. The other orders are drawn with the seed, one after another, so
    that a shorter sequence is the beginning of a longer one. Images are flat: (N, 784), and stored
    once for all tasks.
    """
    images = mnist(directory)
    train, test = (_flat(normalised(part, images)) for part in (images.train, images.test))
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.arange(784)] + [torch.randperm(784, generator=generator) for _ in range(tasks)]
    return [
        TaskData(f"permutation {number}", 10, train, test, functools.partial(_ordered, order))
        for number, order in enumerate(orders[:tasks])
    ]


def split_mnist(*, directory: Directory = None) -> list[TaskData]:
    """Five tasks of two digits each: 0 and 1, 2 and 3, ..."""
    return _split(mnist(directory), _chunks(range(10), 5))


def split_fashion(*, directory: Directory = None) -> list[TaskData]:
    """Five tasks of two kinds of clothing each, in the order of their labels."""
    return _split(fashion_mnist(directory), _chunks(range(10), 5))


def split_cifar100(tasks: int = 5, seed: int = 0, *, directory: Directory = None) -> list[TaskData]:
    """The hundred classes in an order drawn with the seed, divided equally between tasks."""
    order = torch.randperm(100, generator=torch.Generator().manual_seed(seed)).tolist()
    return _split(cifar100(directory), _chunks(order, tasks))


def imagenette_pairs(*, size: int = 224, directory: Directory = None) -> list[TaskData]:
    """Five tasks of two of Imagenette's classes each, in the order of their WordNet numbers."""
    return _split(imagenette(directory, size), _chunks(range(10), 5))


def _chunks(classes: Sequence[int], tasks: int) -> list[Sequence[int]]:
    if tasks < 1 or len(classes) % tasks:
        raise ValueError(f"{len(classes)} classes cannot be divided evenly between {tasks} tasks")
    size = len(classes) // tasks
    return [classes[start : start + size] for start in range(0, len(classes), size)]


def _split(images: Images, parts: Sequence[Sequence[int]]) -> list[TaskData]:
    tasks = []
    for number, classes in enumerate(parts):
        few = [images.names[label] for label in classes] if len(classes) <= 2 else []
        train, test = (
            normalised(only(part, classes), images) for part in (images.train, images.test)
        )
        tasks.append(TaskData(" and ".join(few) or f"part {number}", len(classes), train, test))
    return tasks


def only(examples: Examples, classes: Sequence[int]) -> Examples:
    """The examples of some classes, labelled with the class's position in the sequence."""
    missing = set(classes) - set(examples.y.unique().tolist())
    if missing:
        raise ValueError(f"there are no examples of the classes {sorted(missing)}")
    position = torch.full((int(examples.y.max()) + 1,), -1)
    position[list(classes)] = torch.arange(len(classes))
    y = position[examples.y]
    rows = (y >= 0).nonzero()[:, 0]
    return Examples(examples.x[rows], y[rows])


def normalised(examples: Examples, images: Images) -> Examples:
    """The images as floats, with the mean and the deviation of their data set removed."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (images.mean, images.std))
    return Examples(examples.x.float().div_(255).sub_(mean).div_(std), examples.y)


def _flat(examples: Examples) -> Examples:
    return Examples(examples.x.flatten(1), examples.y)


def _ordered(order: Tensor, x: Tensor) -> Tensor:
    return x.index_select(1, order)


def held_back(task: TaskData, share: float) -> TaskData:
    """The task with the last part of its training images, of every class, as its test."""
    rows = [(task.train.y == label).nonzero()[:, 0] for label in range(task.classes)]
    cuts = [len(each) - round(share * len(each)) for each in rows]
    first = torch.cat([each[:cut] for each, cut in zip(rows, cuts, strict=True)])
    last = torch.cat([each[cut:] for each, cut in zip(rows, cuts, strict=True)])
    parts = [Examples(task.train.x[part], task.train.y[part]) for part in (first, last)]
    return replace(task, train=parts[0], test=parts[1])


# -- files ----------------------------------------------------------------------------------------


def mnist(directory: Directory = None) -> Images:
    """MNIST from the four original files."""
    train, test = _idx_pair(directory, MNIST)
    return Images(train, test, (0.1307,), (0.3081,), tuple("0123456789"))


def fashion_mnist(directory: Directory = None) -> Images:
    """Fashion-MNIST from the four original files."""
    train, test = _idx_pair(directory, FASHION)
    return Images(train, test, (0.2860,), (0.3530,), tuple(FASHION_NAMES))


def cifar100(directory: Directory = None) -> Images:
    """The subset of CIFAR-100 with its hundred fine labels."""
    with np.load(locate(CIFAR100, directory), allow_pickle=False) as arrays:
        train, test = (
            Examples(
                torch.from_numpy(arrays[f"x_{part}"]).permute(0, 3, 1, 2).contiguous(),
                torch.from_numpy(arrays[f"fine_{part}"]).long(),
            )
            for part in ("train", "test")
        )
        names = tuple(str(name) for name in arrays["fine_names"])
    return Images(train, test, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), names)


def imagenette(directory: Directory = None, size: int = 224) -> Images:
    """The subset of Imagenette in colour, resized to ``size``; normalised for lite0."""
    path = locate(IMAGENETTE, directory)
    with tarfile.open(path) as archive:
        found = {
            PurePosixPath(member.name): _picture(archive, member, size)
            for member in sorted(archive.getmembers(), key=lambda member: member.name)
            if member.name.endswith(".JPEG")
        }
    kinds = sorted({name.parent.name for name in found})
    parts = {}
    for part in ("train", "val"):
        chosen = [name for name in found if name.parent.parent.name == part]
        if not chosen:
            raise ValueError(f"{path} has no images {part}/<class>/*.JPEG")
        y = torch.tensor([kinds.index(name.parent.name) for name in chosen])
        parts[part] = Examples(torch.stack([found[name] for name in chosen]), y)
    names = tuple(IMAGENETTE_NAMES.get(kind, kind) for kind in kinds)
    return Images(parts["train"], parts["val"], (0.5,) * 3, (0.5,) * 3, names)


def _picture(archive: tarfile.TarFile, member: tarfile.TarInfo, size: int) -> Tensor:
    from PIL import Image

    with Image.open(archive.extractfile(member)) as image:
        image = image.convert("RGB")  # some are grey
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def lite0_weights(directory: Directory = None) -> dict[str, Tensor]:
    """ImageNet weights for timm's ``tf_efficientnet_lite0``, under timm's names."""
    keys = json.loads(locate(LITE0_KEYS, directory).read_text())
    weights = torch.load(locate(LITE0, directory), map_location="cpu", weights_only=True)
    return {keys[key]: tensor for key, tensor in weights.items()}


def _idx_pair(directory: Directory, folder: str) -> tuple[Examples, Examples]:
    train, test = (
        Examples(
            read_idx(locate(f"{folder}/{part}-images-idx3-ubyte.gz", directory))[:, None],
            read_idx(locate(f"{folder}/{part}-labels-idx1-ubyte.gz", directory)).long(),
        )
        for part in ("train", "t10k")
    )
    return train, test


def read_idx(path: Path) -> Tensor:
    """The bytes of a gzipped idx file: two zeros, the type, the dimensions, their sizes, data."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise ValueError(f"{path} is damaged: it ends in its header")
    sizes = struct.unpack(f">{content[3]}I", content[4:start])
    values = np.frombuffer(content[start:], np.uint8)
    if values.size != np.prod(sizes):
        raise ValueError(
            f"{path} is damaged: it has {values.size} values, but its header says {sizes}"
        )
    return torch.from_numpy(values.reshape(sizes).copy())


def data_directory(directory: Directory = None) -> Path:
    """The directory of the data files."""
    given = directory or os.environ.get(VARIABLE)
    path = Path(given) if given else DEFAULT
    if not path.is_dir():
        raise FileNotFoundError(
            f"the data directory {path} does not exist; set {VARIABLE} or pass a directory that "
            "contains mnist/, fashion-mnist/, cifar100/, imagenette224/ and weights/"
        )
    return path


def locate(name: str, directory: Directory = None) -> Path:
    """A file of the data directory."""
    path = data_directory(directory) / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; put {Path(name).name} there, or set {VARIABLE} to another "
            "directory"
        )
    return path


# -- batches --------------------------------------------------------------------------------------


class Batches:
    """Batches of tensors in memory, in a new order in each epoch.

    Args:
        x, y: the examples.
        batch_size: of all batches but the last, which may be smaller.
        shuffle: random order, or the given order (then batches are views).
        generator: source of random numbers; None is torch's default generator, which
            ``torch.manual_seed`` sets.
        seed: seed of a separate generator instead.
        transform: called with each batch of inputs and the generator.

    Example:
        >>> batches = Batches(torch.arange(5), torch.arange(5), 2, shuffle=False)
        >>> [x.tolist() for x, y in batches], len(batches)
        ([[0, 1], [2, 3], [4]], 3)
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        batch_size: int,
        shuffle: bool = True,
        *,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        transform: Transform | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs for {len(y)} labels")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} is not positive")
        if generator is not None and seed is not None:
            raise ValueError("pass a generator or a seed, not both")
        self.x = x
        self.y = y
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.generator = generator if seed is None else torch.Generator().manual_seed(seed)
        self.transform = transform

    def __len__(self) -> int:
        return -(-len(self.y) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self._plain():
            yield x if self.transform is None else self.transform(x, self.generator), y

    def _plain(self) -> Iterator[tuple[Tensor, Tensor]]:
        if not self.shuffle:
            yield from zip(
                self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True
            )
            return
        order = torch.randperm(len(self.y), generator=self.generator)
        for rows in order.split(self.batch_size):
            yield self.x.index_select(0, rows), self.y.index_select(0, rows)


def crop_and_flip(x: Tensor, generator: torch.Generator | None = None, padding: int = 4) -> Tensor:
    """Shift each image by up to ``padding`` pixels, filled with zeros, and mirror half of them."""
    count, _, height, width = x.shape
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    windows = F.pad(x, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
    moved = windows[torch.arange(count), :, top, left]
    return torch.where(mirrored[:, None, None, None], moved.flip(3), moved)
