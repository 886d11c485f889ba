"""Tasks read from folders of images, one folder per class.

A task's folder holds ``train`` and ``val`` (or ``test``) with a folder for each class in both, or
the class folders themselves; then a fifth of the images is held out for testing.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from tqdm.auto import tqdm

from ...errors import InputError

_TESTS = ("val", "valid", "validation", "test")
_HELD_OUT = 5
_LAYOUT = "put the images of each class into a folder of its own, FOLDER/CLASS/image.jpg"
#: Checking fewer files than this shows no progress bar.
_QUICK = 500

Sample = tuple[str, int]


@dataclass(frozen=True)
class ImageTask:
    """The images of one task: pairs of a file and its class number."""

    name: str
    folder: str
    classes: tuple[str, ...]
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]

    def to_dict(self) -> dict[str, Any]:
        """The record of the task; ``images`` identifies its data independently of the folder."""
        return {
            "name": self.name,
            "folder": str(Path(self.folder).resolve()),
            "classes": list(self.classes),
            "train": len(self.train),
            "test": len(self.test),
            # names, sizes and classes, not contents: that would take as long as reading all images
            "images": _listing(self.folder, (*self.train, *self.test)),
        }


class Images(Dataset[tuple[Any, int]]):
    """A data set that reads each image on access."""

    def __init__(self, samples: Sequence[Sample], transform: Callable[[Any], Any]) -> None:
        self.samples = tuple(samples)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        file, label = self.samples[index]
        try:
            with Image.open(file) as image:
                coloured = image.convert("RGB")
        except Exception as error:  # decoders raise many types
            raise _unreadable(file, error) from error
        return self.transform(coloured), label


def find_tasks(folders: Sequence[str], seed: int) -> tuple[ImageTask, ...]:
    """The tasks in these folders; ``seed`` selects the images that are held out.

    Raises:
        InputError: a folder is missing, is given twice, or holds no task.
    """
    names = Counter(Path(folder).resolve().name for folder in folders)
    tasks: list[ImageTask] = []
    roots: dict[Path, str] = {}
    for folder in folders:
        name = Path(folder).resolve().name
        # The last part of the path names a task, unless two folders share it.
        task = _task(folder, name if names[name] == 1 else folder, seed)
        root = _training_folder(Path(folder)).resolve()
        if root in roots:
            raise InputError(
                f"'{folder}' and '{roots[root]}' are the same folder",
                remedy="pass each task's folder once",
            )
        roots[root] = folder
        tasks.append(task)
    return tuple(tasks)


def check_images(tasks: Sequence[ImageTask], progress: bool) -> None:
    """Check that every image can be decoded, before hours of training depend on it.

    Raises:
        InputError: an image cannot be read.
    """
    files = [file for task in tasks for file, _ in (*task.train, *task.test)]
    shown = tqdm(files, "checking images", disable=not progress or len(files) < _QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns about metadata and palettes
        for file in shown:
            try:
                with Image.open(file) as image:
                    image.draft("RGB", (32, 32))  # a JPEG is read in full, but decoded small
                    image.load()
            except Exception as error:  # decoders raise many types
                shown.close()
                raise _unreadable(file, error) from error


def _unreadable(file: str, error: Exception) -> InputError:
    return InputError(
        f"'{file}' cannot be read as an image: {' '.join(str(error).split())}",
        remedy="repair the file, or remove it from the folder",
    )


# -- layout ------------------------------------------------------------------------------------


def _task(folder: str, name: str, seed: int) -> ImageTask:
    root = Path(folder)
    if not root.is_dir():
        fact = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"'{folder}' {fact}", remedy="pass one folder of images per task")
    source = _training_folder(root)
    classes, samples = _images(source)
    # Without train/ a folder called "test" is a class like any other.
    tests = [root / part for part in _TESTS if source != root and (root / part).is_dir()]
    if not tests:
        return ImageTask(name, folder, classes, *_held_out(source, samples, classes, seed))
    others, test = _images(tests[0])
    if others != classes:
        odd = sorted(set(others) ^ set(classes))[0]
        raise InputError(
            f"'{source}' and '{tests[0]}' have different classes: '{odd}' is in only one of them",
            remedy="give both the same class folders",
        )
    return ImageTask(name, folder, classes, samples, test)


def _training_folder(root: Path) -> Path:
    """The folder that contains the class folders of the training images."""
    return root / "train" if _folders(root / "train") else root


class _Folder(ImageFolder):
    """An ImageFolder that ignores hidden folders, which it would take for classes."""

    def find_classes(self, directory: Any) -> tuple[list[str], dict[str, int]]:
        names = _folders(Path(directory))
        return names, {name: number for number, name in enumerate(names)}


def _folders(root: Path) -> list[str]:
    """Sorted names of subfolders, without hidden ones and caches such as ``__pycache__``."""
    found = root.iterdir() if root.is_dir() else ()
    return sorted(p.name for p in found if p.is_dir() and not p.name.startswith((".", "__")))


def _images(root: Path) -> tuple[tuple[str, ...], tuple[Sample, ...]]:
    if set(_folders(root)) <= {"train", *_TESTS}:  # a split without classes in it
        raise InputError(f"'{root}' has no class folders", remedy=_LAYOUT)
    found = _Folder(root, allow_empty=True)
    classes, samples = tuple(found.classes), tuple(found.samples)
    counts = Counter(label for _, label in samples)
    for label, name in enumerate(classes):
        if not counts[label]:
            raise InputError(
                f"'{root / name}' has no images", remedy="add images, or remove the folder"
            )
    if len(classes) == 1:
        raise InputError(
            f"'{root}' has only one class, '{classes[0]}'",
            remedy=f"a task needs at least two classes; {_LAYOUT}",
        )
    return classes, samples


def _held_out(
    root: Path, samples: tuple[Sample, ...], classes: tuple[str, ...], seed: int
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Training and test images: a fifth of each class, at least one image, is held out.

    Images are picked by a hash of their names, so the choice does not depend on the order in which
    the file system lists them.
    """
    test: set[str] = set()
    for label, name in enumerate(classes):
        own = [file for file, each in samples if each == label]
        if len(own) == 1:
            raise InputError(
                f"'{root / name}' has only one image, but some must be held out for testing",
                remedy="add images, or split them into train/CLASS and val/CLASS yourself",
            )
        # Relative paths: the same images are held out after the folder has moved.
        own.sort(key=lambda file: _hash(f"{seed} {Path(file).relative_to(root).as_posix()}"))
        test.update(own[: max(1, round(len(own) / _HELD_OUT))])
    kept = tuple(sample for sample in samples if sample[0] not in test)
    return kept, tuple(sample for sample in samples if sample[0] in test)


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _listing(folder: str, samples: Sequence[Sample]) -> str:
    """A digest of the names, sizes and classes of the files; contents are not read."""
    lines = [
        f"{Path(file).relative_to(folder).as_posix()} {Path(file).stat().st_size} {label}"
        for file, label in samples
    ]
    return _hash("\n".join(lines))
