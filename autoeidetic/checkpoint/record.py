"""Record: everything about a saved network that is not a tensor, as plain JSON values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from ..errors import CheckpointError
from ..net import Task
from ..plan.call_plan import CallPlan
from ..proof.seals import Frozen, Seal, SealedTensor
from ..propagate.values import core
from ..tasks.reference import Output, Reference

Kind = TypeVar("Kind")
#: Names of tensors in a file besides those of the network.
OWNERS, PRUNED, EXAMPLE, ROUTER = "owners", "pruned", "example.", "router."


@dataclass(frozen=True)
class RouterRecord:
    """The kind of a router, and the number of tasks it knows."""

    kind: str
    tasks: int


@dataclass(frozen=True)
class Record:
    """What a file tells of a network besides its tensors.

    ``other_mode``: modules that are not in the network's mode. ``analysed_as``: the type of a
    tensor when the model was converted, where it is another now. ``recipe``: how to build the
    model. ``fingerprint``: what the model's analysis must give again.
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
            CheckpointError: something is missing or of another kind.
        """
        try:
            return _parse(data)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the file has a description that is not that of a network ({error!r})",
                remedy="save the network again",
            ) from error


def _parse(data: Any) -> Record:
    options = _a(dict, data["options"])
    return Record(
        versions=_dict(str, data["versions"]),
        options={
            "forward_transfer": _a(bool, options["forward_transfer"]),
            "keep_head": _a(bool, options["keep_head"]),
            "recycle": _a(str, options["recycle"]),
        },
        tasks=tuple(_task(task) for task in _a(list, data["tasks"])),
        spreads={
            name: (float(mean), float(spread))
            for name, (mean, spread) in _dict(list, data["spreads"]).items()
        },
        example=data["example"],
        training=_a(bool, data["training"]),
        other_mode=_list(str, data["other_mode"]),
        without_gradient=_list(str, data["without_gradient"]),
        analysed_as=_dict(str, data["analysed_as"]),
        recipe=_a(dict, data["recipe"]),
        fingerprint=_dict(str, data["fingerprint"]),
        router=_maybe(_router, data["router"]),
    )


def _router(data: Any) -> RouterRecord:
    if set(data) != {"kind", "tasks"}:
        raise ValueError(f"{sorted(data)!r:.80} about the router")
    return RouterRecord(kind=_a(str, data["kind"]), tasks=_a(int, data["tasks"]))


def _task(data: Any) -> Task:
    return Task(
        index=_a(int, data["index"]),
        name=_a(str, data["name"]),
        classes=_dict(int, data["classes"]),
        finished=_a(bool, data["finished"]),
        seed=_a(int, data["seed"]),
        revisits=_optional(int, data["revisits"]),
        answered_by=_optional(int, data["answered_by"]),
        seal=_maybe(_seal, data.get("seal")),  # earlier versions wrote none
    )


def _seal(data: Any) -> Seal:
    frozen = data["frozen"]
    return Seal(
        frozen=Frozen(
            owned=_a(str, frozen["owned"]),
            tensors={
                name: SealedTensor(
                    type=_a(str, tensor["type"]),
                    values=_a(int, tensor["values"]),
                    digest=_a(str, tensor["digest"]),
                )
                for name, tensor in _dict(dict, frozen["tensors"]).items()
            },
        ),
        reference=_maybe(_reference, data["reference"]),
        why_not=_a(str, data["why_not"]),
        converted=_a(str, data["converted"]),
        terms=_maybe(partial(_dict, str), data.get("terms")),  # earlier versions wrote none
    )


def _reference(data: Any) -> Reference:
    return Reference(
        batch=_optional(int, data["batch"]),
        inputs=_a(str, data["inputs"]),
        outputs=tuple(
            Output(
                type=_a(str, output["type"]),
                shape=tuple(_list(int, output["shape"])),
                digest=_a(str, output["digest"]),
                sample=_a(str, output["sample"]),
            )
            for output in _list(dict, data["outputs"])
        ),
        environment=_dict(str, data["environment"]),
    )


def _a(kind: type[Kind], value: Any) -> Kind:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} where a {kind.__name__} should be")
    return value


def _optional(kind: type[Kind], value: Any) -> Kind | None:
    return None if value is None else _a(kind, value)


def _maybe(parse: Callable[[Any], Kind], value: Any) -> Kind | None:
    return None if value is None else parse(value)


def _list(kind: type[Kind], value: Any) -> list[Kind]:
    return [_a(kind, item) for item in _a(list, value)]


def _dict(kind: type[Kind], value: Any) -> dict[str, Kind]:
    return {name: _a(kind, item) for name, item in _a(dict, value).items()}


def versions() -> dict[str, str]:
    """Of what decides how a model is built and analysed."""
    return {name: _version(name) for name in ("autoeidetic", "torch", "timm", "torchvision")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # used from a checkout
        return "(not installed)"


def fingerprint(blueprint: CallPlan) -> dict[str, str]:
    """What must be the same in a model that takes over the owners of another one."""
    plan = blueprint.plan
    numbers: list[Any] = [plan.requires, plan.elements]
    numbers += [core(entry.units).numpy() for entry in plan.parameters.values()]
    numbers += [core(units).numpy() for units in plan.buffers.values()]
    groups = (f"{group.name} {group.size} {group.units}" for group in blueprint.plan.groups)
    heads = (f"{head.layer} {head.parameters} {head.size}" for head in blueprint.heads)
    return {
        "number of classes": str(plan.units),
        "parameters": _hash(f"{n} {list(p.units.shape)}" for n, p in plan.parameters.items()),
        "operators": _hash(blueprint.operators),
        "groups": _hash(groups),
        "output layers": _hash(heads),
        "classes of elements": _hash(f"{a.shape} {a.tobytes().hex()}" for a in numbers),
    }


def _hash(lines: Iterable[str]) -> str:
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
