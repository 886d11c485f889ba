"""Report: the results of an audit, task by task."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..common.tables import line, notebook_html, table

HELD, CHANGED, OUTPUTS, CONVERTED, UNSEALED = "held", "changed", "outputs", "converted", "unsealed"
_NAMES = 5


@dataclass(frozen=True)
class OutputAudit:
    """Comparison of the reference outputs with those recorded in the file.

    There are ``values`` values, of which the file has ``compared``; ``changed`` of these differ, by
    up to ``largest``. ``same`` is about all values, by their digests; None if not checked.
    """

    same: bool | None
    values: int = 0
    compared: int = 0
    changed: int = 0
    largest: float = 0.0

    def __str__(self) -> str:
        if self.same is None:
            return "not checked"
        if self.same:
            return f"{self.values:,} the same"
        if not self.changed:
            return "DIFFER"
        return f"{self.changed:,} of {self.compared:,} DIFFER, by up to {self.largest:.2g}"


NOT_ASKED = OutputAudit(None)


@dataclass(frozen=True)
class TaskAudit:
    """Audit of one finished task.

    ``verdict`` is one of

    - "held": everything is as sealed
    - "changed": frozen values, owners or terms are not as sealed
    - "outputs": only its outputs differ
    - "converted": the network was converted to another type since, so the seal no longer applies
    - "unsealed": the task has no seal

    ``changed`` has the tensors that are not as sealed, with the number of values that the task
    froze in each. ``owners``: does the task own the same units? ``terms`` has its name, classes and
    options that are not as sealed, as (sealed, now). ``answered_by`` is the name of the revisit
    that answers in its place. ``note`` has further details.
    """

    task: int
    name: str
    values: int
    verdict: str
    changed: dict[str, int] = field(default_factory=dict)
    owners: bool = True
    outputs: OutputAudit = NOT_ASKED
    note: str = ""
    terms: dict[str, tuple[str, str]] = field(default_factory=dict)
    answered_by: str | None = None

    @property
    def ok(self) -> bool:
        return self.verdict == HELD


@dataclass(frozen=True)
class Audit:
    """Audit of the finished tasks in a file.

    ``damage`` is about the file as a whole: it is truncated, or its own digest is wrong. ``digest``
    covers everything that decides an answer: kept elsewhere, it shows later whether somebody
    has sealed tasks again, let another task answer, or replaced the router. ``noted``: are the
    seals of the passed digest in the file? ``answers``: is everything else that decides an answer
    as it was then? Both are None if no digest was passed, or the digest does not tell. ``router``
    describes the router in the file. ``ok``: every finished task is as sealed, the file is intact,
    and everything is as noted.
    """

    path: str
    damage: str
    tasks: tuple[TaskAudit, ...]
    digest: str
    noted: bool | None = None
    answers: bool | None = None
    router: str = ""

    @property
    def ok(self) -> bool:
        as_noted = self.noted is not False and self.answers is not False
        return not self.damage and as_noted and all(task.ok for task in self.tasks)

    @property
    def tampered(self) -> tuple[TaskAudit, ...]:
        """The tasks whose own values, owners or terms are not as sealed."""
        return tuple(task for task in self.tasks if task.verdict == CHANGED)

    def to_dict(self) -> dict[str, Any]:
        tasks = [{**asdict(task), "ok": task.ok} for task in self.tasks]
        return {**asdict(self), "tasks": tasks, "ok": self.ok}

    def __str__(self) -> str:
        lines = [line(self.path)]
        if self.tasks:
            rows = [["task", "frozen values", "seal", "reference outputs"]]
            rows += [[line(t.name), f"{t.values:,}", _seal(t), str(t.outputs)] for t in self.tasks]
            lines += [table(rows), *map(line, _details(self.tasks))]
        if self.router:
            lines.append(line(f"router: {self.router}"))
        if self.damage:
            lines.append(line(self.damage))
        if self.digest:
            lines.append(f"digest: {self.digest}")
        return "\n".join([*lines, line(self._conclusion())])

    def _conclusion(self) -> str:
        if self.tampered:
            return f"TAMPERED WITH: {', '.join(task.name for task in self.tampered)}"
        wrong = [task for task in self.tasks if not task.ok]
        if any(task.verdict == OUTPUTS for task in wrong):
            return "OUTPUTS OF FINISHED TASKS DIFFER, though their frozen values are as sealed"
        if wrong:
            return (
                f"{len(wrong)} of {len(self.tasks)} finished tasks cannot be checked; "
                "load the network, net.seal() and net.save(path) seal it as it is now"
            )
        if self.noted is False:
            return (
                "SEALED ANEW: the seals are not those that were noted; "
                "or the digest is that of another file"
            )
        if self.answers is False:
            return (
                "ANOTHER ANSWER IS GIVEN: the seals are those that were noted, but which task "
                "answers for which, the router, a name, an option or the example inputs are not as "
                "they were then; if you have called replace_task or train_router since, note the "
                "new digest"
            )
        if self.damage:
            return "EDITED OR DAMAGED" + (", outside of what is sealed" if self.tasks else "")
        if not self.tasks:
            return "no task is finished, so there is nothing to check"
        return f"every finished task is what it was when it was finished{self._as_noted()}"

    def _as_noted(self) -> str:
        if not self.noted:
            return ""
        if self.answers:
            return ", and the seals and all that decides about an answer are those that were noted"
        return (
            ", and the seals are those that were noted; the digest is that of an earlier version, "
            "which does not tell whether the same tasks answer and the router is the same"
        )

    def _repr_html_(self) -> str:
        return notebook_html(str(self))


def _seal(task: TaskAudit) -> str:
    words = {CHANGED: "BROKEN", UNSEALED: "none", CONVERTED: "does not apply"}
    return words.get(task.verdict, "holds")


def _details(tasks: tuple[TaskAudit, ...]) -> list[str]:
    lines = []
    for task in tasks:
        for name, (then, now) in task.terms.items():
            lines.append(f"{task.name}: its {name} is {now!r}, and was {then!r} when it was sealed")
        if task.answered_by is not None:
            lines.append(f"{task.name}: {task.answered_by} answers in its place (net.replace_task)")
        if not task.owners:
            lines.append(f"{task.name}: it does not own the units that it owned when it was sealed")
        if task.changed:
            shown = [f"{n} ({v:,} frozen values)" for n, v in list(task.changed.items())[:_NAMES]]
            more = len(task.changed) - len(shown)
            rest = f" and {more} more" if more else ""
            lines.append(f"{task.name}: not as sealed: {', '.join(shown)}{rest}")
        if task.note:
            lines.append(f"{task.name}: {task.note}")
    return lines
