"""The same program in one process and, by torchrun, in two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "torchrun_script.py"
ROOT = SCRIPT.parent.parent


def run(directory: Path, *launcher: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), str(directory)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def result(directory: Path, rank: str) -> dict[str, Any]:
    return torch.load(directory / f"rank-{rank}.pt")


def test_alone(tmp_path: Path) -> None:
    run(tmp_path)
    found = result(tmp_path, "alone")
    assert found["unmoved"]
    assert found["accuracy"] > 0.9
    assert found["routed"] > 0.9
    assert found["lag"] < 1e-5


def test_two_processes(tmp_path: Path) -> None:
    """They start with different random numbers, and end with the same network."""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    run(tmp_path, *launcher)
    first, second = (result(tmp_path, str(rank)) for rank in range(2))
    assert first["unmoved"]
    assert second["unmoved"]
    assert first["accuracy"] == second["accuracy"] > 0.9
    assert first["routed"] == second["routed"] > 0.9
    assert first["lag"] == second["lag"] < 1e-5
    assert torch.equal(first["owners"], second["owners"])
    unlike = [
        name
        for name, value in first["values"].items()
        if not torch.equal(value, second["values"][name])
    ]
    assert [name for name in unlike if not name.startswith("backbone.6.")] == []
    files = sorted(path.name for path in tmp_path.glob("task-*"))
    assert files == [f"task-{task}.safetensors" for task in range(3)]

    run(tmp_path, *launcher)  # everything is there: nothing is trained again
    again = result(tmp_path, "0")
    assert torch.equal(again["owners"], first["owners"])
    kept = [n for n in first["values"] if not n.startswith("backbone.6.")]
    assert all(torch.equal(again["values"][n], first["values"][n]) for n in kept)
