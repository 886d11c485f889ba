"""Run one measurement per model, each in a process of its own with a time and a memory limit.

Results are appended to a file of JSON lines as they come, so a run that was interrupted goes on
where it stopped. A failure is a result like any other: it never stops the run.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
GIB = 2**30
Record = dict[str, Any]


def run_all(
    measure: Callable[[str], Record],
    names: Iterable[str],
    into: Path,
    *,
    seconds: float = 300.0,
    gibibytes: float = 12.0,
    workers: int = 1,
) -> list[Record]:
    """Call ``measure(name)`` for each name that ``into`` has no result for yet."""
    import timm  # noqa: F401  before the fork, so that every process has them at once

    import autoeidetic  # noqa: F401

    names = list(dict.fromkeys(names))
    done = {record["model"]: record for record in read(into)}
    into.parent.mkdir(parents=True, exist_ok=True)
    waiting = deque(name for name in names if name not in done)
    running: list[_Job] = []
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(_start(measure, waiting.popleft(), seconds, gibibytes))
        for job in _ended(running):
            running.remove(job)
            record = _collect(job, seconds)
            done[job.name] = record
            with into.open("a") as file:
                file.write(json.dumps(record) + "\n")
            took = time.perf_counter() - job.start
            outcome = record.get("error", "ok")
            number = sum(name in done for name in names)
            print(f"[{number}/{len(names)}] {job.name}: {outcome} ({took:.1f} s)", file=sys.stderr)
    return [done[name] for name in names]


def read(path: Path) -> list[Record]:
    """The records of a file of JSON lines; none when there is no file yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


@dataclass(frozen=True)
class _Job:
    name: str
    process: BaseProcess
    receiver: Connection
    start: float
    deadline: float


def _start(measure: Callable[[str], Record], name: str, seconds: float, gibibytes: float) -> _Job:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(measure, name, gibibytes, sender))
    process.start()
    sender.close()
    now = time.perf_counter()
    return _Job(name, process, receiver, now, now + seconds)


def _ended(running: list[_Job]) -> list[_Job]:
    """Wait until some have sent their record, died or used up their time."""
    soonest = min(job.deadline for job in running)
    ready = wait([job.receiver for job in running], max(0.0, soonest - time.perf_counter()))
    now = time.perf_counter()
    return [job for job in running if job.receiver in ready or now >= job.deadline]


def _collect(job: _Job, seconds: float) -> Record:
    try:
        if not job.receiver.poll():
            return {"model": job.name, "error": f"took more than {seconds:.0f} s"}
        return {"model": job.name, **job.receiver.recv()}
    except EOFError:
        job.process.join()
        return {"model": job.name, "error": f"exit code {job.process.exitcode}"}
    finally:
        job.process.kill()
        job.process.join()
        job.receiver.close()


def _child(
    measure: Callable[[str], Record], name: str, gibibytes: float, sender: Connection
) -> None:
    _limit_memory(gibibytes)
    try:
        record = measure(name)
    except Exception as error:  # whatever a model or a tool may raise
        record = {"error": short(error)}
    sender.send(record)


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
