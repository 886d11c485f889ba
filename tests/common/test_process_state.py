"""State of the process: it is documented, and hooks of optimizers are registered once."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

from autoeidetic.common import process_state

ONCE = """
import importlib
from torch.optim import optimizer
import autoeidetic
from autoeidetic.enforce import optimizer_steps
importlib.reload(optimizer_steps)
print(len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks))
"""


def test_every_container_is_documented() -> None:
    assignments = [
        node.targets[0] if isinstance(node, ast.Assign) else node.target
        for node in ast.parse(inspect.getsource(process_state)).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
    ]
    names = [ast.unparse(target) for target in assignments]
    assert "watched_pins" in names
    assert [name for name in names if f"``{name}``" not in (process_state.__doc__ or "")] == []


def test_hooks_of_optimizers_are_registered_once() -> None:
    found = subprocess.run(
        [sys.executable, "-c", ONCE], capture_output=True, text=True, check=True
    ).stdout
    assert found.split() == ["1", "1"]
