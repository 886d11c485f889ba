"""Task: one entry in the life of a network, and its seal.

A seal is what a task was when it was finished, as plain data. It is a part of its task: it is
copied, pickled and saved with it, and no change of device or type touches it. The room ``proof``
takes seals and compares them with the network as it is now.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Output:
    """One tensor of an answer: a digest of all values, and the bytes of a sample in base 64."""

    type: str
    shape: tuple[int, ...]
    digest: str
    sample: str


@dataclass(frozen=True)
class Reference:
    """A task's answer to reference inputs, and the environment it was given in.

    ``batch`` is the number of rows of the inputs; None means all of them.
    """

    batch: int | None
    inputs: str
    outputs: tuple[Output, ...]
    environment: dict[str, str]


@dataclass(frozen=True)
class SealedTensor:
    """The values that a task froze in one tensor: their type, their number, their digest."""

    type: str
    values: int
    digest: str


@dataclass(frozen=True)
class Frozen:
    """All that a task froze: a digest of its units, and values by the name of their tensor."""

    owned: str
    tensors: dict[str, SealedTensor]

    @property
    def values(self) -> int:
        """The number of frozen values."""
        return sum(tensor.values for tensor in self.tensors.values())


@dataclass(frozen=True)
class Seal:
    """Taken when a task is finished.

    ``reference`` is the task's answer at that time; without one, ``why_not`` gives the reason.
    ``converted`` is the type that the network was converted to afterwards, which may have rounded
    the sealed values. ``terms`` is everything else that decides about the answers, in words; None
    in a seal of an earlier version.
    """

    frozen: Frozen
    reference: Reference | None
    why_not: str = ""
    converted: str = ""
    terms: dict[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a seal of an earlier version keeps the keys it had."""
        values = asdict(self)
        if self.terms is None:
            del values["terms"]
        return values


@dataclass(frozen=True)
class Task:
    """A task: its name, the number of classes of each of its heads, and whether it is finished.

    ``seed`` draws its fresh values and heads again. ``revisits`` is the earlier task that it
    revisits; ``answered_by`` the revisit that answers in its place; ``seal`` what it was when it
    was finished.
    """

    index: int
    name: str
    classes: dict[str, int]
    finished: bool
    seed: int
    revisits: int | None = None
    answered_by: int | None = None
    seal: Seal | None = None
