"""``autoeidetic train MODEL --tasks DIR DIR ...``: learn one folder of images per task."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..checkpoint import rebuild
from ..common import files
from ..errors import InputError
from ..learn import Lesson, learn
from ..net import EideticNet
from ..results import Run
from ..training import TrainConfig, default_optimizer
from .images.image_folders import Images, ImageTask, check_images, find_tasks
from .images.model_names import find_model
from .images.run_directory import ImageRun
from .images.vision import AUGMENTATIONS, ImageModel, image_model
from .options import add_json, at_least

EXAMPLES = """\
examples:
  autoeidetic train resnet18 --pretrained --tasks pets flowers --output run
  autoeidetic train resnet18 --pretrained --tasks pets flowers cars --output run   # one more
  autoeidetic train vit_tiny_patch16_224 --size 96 --tasks pets flowers --output other
A folder holds train/CLASS/*.jpg and val/CLASS/*.jpg (or test), or only CLASS/*.jpg, of which a
fifth is held out for testing. The same command resumes a stopped run; folders added at the end are
learned as further tasks. Finished tasks stay the same, bit for bit.
"""
ROUTERS = ("learned", "entropy", "energy", "mahalanobis", "none")
#: Options that must be the same for all tasks of a run; stored in its record and compared.
_COMMON = "model size pretrained seed epochs most step tolerance pruning".split()
_RATE, _PRETRAINED_RATE = 1e-3, 3e-4


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    config = TrainConfig(pruning="hybrid", tolerance=0.01, max_epochs=30)
    option = parser.add_argument
    option(
        "model",
        metavar="MODEL",
        help="a timm name, torchvision:NAME, or package.module:factory (with --size)",
    )
    option("--tasks", metavar="DIR", nargs="+", required=True, help="one folder per task")
    option("--output", metavar="RUN", required=True, help="folder for the network and its record")
    option(
        "--pretrained",
        action="store_true",
        help="start from pretrained values; units keep them until a task uses them",
    )
    option(
        "--size",
        metavar="N",
        type=at_least(1, "pixels"),
        help="side of the images; by default the model's own",
    )
    option(
        "--epochs",
        metavar="N",
        type=at_least(1, "epochs"),
        default=config.max_epochs,
        help="maximum number of training epochs before pruning (%(default)s)",
    )
    option(
        "--batch-size",
        metavar="N",
        type=at_least(2, "images"),
        default=32,
        help="images per training step (%(default)s)",
    )
    option(
        "--lr",
        metavar="X",
        type=float,
        help=f"learning rate of AdamW ({_RATE:g}, with --pretrained {_PRETRAINED_RATE:g})",
    )
    option(
        "--most",
        metavar="X",
        type=float,
        default=config.most,
        help="largest share of its units that a task gives up (%(default)s)",
    )
    option(
        "--widen",
        metavar="X",
        type=float,
        help="widen the network by this part when a task finds little room, instead of reusing "
        "units of earlier tasks",
    )
    option(
        "--step",
        metavar="X",
        type=float,
        default=config.step,
        help="share given up in one round of pruning (%(default)s)",
    )
    option(
        "--tolerance",
        metavar="X",
        type=float,
        default=config.tolerance,
        help="loss of training accuracy that pruning may cause (%(default)s)",
    )
    option(
        "--pruning",
        metavar="SCORE",
        default=config.pruning,
        help="pruning score: hybrid, l1, l2, taylor or random (%(default)s)",
    )
    option(
        "--augment",
        choices=AUGMENTATIONS,
        default="light",
        help="random changes to training images: none; light: crop and mirror; full: timm's "
        "ImageNet augmentation (%(default)s)",
    )
    option(
        "--router",
        choices=ROUTERS,
        default="learned",
        help="predicts the task of an image when it is not given (%(default)s)",
    )
    option(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to train; auto prefers CUDA (%(default)s)",
    )
    option(
        "--workers",
        metavar="N",
        type=at_least(0, "processes"),
        default=min(4, (os.cpu_count() or 1) - 1),
        help="processes that load images (%(default)s)",
    )
    option("--seed", metavar="N", type=int, default=0, help="random seed (%(default)s)")
    option("--quiet", action="store_true", help="print only the result")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    # Everything that can be checked cheaply is checked before the model is built: settings, device,
    # name, folders, the record of an earlier call, and the images of tasks that are still to come.
    config = TrainConfig(
        pruning=options.pruning,
        step=options.step,
        most=options.most,
        tolerance=options.tolerance,
        max_epochs=options.epochs,
    )
    if options.widen is not None and not 0 < options.widen <= 1:
        raise InputError(
            f"--widen {options.widen:g} is not above 0, up to 1", remedy="pass 0.25, say"
        )
    rate = _rate(options)
    device = _device(options.device)
    find_model(options.model)
    tasks = find_tasks(options.tasks, options.seed)
    settings = {name: getattr(options, name) for name in _COMMON}
    if options.widen is not None:  # records of runs without it have no such setting
        settings["widen"] = options.widen
    record = ImageRun(Path(options.output), settings)
    begun = record.check(tasks)
    progress = not options.quiet and sys.stderr.isatty()
    check_images(tasks[begun:], progress)
    _seed(options.seed)
    made = image_model(options.model, options.size, options.pretrained)
    # After the model: a name or size that cannot be built leaves no record behind.
    record.write(tasks)
    if not (options.quiet or options.json):
        _introduce(made, tasks)
    made.net.to(device)
    try:
        learned = learn(
            made.net,
            [_lesson(task, made, options, device) for task in tasks],
            options.output,
            optimizer=lambda parameters: default_optimizer(parameters, rate),
            router=None if options.router == "none" else options.router,
            config=config,
            prune_last=True,  # more tasks may follow
            on_full="reuse" if options.widen is None else "widen",
            width=options.widen or 0.25,
            progress=progress,
        )
    except KeyboardInterrupt:
        print("autoeidetic: stopped; run the same command to resume", file=sys.stderr)
        return 130
    except InputError as error:
        raise _plain(error) from error
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the device has too little memory for batches of {options.batch_size} images",
            remedy="pass a smaller --batch-size; the run resumes where it stopped",
        ) from error
    result = _result(learned, made.net, options)
    print(files.to_json(result).decode().rstrip() if options.json else _report(learned, result))
    return 0


def _rate(options: argparse.Namespace) -> float:
    rate: float | None = options.lr
    if rate is None:
        return _PRETRAINED_RATE if options.pretrained else _RATE
    if not 0 < rate < float("inf"):
        raise InputError(
            f"--lr {rate:g} is not a learning rate", remedy="pass a positive number such as 0.001"
        )
    return rate


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available", remedy="omit --device")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _seed(seed: int) -> None:
    """Seed all generators that augmentation draws from: torch, random and NumPy."""
    # The ranges of the generators differ; a negative seed is allowed on the command line.
    torch.manual_seed(seed % 2**63)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _plain(error: InputError) -> InputError:
    """Strip the worker's traceback, which torch prepends to an error in a loading process."""
    # The text is all that is left of the worker's error: fact and remedy are cut out of it again.
    words = error.fact.rpartition(f"{InputError.__name__}: ")[2]
    fact, _, remedy = words.partition("\n  remedy: ")
    return InputError(fact.strip(), place=error.place, remedy=remedy.strip() or error.remedy)


def _lesson(
    task: ImageTask, made: ImageModel, options: argparse.Namespace, device: torch.device
) -> Lesson:
    # The augmentation is for training only; test images are always the same.
    train = Images(task.train, made.transform(options.augment))
    size = options.batch_size
    common: dict[str, Any] = {
        "batch_size": size,
        "num_workers": options.workers,
        "pin_memory": device.type == "cuda",
    }
    # A batch norm cannot train on a single image, so a last batch of one image is dropped.
    single = len(train) % size == 1
    return Lesson(
        train=DataLoader(train, shuffle=True, drop_last=single, **common),
        test=DataLoader(Images(task.test, made.transform()), **common),
        classes=len(task.classes),
        name=task.name,
    )


# -- output ----------------------------------------------------------------------------------


def _introduce(made: ImageModel, tasks: tuple[ImageTask, ...]) -> None:
    _, height, width = made.data["input_size"]
    for task in tasks:
        print(
            f"{task.name}: {len(task.classes)} classes, {len(task.train)} training images, "
            f"{len(task.test)} test images, {height} x {width} pixels",
            file=sys.stderr,
        )


def _result(learned: Run, net: EideticNet, options: argparse.Namespace) -> dict[str, Any]:
    checkpoint = Path(options.output) / "network.safetensors"
    command = ["autoeidetic", "verify", str(checkpoint)]
    # A network whose model no library can rebuild needs --model to be verified.
    first = net.networks[0]
    if "why_not" in rebuild.recipe(first.backbone, first.call_plan.heads[0].size):
        command += ["--model", options.model]
    evaluation = learned.to_dict()["tasks"][-1]["evaluation"]
    return {
        "accuracy": learned.matrix.to_dict(),
        "agnostic": evaluation["agnostic"],
        "free": net.capacity().free,
        "bitwise": learned.bitwise.to_dict(),
        "checkpoint": str(checkpoint),
        "verify": shlex.join(command),
    }


def _report(learned: Run, result: dict[str, Any]) -> str:
    lines = [str(learned.matrix)]
    if result["agnostic"] is not None:
        lines.append(f"accuracy when the router finds the task: {result['agnostic']:.4f}")
    lines += [
        f"free for more tasks: {result['free']:.1%} of the network",
        str(learned.bitwise).splitlines()[-1],
        f"network: {result['checkpoint']}",
        f"check it with: {result['verify']}",
    ]
    return "\n".join(lines)
