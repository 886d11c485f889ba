"""What a converted network adds in bytes: to parameters and buffers, to its file, in all.

The section ``memory`` of ``benchmarks/speed.py``.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from benchmarks.runner import Record
from benchmarks.workloads import build, converted

BEFORE, AFTER = 0.1, 1.1  # of the model's bytes, of the frozen values' bytes


def memory(name: str) -> Record:
    """Added bytes before the first ``finish_task`` and after it."""
    model, x, labels = build(name)
    plain = state_bytes(model)
    net = converted(model, x)
    others = [*model.parameters(), *model.buffers(), x, labels]
    rows = [
        _row(f"{what}, before the first finish", BEFORE, plain, size - plain)
        for what, size in sizes(net, others).items()
    ]
    net.prune(0.5)
    net.finish_task()
    frozen = frozen_bytes(net)
    rows += [
        _row(f"{what}, after it", AFTER, frozen, size - plain)
        for what, size in sizes(net, others).items()
    ]
    return {"rows": rows, "bytes": plain}


def sizes(net: Any, others: Iterable[Tensor]) -> dict[str, int]:
    return {
        "parameters and buffers": state_bytes(net),
        "file": file_bytes(net),
        "all tensors alive (no budget)": alive_bytes() - storage_bytes(others),
    }


def frozen_bytes(net: Any) -> int:
    """The pinned part of the backbone and the finished task's head."""
    head = sum(p.numel() * p.element_size() for p in net.heads.parameters())
    body = sum(p.numel() * p.element_size() for p in net.backbone.parameters())
    return round((1 - net.capacity().free) * body) + head


def state_bytes(model: nn.Module) -> int:
    return storage_bytes([*model.parameters(), *model.buffers()])


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """The bytes behind some tensors, each storage once."""
    storages = [t.untyped_storage() for t in tensors if t.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def file_bytes(net: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        net.save(Path(folder) / "net")
        return sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())


def alive_bytes() -> int:
    """Whatever is held anywhere in this process."""
    gc.collect()
    return storage_bytes(o for o in gc.get_objects() if issubclass(type(o), Tensor))


def _row(what: str, budget: float, reference: int, added: int) -> Record:
    limit = None if "no budget" in what else budget
    return {
        "what": what.replace(" (no budget)", ""),
        "budget": limit,
        "plain": reference,
        "converted": added,
        "ratio": added / reference,
    }
