"""Convert many models and report the results: options, stages, result files.

    autoeidetic benchmark --models 'resnet*' 'vit_*'         # analysed and converted
    autoeidetic benchmark --families --compare --verify      # smallest of each timm family
    autoeidetic benchmark --all --only analyze --workers 2   # every timm model
    autoeidetic benchmark --torchvision --transformers --verify
    autoeidetic benchmark --families --only extract          # tasks as programs of their own

Every model runs in its own process with a time and a memory limit. Each result is stored as soon
as it is known, in one file of JSON lines per stage: a stopped run resumes, and a stage that has a
result for a model, there or in the result file of the whole set, is not run again for it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...errors import InputError
from .families import smallest
from .measure import STAGES, TOO_MANY, Stage, count, warm_up
from .models import family, matching, timm_names, torchvision_names, transformers_names
from .records import failures
from .result_table import live_head, live_row, to_csv, to_markdown
from .runner import LIBRARIES, Record, discard, read, run_all, setting, setting_line
from .summary import summary
from .web_page import to_html

SETS = {
    "families": lambda: list(smallest().values()),
    "all": timm_names,
    "torchvision": torchvision_names,
    "transformers": transformers_names,
}


def main(prog: str, into: Path, argv: Sequence[str] | None = None) -> int:
    """Parse the arguments and run; 2 for an error that the user can fix."""
    parser = argparse.ArgumentParser(prog, description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser, into)
    try:
        return run(parser.parse_args(argv), prog, sys.argv[1:] if argv is None else argv)
    except InputError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace, prog: str, arguments: Sequence[str]) -> int:
    """Measure, print and write the results; 0 when no model failed.

    ``prog`` and ``arguments`` are the command as typed, which is stored with the results.

    Raises:
        InputError: no model is chosen, a pattern matches none, or an option is out of range.
    """
    _check(options)
    names = _selected(options)
    records = [{"model": name, "family": family(name)} for name in names]
    # In the parent: every forked process inherits the loaded libraries.
    warm_up()
    stem = _stem(options)
    recorded = {} if options.fresh else _recorded(options.into / f"{stem}.json")
    for stage in _stages(options):
        _run(stage, records, options, recorded.get(stage, {}))
    print("\n" + "\n".join(summary(records)))
    _write(options.into, stem, shlex.join([*prog.split(), *arguments]), records)
    return 1 if any(map(failures, records)) else 0


def add_arguments(parser: argparse.ArgumentParser, into: Path) -> None:
    """Add the options; ``into`` is the default folder of the results."""
    which = parser.add_argument_group("which models")
    which.add_argument(
        "--models", nargs="+", metavar="PATTERN", default=[], help="names such as 'vit_*'"
    )
    which.add_argument(
        "--families", action="store_true", help="the smallest model of each timm family"
    )
    which.add_argument("--all", action="store_true", help="every timm model")
    which.add_argument(
        "--torchvision", action="store_true", help="torchvision's classification models"
    )
    which.add_argument(
        "--transformers", action="store_true", help="encoders built from configurations"
    )
    which.add_argument("--max-params", type=float, metavar="N", help="skip larger models")
    effort = parser.add_argument_group("stages (by default: analyze and convert)")
    effort.add_argument(
        "--only", nargs="+", choices=list(STAGES), metavar="STAGE", help="run these"
    )
    effort.add_argument(
        "--compare", action="store_true", help="also run torch.export and Torch-Pruning"
    )
    effort.add_argument(
        "--extract", action="store_true", help="also extract two tasks and compare outputs"
    )
    effort.add_argument(
        "--verify", action="store_true", help="also train three tasks and compare bits"
    )
    effort.add_argument(
        "--widen", action="store_true", help="also widen a network twice and compare bits"
    )
    effort.add_argument(
        "--real-params",
        type=float,
        default=TOO_MANY,
        metavar="N",
        help="larger models are analysed on the meta device only",
    )
    limits = parser.add_argument_group("limits and files")
    limits.add_argument("--workers", type=int, default=1, help="models run in parallel")
    limits.add_argument("--seconds", type=float, help="time limit per model and stage")
    limits.add_argument("--memory", type=float, help="memory limit per model in GiB")
    limits.add_argument("--fresh", action="store_true", help="discard earlier results")
    limits.add_argument("--retry", action="store_true", help="measure failed models again")
    limits.add_argument("--into", type=Path, default=into, help="folder for the results")
    limits.add_argument("--output", metavar="NAME", help="name of the result files")


def _check(options: argparse.Namespace) -> None:
    """Check the options and create the folder before anything is measured."""
    for name in ("workers", "seconds", "memory", "max_params", "real_params"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise InputError(
                f"--{name.replace('_', '-')} {value:g} is not above 0",
                remedy="pass a number above 0, or omit the option",
            )
    if options.output and Path(options.output).name != options.output:
        raise InputError(
            f"--output {options.output!r} is not a plain file name",
            remedy="pass a name, and the folder with --into",
        )
    try:
        options.into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"'{options.into}' cannot be used as a folder: {error}", remedy="pass another --into"
        ) from error


def _selected(options: argparse.Namespace) -> list[str]:
    names = matching(options.models)
    for key, found in SETS.items():
        names += found() if getattr(options, key) else []
    if not names:
        raise InputError(
            "no model is chosen", remedy="pass --models, --families, --all, --torchvision, ..."
        )
    names = list(dict.fromkeys(names))
    if options.max_params is None:
        return names
    counted = run_all(
        count,
        names,
        _result_file(options, "parameters"),
        workers=options.workers,
        describe=_size_line,
    )
    sizes = {r["model"]: r.get("parameters", 0) for r in counted}
    return [name for name in names if sizes[name] <= options.max_params]


def _size_line(record: Record) -> str:
    return f"{record['model']}: {record.get('parameters', record.get('error'))}"


def _stages(options: argparse.Namespace) -> list[str]:
    # analyze always runs: later stages skip what it could not analyse.
    asked = {"analyze", *(options.only or ["convert"])}
    asked |= {
        stage for stage in ("compare", "extract", "verify", "widen") if getattr(options, stage)
    }
    return [stage for stage in STAGES if stage in asked]


def _result_file(options: argparse.Namespace, stage: str) -> Path:
    """The JSON lines of a stage: one record per model, shared by all runs into this folder."""
    path: Path = options.into / f"zoo-{stage}.jsonl"
    return path


def _stem(options: argparse.Namespace) -> str:
    """The name of the result files."""
    # Only a run of whole sets is named after them, so that a partial run cannot replace its files.
    whole = not options.models and options.max_params is None
    sets = [key for key in SETS if getattr(options, key)] if whole else ["chosen"]
    return options.output or "-".join(["zoo", *sets])


def _recorded(path: Path) -> dict[str, dict[str, Record]]:
    """Stage -> model -> result, from the result file of an earlier run; without the analysis.

    The file has too little of the analysis, which is fast.
    """
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    versions = {name: content["setting"][name] for name in LIBRARIES if name in content["setting"]}
    return {
        stage: {
            record["model"]: {"model": record["model"], "versions": versions, **record[stage]}
            for record in content["models"]
            if stage in record and "skipped" not in record[stage]
        }
        for stage in STAGES
        if stage != "analyze"
    }


def _run(
    stage: str, records: list[Record], options: argparse.Namespace, recorded: dict[str, Record]
) -> None:
    """Run one stage for every record that does not skip it, and add the results to the records.

    ``recorded`` are results of an earlier run, which count if there is no newer one.
    """
    kind = STAGES[stage]
    for record in records:
        reason = _reason_to_skip(kind, record, options)
        if reason:
            record[stage] = {"skipped": reason}
    # Skipped ones have an entry already.
    names = [record["model"] for record in records if stage not in record]
    path = _result_file(options, stage)
    if options.fresh:
        discard(path, names)
    measured = {record["model"] for record in read(path)}
    by_name = {
        name: recorded[name]
        for name in names
        if name in recorded
        and name not in measured
        and not (options.retry and "error" in recorded[name])
    }
    names = [name for name in names if name not in by_name]
    print(f"\n{stage}: {len(names)} models\n{live_head(stage)}")
    found = run_all(
        kind.measure,
        names,
        path,
        seconds=options.seconds or kind.seconds,
        gibibytes=options.memory or kind.gibibytes,
        workers=options.workers,
        retry=options.retry,
        describe=lambda record: live_row(stage, record),
    )
    by_name |= {record["model"]: record for record in found}
    # Each record in the file also has the model's name, which the whole record has already.
    for record in records:
        if record["model"] in by_name:
            own = by_name[record["model"]]
            record[stage] = {key: value for key, value in own.items() if key != "model"}


def _reason_to_skip(stage: Stage, record: Record, options: argparse.Namespace) -> str:
    if not stage.real:
        return ""
    if "error" in record["analyze"]:
        return "the analysis failed"
    if record["analyze"]["parameters"] > options.real_params:
        return f"not run with real weights: more than {options.real_params / 1e6:,.0f} M parameters"
    return ""


def _write(folder: Path, stem: str, command: str, records: list[Record]) -> None:
    measured = [r[s] for r in records for s in STAGES if s in r and "skipped" not in r[s]]
    about = setting("torchvision", "transformers", "torch-pruning", records=measured)
    content = {"command": command, "setting": about, "operators": operators(records)}
    # One line per model keeps the differences between two recorded runs readable.
    each = [json.dumps(record) for record in map(_compact, records)]
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    parts.append('"models": [\n' + ",\n".join(each) + "\n]")
    title = f"# {stem}\n\n`{command}`\n\n{setting_line(about)}\n\n"
    (folder / f"{stem}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")
    (folder / f"{stem}.csv").write_text(to_csv(records))
    (folder / f"{stem}.md").write_text(title + to_markdown(records) + "\n")
    (folder / f"{stem}.html").write_text(to_html(stem, command, about, records))


def operators(records: list[Record]) -> dict[str, int]:
    """Every operator that occurs -> the number of models that use it."""
    found = Counter(name for r in records for name in r["analyze"].get("operators", ()))
    return dict(sorted(found.items()))


def _compact(record: Record) -> Record:
    """Drop versions and operator names, which the file holds once; keep the number of operators."""
    stages = {stage: dict(record[stage]) for stage in STAGES if stage in record}
    for found in stages.values():
        found.pop("versions", None)
    if "operators" in stages["analyze"]:
        stages["analyze"]["operators"] = len(stages["analyze"]["operators"])
    return {**record, **stages}
