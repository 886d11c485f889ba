"""Questions about a record of the benchmark.

A record holds the model's name and family, and the measurements of each stage under its name. A
stage that was not requested is missing; ``{"skipped": reason}`` and ``{"error": cause}`` are the
other cases.
"""

from __future__ import annotations

from . import stress_test
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


def pruned_by_torch_pruning(record: Record) -> bool:
    return part(record, "compare").get("torch_pruning", {}).get("stage") == "done"


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
    causes = {
        stage: stress_test.cause(found) if stage == "verify" else found.get("error", "")
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
    found = part(record, "compare")
    causes = {
        way: text
        for way, text in found.get("errors", {}).items()
        if way not in ("analyze", "torch_pruning")
    }
    pruning = found.get("torch_pruning", {})
    if "error" in pruning:
        causes["Torch-Pruning"] = f"{pruning['stage']}: {pruning['error']}"
    return causes
