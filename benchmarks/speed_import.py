"""How much longer ``import torch, autoeidetic`` takes than ``import torch``.

The section ``import`` of ``benchmarks/speed.py``. Fresh processes of both kinds alternate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from autoeidetic.commands.benchmark.runner import Record

STATEMENTS = {"torch": "import torch", "both": "import torch, autoeidetic"}
ROUNDS = 15
BUDGET = 0.3  # seconds
ROOT = Path(__file__).parent.parent


def imported(name: str) -> Record:
    """Median seconds of both statements, and the median of the rounds' differences."""
    for statement in STATEMENTS.values():  # fills the cache of bytecode and that of files
        seconds_of_process(statement)
    rounds = [_round(number) for number in range(ROUNDS)]
    seconds = {way: median(each[way] for each in rounds) for way in STATEMENTS}
    difference = median(each["both"] - each["torch"] for each in rounds)
    return {"rounds": ROUNDS, "seconds": seconds, "difference": difference, "budget": BUDGET}


def _round(number: int) -> dict[str, float]:
    """One process for each statement; every second round in the other order."""
    ways = list(STATEMENTS)[:: -1 if number % 2 else 1]
    return {way: seconds_of_process(STATEMENTS[way]) for way in ways}


def seconds_of_process(statement: str) -> float:
    """From the start of a new interpreter to its end, with modules read as bytecode."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", statement]
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    return time.perf_counter() - start


def import_report(records: list[Record]) -> str:
    lines = ["| package | `import torch` (s) | with the package (s) | difference (s) | budget | |"]
    lines.append("|---|---|---|---|---|---|")
    for record in records:
        if "error" in record:
            lines.append(f"| {record['model']} | {record['error']} | | | | fail |")
        else:
            seconds, difference = record["seconds"], record["difference"]
            verdict = "pass" if difference <= record["budget"] else "fail"
            lines.append(
                f"| {record['model']} | {seconds['torch']:.3f} | {seconds['both']:.3f} | "
                f"{difference:.3f} | {record['budget']} | {verdict} |"
            )
    return "\n".join(lines)
