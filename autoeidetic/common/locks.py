"""Locks: files that the operating system keeps locked until their process ends or is killed.

A temporary file has a lock beside it while it is needed, so a file whose lock nobody holds was left
by a process that was killed. A directory is locked while a run keeps its states there. A forked
child inherits locks; it gives up those of directories, because a data loader's worker that outlives
a killed run must not keep the run's directory locked.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from ..errors import CheckpointError, StorageWarning, warn_user
from . import distributed
from .process_state import held_locks

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

LOCK = ".autoeidetic.lock"
_PREFIX = ".autoeidetic-"
_DAY = 24 * 60 * 60
_ATTEMPTS = 10
#: Error numbers of a lock that another process holds.
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
#: Network file systems may hide locks from other hosts; there only a file's age shows a leftover.
_HOST = blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_OTHER_DIRECTORY = (
    "wait until the other run has ended, stop it, or pass another directory; the lock ends with "
    "the process that holds it, even if that is killed"
)


class _TakenError(Exception):
    """Another process holds the lock."""


def _lock(descriptor: int) -> bool:
    """Lock a file; False when the file system has no locks.

    Raises:
        _TakenError: another process holds the lock.
    """
    # flock, not lockf: its lock belongs to the open file, so closing another descriptor of the
    # same file does not release it, and a forked child shares it
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(descriptor, 2**30, os.SEEK_SET)  # a locked byte cannot be read by others
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            return False
    except OSError as error:
        if error.errno in _TAKEN:
            raise _TakenError from error
        return False
    return True


def _still_there(descriptor: int, path: str | Path) -> bool:
    """Does the path still lead to the open file, which may have been removed or replaced?"""
    try:
        # the name may lead to another file by now: a lock on the old one protects nothing
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


# -- temporary files -----------------------------------------------------------------------------


class Temporary:
    """The path of a temporary file, in a folder of its own; ``close`` removes the folder.

    A lock in the folder shows other processes that it is in use. The file itself is not locked,
    because its writer may replace it. Folders left by dead processes are removed first.

    Raises:
        OSError: no folder can be made there.
    """

    def __init__(self, directory: str | Path, suffix: str) -> None:
        _sweep(directory, suffix)
        self._maker = os.getpid()
        for attempt in range(1, _ATTEMPTS + 1):
            folder = Path(directory, f"{_PREFIX}{_HOST}-{secrets.token_hex(8)}{suffix}")
            os.mkdir(folder, 0o700)
            try:
                # O_EXCL: the lock must be ours from the start, never one that was put there
                self._descriptor = _locked(folder, os.O_CREAT | os.O_EXCL)
                break
            except (_TakenError, FileNotFoundError) as error:
                # between mkdir and the lock, another process removed it as a leftover
                _remove(folder)
                if attempt == _ATTEMPTS:
                    raise OSError(errno.EAGAIN, "a new file cannot be locked", folder) from error
            except BaseException:
                _remove(folder)
                raise
        self.path = folder / "content"

    def close(self) -> None:
        """Remove the folder and its content.

        Only the process that made it does: forked processes have a copy of this object.
        """
        if os.getpid() == self._maker:
            os.close(self._descriptor)
            _remove(self.path.parent)


def _locked(folder: Path, flags: int) -> int:
    """The descriptor of the lock in a folder, locked if the file system has locks.

    Raises:
        FileNotFoundError: the folder is gone, or there is no lock.
        _TakenError: another process holds the lock, or nothing shows whether one does.
    """
    path = folder / "lock"
    descriptor = os.open(path, os.O_RDWR | _NO_LINK | flags, 0o600)
    try:
        has_locks = _lock(descriptor)
        if not has_locks and not flags:
            raise _TakenError  # without locks a leftover looks like a file in use
        if not _still_there(descriptor, path):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _sweep(directory: str | Path, suffix: str) -> None:
    """Remove temporary folders of this user whose processes are dead."""
    with suppress(OSError), os.scandir(directory) as entries:
        names = [entry.name for entry in entries]
        for name in names:
            if name.startswith(_PREFIX) and name.endswith(suffix):
                with suppress(OSError, _TakenError):
                    _remove_if_dead(Path(directory, name))


def _remove_if_dead(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != _user():
        return
    # on this host the lock tells; of another host's folders only those older than a day are tried
    times = [found.st_mtime, *(each.lstat().st_mtime for each in folder.iterdir())]
    if max(times) > time.time() - _DAY and not folder.name.startswith(f"{_PREFIX}{_HOST}-"):
        return
    descriptor = _locked(folder, 0)
    try:
        _remove(folder)
    finally:
        os.close(descriptor)


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0  # on Windows every file has st_uid 0


def _remove(folder: Path) -> None:
    """Remove a folder and the files in it; the lock goes last."""
    with suppress(OSError):
        # a folder without a lock cannot be swept, so the lock stays until the rest is gone
        for each in sorted(folder.iterdir(), key=lambda path: path.name == "lock"):
            with suppress(OSError):
                each.unlink()
        folder.rmdir()


# -- directories ---------------------------------------------------------------------------------


def _give_up_in_child() -> None:
    # flock ends with the last copy of a descriptor; LOCK_UN would release the parent's lock, too
    for descriptor in held_locks:
        with suppress(OSError):
            os.close(descriptor)  # the parent's own descriptor keeps the lock
    held_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_in_child)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Make a directory if there is none, and keep other runs out of it during the block.

    All processes of a distributed run call it; process 0 holds the lock.

    Raises:
        CheckpointError: another run is in it, or it cannot be written to.
    """
    descriptor, problem = None, None
    if distributed.rank() == 0:
        try:
            descriptor = _taken(directory)
        except CheckpointError as error:
            # plain text: it is sent to the other processes
            problem = error.fact, error.remedy
    # all processes raise together: one that raises alone leaves the others waiting
    problem = distributed.first(problem)
    if problem is not None:
        raise CheckpointError(problem[0], remedy=problem[1])
    try:
        yield
    finally:
        if descriptor is not None:
            _give_back(descriptor, directory / LOCK)


