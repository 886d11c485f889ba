"""Learning runs on real data: later tasks learn, and nothing is forgotten. One command per run.

    python benchmarks/learning.py permuted --tasks 3      # the short form of permuted MNIST
    python benchmarks/learning.py permuted                # ten tasks, hours
    python benchmarks/learning.py split --data mnist      # every score, every router
    python benchmarks/learning.py cifar --model resnet18
    python benchmarks/learning.py pretrained
    python benchmarks/learning.py scores --data cifar     # every score at the same capacity
    python benchmarks/learning.py kills                   # a job that is killed thirty times
    python benchmarks/learning.py widen                   # thirty tasks in a network that widens
    python benchmarks/learning.py whole                   # a pretrained model keeps every unit

Data are read from --data-directory, AUTOEIDETIC_DATA or ../shared/data. Every run has a directory
below --into (benchmarks/runs), where it resumes after a stop. Results are written to
benchmarks/results/learning-*.json and *.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import autoeidetic
from autoeidetic.commands.benchmark.runner import Record, setting
from benchmarks import RESULTS
from benchmarks import learning_baselines as baselines
from benchmarks import learning_data as data
from benchmarks import learning_kills as kills
from benchmarks import learning_models as models
from benchmarks import learning_scores as score_curves
from benchmarks import learning_widen as widen
from benchmarks.learning_report import table
from benchmarks.learning_run import learned, stored

PAPER = 0.9831  # the paper's average accuracy on ten tasks of permuted MNIST
SCORES = ("l1", "l2", "taylor", "hybrid")
ROUTERS = ("learned", "entropy", "energy", "mahalanobis")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function in COMMANDS.items():
        command = commands.add_parser(name, help=(function.__doc__ or "").splitlines()[0])
        command.add_argument("--into", type=Path, default=Path(__file__).parent / "runs")
        command.add_argument("--data-directory", type=Path)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--quiet", action="store_true", help="no progress bars")
        for flags, options in ARGUMENTS.get(name, {}).items():
            command.add_argument(flags, **options)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    began = time.perf_counter()
    record = COMMANDS[options.command](options)
    local = (
        "into",
        "data_directory",
        "quiet",
        "threads",
    )  # options that concern the machine, not the run
    given = {k: v for k, v in vars(options).items() if k not in local}
    record = {
        "command": "python benchmarks/learning.py " + " ".join(typed(options)),
        "options": given,
        "threads": options.threads,
        "setting": setting(),
        "seconds_of_this_call": round(time.perf_counter() - began),
        **record,
    }
    name = record.pop("name")
    (RESULTS / f"learning-{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    text = table(name, record)
    (RESULTS / f"learning-{name}.md").write_text(text + "\n")
    print(text)
    return 0 if record["passed"] else 1


def typed(options: argparse.Namespace) -> Iterator[str]:
    """The command as typed, with the options that differ from their defaults."""
    yield options.command
    for flag, about in {"--seed": {"default": 0}, **ARGUMENTS.get(options.command, {})}.items():
        value = getattr(options, flag.strip("-").replace("-", "_"))
        if value is True:
            yield flag
        elif value != about["default"]:
            shown = value if isinstance(value, (list, tuple)) else [value]
            yield " ".join([flag, *map(str, shown)])


# -- the commands ----------------------------------------------------------------------------------


def permuted(options: argparse.Namespace) -> Record:
    """Permuted MNIST with the paper's MLP.

    A task gives up ``--most`` of the free units, but keeps at least its even share of them.
    """
    tasks = data.permuted_mnist(options.tasks, directory=options.data_directory)
    _, _, ours = learned(
        options,
        f"permuted-{options.tasks}-{options.pruning}",
        models.paper_mlp,
        tasks,
        256,
        lambda net: torch.optim.Adam(net.parameters(), lr=options.lr, fused=True),
        scheduler=lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, options.epochs),
        task_settings=lambda task: {
            "most": min(options.most, 1 - 1 / max(options.tasks - task, 2))
        },
        pruning=options.pruning,
        step=options.step,
        most=options.most,
        tolerance=options.tolerance,
        lr_factor=options.lr_factor,
        patience=options.epochs,
        max_epochs=options.epochs,
        recovery_epochs=options.recovery_epochs,
        settle_epochs=options.settle_epochs,
        score_batches=40,
        on_full="reuse",
    )
    ours["paper"] = PAPER
    passed = ours["bitwise"]["ok"] and ours["average"] >= (PAPER if options.tasks == 10 else 0.98)
    return {"name": f"permuted-{options.tasks}", "passed": passed, "ours": ours}


def split(options: argparse.Namespace) -> Record:
    """Five tasks of two classes: each score, each router."""
    make = {"mnist": data.split_mnist, "fashion": data.split_fashion}[options.data]
    tasks = make(directory=options.data_directory)
    results = {}
    for by in options.scores:
        net, _, ours = learned(
            options,
            f"split-{options.data}-{by}",
            models.small_mlp,
            tasks,
            128,
            lambda net: torch.optim.Adam(net.parameters(), lr=1e-3, fused=True),
            pruning=by,
            step=options.step,
            most=options.most,
            tolerance=options.tolerance,
            lr_factor=0.5,
            patience=3,
            max_epochs=options.epochs,
            recovery_epochs=2,
            settle_epochs=2,
        )
        ours["routed"] = routed(net, tasks)
        results[by] = ours
    passed = all(one["bitwise"]["ok"] and one["verified"] for one in results.values())
    return {"name": f"split-{options.data}", "passed": passed, "scores": results}


def routed(net: autoeidetic.EideticNet, tasks: Sequence[data.TaskData]) -> Record:
    """The results of each kind of router on the test data."""
    train = [data.Batches(*task.train, 500, shuffle=False) for task in tasks]
    test = [data.Batches(*task.test, 500, shuffle=False) for task in tasks]
    found: Record = {}
    for kind in ROUTERS:
        began = time.perf_counter()
        net.train_router(train, kind, progress=False)
        evaluation = autoeidetic.evaluate(net, test)
        found[kind] = {
            "accuracy": evaluation.agnostic,
            "per class": [list(result.agnostic_per_class) for result in evaluation.tasks],
            "told": [list(result.per_class) for result in evaluation.tasks],
            "confusion": [list(row) for row in evaluation.confusion or ()],
            "seconds": time.perf_counter() - began,
        }
    return found


def cifar(options: argparse.Namespace) -> Record:
    """Split CIFAR-100 next to fine-tuning, separate networks and a frozen backbone.

    Every method trains each task for ``--epochs``. autoeidetic prunes once, before the last
    ``--settle-epochs`` of them, which train on with falling rates.
    """
    tasks = data.split_cifar100(directory=options.data_directory)[: options.tasks]
    build = getattr(models, options.model)
    training = options.epochs - options.settle_epochs
    budget = baselines.Budget(
        epochs=options.epochs,
        batch_size=64,
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=options.lr, weight_decay=0.05, fused=True
        ),
        schedule=lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, options.epochs),
        transform=data.crop_and_flip,
        seed=options.seed,
    )
    _, _, ours = learned(
        options,
        f"cifar-{options.model}-{options.pruning}",
        build,
        tasks,
        budget.batch_size,
        lambda net: budget.optimizer(net.parameters()),
        transform=budget.transform,
        pruning=options.pruning,
        step=options.most,
        most=options.most,
        tolerance=1.0,
        patience=training,
        max_epochs=training,
        settle_epochs=options.settle_epochs,
        on_full="reuse",
    )
    others = {}
    for make in (baselines.separate, baselines.frozen, baselines.finetune):
        outcome = _baseline(options, make, build, tasks, budget)
        others[outcome["name"]] = outcome
    reached = others["separate networks"]["accuracy"][-1]
    gap = sum(reached) / len(reached) - ours["average"]
    passed = bool(ours["bitwise"]["ok"]) and gap <= 0.03
    return {
        "name": f"cifar-{options.model}",
        "passed": passed,
        "gap": gap,
        "ours": ours,
        "others": others,
    }


def _baseline(
    options: argparse.Namespace,
    make: Any,
    build: Any,
    tasks: Any,
    budget: baselines.Budget,
) -> Record:
    """The result of a baseline, read from a file if an earlier call has stored it."""
    run = f"cifar-{options.model}-{len(tasks)}-{budget.epochs}-{options.lr}-seed{budget.seed}"
    file = options.into / f"{run}-{make.__name__}.json"
    first = options.into / f"{run}-task0.pt"
    return stored(file, lambda: vars(make(build, tasks, budget, first)))


def pretrained(options: argparse.Namespace) -> Record:
    """tf_efficientnet_lite0 with ImageNet weights on five pairs of Imagenette.

    The head has a higher learning rate than the body: it starts from random values on 1,280
    features, while the pretrained body should change slowly. Task 0 is pruned after few epochs,
    while the loss still shows which units matter, and only a little: the units it gives up are
    missing from the features that later tasks start from.
    """
    tasks = data.imagenette_pairs(size=options.size, directory=options.data_directory)
    _, _, ours = learned(
        options,
        f"pretrained-{options.size}",
        lambda: models.efficientnet_lite0(directory=options.data_directory),
        tasks,
        20,
        lambda net: torch.optim.AdamW(
            [
                {"params": net.backbone.parameters(), "lr": options.lr},
                {"params": net.heads.parameters(), "lr": options.head_lr},
            ]
        ),
        transform=data.crop_and_flip,
        convert={"recycle": "keep"},
        task_settings=lambda task: {} if task else {"most": options.first_most},
        pruning=options.pruning,
        step=options.step,
        most=options.most,
        tolerance=0.02,
        patience=options.epochs,
        max_epochs=options.epochs,
        recovery_epochs=options.recovery_epochs,
        settle_epochs=options.settle_epochs,
        score_batches=6,
        on_full="reuse",
    )
    each = ours["accuracy"][-1]
    # Heads on a body owned by task 0 alone could be as accurate without any division of units.
    divided = min(ours["capacity"]) > 0
    passed = bool(ours["bitwise"]["ok"]) and min(each) >= 0.95 and divided
    return {"name": "pretrained", "passed": passed, "ours": ours}


def scores(options: argparse.Namespace) -> Record:
    """Compare the pruning scores at the same capacity."""
    seeds = list(range(options.seed, options.seed + options.seeds))
    found = score_curves.compared(
        score_curves.setup(options.data, options.data_directory), SCORES, seeds
    )
    lead = score_curves.lead(found, "hybrid", ("l2", "taylor"))
    return {
        "name": f"scores-{options.data}",
        "passed": lead > 0,
        "lead": lead,
        "seeds": seeds,
        "free": score_curves.FREE,
        "curves": found,
    }


def killed(options: argparse.Namespace) -> Record:
    """A job that is killed at random moments and resumes."""
    return {"name": "kills", **kills.measure(options.kills, options.seed)}


COMMANDS: dict[str, Callable[[argparse.Namespace], Record]] = {
    "permuted": permuted,
    "split": split,
    "cifar": cifar,
    "pretrained": pretrained,
    "scores": scores,
    "kills": killed,
    "widen": widen.permuted,
    "whole": widen.whole,
}
_PRUNING = {"default": "hybrid", "help": "pruning score"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "permuted": {
        "--tasks": {"type": int, "default": 10},
        "--pruning": _PRUNING,
        "--lr": {"type": float, "default": 1e-3},
        "--step": {"type": float, "default": 0.3},
        "--most": {"type": float, "default": 0.85, "help": "share of the units that is pruned"},
        "--tolerance": {"type": float, "default": 0.008},
        "--lr-factor": {"type": float, "default": 0.2},
        "--epochs": {"type": int, "default": 7},
        "--recovery-epochs": {"type": int, "default": 2},
        "--settle-epochs": {"type": int, "default": 2},
    },
    "split": {
        "--data": {"choices": ("mnist", "fashion"), "default": "mnist"},
        "--scores": {"nargs": "+", "default": SCORES},
        "--step": {"type": float, "default": 0.2},
        "--most": {"type": float, "default": 0.8, "help": "share of the units that is pruned"},
        "--tolerance": {"type": float, "default": 0.01},
        "--epochs": {"type": int, "default": 6},
    },
    "cifar": {
        "--model": {"default": "resnet18", "help": "a function of learning_models.py"},
        "--tasks": {"type": int, "default": 5},
        "--epochs": {"type": int, "default": 8, "help": "of each task, for every method"},
        "--lr": {"type": float, "default": 1e-3},
        "--pruning": _PRUNING,
        "--most": {"type": float, "default": 0.6, "help": "share of the units that is pruned"},
        "--settle-epochs": {"type": int, "default": 5, "help": "of the epochs, after pruning"},
    },
    "pretrained": {
        "--size": {"type": int, "default": 224},
        "--lr": {"type": float, "default": 2e-4, "help": "of the body"},
        "--head-lr": {"type": float, "default": 3e-3},
        "--epochs": {"type": int, "default": 2},
        "--pruning": _PRUNING,
        "--step": {"type": float, "default": 0.1},
        "--most": {"type": float, "default": 0.6, "help": "share of the units that is pruned"},
        "--first-most": {"type": float, "default": 0.15, "help": "the same for task 0"},
        "--recovery-epochs": {"type": int, "default": 3},
        "--settle-epochs": {"type": int, "default": 3},
    },
    "scores": {
        "--data": {"choices": ("mnist", "cifar"), "default": "mnist"},
        "--seeds": {"type": int, "default": 5, "help": "how many, from --seed on"},
    },
    "kills": {"--kills": {"type": int, "default": 30}},
    "widen": {
        "--tasks": {"type": int, "default": 30},
        "--width": {"type": float, "default": 1.0, "help": "of the columns"},
        "--lr": {"type": float, "default": 1e-3},
        "--most": {"type": float, "default": 0.8, "help": "share of the units that is pruned"},
        "--epochs": {"type": int, "default": 4, "help": "before pruning"},
        "--settle-epochs": {"type": int, "default": 3, "help": "after it"},
        "--others": {"type": int, "default": 5, "help": "how many separate networks"},
        "--validate": {
            "action": "store_true",
            "default": False,
            "help": "other orders of pixels, and training images that are held back as the test",
        },
    },
    "whole": {
        "--size": {"type": int, "default": 224},
        "--width": {"type": float, "default": 0.25, "help": "of the column"},
        "--lr": {"type": float, "default": 1e-3, "help": "of the column"},
        "--head-lr": {"type": float, "default": 3e-3},
        "--epochs": {"type": int, "default": 8},
        "--most": {"type": float, "default": 0.6, "help": "share of the units that is pruned"},
        "--settle-epochs": {"type": int, "default": 2},
        "--validate": {
            "action": "store_true",
            "default": False,
            "help": "a quarter of the training images is held back as the test",
        },
    },
}


if __name__ == "__main__":
    sys.exit(main())
