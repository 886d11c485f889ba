"""Export: the dependencies as JSON and as a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..common.tables import table as aligned

if TYPE_CHECKING:
    from .dependencies import Dependencies

#: Groups in the table; a large model has hundreds.
_ROWS = 60


def to_dict(deps: Dependencies) -> dict[str, Any]:
    return {
        "captured_by": deps.capture.way,
        "nodes": len(deps.capture.graph.nodes),
        "operators": dict(deps.operators),
        "unhandled": [str(unhandled) for unhandled in deps.unhandled],
        "units": deps.plan.units,
        "backbone_elements": deps.backbone_elements,
        "largest_unit_share": deps.largest_unit_share,
        "groups": [group.to_dict() for group in deps.groups],
        "heads": [head.to_dict() for head in deps.heads],
        "locked": deps.locked.to_dict(),
        "unused": list(deps.unused),
        "nested": [
            {"module": n.module, "operators": list(n.operators), "lines": list(n.lines)}
            for n in deps.plan.nested
        ],
    }


def to_json(deps: Dependencies) -> str:
    return json.dumps(to_dict(deps), indent=2)


def table(deps: Dependencies) -> str:
    """A summary, the groups, the heads and what is locked."""
    total = max(deps.backbone_elements, 1)
    rows = [("group", "units", "elements", "share", "layers", "coupled by")]
    for group in deps.groups[:_ROWS]:
        # without nested bonds: evaluation level by level undoes them
        operators = dict.fromkeys(
            b.place.operator.removeprefix("aten.") for b in group.bonds if b.kind != "nested"
        )
        rows.append(
            (
                group.name,
                str(group.size),
                f"{group.elements:,}",
                f"{group.elements / total:.1%}",
                _shortened(group.layers),
                ", ".join(operators) or "-",
            )
        )
    lines = [_summary(deps), "", aligned(rows, right=(1, 2, 3))]
    if len(deps.groups) > _ROWS:
        lines.append(f"... {len(deps.groups) - _ROWS} more groups in .groups")
    lines.append("")
    for head in deps.heads:
        lines.append(f"head: {head.layer} ({head.size} outputs, {head.elements:,} elements)")
    if not deps.heads:
        lines.append("head: none, the outputs are features of the backbone")
    lines.append(str(deps.locked))
    if deps.unused:
        lines.append(f"unused in eval mode: {', '.join(deps.unused)}")
    lines.extend(f"unhandled: {unhandled}" for unhandled in deps.unhandled)
    return "\n".join(lines)


def _summary(deps: Dependencies) -> str:
    return (
        f"{len(deps.groups)} groups, {deps.plan.units:,} units, "
        f"{deps.backbone_elements:,} backbone elements; largest unit "
        f"{deps.largest_unit_share:.2%}; {len(deps.plan.nested)} modules evaluated level by level"
    )


def _shortened(layers: tuple[str, ...], most: int = 3) -> str:
    shown = ", ".join(layers[:most])
    return shown if len(layers) <= most else f"{shown} and {len(layers) - most} more"
