"""Record: everything about a saved network that is not a tensor, as plain JSON values.

Field names are keys of saved files. A file may have been edited, so every value is parsed by type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from itertools import permutations
from typing import Any, TypeVar

import numpy as np

from ..common.environment import version_of
from ..errors import CheckpointError
from ..plan.call_plan import CallPlan
from ..plan.plan import Plan
from ..propagate.values import core
from ..tasks.task import Frozen, Output, Reference, Seal, SealedTensor, Task

Kind = TypeVar("Kind")
#: The key of the fingerprint for the units of every element.
_ELEMENTS = "classes of elements"
#: So many units of unused parameters may have other numbers in a file: 720 orders are tried.
_MOST_UNUSED = 6
#: Words for keys of the fingerprint, which saved files have under an older name.
FINGERPRINT_WORDS = {
    "number of classes": "number of units",
    _ELEMENTS: "units of elements",
}
#: The kind of file that holds the columns of a widened network.
COLUMNS = "columns"
#: Names, or prefixes of names, of the tensors in a file besides those of the network.
OWNERS, PRUNED, EXAMPLE, ROUTER = "owners", "pruned", "example.", "router."


@dataclass(frozen=True)
class RouterRecord:
    """The kind of a router, and the number of tasks it knows."""

    kind: str
    tasks: int


@dataclass(frozen=True)
class Record:
    """The description of a network in a file.

    ``other_mode``: modules whose training mode differs from the network's. ``analysed_as``: the
    types at conversion of tensors that have another type now. ``recipe``: how to build the model.
    ``fingerprint``: hashes that a new analysis of the model must reproduce.
    """

    versions: dict[str, str]
    options: dict[str, Any]
    tasks: tuple[Task, ...]
    spreads: dict[str, tuple[float, float]]
    example: Any
    training: bool
    other_mode: list[str]
    without_gradient: list[str]
    analysed_as: dict[str, str]
    recipe: dict[str, Any]
    fingerprint: dict[str, str]
    router: RouterRecord | None = None

    def to_dict(self) -> dict[str, Any]:
        tasks = [
            {**asdict(task), "seal": None if task.seal is None else task.seal.to_dict()}
            for task in self.tasks
        ]
        return {**asdict(self), "tasks": tasks}

    @staticmethod
    def parse(data: Any) -> Record:
        """The record in a file.

        Raises:
            CheckpointError: something is missing or has another type.
        """
        try:
            return _parse(data)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the file has a description that is not that of a network ({error!r})",
                remedy="save the network again",
            ) from error


def _parse(data: Any) -> Record:
    # Every field by name and exact type: what is not listed here is never used.
    options = _typed(dict, data["options"])
    return Record(
        versions=_dict(str, data["versions"]),
        options={
            "forward_transfer": _typed(bool, options["forward_transfer"]),
            "keep_head": _typed(bool, options["keep_head"]),
            "recycle": _typed(str, options["recycle"]),
        },
        tasks=tuple(_task(task) for task in _typed(list, data["tasks"])),
        spreads={
            name: (float(mean), float(spread))
            for name, (mean, spread) in _dict(list, data["spreads"]).items()
        },
        example=data["example"],
        training=_typed(bool, data["training"]),
        other_mode=_list(str, data["other_mode"]),
        without_gradient=_list(str, data["without_gradient"]),
        analysed_as=_dict(str, data["analysed_as"]),
        recipe=_typed(dict, data["recipe"]),
        fingerprint=_dict(str, data["fingerprint"]),
        router=_maybe(_router, data["router"]),
    )


def _router(data: Any) -> RouterRecord:
    if set(data) != {"kind", "tasks"}:
        raise ValueError(f"{sorted(data)!r:.80} about the router")
    return RouterRecord(kind=_typed(str, data["kind"]), tasks=_typed(int, data["tasks"]))


def _task(data: Any) -> Task:
    return Task(
        index=_typed(int, data["index"]),
        name=_typed(str, data["name"]),
        classes=_dict(int, data["classes"]),
        finished=_typed(bool, data["finished"]),
        seed=_typed(int, data["seed"]),
        revisits=_optional(int, data["revisits"]),
        answered_by=_optional(int, data["answered_by"]),
        seal=_maybe(_seal, data.get("seal")),  # earlier versions wrote none
    )


def _seal(data: Any) -> Seal:
    frozen = data["frozen"]
    return Seal(
        frozen=Frozen(
            owned=_typed(str, frozen["owned"]),
            tensors={
                name: SealedTensor(
                    type=_typed(str, tensor["type"]),
                    values=_typed(int, tensor["values"]),
                    digest=_typed(str, tensor["digest"]),
                )
                for name, tensor in _dict(dict, frozen["tensors"]).items()
            },
        ),
        reference=_maybe(_reference, data["reference"]),
        why_not=_typed(str, data["why_not"]),
        converted=_typed(str, data["converted"]),
        terms=_maybe(partial(_dict, str), data.get("terms")),  # earlier versions wrote none
    )


def _reference(data: Any) -> Reference:
    return Reference(
        batch=_optional(int, data["batch"]),
        inputs=_typed(str, data["inputs"]),
        outputs=tuple(
            Output(
                type=_typed(str, output["type"]),
                shape=tuple(_list(int, output["shape"])),
                digest=_typed(str, output["digest"]),
                sample=_typed(str, output["sample"]),
            )
            for output in _list(dict, data["outputs"])
        ),
        environment=_dict(str, data["environment"]),
    )


def _typed(kind: type[Kind], value: Any) -> Kind:
    """The value, which must be exactly of this type: a bool is not an int."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} where a {kind.__name__} should be")
    return value


