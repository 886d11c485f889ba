"""Optimizer state: states of optimizers and schedulers as JSON values and tensors, and back.

They are stored without pickle, so reading a file runs no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.codec import decode, encode
from ..errors import CheckpointError

_SIMPLE = (str, int, float, bool, type(None))


def pack(value: Any, tensors: dict[str, Tensor], name: str = "state") -> Any:
    """JSON values for a structure; its tensors are added to ``tensors`` under dotted names.

    >>> tensors = {}
    >>> pack({"step": 3, "betas": (0.9, 0.99), 7: torch.zeros(2)}, tensors)
    {'dict': [['step', 3], ['betas', {'tuple': [0.9, 0.99]}], [7, {'tensor': 'state.7'}]]}
    >>> tensors
    {'state.7': tensor([0., 0.])}

    Raises:
        CheckpointError: something in it can not be stored.
    """

    def leaf(value: Any, name: str) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            # NumPy arrays come from its random generator; they return as tensors (training.state).
            value = torch.from_numpy(np.asarray(value).copy())
        if isinstance(value, Tensor):
            tensors[name] = value.detach()
            return {"tensor": name}
        if type(value) in _SIMPLE:
            return value
        raise CheckpointError(
            f"the file cannot hold {name}, a {type(value).__qualname__}",
            remedy="use an optimizer and a scheduler whose state_dict() has plain values and "
            "tensors",
        )

    return encode(value, leaf, _key, name)


def _key(key: Any, name: str) -> Any:
    if not isinstance(key, (str, int)) or isinstance(key, bool):
        fact = f"the file cannot hold {name} under the key {key!r}"
        raise CheckpointError(fact, remedy="use strings")
    return key


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The structure that :func:`pack` was given.

    Raises:
        CheckpointError: not what :func:`pack` makes.
    """

    def leaf(found: dict[str, Any]) -> Any:
        ((kind, content),) = found.items()
        if kind == "tensor":
            return tensors[content]
        raise CheckpointError(
            f"the file has a state of a kind {kind!r} that is not known",
            remedy="upgrade autoeidetic",
        )

    try:
        return decode(value, leaf)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the file has a state that cannot be read ({error!r})",
            remedy="delete it and start the task again",
        ) from error