def _taken(directory: Path) -> int:
    """The descriptor of a locked file in a directory."""
    path = directory / LOCK
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            # open, lock, look again: between the first two the owner may have removed the file
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o666)
            try:
                locked = _lock(descriptor)
                if _still_there(descriptor, path):
                    break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the previous run has just removed the file
        else:
            raise _TakenError
    except _TakenError:
        raise CheckpointError(
            f"the directory '{directory}' is in use by another run{_who(path)}: two runs in one "
            "directory would mix their states",
            remedy=_OTHER_DIRECTORY,
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"the run cannot keep checkpoints in '{directory}': {error}",
            remedy="pass a directory that may be written to",
        ) from error
    if not locked:
        warn_user(
            f"the file system of '{directory}' has no locks: if another run uses the directory at "
            "the same time, they mix their states",
            StorageWarning,
        )
    held_locks.add(descriptor)
    _sign(descriptor)
    return descriptor


def _sign(descriptor: int) -> None:
    """Write who holds the lock, for the message of another run; a full disk is no problem."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())


def _who(path: Path) -> str:
    """Who holds the lock, in parentheses, if the file says so."""
    with suppress(OSError, ValueError):
        found = path.read_text(encoding="utf-8")[:200]
        if found.isprintable() and found:
            return f" ({found})"
    return ""


def _give_back(descriptor: int, path: Path) -> None:
    """Remove the file while it is locked: a process that has just opened it notices that."""
    if descriptor not in held_locks:  # in a forked child
        return
    with suppress(OSError):
        if _still_there(descriptor, path):
            path.unlink()
    held_locks.discard(descriptor)
    os.close(descriptor)
