"""Bitwise: compares the digests of finished tasks over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..common.tables import notebook_html, table


@dataclass(frozen=True)
class Kept:
    """The digests of one task, by the task after which they were taken.

    ``answered_by`` is the revisit that answered in the task's place, if one did. ``same`` is None
    if the inputs were never the same, so that outputs cannot be compared.
    """

    task: int
    inputs: dict[int, str]
    outputs: dict[int, str]
    answered_by: int | None = None

    @property
    def same(self) -> bool | None:
        # Outputs are compared only among evaluations with the same inputs.
        answers: dict[str, set[str]] = {}
        for after, asked in self.inputs.items():
            answers.setdefault(asked, set()).add(self.outputs[after])
        # Two outputs for the same inputs: a bit has moved. Only other inputs: nothing is known.
        if any(len(different) > 1 for different in answers.values()):
            return False
        return True if len(answers) == 1 else None


@dataclass(frozen=True)
class Bitwise:
    """A comparison of the outputs of every finished task over time, bit for bit.

    Example:
        >>> asked = {"inputs": "a1", "outputs": "b1"}
        >>> moved = {"inputs": "a1", "outputs": "b2"}
        >>> then, now = [{"task": 0, "digest": asked}], [{"task": 0, "digest": moved}]
        >>> print(Bitwise.of({0: then, 1: now}))
        task  measured  outputs
        0            2  MOVED
        outputs of finished tasks have moved
    """

    tasks: tuple[Kept, ...]

    @staticmethod
    def of(evaluations: Mapping[int, Iterable[Mapping[str, Any]]]) -> Bitwise:
        """From the results of all tasks (as dicts) after each task."""
        kept: dict[tuple[int, int], Kept] = {}
        for after, results in evaluations.items():
            for result in results:
                task, by, digest = result["task"], result.get("answered_by"), result["digest"]
                if digest is not None:
                    # A task and a revisit that answers for it have different outputs by design,
                    # so they are compared separately.
                    own = kept.setdefault((task, -1 if by is None else by), Kept(task, {}, {}, by))
                    own.inputs[after] = digest["inputs"]
                    own.outputs[after] = digest["outputs"]
        return Bitwise(tuple(kept[key] for key in sorted(kept)))

    @property
    def ok(self) -> bool | None:
        """True if all are the same; None if some cannot be compared, or there are none."""
        verdicts = [kept.same for kept in self.tasks]
        if False in verdicts:
            return False
        return None if None in verdicts or not verdicts else True

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "tasks": [{**asdict(k), "same": k.same} for k in self.tasks]}

    def __str__(self) -> str:
        words = {True: "same", False: "MOVED", None: "asked other things"}
        rows = [["task", "measured", "outputs"]]
        rows += [[str(k.task), str(len(k.inputs)), words[k.same]] for k in self.tasks]
        verdict = {
            True: "no bit of a finished task has moved",
            False: "outputs of finished tasks have moved",
            None: "not all can be compared: evaluate on loaders that do not shuffle, or reference=",
        }
        return f"{table(rows)}\n{verdict[self.ok]}"

    def _repr_html_(self) -> str:
        return notebook_html(str(self))
