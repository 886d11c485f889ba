"""What a record of the zoo says.

It holds the model's name and family, and under the name of each stage what was measured: nothing
when the stage was not asked for, ``{"skipped": reason}`` or ``{"error": cause}``.
"""

from __future__ import annotations

from . import stress_test
from .runner import Record

LARGEST_UNIT = 0.02
LARGEST_LOCKED = 0.10


def part(record: Record, stage: str) -> Record:
    """What a stage found; nothing when it failed or was not run."""
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
    """Is no unit larger than 2 % of the backbone, and at most 10 % of it locked?"""
    found = part(record, "analyze")
    return (
        bool(found)
        and found["largest_unit_share"] <= LARGEST_UNIT
        and found["locked_share"] <= LARGEST_LOCKED
    )


def failures(record: Record) -> dict[str, str]:
    """The cause of every failure of ours, by stage."""
    causes = {
        stage: stress_test.cause(found) if stage == "verify" else found.get("error", "")
        for stage, found in record.items()
        if isinstance(found, dict) and "skipped" not in found
    }
    return {stage: cause for stage, cause in causes.items() if cause}


def skipped(record: Record) -> dict[str, str]:
    """Why stages were not run."""
    return {
        stage: found["skipped"]
        for stage, found in record.items()
        if isinstance(found, dict) and "skipped" in found
    }


def other_tools_failures(record: Record) -> dict[str, str]:
    """What the other tools could not do."""
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
