"""Readers: layers of a new column that also read what the same layers of earlier columns read.

    earlier columns    x_0 ------------------------> layer -> ...        untouched
                        |  (visible channels)
                        v
    new column         lateral(x_0) + layer(x)  -> ...                   both weights learn

Values flow from earlier columns to the new one only, so nothing has to be zeroed. A layer keeps its
class, its path and its parameters: only its class changes, to a subclass with the same name. The
output layer is wrapped instead: every task has a copy of it, which must get the lateral values as a
part of its input.

| layer | lateral |
|---|---|
| linear, convolution | a layer of the same kind without a bias, whose result is added |
| convolution that keeps the size of images | the same with a kernel of one pixel |
| `nn.MultiheadAttention` | a linear layer, whose result is added to the input |
| output layer | the values are put behind its own input, and its weight has more columns |
| depthwise and grouped convolutions, embeddings, recurrent layers | none |
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..common.process_state import reading_classes
from ..errors import EnforcementError, Place

#: Values from earlier columns: for each layer by path, one tensor for each of its calls.
Laterals = dict[str, tuple[Tensor, ...]]
#: Kinds of layers with laterals, and the dimension of their channels, counted from the end.
_CHANNELS = {
    nn.Linear: -1,
    nn.Conv1d: -2,
    nn.Conv2d: -3,
    nn.Conv3d: -4,
    nn.MultiheadAttention: -1,
}
#: The attribute of a layer with the values for its calls in the present pass.
_GIVEN = "_given"


class Given:
    """The values for the calls of one layer in one pass, in order."""

    def __init__(self, values: Sequence[Tensor]) -> None:
        self.values = tuple(values)
        self.calls = 0

    def next(self) -> Tensor | None:
        """The value for the call that begins; None if earlier columns had no such call."""
        number, self.calls = self.calls, self.calls + 1
        if torch._C._current_graph_task_id() != -1:  # checkpointing runs the layer once more
            number %= len(self.values)
        return self.values[number] if number < len(self.values) else None

    def __reduce__(self) -> Any:  # copies and files are made between passes
        return Given, ((),)


def reading_weight(layer: nn.Module) -> str:
    """The name of the weight whose columns are the channels that a layer reads."""
    return "in_proj_weight" if isinstance(layer, nn.MultiheadAttention) else "weight"


def channel_dim(layer: nn.Module) -> int | None:
    """The dimension of the channels in a layer's input; None: the layer has no laterals."""
    weight = getattr(layer, reading_weight(layer), None)
    if getattr(layer, "groups", 1) != 1 or not isinstance(weight, Tensor):
        return None
    return next((dim for kind, dim in _CHANNELS.items() if isinstance(layer, kind)), None)


class Column(nn.Module):
    """A copy of the model, with layers that read from earlier columns.

    Called like the model, with ``earlier_columns`` as one more keyword.
    """

    def __init__(self, model: nn.Module, channels: Mapping[str, int], outputs: Sequence[str]):
        super().__init__()
        self.model = model
        self.paths = tuple(channels)
        for parameter in model.parameters():  # fresh values learn, whatever the model's own do
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.requires_grad_(True)
        for path, number in channels.items():
            layer = model.get_submodule(path)
            if path in outputs:
                model.set_submodule(path, OutputReader(layer, number))
            else:
                layer.add_module("lateral", _lateral(layer, number))
                layer.__class__ = reading_class(type(layer))

    def forward(self, *args: Any, earlier_columns: Laterals, **kwargs: Any) -> Any:
        readers = {path: self.model.get_submodule(path) for path in self.paths}
        try:
            for path, reader in readers.items():
                reader.__dict__[_GIVEN] = Given(earlier_columns[path])
            result = self.model(*args, **kwargs)
            if not self.training:
                self._check_all_read(readers)
            return result
        finally:
            # in training they stay for the backward pass: checkpointing runs layers again
            for reader in readers.values() if not self.training else ():
                reader.__dict__.pop(_GIVEN, None)

    def _check_all_read(self, readers: Mapping[str, nn.Module]) -> None:
        for path, reader in readers.items():
            given: Given = reader.__dict__[_GIVEN]
            if given.calls < len(given.values):
                raise EnforcementError(
                    f"layer '{path}' of the new column was called less often than that of an "
                    "earlier one",
                    place=Place(module=path),
                    remedy="the path through the model may depend on its values: widen it before "
                    "such a model is trained, or use a wider model from the start",
                )


