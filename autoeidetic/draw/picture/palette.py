"""The palette: colours that are distinguishable in print and for most colour-blind readers."""

from __future__ import annotations

from ..elements import DrawnGroup

#: By the colour number of a group.
GROUPS = (
    "#2f6fb5",
    "#d9822b",
    "#3f9a5f",
    "#b5485d",
    "#7a5ab5",
    "#2f9fa6",
    "#b59a2f",
    "#c25fa0",
    "#6b7f3a",
    "#5f7fd0",
    "#a0674a",
    "#4c8f8a",
)
TASKS = ("#1f77b4", "#ff9f1c", "#2ca02c", "#d1495b", "#7b5ea7", "#17a2b8", "#8c6d31", "#e377c2")
INK = "#1d2530"
QUIET = "#5b6675"
LINE = "#7d8896"
PAPER = "#ffffff"
FREE = "#dfe4ea"
FAILED = "#b00020"
#: Backgrounds of modules by depth, the outermost first.
FRAMES = ("#f4f6f9", "#eaeef4", "#e1e7ef", "#d8e0ea")


def group_colours(groups: tuple[DrawnGroup, ...]) -> dict[str, str]:
    """The colour of each group by its id."""
    return {group.id: GROUPS[group.colour % len(GROUPS)] for group in groups}


def task_colour(index: int) -> str:
    return TASKS[index % len(TASKS)]
