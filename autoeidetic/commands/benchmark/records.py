"""Questions about a record of the benchmark.

A record holds the model's name and family, and the measurements of each stage under its name. A
stage that was not requested is missing; ``{"skipped": reason}`` and ``{"error": cause}`` are the
other cases.
"""

from __future__ import annotations

from . import extraction, stress_test
from .runner import Record

#: Shares of the backbone up to which a model counts as divided well.
LARGEST_UNIT = 0.02
LARGEST_LOCKED = 0.10


def part(record: Record, stage: str) -> Record:
    """The measurements of a stage; empty when it failed or was not run."""
    found: Record = record.get(stage) or {}
    return {} if "error" in found or "skipped" in found else found


def analysed(record: Record) -> bool:
    return bool(part(record, "analyze"))


def converted(record: Record) -> bool:
    return bool(part(record, "convert"))


def verified(record: Record) -> bool:
    return bool(part(record, "verify")) and stress_test.is_ok(record["verify"])


def widened(record: Record) -> bool:
    return bool(part(record, "widen")) and stress_test.is_ok(record["widen"])


def extracted(record: Record) -> bool:
    return bool(part(record, "extract")) and extraction.is_ok(record["extract"])


def torch_pruning(record: Record) -> Record:
    """How far Torch-Pruning got with half of the model; empty when it was not tried."""
    # Both stages try it; a stage in which autoeidetic failed still has its result.
    found = [record.get(stage, {}).get("torch_pruning", {}) for stage in ("extract", "compare")]
    return found[0] or found[1]


def pruned_by_torch_pruning(record: Record) -> bool:
    return torch_pruning(record).get("stage") == "done"


def is_divided(record: Record) -> bool:
    """Whether no unit holds more than 2 % of the backbone and at most 10 % of it is locked."""
    found = part(record, "analyze")
    return (
        bool(found)
        and found["largest_unit_share"] <= LARGEST_UNIT
        and found["locked_share"] <= LARGEST_LOCKED
    )


def failures(record: Record) -> dict[str, str]:
    """Stage -> cause of each failure of autoeidetic."""
    judges = {
        "verify": stress_test.cause,
        "widen": stress_test.cause,
        "extract": extraction.cause,
    }
    causes = {
        stage: judges[stage](found) if stage in judges else found.get("error", "")
        for stage, found in record.items()
        if isinstance(found, dict) and "skipped" not in found
    }
    return {stage: cause for stage, cause in causes.items() if cause}


def skipped(record: Record) -> dict[str, str]:
    """Stage -> reason for each stage that was not run."""
    return {
        stage: found["skipped"]
        for stage, found in record.items()
        if isinstance(found, dict) and "skipped" in found
    }


def other_tools_failures(record: Record) -> dict[str, str]:
    """Tool -> cause of each failure of the other tools."""
    causes = {
        way: text
        for way, text in part(record, "compare").get("errors", {}).items()
        if way not in ("analyze", "torch_pruning")
    }
    pruning = torch_pruning(record)
    if "error" in pruning:
        causes["Torch-Pruning"] = f"{pruning['stage']}: {pruning['error']}"
    return causes
