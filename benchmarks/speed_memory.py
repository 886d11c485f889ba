"""The bytes that conversion adds to parameters and buffers, to the saved file, and in total.

The section ``memory`` of ``benchmarks/speed.py``.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from autoeidetic.commands.benchmark.runner import Record
from benchmarks.workloads import build, converted, masked

BEFORE, AFTER = 0.1, 1.1  # budgets, relative to the model's and the frozen values' bytes
STATE, FILE, ALIVE = "parameters and buffers", "file", "all tensors alive"


def memory(name: str) -> Record:
    """Added bytes before and after the first ``finish_task``, also for the reference."""
    model, x, labels = build(name)
    plain = state_bytes(model)
    others = [*model.parameters(), *model.buffers(), x, labels]
    net = converted(model, x)
    before = {what: size - plain for what, size in sizes(net, others).items()}
    net.prune(0.5)
    net.finish_task()
    after = {what: size - plain for what, size in sizes(net, others).items()}
    frozen = frozen_bytes(net)
    masks = _of_reference(model, x)
    rows = [
        _row(f"{what}, {when}", None if what == ALIVE else budget, size, added, masks.get(what))
        for when, budget, size, found in (
            ("before the first finish", BEFORE, plain, before),
            ("after it", AFTER, frozen, after),
        )
        for what, added in found.items()
    ]
    return {"rows": rows, "bytes": plain}


def _of_reference(model: nn.Module, x: Tensor) -> dict[str, int]:
    """The bytes that its masks add after a forward pass, independent of what is frozen."""
    plain, before = state_bytes(model), alive_bytes()
    net = masked(model, x)
    net(x)
    return {STATE: state_bytes(net) - plain, ALIVE: alive_bytes() - before - plain}


def sizes(net: Any, others: Iterable[Tensor]) -> dict[str, int]:
    return {
        STATE: state_bytes(net),
        FILE: file_bytes(net),
        ALIVE: alive_bytes() - storage_bytes(others),
    }


def frozen_bytes(net: Any) -> int:
    """The pinned part of the backbone and the finished task's head."""
    head = sum(p.numel() * p.element_size() for p in net.heads.parameters())
    body = sum(p.numel() * p.element_size() for p in net.backbone.parameters())
    return round((1 - net.capacity().free) * body) + head


def state_bytes(model: nn.Module) -> int:
    return storage_bytes([*model.parameters(), *model.buffers()])


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """The bytes of the tensors' storages, each counted once."""
    storages = [t.untyped_storage() for t in tensors if t.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def file_bytes(net: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        net.save(Path(folder) / "net")
        return sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())


def alive_bytes() -> int:
    """The bytes of all tensors in this process; fake tensors of torch's compiler have none."""
    gc.collect()
    found = (o for o in gc.get_objects() if issubclass(type(o), Tensor))
    return storage_bytes(o for o in found if not isinstance(o, FakeTensor))


def _row(what: str, budget: float | None, plain: int, added: int, masks: int | None) -> Record:
    row = {
        "what": what,
        "budget": budget,
        "plain": plain,
        "converted": added,
        "ratio": added / plain,
    }
    if masks is not None:
        row |= {"reference": masks, "reference_ratio": masks / plain}
    return row