class Reader:
    """Mixed into the class of a layer that adds a lateral value to its result."""

    lateral: nn.Module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)  # type: ignore[misc]
        read = self.read()
        return result if read is None else result + read

    def read(self) -> Tensor | None:
        """What the call that begins reads of earlier columns.

        None for an extra call in training (an auxiliary output), which has no counterpart there.
        """
        given: Given | None = self.__dict__.get(_GIVEN)
        value = given.next() if given is not None and given.values else None
        return None if value is None else self.lateral(value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # pickle finds classes by name, and the name of this class is that of its base
        return _rebuild, (_base(type(self)),), self.__getstate__()  # type: ignore[attr-defined]


class AttentionReader(Reader):
    """Mixed into the class of an attention: what is read is added to its input."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        read = self.read()
        own = query if read is None else query + read
        # keys and values of another sequence come from layers that read it there
        key, value = (own if each is query else each for each in (key, value))
        return super(Reader, self).forward(own, key, value, *args, **kwargs)  # type: ignore[misc]


class OutputReader(nn.Module):
    """The output layer of a column, with the values of earlier columns behind its own input."""

    def __init__(self, layer: nn.Module, channels: int) -> None:
        super().__init__()
        self.layer = layer
        self.dim = channel_dim(layer)
        self.own_channels = int(layer.weight.shape[1])  # type: ignore[index]
        _set_inputs(layer, self.own_channels + channels)

    def forward(self, x: Tensor) -> Any:
        assert self.dim is not None
        given: Given | None = self.__dict__.get(_GIVEN)
        value = given.next() if given is not None and given.values else None
        if value is None:
            size = list(x.shape)
            size[self.dim] = int(self.layer.weight.shape[1]) - self.own_channels  # type: ignore
            value = x.new_zeros(size)
        return self.layer(torch.cat([x, value], self.dim))


def reading_class(base: type) -> type:
    """The reading subclass of a class of layers, the same one each time."""
    if base not in reading_classes:
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
        mixin = AttentionReader if issubclass(base, nn.MultiheadAttention) else Reader
        made = ReaderType(base.__name__, (mixin, base), names)
        reading_classes.setdefault(base, made)
    return reading_classes[base]


class ReaderType(type):
    """The class of reading classes, which pickle cannot find by their names."""


def _base(made: type) -> type:
    """The class that a reading class was made of."""
    return next(each for each in made.__mro__[1:] if each not in (Reader, AttentionReader))


copyreg.pickle(ReaderType, lambda made: (reading_class, (_base(made),)))  # type: ignore


def _rebuild(base: type) -> nn.Module:
    module: nn.Module = nn.Module.__new__(base)
    module.__class__ = reading_class(base)
    return module


def _lateral(layer: nn.Module, channels: int) -> nn.Module:
    """A layer of the same kind for other inputs, without a bias.

    A copy, because a subclass may pad its input or standardise its weight in its own way. Of a
    convolution that keeps the size of images only the middle of the kernel is needed: its own
    weight looks around.
    """
    if isinstance(layer, nn.MultiheadAttention):
        like = layer.in_proj_weight
        return nn.Linear(channels, layer.embed_dim, False, device=like.device, dtype=like.dtype)
    made: Any = copy.deepcopy(layer)
    if "bias" in made._parameters:
        made._parameters["bias"] = None
    if _keeps_size(made) and channels > 1:  # a standardised weight needs more than one value
        ones = (1,) * len(made.kernel_size)
        middle = (slice(None), slice(None), *(slice(1) for _ in ones))
        made.weight = nn.Parameter(made.weight.detach()[middle].clone())
        made.kernel_size, made.dilation, made.padding = ones, ones, tuple(0 for _ in ones)
        made.padding_mode = "zeros"
    _set_inputs(made, channels)
    return made


def _keeps_size(layer: Any) -> bool:
    """Is it a convolution with a large kernel that makes images of the size it gets?"""
    if isinstance(layer, nn.Linear) or max(layer.kernel_size) == 1 or max(layer.stride) > 1:
        return False
    if isinstance(layer.padding, str):
        return bool(layer.padding == "same")
    sizes = zip(layer.kernel_size, layer.dilation, layer.padding, strict=True)
    return all(2 * pad == dilation * (kernel - 1) for kernel, dilation, pad in sizes)


def _set_inputs(layer: nn.Module, channels: int) -> None:
    """Give a layer another number of inputs, and fresh values."""
    weight: Any = layer.weight
    shape = (weight.shape[0], channels, *weight.shape[2:])
    layer.weight = nn.Parameter(weight.new_empty(shape))
    for name in ("in_features", "in_channels"):
        if hasattr(layer, name):
            setattr(layer, name, channels)
    if layer.weight.is_meta:
        return
    reset = getattr(layer, "reset_parameters", None)
    if callable(reset):
        reset()
    else:
        nn.init.kaiming_uniform_(layer.weight, a=5**0.5)
