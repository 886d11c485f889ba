"""Extract report: what a program costs, and how it was compared with its network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...common.tables import notebook_html, table

#: ``x: dimension 0``, as :attr:`ExtractReport.dynamic` names a size.
_SIZE = re.compile(r"(.+): dimension (\d+)")


@dataclass(frozen=True)
class ExtractReport:
    """What a program costs before and after, and how it was compared with its network.

    ``multiply_adds``: for one input. ``difference``: the largest difference of outputs, divided by
    the largest output. ``dynamic``: sizes of inputs that may vary. ``fixed``: sizes that may not,
    with the reason. ``limits``: how far the sizes may vary that do not vary without limit.
    """

    tasks: tuple[str, ...]
    parameters_before: int
    parameters_after: int
    multiply_adds_before: int
    multiply_adds_after: int
    difference: float
    compared_in: str
    compared_at: tuple[tuple[int, ...], ...]
    dynamic: tuple[str, ...]
    fixed: tuple[str, ...]
    limits: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def dynamic_sizes(self) -> dict[str, tuple[int, ...]]:
        """The dimensions of each input whose sizes may vary."""
        found: dict[str, tuple[int, ...]] = {}
        for text in self.dynamic:
            match = _SIZE.fullmatch(text)
            if match is not None:
                found[match[1]] = (*found.get(match[1], ()), int(match[2]))
        return found

    def __str__(self) -> str:
        costs = [
            ("parameters", self.parameters_before, self.parameters_after),
            ("multiply-adds", self.multiply_adds_before, self.multiply_adds_after),
        ]
        rows = [["", "before", "after", ""]]
        for name, before, after in costs:
            rows.append([name, f"{before:,}", f"{after:,}", f"{after / max(before, 1):.1%}"])
        shapes = ", ".join("x".join(map(str, shape)) or "a number" for shape in self.compared_at)
        lines = [
            table(rows),
            f"outputs differ by at most {self.difference:.1e} of the largest one "
            f"(in {self.compared_in}, inputs of {shapes})",
        ]
        if self.tasks:
            lines.insert(0, f"{'task' if len(self.tasks) == 1 else 'tasks'} {_list(self.tasks)}")
        if self.dynamic:
            lines.append(f"sizes that may vary: {_list(self.dynamic)}")
        lines += [f"limit: {text}" for text in self.limits]
        lines += [f"fixed: {text}" for text in self.fixed]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return notebook_html(str(self))


def _list(words: Sequence[str]) -> str:
    return ", ".join(words)


def report_of(data: Mapping[str, Any]) -> ExtractReport:
    """The report that ``to_dict`` has turned into plain data, possibly through JSON."""
    return ExtractReport(
        tasks=tuple(data["tasks"]),
        parameters_before=data["parameters_before"],
        parameters_after=data["parameters_after"],
        multiply_adds_before=data["multiply_adds_before"],
        multiply_adds_after=data["multiply_adds_after"],
        difference=float("nan") if data["difference"] is None else data["difference"],
        compared_in=data["compared_in"],
        compared_at=tuple(tuple(shape) for shape in data["compared_at"]),
        dynamic=tuple(data["dynamic"]),
        fixed=tuple(data["fixed"]),
        limits=tuple(data["limits"]),
    )