def _optional(kind: type[Kind], value: Any) -> Kind | None:
    return None if value is None else _typed(kind, value)


def _maybe(parse: Callable[[Any], Kind], value: Any) -> Kind | None:
    return None if value is None else parse(value)


def _list(kind: type[Kind], value: Any) -> list[Kind]:
    return [_typed(kind, item) for item in _typed(list, value)]


def _dict(kind: type[Kind], value: Any) -> dict[str, Kind]:
    return {name: _typed(kind, item) for name, item in _typed(dict, value).items()}


def versions() -> dict[str, str]:
    """The versions of the packages that decide how a model is built and analysed."""
    packages = ("autoeidetic", "torch", "timm", "torchvision")
    return {name: version_of(name) or "(not installed)" for name in packages}


def fingerprint(call_plan: CallPlan) -> dict[str, str]:
    """Hashes of everything in an analysis that gives the stored owners their meaning.

    Owners are a vector indexed by unit number. They are valid for a rebuilt model only if every
    number denotes the same channels: the same units of every parameter element and buffer, the same
    dependencies between units, groups, heads and operators. The keys are those of saved files,
    written when a unit was called a class.
    """
    plan = call_plan.plan
    groups = (f"{group.name} {group.size} {group.units}" for group in call_plan.plan.groups)
    heads = (f"{head.layer} {head.parameters} {head.size}" for head in call_plan.heads)
    return {
        "number of classes": str(plan.units),
        "parameters": _hash(f"{n} {list(p.units.shape)}" for n, p in plan.parameters.items()),
        "operators": _hash(call_plan.operators),
        "groups": _hash(groups),
        "output layers": _hash(heads),
        _ELEMENTS: _hash_units(plan, plan.elements, {}),
    }


def is_fingerprint(found: dict[str, str], noted: dict[str, str], plan: Plan) -> bool:
    """Is the fingerprint in a file the same as this one, but for the numbers of unused units?

    Version 0.1 numbered the units of unused parameters in another order in each process. No task
    owns them, so the stored owners mean the same in every order. A few such units can be tried.
    """
    own = {n: int(core(e.units).flatten()[0]) for n, e in plan.parameters.items() if not e.used}
    others = ({**each, _ELEMENTS: ""} for each in (found, noted))
    if not 1 < len(own) <= _MOST_UNUSED or next(others) != next(others):
        return False
    for order in permutations(own.values()):
        elements = plan.elements.copy()
        elements[list(order)] = plan.elements[list(own.values())]
        if _hash_units(plan, elements, dict(zip(own, order, strict=True))) == noted.get(_ELEMENTS):
            return True
    return False


def _hash_units(plan: Plan, elements: np.ndarray, unused: dict[str, int]) -> str:
    """The hash of the units of every element; ``unused``: parameters with another unit."""
    # Arrays: the units of the elements are, together with ``requires``, the whole plan.
    numbers = [plan.requires, elements]
    for name, entry in plan.parameters.items():
        units = core(entry.units).numpy()
        numbers.append(np.full_like(units, unused[name]) if name in unused else units)
    numbers += [core(units).numpy() for units in plan.buffers.values()]
    return _hash(f"{a.shape} {a.tobytes().hex()}" for a in numbers)


def _hash(lines: Iterable[str]) -> str:
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
