"""Two runs in one directory, processes that are killed, and what they leave behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lives
import pytest
import torch
from checkpoint.test_checkpoint import small, started
from test_learn import learn
from training.test_training import SHORT, adam, life, loader, network

import autoeidetic
from autoeidetic.common import locks
from autoeidetic.errors import CheckpointError, StorageWarning
from autoeidetic.tasks.snapshot import Snapshot

pytestmark = pytest.mark.skipif(locks.fcntl is None, reason="there are no such locks here")
ROOT = Path(__file__).parents[2]

#: What every program here begins with; `tell` waits for an answer.
BEGINNING = """
import os, signal, sys
import torch
from torch import nn
import autoeidetic
from autoeidetic.common import files
torch.set_num_threads(1)

def tell(text):
    print(text, flush=True)
    sys.stdin.readline()

net = autoeidetic.convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
                          torch.randn(2, 4))
"""


@contextlib.contextmanager
def program(text: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has told that it is where it should be."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGINNING + text],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": tempfile.gettempdir(),
            **environment,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


def goes_on(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


# -- what a killed save leaves --------------------------------------------------------------------

SAVES = """
to_disk = files.to_disk
def slow(path):
    if path.name == "content":
        tell("here")
    to_disk(path)
files.to_disk = slow
net.save({path!r})
"""


def leftovers(directory: Path) -> list[Path]:
    return sorted(directory.glob(".*"))


@pytest.mark.slow
def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path: Path) -> None:
    net = started(small, torch.randn(2, 4), "between tasks")
    with program(SAVES.format(path=str(tmp_path / "net"))) as process:
        killed(process)
    assert len(leftovers(tmp_path)) == 1
    net.save(tmp_path / "other")
    assert leftovers(tmp_path) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other"]


@pytest.mark.slow
def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    net = started(small, torch.randn(2, 4), "between tasks")
    with program(SAVES.format(path=str(tmp_path / "net"))) as process:
        (written,) = leftovers(tmp_path)
        net.save(tmp_path / "other")
        net.save(tmp_path / "net")
        assert leftovers(tmp_path) == [written]
        goes_on(process)
    assert leftovers(tmp_path) == []
    assert autoeidetic.load(tmp_path / "net", model=small()).tasks == ()  # that of the program


def leftover(directory: Path, host: str, age: float, suffix: str = ".tmp") -> Path:
    folder = directory / f".autoeidetic-{host}-0123456789abcdef{suffix}"
    folder.mkdir()
    (folder / "content").write_bytes(b"some of it")
    (folder / "lock").write_bytes(b"")
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - age, time.time() - age))
    return folder


def test_what_may_be_alive_stays(tmp_path: Path) -> None:
    """Not every file system shows the locks of other hosts; other names are not ours."""
    (tmp_path / "elsewhere").mkdir()
    kept = [
        leftover(tmp_path, "00000000", 3600.0),
        leftover(tmp_path, "00000002", 10.0**6),
        leftover(tmp_path, locks._HOST, 10.0**6, ".snapshot"),
        leftover(tmp_path / "elsewhere", locks._HOST, 10.0**6),
    ]
    (kept[1] / "content").write_bytes(b"more of it")  # only the file is new, not the folder
    link = tmp_path / f".autoeidetic-{locks._HOST}-link.tmp"
    link.symlink_to(kept[-1])
    fifo = tmp_path / f".autoeidetic-{locks._HOST}-fifo.tmp"
    os.mkfifo(fifo)
    foreign = tmp_path / ".0123456789abcdef.tmp"
    foreign.write_bytes(b"")
    gone = [leftover(tmp_path, "00000001", 10.0**6), leftover(tmp_path, locks._HOST, 0.0)]
    autoeidetic.convert(small(), torch.randn(2, 4)).save(tmp_path / "net")
    assert all(os.path.lexists(each) for each in (*kept, link, fifo, foreign))
    assert not any(each.exists() for each in gone)


def test_a_file_that_was_swept_before_it_was_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two calls another process takes it for a leftover: another one is made."""
    lock, calls = locks._lock, []

    def late(descriptor: int) -> bool:
        calls.append(descriptor)
        if len(calls) == 1:
            locks._remove(leftovers(tmp_path)[0])
        if len(calls) == 2:
            raise locks._TakenError
        return lock(descriptor)

    monkeypatch.setattr(locks, "_lock", late)
    made = locks.Temporary(tmp_path, ".tmp")
    assert made.path.parent.exists()
    assert len(calls) == 3
    made.close()
    assert not made.path.parent.exists()
    assert leftovers(tmp_path) == []


