"""Files are written whole or not at all, whoever writes them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from autoeidetic.common import files
from autoeidetic.draw import formats
from autoeidetic.errors import InputError


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with files.replacing(path) as temporary:
            temporary.write_bytes(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"]


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    files.write(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_takes_the_bytes_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(path.read_bytes()))
    reader.start()
    files.write_bytes(path, b"content")
    reader.join(timeout=60)
    assert seen == [b"content"]
    assert path.is_fifo()


def test_directories_are_made_for_results_and_not_for_drawings(tmp_path: Path) -> None:
    files.write(tmp_path / "a" / "b", b"content")
    assert (tmp_path / "a" / "b").read_bytes() == b"content"
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        formats.write(b"content", tmp_path / "c" / "d.svg")
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        formats.write(b"content", tmp_path)
