"""Locks: files that the operating system knows to be in use, until their process ends or dies.

Temporary files have a lock beside them while they are needed, so what is not locked was left by a
process that was killed. A directory is locked while a run keeps its states there. A fork gives a
lock on to the child; the lock of a directory is given up there, for a worker that outlives a killed
run must not keep it.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from ..errors import CheckpointError, StorageWarning
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
#: Of a lock that somebody else has.
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
#: Some network file systems keep locks from other hosts: there only the age of a file tells.
_HOST = blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_OTHER_DIRECTORY = (
    "wait until the other run has ended, stop it, or pass another directory; the lock ends with "
    "the process that has it, also when that is killed"
)


class _TakenError(Exception):
    """Somebody else has the lock."""


def _lock(descriptor: int) -> bool:
    """Lock a file, or learn that the file system has no locks (False).

    Raises:
        _TakenError: somebody else has it.
    """
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
    """Is it the file of this name, or has somebody removed that meanwhile?"""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


# -- temporary files -----------------------------------------------------------------------------


class Temporary:
    """The path of a file to be, in a folder of its own; close it when the file is not needed.

    A lock in the folder tells others that it is in use. Not on the file itself, for who writes it
    may put another one in its place. Folders of the same kind whose processes are surely dead are
    removed first.

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
                self._descriptor = _locked(folder, os.O_CREAT | os.O_EXCL)
                break
            except (_TakenError, FileNotFoundError) as error:
                # another process took it for a leftover before it was locked
                _remove(folder)
                if attempt == _ATTEMPTS:
                    raise OSError(errno.EAGAIN, "a new file cannot be locked", folder) from error
            except BaseException:
                _remove(folder)
                raise
        self.path = folder / "content"

    def close(self) -> None:
        """Remove the folder with all that is in it.

        By the process that made it alone: those forked from it have this object as well.
        """
        if os.getpid() == self._maker:
            os.close(self._descriptor)
            _remove(self.path.parent)


def _locked(folder: Path, flags: int) -> int:
    """The descriptor of the lock in a folder; a file system without locks has to do.

    Raises:
        FileNotFoundError: the folder is gone, or there is no lock.
        _TakenError: somebody else has it.
    """
    path = folder / "lock"
    descriptor = os.open(path, os.O_RDWR | _NO_LINK | flags, 0o600)
    try:
        has_locks = _lock(descriptor)
        if not has_locks and not flags:
            raise _TakenError  # nobody can tell
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
    times = [found.st_mtime, *(each.lstat().st_mtime for each in folder.iterdir())]
    if max(times) > time.time() - _DAY and not folder.name.startswith(f"{_PREFIX}{_HOST}-"):
        return
    descriptor = _locked(folder, 0)
    try:
        _remove(folder)
    finally:
        os.close(descriptor)


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0  # as on Windows, where all files are of 0


def _remove(folder: Path) -> None:
    """A folder and the files in it; the lock goes last."""
    with suppress(OSError):
        for each in sorted(folder.iterdir(), key=lambda path: path.name == "lock"):
            with suppress(OSError):
                each.unlink()
        folder.rmdir()


# -- directories ---------------------------------------------------------------------------------


def _give_up_in_child() -> None:
    for descriptor in held_locks:
        with suppress(OSError):
            os.close(descriptor)  # the parent's own descriptor keeps the lock
    held_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_in_child)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Make a directory if there is none, and keep other runs out of it meanwhile.

    All processes of one distributed run call it; the first one has the lock.

    Raises:
        CheckpointError: another run is in it, or it cannot be written to.
    """
    descriptor, problem = None, None
    if distributed.rank() == 0:
        try:
            descriptor = _taken(directory)
        except CheckpointError as error:
            problem = error.fact, error.remedy
    # a process that raises alone would leave the others waiting
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
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o666)
            try:
                locked = _lock(descriptor)
                if _still_there(descriptor, path):
                    break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the run before has just removed it
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
        warnings.warn(
            f"the file system of '{directory}' has no locks: if another run uses the directory at "
            "the same time, they mix their states",
            StorageWarning,
            stacklevel=6,
        )
    held_locks.add(descriptor)
    _sign(descriptor)
    return descriptor


def _sign(descriptor: int) -> None:
    """For the message of another run; a full disk is no reason to stop."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())


def _who(path: Path) -> str:
    with suppress(OSError, ValueError):
        found = path.read_text(encoding="utf-8")[:200]
        if found.isprintable() and found:
            return f" ({found})"
    return ""


def _give_back(descriptor: int, path: Path) -> None:
    """Removes the file while it is locked: who opens it in between finds that it is gone."""
    if descriptor not in held_locks:  # in a child that was forked
        return
    with suppress(OSError):
        if _still_there(descriptor, path):
            path.unlink()
    held_locks.discard(descriptor)
    os.close(descriptor)
