"""Record: everything about a saved network that is not a tensor, as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..blueprint import Blueprint
from ..errors import CheckpointError
from ..net import Task
from ..values import core

Kind = TypeVar("Kind")
#: Integers may be indices, which decide what a model does; larger ones hardly are.
_BYTES_BY_VALUE = 2**16
#: Types by name, so that a name in a file is looked up here and nowhere else.
_DTYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


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
        return asdict(self)

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
                f"has a description that is not that of a network ({error!r})",
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
        router=_router(data["router"]),
    )


def _router(data: Any) -> RouterRecord | None:
    if data is None:
        return None
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
    )


def _a(kind: type[Kind], value: Any) -> Kind:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} where a {kind.__name__} should be")
    return value


def _optional(kind: type[Kind], value: Any) -> Kind | None:
    return None if value is None else _a(kind, value)


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


def fingerprint(blueprint: Blueprint) -> dict[str, str]:
    """What must be the same in a model that takes over the owners of another one."""
    plan = blueprint.plan
    numbers: list[Any] = [plan.requires, plan.elements]
    numbers += [core(entry.owner).numpy() for entry in plan.parameters.values()]
    numbers += [core(classes).numpy() for classes in plan.buffers.values()]
    groups = (f"{group.name} {group.size} {group.classes}" for group in blueprint.groups)
    heads = (f"{head.layer} {head.parameters} {head.size}" for head in blueprint.heads)
    return {
        "number of classes": str(plan.classes),
        "parameters": _hash(f"{n} {list(p.owner.shape)}" for n, p in plan.parameters.items()),
        "operators": _hash(blueprint.operators),
        "groups": _hash(groups),
        "output layers": _hash(heads),
        "classes of elements": _hash(f"{a.shape} {a.tobytes().hex()}" for a in numbers),
    }


def _hash(lines: Iterable[str]) -> str:
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


# -- types and example inputs ------------------------------------------------------------------


def dtype_of(name: Any) -> torch.dtype:
    """The type of this name.

    Raises:
        CheckpointError: there is none.
    """
    if name not in _DTYPES:
        raise CheckpointError(f"has a tensor type {name!r}", remedy="upgrade torch")
    return _DTYPES[name]


def encode(value: Any, tensors: dict[str, Tensor], prefix: str) -> Any:
    """Example inputs as JSON; small tensors of integers are added to ``tensors`` by value.

    Raises:
        CheckpointError: a key of a dictionary is no plain value.
    """
    if isinstance(value, Tensor):
        size = value.numel() * value.element_size()
        by_value = not (value.is_floating_point() or value.is_complex() or value.is_meta)
        name = None
        if by_value and size <= _BYTES_BY_VALUE:
            name = f"{prefix}{sum(other.startswith(prefix) for other in tensors)}"
            tensors[name] = value
        return {"shape": list(value.shape), "dtype": str(value.dtype), "value": name}
    if isinstance(value, torch.dtype):
        return {"type": str(value)}
    if isinstance(value, tuple):
        return {"tuple": [encode(item, tensors, prefix) for item in value]}
    if isinstance(value, list):
        return [encode(item, tensors, prefix) for item in value]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, (str, int, float, type(None))):
                raise CheckpointError(
                    f"cannot hold an example input under the key {key!r}",
                    remedy="convert the model with dictionaries whose keys are strings",
                )
        return {"dict": [[key, encode(item, tensors, prefix)] for key, item in value.items()]}
    return value


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The other way round; what was not stored by value comes without data.

    Raises:
        CheckpointError: not what :func:`encode` makes.
    """
    try:
        return _decode(value, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"has example inputs that cannot be made ({error!r})", remedy="save the network again"
        ) from error


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "shape" in value:
        if value["value"] is not None:
            return tensors[value["value"]]
        return torch.empty(
            _list(int, value["shape"]), dtype=dtype_of(value["dtype"]), device="meta"
        )
    if "type" in value:
        return dtype_of(value["type"])
    if "tuple" in value:
        return tuple(_decode(item, tensors) for item in value["tuple"])
    return {key: _decode(item, tensors) for key, item in value["dict"]}
