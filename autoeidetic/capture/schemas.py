"""Operator schemas: the arguments an operator writes and reads, looked up once per operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

#: Operators whose result has a value or shape that depends on their data.
_READS_DATA = {"_local_scalar_dense", "nonzero", "equal", "masked_select"}
_INDEXED = {"index", "index_put", "index_put_"}
#: Operators that read the shape of their first argument and none of its values.
_LIKE = {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
_LIKE |= {"new_zeros", "new_ones", "new_full", "new_empty", "randint_like", "new_empty_strided"}


@dataclass(frozen=True)
class Schema:
    """The facts about an operator that the recorder needs.

    ``written`` is the position of the argument that is written in place, or -1 where the written
    arguments cannot be followed; ``functional`` is the operator without side effects that
    computes the same result, if there is one.
    """

    written: int | None
    functional: Any
    changes_view: bool
    makes_constant: bool
    takes_masks: bool
    reads_data: bool
    device_argument: bool


_SCHEMAS: dict[Any, Schema] = {}


def schema_of(func: Any) -> Schema:
    """The schema of an operator."""
    known = _SCHEMAS.get(func)
    if known is None:
        known = _SCHEMAS[func] = _read(func)
    return known


def _read(func: Any) -> Schema:
    name = func._schema.name.split("::")[1]
    arguments = func._schema.arguments
    written, functional = None, None
    # aten's naming convention: add_ writes its first argument, and so does __iand__
    if name.endswith("_") and not name.endswith("__"):
        written = 0
        # the same overload: add_.Tensor and add.Tensor have the same arguments
        functional = _functional_twin(func, name[:-1])
    elif name.startswith("__i") and name.endswith("__"):
        written = 0
        functional = _functional_twin(func, "__" + name[3:])
    elif any(a.kwarg_only for a in arguments if _is_written(a)):
        written = -1
    # more is written than the first argument of foo_: a twin would lose these writes
    if func.namespace != "aten" and any(map(_is_written, arguments[0 if written is None else 1 :])):
        written = -1  # a custom operator, to which the naming convention need not apply
    return Schema(
        written=written,
        functional=functional,
        changes_view=torch.Tag.inplace_view in func.tags,
        makes_constant=name in _LIKE,
        takes_masks=name in _INDEXED,
        reads_data=name in _READS_DATA,
        device_argument=any(a.name == "device" for a in arguments),
    )


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _functional_twin(func: Any, name: str) -> Any:
    packet = getattr(getattr(torch.ops, func.namespace), name, None)
    return getattr(packet, func._overloadname, None)
