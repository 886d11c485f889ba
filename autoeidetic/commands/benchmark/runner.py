"""Run one measurement per model, each in its own process with a time and a memory limit.

A process per model isolates the run: a crash, a hang or a model that needs too much memory costs
one record, and neither peak memory nor global settings carry over from one model to the next.
Processes are forked, so that they inherit the imported libraries, which take seconds to import.

Every result is appended to a file of JSON lines as soon as it is known. A run that was interrupted
reads this file and measures only what is missing. A failure is recorded like any other result.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
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

from tqdm import tqdm

from ...common.environment import version_of

GIB = 2**30
#: Libraries whose versions are recorded, because they affect the measurements.
LIBRARIES = ("torch", "timm", "torchvision", "transformers", "torch-pruning")
Record = dict[str, Any]


def run_all(
    measure: Callable[[str], Record],
    names: Iterable[str],
    into: Path,
    *,
    seconds: float = 300.0,
    gibibytes: float = 12.0,
    workers: int = 1,
    retry: bool = False,
    describe: Callable[[Record], str] | None = None,
) -> list[Record]:
    """Call ``measure(name)`` for each name that ``into`` has no result for yet.

    Args:
        seconds: the time limit of a model.
        gibibytes: the limit of its data segment (``RLIMIT_DATA``).
        workers: how many models run in parallel.
        retry: also measure models whose earlier result is an error.
        describe: makes the line that is printed on stdout for each new record; by default a short
            line goes to stderr.
    """
    import timm  # noqa: F401  imported before the fork, so that every child has them

    import autoeidetic  # noqa: F401

    # Resumption: results of earlier runs count as done. A retried model is appended again; `done`
    # then keeps the later of its records.
    names = list(dict.fromkeys(names))
    done = {record["model"]: record for record in read(into)}
    waiting = deque(n for n in names if n not in done or (retry and "error" in done[n]))
    bar = tqdm(total=len(names), initial=len(names) - len(waiting), unit="model", disable=None)
    running: list[_Job] = []
    installed = versions()
    try:
        while waiting or running:
            # Fill all places, then wait for the first process to end: no worker is idle meanwhile.
            while waiting and len(running) < workers:
                running.append(_start(measure, waiting.popleft(), seconds, gibibytes))
            for job in _ended(running):
                running.remove(job)
                record = {**_collect(job, seconds), "date": _today(), "versions": installed}
                done[job.name] = record
                append(into, record)
                bar.update()
                if describe is not None:
                    tqdm.write(describe(record), file=sys.stdout)
                    continue
                took = time.perf_counter() - job.start
                line = f"{job.name}: {record.get('error', 'ok')} ({took:.1f} s)"
                number = len(names) - len(waiting) - len(running)
                tqdm.write(f"[{number}/{len(names)}] {line}", file=sys.stderr)
    finally:
        bar.close()
        for job in running:  # after an interruption: their results are measured again next time
            job.process.kill()
    return [done[name] for name in names]


def read(path: Path) -> list[Record]:
    """The records in a file of JSON lines, without a line that a killed run left incomplete."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def append(path: Path, record: Record) -> None:
    """Add a record to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.seek(0, 2) and path.read_bytes()[-1:] != b"\n":
            file.write(b"\n")  # end an incomplete line of a killed run
        file.write(json.dumps(record).encode() + b"\n")


def discard(path: Path, names: Iterable[str]) -> None:
    """Delete the records of some models, so that they are measured again."""
    kept = [record for record in read(path) if record["model"] not in set(names)]
    if path.exists():
        path.write_text("".join(json.dumps(record) + "\n" for record in kept))


@dataclass(frozen=True)
class _Job:
    """A running process: it sends one record through ``receiver``, or dies, or is killed."""

    name: str
    process: BaseProcess
    receiver: Connection
    start: float
    deadline: float


def _start(measure: Callable[[str], Record], name: str, seconds: float, gibibytes: float) -> _Job:
    context = multiprocessing.get_context("fork")
    # One pipe per process: a shared queue could be left locked by a killed one.
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(measure, name, gibibytes, sender))
    process.start()
    sender.close()  # the child's copy is now the only one: its death ends the pipe (EOFError)
    now = time.perf_counter()
    return _Job(name, process, receiver, now, now + seconds)


def _ended(running: list[_Job]) -> list[_Job]:
    """Wait until at least one job has sent its record, died or exceeded its time; those jobs."""
    # A pipe becomes ready both when a record arrives and when its process dies.
    soonest = min(job.deadline for job in running)
    ready = wait([job.receiver for job in running], max(0.0, soonest - time.perf_counter()))
    now = time.perf_counter()
    return [job for job in running if job.receiver in ready or now >= job.deadline]


def _collect(job: _Job, seconds: float) -> Record:
    """The record of a job that has ended or exceeded its time; the process is killed."""
    try:
        # Nothing to read and no end of the pipe: it was chosen because its time is over.
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
    # In the child, as limits are inherited and cannot be raised again.
    _limit_memory(gibibytes)
    try:
        record = measure(name)
    except Exception as error:  # a model or a tool may raise anything
        needs = f"needs more than {gibibytes:g} GiB: " if is_lack_of_memory(error) else ""
        record = {"error": needs + error_line(error)}
    sender.send(record)


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether the error is caused by the memory limit."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def _limit_memory(gibibytes: float) -> None:
    import resource  # not available on Windows

    # Not the address space (RLIMIT_AS): torch reserves far more of it than it uses.
    limit = int(gibibytes * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def peak_memory() -> float:
    """Peak resident memory of this process so far, in GiB."""
    import resource

    # ru_maxrss is in KiB on Linux.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def seconds_of(action: Callable[[], object]) -> float:
    """The duration of one call in seconds."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError inside the block when it takes longer than ``seconds``."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    # Works in the main thread only, and only when Python code runs: a long kernel ends first.
    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def error_line(error: BaseException) -> str:
    """The type and first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:300]


def setting(*packages: str, records: Iterable[Record] = ()) -> Record:
    """The environment of the measurements: date, versions of torch, timm and ``packages``, machine.

    Dates and versions come from the records, which may be older than the run that reports them.
    """
    records = list(records) or [{"date": _today()}]
    dates = sorted({record.get("date", "unknown") for record in records})
    return {
        "date": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        "python": platform.python_version(),
        **_all_versions(("torch", "timm", *packages), records),
        "machine": f"{platform.machine()}, {_processor()}",
    }


def versions() -> dict[str, str]:
    """The versions of the installed libraries."""
    return {name: version_of(name) for name in LIBRARIES if version_of(name)}


def _all_versions(packages: Iterable[str], records: Iterable[Record]) -> dict[str, str]:
    """Package -> all versions that occur in the records."""
    # Records of earlier versions have none; they count as measured with those of today.
    now = versions()
    used = [record.get("versions", now) for record in records]
    found = {name: sorted({each[name] for each in used if name in each}) for name in packages}
    return {name: " and ".join(several) for name, several in found.items() if several}


def setting_line(setting: Record) -> str:
    return ", ".join(f"{key} {value}" for key, value in setting.items())


def _today() -> str:
    return time.strftime("%Y-%m-%d")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()
