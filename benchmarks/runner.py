"""Run one measurement per model, each in a process of its own with a time and a memory limit.

Results are appended to a file of JSON lines as they come, so a run that was interrupted goes on
where it stopped. A failure is a result like any other: it never stops the run.
"""

from __future__ import annotations

import json
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
GIB = 2**30
Record = dict[str, Any]


def run_all(
    script: str,
    names: Iterable[str],
    into: Path,
    *,
    arguments: Iterable[str] = (),
    seconds: float = 300.0,
    gibibytes: float = 12.0,
) -> list[Record]:
    """Call ``script --one NAME`` for each name that ``into`` has no result for yet."""
    names = list(names)
    done = {record["model"]: record for record in read(into)}
    into.parent.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, 1):
        if name in done:
            continue
        start = time.perf_counter()
        record = _run_one(script, name, list(arguments), seconds, gibibytes)
        done[name] = record
        with into.open("a") as file:
            file.write(json.dumps(record) + "\n")
        took = time.perf_counter() - start
        outcome = record.get("error", "ok")
        print(f"[{number}/{len(names)}] {name}: {outcome} ({took:.1f} s)", file=sys.stderr)
    return [done[name] for name in names]


def read(path: Path) -> list[Record]:
    """The records of a file of JSON lines; none when there is no file yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _run_one(
    script: str, name: str, arguments: list[str], seconds: float, gibibytes: float
) -> Record:
    command = [sys.executable, script, "--one", name, *arguments]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=ROOT,
            preexec_fn=lambda: _limit_memory(gibibytes),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "error": f"took more than {seconds:.0f} s"}
    lines = result.stdout.strip().splitlines()
    if result.returncode or not lines:
        tail = (result.stderr.strip().splitlines() or ["no output"])[-1]
        return {"model": name, "error": f"exit code {result.returncode}: {tail}"}
    record: Record = json.loads(lines[-1])
    return {"model": name, **record}


def _limit_memory(gibibytes: float) -> None:
    limit = int(gibibytes * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def peak_memory() -> float:
    """Peak resident memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def seconds_of(action: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block when it takes longer."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def short(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:300]


def setting() -> Record:
    """What the numbers were measured with."""
    import timm
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "machine": f"{platform.machine()}, {_processor()}",
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()
