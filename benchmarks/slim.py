"""Smaller copies of trained networks: ``autoeidetic.slim`` against Torch-Pruning.

    python benchmarks/slim.py
    python benchmarks/slim.py --networks resnet --seeds 1 --into /tmp/slim
    python benchmarks/slim.py --tune           # learning rates of fine-tuning, on validation images

Each network is trained once per seed and stored below --runs. Every copy is fine-tuned with the
same data, optimizer, learning rate and number of epochs. README.md in this directory describes the
measurement.
"""

from __future__ import annotations

import argparse
import copy
import json
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch import nn

from autoeidetic.commands.benchmark.models import parameters
from autoeidetic.commands.benchmark.runner import (
    Record,
    discard,
    error_line,
    run_all,
    seconds_of,
    setting,
    setting_line,
)
from benchmarks import RESULTS
from benchmarks.learning_baselines import accuracy
from benchmarks.slim_networks import (
    NETWORKS,
    Data,
    Tuning,
    batches,
    example,
    has_batch_norms,
    read,
    train,
    trained,
)
from benchmarks.slim_report import slim_report
from benchmarks.slim_tools import WAYS, score_batches, work_of

SHARES = (0.5, 0.25)  # of the multiply-adds
TUNE_EPOCHS = 2
SCORED = 10  # batches for scores that need data
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)  # tried by --tune
TUNE_SEED = 1000  # a network that the comparison does not use


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    if options.tune:
        return tune(options)
    names = [f"{name}, seed {seed}" for name in options.networks for seed in range(options.seeds)]
    traces = options.into / "slim.jsonl"
    if options.fresh:
        discard(traces, names)
    measure = partial(compared, runs=options.runs, directory=options.data_directory)
    records = run_all(measure, names, traces, seconds=3600.0)
    about = setting("torch-pruning", records=records)
    command = shlex.join(["python", "benchmarks/slim.py", *arguments])
    report = slim_report(records)
    print(f"{setting_line(about)}, one thread\n\n{report}")
    if options.networks == list(NETWORKS):
        content = {"command": command, "setting": about, "models": records}
        (options.into / "slim.json").write_text(json.dumps(content, indent=1) + "\n")
        text = f"`{command}`  \n{setting_line(about)}, one thread\n\n{report}\n"
        (options.into / "slim.md").write_text(text)
    return int(any("error" in record for record in records))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--tune", action="store_true", help="compare rates, record nothing")
    parser.add_argument("--data-directory", type=Path)
    parser.add_argument(
        "--runs", type=Path, default=Path(__file__).parent / "runs", help="trained networks"
    )
    parser.add_argument("--fresh", action="store_true", help="discard earlier results")
    parser.add_argument("--into", type=Path, default=RESULTS, help="folder for the results")
    return parser


# -- measuring ------------------------------------------------------------------------------------


def compared(name: str, *, runs: Path, directory: Path | None) -> Record:
    """A trained network ("vit, seed 0"), and every smaller copy before and after fine-tuning."""
    network, _, seed = name.partition(", seed ")
    _set_up()
    data = read(directory)
    model = trained(network, int(seed), data, runs)
    record: Record = {
        "network": network,
        "seed": int(seed),
        "accuracy": accuracy(model, *data.test),
        "multiply_adds": work_of(model, example()),
        "parameters": parameters(model),
        "rows": [],
    }
    for row, smaller in _copies(model, data, int(seed)):
        record["rows"].append(row)
        if smaller is None:
            continue
        row["pruned"] = accuracy(smaller, *data.test)
        tuning = NETWORKS[network].tuning[row["tool"]]
        row["seconds"] = _fine_tuned(smaller, data, tuning, int(seed))
        row["validation"] = accuracy(smaller, *data.validation)
        row["accuracy"] = accuracy(smaller, *data.test)
    return record


def _copies(model: nn.Module, data: Data, seed: int) -> Iterator[tuple[Record, nn.Module | None]]:
    """Every way at every share: what is known of it, and the smaller network if there is one."""
    x = example()
    work, size = work_of(model, x), parameters(model)
    scored = score_batches(batches(data.train, seed), SCORED)
    for share in SHARES:
        for way in WAYS:
            row: Record = {"tool": way.tool, "score": way.score, "share": share}
            try:
                found: list[nn.Module] = []
                make = partial(way.smaller, copy.deepcopy(model), share, x, scored)
                row["seconds_pruning"] = seconds_of(lambda m=make, f=found: f.append(m()))
                left = work_of(found[0], x)
            except Exception as error:  # a tool may raise anything
                yield {**row, "error": error_line(error)}, None
                continue
            row |= {"left": left / work, "parameters_left": parameters(found[0]) / size}
            yield row, found[0]


def _fine_tuned(smaller: nn.Module, data: Data, tuning: Tuning, seed: int) -> float:
    return train(smaller, data.train, TUNE_EPOCHS, tuning.lr, seed, statistics=tuning.statistics)


def _set_up() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


# -- choosing how copies are fine-tuned -----------------------------------------------------------


def tune(options: argparse.Namespace) -> int:
    """Print the validation accuracy of all copies with each rate, and the best for each tool.

    Copies with batch norms are tuned with fixed statistics and with learned ones. A tool is as good
    as its best score, on average over the sizes.
    """
    _set_up()
    data = read(options.data_directory)
    for network in options.networks:
        model = trained(network, TUNE_SEED, data, options.runs)
        print(f"{network}: {accuracy(model, *data.validation):.2%} before pruning")
        best: dict[tuple[str, Tuning], dict[float, float]] = {}
        for row, smaller in _copies(model, data, TUNE_SEED):
            title = f"  {row['tool']}, {row['score']}, {row['share']:.0%}"
            if smaller is None:
                print(f"{title}: {row['error']}")
                continue
            for tuning in _tunings(smaller):
                one = copy.deepcopy(smaller)
                _fine_tuned(one, data, tuning, TUNE_SEED)
                reached = accuracy(one, *data.validation)
                print(f"{title} ({row['left']:.1%} left), {tuning}: {reached:.2%}", flush=True)
                at = best.setdefault((row["tool"], tuning), {})
                at[row["share"]] = max(reached, at.get(row["share"], 0.0))
        for tool in dict.fromkeys(tool for tool, _ in best):
            means = {tuning: mean(at.values()) for (who, tuning), at in best.items() if who == tool}
            chosen = max(means, key=lambda tuning: means[tuning])
            print(f"  best for {tool}: {chosen} ({means[chosen]:.2%})")
    return 0


def _tunings(smaller: nn.Module) -> list[Tuning]:
    ways = (False, True) if has_batch_norms(smaller) else (False,)
    return [Tuning(rate, statistics) for statistics in ways for rate in RATES]


if __name__ == "__main__":
    raise SystemExit(main())
