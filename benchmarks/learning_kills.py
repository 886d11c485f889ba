"""Kill a training job at random moments with SIGKILL, and restart it until it is done.

It must end with the same bits as an undisturbed job, each kill may lose at most one epoch, and the
outputs of finished tasks must be those recorded when they were finished.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOB = Path(__file__).parent / "learning_kills_job.py"


def measure(kills: int, seed: int) -> dict[str, Any]:
    """Run the job once undisturbed and once with ``kills`` kills, and compare the results."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        quiet, disturbed = Path(name) / "quiet", Path(name) / "disturbed"
        for directory in (quiet, disturbed):
            directory.mkdir()
        _start(quiet).wait()
        lost, done = [], 0
        while done < kills:
            before = _progress(disturbed)
            job = _start(disturbed)
            try:
                _wait_for_progress(job, disturbed, before)
                time.sleep(moments.uniform(0, 0.5))
                before_kill = _progress(disturbed)
            finally:
                ended = job.poll() is not None
                job.kill()
                job.wait()
            if ended:
                break
            done += 1
            lost.append(max(0, before_kill - _progress(disturbed)))
        _start(disturbed).wait()
        whole, again = (json.loads((d / "result.json").read_text()) for d in (quiet, disturbed))
    passed = whole["state"] == again["state"] and not any(lost) and done >= kills
    passed = passed and whole["answers"] == again["answers"] and not again["moved"]
    return {
        "passed": passed,
        "kills": done,
        "epochs": len(whole["epochs"]),
        "stored epochs lost": sum(lost),
        "old answers moved": again["moved"],
        "same state as undisturbed": whole["state"] == again["state"],
    }


def _start(directory: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(JOB), str(directory)], env=environment)


def _progress(directory: Path) -> int:
    """The number of epochs in the stored states of all tasks."""
    from autoeidetic.common import archive
    from autoeidetic.training.optimizer_state import unpack

    total = 0
    for file in directory.glob("task-?.safetensors"):
        description, tensors = archive.read(file)
        total += len(unpack(description["training"], tensors)["progress"]["epochs"])
    return total


def _wait_for_progress(job: subprocess.Popen[bytes], directory: Path, before: int) -> None:
    """Wait until the job has stored a new epoch, so that kills hit it while it trains."""
    while job.poll() is None and _progress(directory) <= before:
        time.sleep(0.05)
