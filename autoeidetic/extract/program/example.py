"""Example: the inputs that a program was made with, as JSON, and inputs like them for an export."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...checkpoint.example import dtype_of
from ...errors import CheckpointError, InputError
from ...tasks.reference import by_value

#: torch.export takes sizes of 0 and 1 for constants, so sizes that may vary are larger.
_LEAST = 2
#: An edited file may ask for any amount of memory.
_MOST_ELEMENTS = 2**32


def described(
    inputs: Sequence[str], example: Sequence[Tensor] | Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """Name, shape and type of each input; the values of small integer tensors as well.

    >>> described(["ids"], {"ids": torch.tensor([[1, 2]])})
    [{'name': 'ids', 'shape': [1, 2], 'dtype': 'torch.int64', 'value': [[1, 2]]}]

    Raises:
        InputError: not one tensor for each input.
    """
    found = (
        dict(example) if isinstance(example, Mapping) else dict(zip(inputs, example, strict=False))
    )
    if set(found) != set(inputs) or len(example) != len(inputs):
        raise InputError(
            f"the program has the inputs {', '.join(inputs)}, and the example has "
            f"{len(example)} tensors ({', '.join(map(str, found))})",
            remedy="pass one tensor for each input",
        )
    return [
        {
            "name": name,
            "shape": list(found[name].shape),
            "dtype": str(found[name].dtype),
            "value": found[name].tolist() if by_value(found[name]) else None,
        }
        for name in inputs
    ]


def made(
    description: Sequence[Mapping[str, Any]], dynamic: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Inputs of the described shapes and types, by name: stored values, or else zeros.

    Sizes that may vary (``dynamic``) are at least 2.

    >>> made([{"name": "x", "shape": [1, 3], "dtype": "torch.float32", "value": None}], {"x": [0]})
    {'x': tensor([[0., 0., 0.],
            [0., 0., 0.]])}
    """
    return {each["name"]: _made(each, dynamic.get(each["name"], ())) for each in description}


def blank(description: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Inputs of the described shapes and types without values, which take no memory."""
    return {
        each["name"]: torch.empty(each["shape"], dtype=dtype_of(each["dtype"]), device="meta")
        for each in description
    }


def _made(each: Mapping[str, Any], dynamic: Sequence[int]) -> Tensor:
    kind = dtype_of(each["dtype"])
    if each["value"] is None:
        # zeros are valid indices
        tensor = torch.zeros(each["shape"], dtype=kind)
    else:
        tensor = torch.tensor(each["value"], dtype=kind).reshape(each["shape"])
    for dimension in dynamic:
        size = tensor.shape[dimension]
        if 0 < size < _LEAST:
            repeats = [_LEAST if d == dimension else 1 for d in range(tensor.dim())]
            tensor = tensor.repeat(repeats)
    return tensor


def checked(data: Any, inputs: Sequence[str]) -> list[dict[str, Any]]:
    """The description of an example in a file.

    Raises:
        CheckpointError: it is not one, or not of these inputs.
    """
    try:
        if [each["name"] for each in data] != list(inputs):
            raise ValueError(f"inputs {[each['name'] for each in data]!r:.80}")
        for each in data:
            if each.keys() != {"name", "shape", "dtype", "value"}:
                raise ValueError(f"keys {sorted(each)!r:.80}")
            if any(type(size) is not int or size < 0 for size in each["shape"]):
                raise ValueError(f"shape {each['shape']!r:.80}")
            if math.prod(each["shape"]) > _MOST_ELEMENTS:
                raise ValueError(f"shape {each['shape']!r:.80}")
            dtype_of(each["dtype"])
            if each["value"] is not None:
                _made(each, ())
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise CheckpointError(
            f"the file has example inputs that are not those of the program ({error})",
            remedy="save the program again",
        ) from error
    return list(data)
