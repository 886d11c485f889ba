"""Example inputs of a saved network as JSON, and back; the names of types."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..common import codec
from ..common.inputs import CallInputs
from ..errors import CheckpointError
from ..tasks.network import Network
from ..tasks.reference import by_value

#: Types by name, so that a name in a file is looked up here and nowhere else. Not those without
#: arithmetic of their own (quantized values, bits), which torch may crash on.
_DTYPES = {
    str(kind): kind
    for kind in vars(torch).values()
    if isinstance(kind, torch.dtype) and not str(kind).startswith(("torch.q", "torch.bits"))
}


def dtype_of(name: Any) -> torch.dtype:
    """The type of this name.

    Raises:
        CheckpointError: there is none.
    """
    if name not in _DTYPES:
        raise CheckpointError(f"the file has a tensor type {name!r}", remedy="upgrade torch")
    return _DTYPES[name]


def encode_calls(net: Network, tensors: dict[str, Tensor], prefix: str) -> Any:
    """All example inputs as JSON: a pair of arguments, or a list of pairs under "examples".

    Of a model that looks at data all values are stored: they decide the path of its analysis.
    """
    whole = net.call_plan.looks
    calls = [_encode([each.args, each.kwargs], tensors, prefix, whole) for each in net.examples]
    if not whole:
        return calls[0] if len(calls) == 1 else {"examples": calls}
    return {"examples": calls, "decisions": [repr(each.decisions) for each in net.examples]}


def _encode(value: Any, tensors: dict[str, Tensor], prefix: str, whole: bool) -> Any:
    """Example inputs as JSON; small tensors of integers are added to ``tensors`` by value.

    With ``whole`` all tensors that have values are.

    Raises:
        CheckpointError: a key of a dictionary is no plain value.
    """

    def leaf(value: Any, _: str) -> Any:
        if isinstance(value, torch.dtype):
            return {"type": str(value)}
        if not isinstance(value, Tensor):
            return value
        # Mostly only shape and type: capture needs no values unless the code looks at them.
        name = None
        if by_value(value) or (whole and not value.is_meta):
            name = f"{prefix}{sum(other.startswith(prefix) for other in tensors)}"
            tensors[name] = value
        return {"shape": list(value.shape), "dtype": str(value.dtype), "value": name}

    return codec.encode(value, leaf, _key)


def _key(key: Any, _: str) -> Any:
    if not isinstance(key, (str, int, float, type(None))):
        raise CheckpointError(
            f"the file cannot hold an example input under the key {key!r}",
            remedy="convert the model with dictionaries whose keys are strings",
        )
    return key


def decode_calls(value: Any, tensors: Mapping[str, Tensor]) -> list[CallInputs]:
    """The example inputs of a file; tensors that were not stored by value have no data.

    Raises:
        CheckpointError: not what :func:`encode_calls` makes.
    """
    if not isinstance(value, dict) or not isinstance(value.get("examples"), list):
        return [_call(value, tensors)]
    calls = [_call(each, tensors) for each in value["examples"]]
    decisions = value.get("decisions") or [None] * len(calls)
    pairs = zip(calls, decisions, strict=False)
    return [replace(call, decisions=_decided(text)) for call, text in pairs]


def _decided(text: Any) -> tuple[Hashable, ...] | None:
    """The decisions of an example, parsed from Python literals."""
    try:
        found = literal_eval(text)
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError):  # NaN has no literal
        return None
    return found if isinstance(found, tuple) else None


def _call(value: Any, tensors: Mapping[str, Tensor]) -> CallInputs:
    try:
        args, kwargs = _decode(value, tensors)
        return CallInputs(tuple(args), dict(kwargs))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the file has example inputs that cannot be made ({error!r})",
            remedy="save the network again",
        ) from error


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    def leaf(found: dict[str, Any]) -> Any:
        if "type" in found:
            return dtype_of(found["type"])
        if found["value"] is not None:
            return tensors[found["value"]]
        return torch.empty(_shape(found["shape"]), dtype=dtype_of(found["dtype"]), device="meta")

    return codec.decode(value, leaf)


def _shape(value: Any) -> list[int]:
    if type(value) is not list or any(type(size) is not int for size in value):
        raise TypeError(f"{value!r:.80} where a shape should be")
    return value
