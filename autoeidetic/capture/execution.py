"""Execution: runs the operators of a captured run, on meta tensors or on real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..common.trees import convert, leaves
from . import whole_operators
from .names import Names
from .schemas import Schema, schema_of

#: Larger results of ``zeros_like`` and the like get no memory; their values are not needed.
_LARGEST_CONSTANT = 2**24


class Execution:
    """Runs operators without writing to anything that existed before the run.

    ``way`` is "meta" (parameters and inputs have shapes only) or "real". Stand-ins take the place
    of the model's tensors: of parameters on meta, of tensors that the code writes in a real run.
    """

    def __init__(self, way: str, names: Names) -> None:
        self.way = way
        self._names = names
        # tensor -> its stand-in; the tensor is kept as well: while it lives, its id is its own
        self._stand_ins: dict[int, tuple[Tensor, Tensor]] = {}

    def placeholder(self, given: Tensor) -> Tensor:
        """The tensor that the model is called with in place of an input."""
        if self.way == "meta":
            return torch.empty_like(given, device="meta")
        if not given.is_meta:
            return given.detach().clone()
        # examples on meta, and code that looks at data: numbers in [0, 1) have roots
        if given.is_floating_point():
            return torch.rand(given.shape, dtype=given.dtype)
        return torch.zeros(given.shape, dtype=given.dtype)

    def compute(
        self, func: Any, args: Any, kwargs: dict[str, Any], whole: Callable[[], Any] | None
    ) -> Any:
        """Run an operator that depends on an input or a parameter."""
        if self.way == "meta":
            # a table of shapes first: meta kernels are Python code and take most of the time
            output = whole_operators.shortcut(func, args)
            return self._on_meta(func, args, kwargs) if output is None else output
        return self._on_real(func, args, kwargs) if whole is None else whole()

    def _on_real(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if any(id(t) in self._stand_ins for t in leaves((args, kwargs), Tensor)):
            args, kwargs = convert((args, kwargs), Tensor, self._standing_in)
        return func(*args, **kwargs)

    def _standing_in(self, tensor: Tensor) -> Tensor:
        known = self._stand_ins.get(id(tensor))
        return tensor if known is None else known[1]

    def _on_meta(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = leaves((args, kwargs), Tensor)
        kwargs = dict(kwargs)
        # a copy of a parameter on another device has no data either
        if schema_of(func).device_argument and not (tensors and all(t.is_meta for t in tensors)):
            if kwargs.get("device") is not None:
                kwargs["device"] = torch.device("meta")
        # constants meet tensors without data here: all of them lose theirs
        if tensors and not all(t.is_meta for t in tensors):
            if any(t.is_meta or self._names.is_parameter(t) for t in tensors):
                args, kwargs = convert((args, kwargs), Tensor, self._as_meta)
        return func(*args, **kwargs)

    def _as_meta(self, tensor: Tensor) -> Tensor:
        """A tensor without data; the same one each time."""
        if tensor.is_meta:
            return tensor
        known = self._stand_ins.get(id(tensor))
        if known is not None and known[1].shape == tensor.shape:
            return known[1]
        # the same strides: reshape and view decide by them whether they copy
        stand_in = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        self._stand_ins[id(tensor)] = (tensor, stand_in)
        return stand_in

    def constant(self, func: Any, schema: Schema, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator on constants for real: its value may decide which unit sits where."""
        if self.way == "meta" and schema.device_argument:
            args, kwargs = convert((args, kwargs), torch.device, _on_cpu)
        tensors = leaves(args, Tensor)
        if len({t.device for t in tensors}) > 1 and any(t.is_meta for t in tensors):
            args, kwargs = convert((args, kwargs), Tensor, self._as_meta)
        return func(*args, **kwargs)

    def like(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """Run ``zeros_like`` and its like, which read only a shape: the result is a constant."""
        if self.way == "real":
            return func(*args, **kwargs)
        model = args[0]
        # a scalar, expanded to the shape: no memory is needed to say how large the result is
        small = model.numel() <= _LARGEST_CONSTANT
        device = torch.device("cpu" if small else "meta")
        stand_in = torch.empty((), dtype=model.dtype, device=device).expand(model.shape)
        return func(stand_in, *args[1:], **{**kwargs, "device": device})

    def write(self, func: Any, args: Any, kwargs: dict[str, Any], own: bool) -> None:
        """Carry out a write in a real run: into a copy, unless the memory is the run's own."""
        if self.way != "real":
            return
        target = args[0]
        # later operators of this run read the copy (_on_real), and the model keeps its value
        if not own:
            if id(target) not in self._stand_ins:
                self._stand_ins[id(target)] = (target, target.detach().clone())
            target = self._stand_ins[id(target)][1]
        func(target, *args[1:], **kwargs)


def _on_cpu(device: torch.device) -> torch.device:
    """The CPU in place of meta: constants have data even on the device of the input."""
    return torch.device("cpu") if device.type == "meta" else device