def test_a_file_that_can_never_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(descriptor: int) -> bool:
        raise locks._TakenError

    monkeypatch.setattr(locks, "_lock", never)
    with pytest.raises(CheckpointError, match=r"(?s)cannot be written.*cannot be locked"):
        autoeidetic.convert(small(), torch.randn(2, 4)).save(tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


# -- what a killed task leaves --------------------------------------------------------------------

OPENS = """
net.prepare_for_task(0)
tell("here")
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_the_next_run_removes_the_file_of_a_killed_task(temporary: Path) -> None:
    with program(OPENS, TMPDIR=str(temporary)) as process:
        (file,) = temporary.iterdir()
        kept = Snapshot({"x": torch.ones(1)})
        assert file.exists()  # its process lives
        killed(process)
    other = Snapshot({"x": torch.ones(2)})
    files = sorted(Path(each._path).parent for each in (kept, other))
    assert sorted(temporary.iterdir()) == files
    assert len(kept.load()["x"]) == 1


def test_open_tasks_of_one_process(temporary: Path) -> None:
    nets = [autoeidetic.convert(small(), torch.randn(2, 4)) for _ in range(3)]
    for net in nets:
        net.prepare_for_task(0)
    assert len(list(temporary.iterdir())) == 3
    before = [lives.state(net) for net in nets]
    for net, state in zip(nets, before, strict=True):
        lives.train(net, torch.randn(2, 4), [lives.sgd(net)])
        net.rollback()
        assert not lives.changed(net, state)
        net.finish_task()
    assert list(temporary.iterdir()) == []


def test_descriptors_are_given_back(temporary: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("nothing tells which descriptors are open")
    gc.collect()  # what earlier tests left open is closed now, not while this one counts
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        Snapshot({"x": torch.ones(1)})
        autoeidetic.convert(small(), torch.randn(2, 4)).save(temporary / "net")
    assert len(os.listdir("/proc/self/fd")) == before


# -- two runs in one directory --------------------------------------------------------------------

TRAINS = """
import signal
signal.alarm(120)
def wait(epoch):
    if {fork} and not os.fork():  # a worker that outlives its run
        signal.alarm(20)
        for descriptor in range(3):
            os.close(descriptor)
        signal.pause()
    tell("here")
x = torch.randn(8, 4)
net.prepare_for_task(0)
net.train_task([(x, (x[:, 0] > 0).long())], checkpoint={path!r}, on_epoch=wait, progress=False,
               max_epochs=1, prune=False)
"""


def refused(call: Callable[[], Any], directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        call()
    assert f"the directory '{directory}' is in use by another run" in caught.value.fact
    assert "would mix their states" in caught.value.fact
    assert "pass another directory" in caught.value.remedy
    return caught.value.fact


@pytest.fixture(autouse=True)
def own_place_for_temporary_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def train(directory: Path) -> autoeidetic.training.TaskHistory:
    torch.manual_seed(0)
    net = autoeidetic.convert(small(), torch.randn(2, 4))
    net.prepare_for_task(0)
    x = torch.randn(8, 4)
    data = [(x, (x[:, 0] > 0).long())]
    return net.train_task(data, checkpoint=directory, progress=False, max_epochs=2, prune=False)


@pytest.mark.parametrize("fork", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_second_run_is_refused_until_the_first_is_gone(tmp_path: Path, fork: bool) -> None:
    """Also while a process that was forked from the first one lives on."""
    with program(TRAINS.format(path=str(tmp_path), fork=fork)) as process:
        before = (tmp_path / "task-0.safetensors").read_bytes()
        fact = refused(lambda: train(tmp_path), tmp_path)
        assert f"process {process.pid} on " in fact
        assert (tmp_path / "task-0.safetensors").read_bytes() == before
        killed(process)
        assert (tmp_path / locks.LOCK).exists()
        history = train(tmp_path)
    assert len(history.epochs) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["task-0.safetensors"]


@pytest.mark.slow
def test_the_lock_ends_with_the_run(tmp_path: Path) -> None:
    with program(TRAINS.format(path=str(tmp_path), fork=False)) as process:
        goes_on(process)
    assert leftovers(tmp_path) == []


def test_a_run_in_a_run(tmp_path: Path) -> None:
    """In one process, and the outer one keeps its lock."""
    facts = []

    def again(epoch: Any) -> None:
        facts.append(refused(lambda: train(tmp_path), tmp_path))

    net = network()
    net.prepare_for_task(0, num_classes=2)
    options = {**SHORT, "max_epochs": 2, "prune": False}
    net.train_task(loader(0), optimizer=adam(net), checkpoint=tmp_path, on_epoch=again, **options)
    assert len(facts) == 2
    assert f"process {os.getpid()} on " in facts[0]
    assert leftovers(tmp_path) == []


def test_a_run_that_fails_gives_the_lock_back(tmp_path: Path) -> None:
    def fail(epoch: Any) -> None:
        raise RuntimeError("no")

    net = network()
    net.prepare_for_task(0, num_classes=2)
    with pytest.raises(RuntimeError, match="no"):
        net.train_task(loader(0), checkpoint=tmp_path, on_epoch=fail, **SHORT)
    assert leftovers(tmp_path) == []
    life(tmp_path / "other")


def test_learning_keeps_other_runs_out_between_tasks_as_well(tmp_path: Path) -> None:
    with locks.alone(tmp_path):
        refused(lambda: learn(tmp_path), tmp_path)
    with pytest.raises(RuntimeError, match="held"):
        learn(tmp_path, metric=lambda *_: _held_twice(tmp_path))
    assert leftovers(tmp_path) == []


def _held_twice(directory: Path) -> None:
    refused(locks.alone(directory).__enter__, directory)
    raise RuntimeError("held")


@pytest.mark.slow
def test_many_at_once(tmp_path: Path) -> None:
    """Whoever comes while another removes the file of its lock: never two at a time."""
    text = """
import time
from pathlib import Path
from autoeidetic.common import locks
from autoeidetic.errors import CheckpointError
end, got = time.time() + 3, 0
print("here", flush=True)
while time.time() < end:
    try:
        with locks.alone(Path({path!r})):
            os.close(os.open({mark!r}, os.O_CREAT | os.O_EXCL))
            got += 1
            os.unlink({mark!r})
    except CheckpointError:
        pass
assert got
"""
    text = text.format(path=str(tmp_path / "run"), mark=str(tmp_path / "mark"))
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(program(text)) for _ in range(3)]
        for process in processes:
            goes_on(process)


def test_a_link_in_the_place_of_the_lock(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("all of it")
    (tmp_path / locks.LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match="cannot keep checkpoints in"):
        train(tmp_path)
    assert (tmp_path / "precious").read_text() == "all of it"


# -- systems without locks ------------------------------------------------------------------------


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on with a warning, and nothing is taken for a leftover."""
    kept = leftover(tmp_path, locks._HOST, 10.0**6)

    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    with pytest.warns(StorageWarning, match="has no locks") as caught:
        train(tmp_path)
    assert len(caught) == 1
    assert kept.exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == [kept.name, "task-0.safetensors"]


def test_a_system_with_locks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    locked: list[int] = []

    def locking(descriptor: int, mode: int, size: int) -> None:
        lock = tmp_path / locks.LOCK
        if lock.exists() and os.path.samestat(os.fstat(descriptor), lock.stat()):
            if locked:
                raise OSError(errno.EACCES, "Permission denied")
            locked.append(descriptor)

    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    with locks.alone(tmp_path):
        fact = refused(lambda: train(tmp_path), tmp_path)
    assert f"process {os.getpid()}" in fact
    locked.clear()
    old = leftover(tmp_path, locks._HOST, 10.0**6)
    train(tmp_path)
    assert not old.exists()
    monkeypatch.setattr(locks, "msvcrt", None)
    with pytest.warns(StorageWarning, match="has no locks"):
        train(tmp_path)


def test_warnings_name_the_callers_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_lock", lambda descriptor: False)
    net = network()
    net.prepare_for_task(0, num_classes=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net.train_task(loader(0), checkpoint=tmp_path, **{**SHORT, "max_epochs": 1})
    lines = [each for each in caught if each.category is StorageWarning]
    assert [Path(each.filename).name for each in lines] == ["test_locks.py"]
