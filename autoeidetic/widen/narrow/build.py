"""A copy of a model with smaller tensors: its own classes and code, fresh values."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...capture.names import Names
from ...common.undisturbed import undisturbed
from ...tasks.initialise import fresh_values, spreads
from .shapes import Positions, Shapes

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
#: Methods by which a module draws its own values.
_RESETS = ("reset_parameters", "_reset_parameters")
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
#: Modules whose sizes are set from the shapes of their parameters, and the attributes that are.
STOCK = (
    *_CONVOLUTIONS,
    *_TRANSPOSED,
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
    nn.PReLU,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)
STOCK_SIZES = frozenset(
    "in_features out_features in1_features in2_features in_channels out_channels groups "
    "num_features normalized_shape num_channels num_groups embedding_dim num_embeddings "
    "num_parameters padding_idx num_layers input_size hidden_size proj_size embed_dim kdim vdim "
    "num_heads head_dim".split()
)


def copy_with(model: nn.Module, shapes: Shapes | None, device: str | None = None) -> nn.Module:
    """A copy with the predicted shapes, of unspecified values; buffers keep theirs.

    ``shapes`` None: nothing is narrower. ``device`` is that of the parameters, by default the
    original's.
    """
    names = Names(model)
    # deepcopy takes what its memo has for an object: no full parameter is ever copied
    memo: dict[int, Any] = {}
    for name, parameter in names.parameters.items():
        size = _size(parameter, shapes.parameters.get(name) if shapes else None)
        empty = torch.empty(size, dtype=parameter.dtype, device=device or parameter.device)
        made = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        made.__dict__.update(parameter.__dict__)
        memo[id(parameter)] = made
    for name, buffer in names.buffers.items():
        memo[id(buffer)] = cut(buffer, shapes.buffers.get(name) if shapes else None)
    for module in model.modules():
        for value in vars(module).values():
            # a weight that a hook computes before each pass; deepcopy refuses it
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    made_of = copy.deepcopy(model, memo)
    if shapes is not None:
        _set_stock_sizes(model, made_of, shapes)
    return made_of


def _size(tensor: Tensor, positions: Positions | None) -> tuple[int, ...]:
    if positions is None:
        return tuple(tensor.shape)
    pairs = zip(tensor.shape, positions, strict=True)
    return tuple(size if here is None else int(here.sum()) for size, here in pairs)


def cut(tensor: Tensor, positions: Positions | None) -> Tensor:
    """A copy of the part of a tensor that stays."""
    result = tensor.detach().clone()
    for dim, here in enumerate(positions or ()):
        if here is not None:
            where = torch.from_numpy(np.flatnonzero(here)).to(tensor.device)
            result = result.index_select(dim, where)
    return result


def _set_stock_sizes(model: nn.Module, made: nn.Module, shapes: Shapes) -> None:
    """Set the sizes that torch's own modules keep beside their parameters."""
    pairs = zip(model.modules(), made.named_modules(), strict=True)
    for original, (path, module) in pairs:
        if isinstance(module, _CONVOLUTIONS):
            _set_convolution(original, module, shapes.groups_of(f"{path}.weight"))
        elif isinstance(module, _TRANSPOSED):
            module.in_channels = _weight(module).shape[0]
            module.out_channels = _weight(module).shape[1] * module.groups
        elif isinstance(module, nn.Linear):
            module.out_features, module.in_features = _weight(module).shape
        elif isinstance(module, nn.Bilinear):
            module.out_features, module.in1_features, module.in2_features = _weight(module).shape
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            module.num_embeddings, module.embedding_dim = _weight(module).shape
        elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and _weight(module) is not None:
            module.normalized_shape = tuple(_weight(module).shape)
        elif isinstance(module, nn.GroupNorm) and _weight(module) is not None:
            _set_groups(module)
        elif isinstance(module, nn.modules.batchnorm._NormBase):
            known = [t for t in (_weight(module), module.running_mean) if t is not None]
            module.num_features = known[0].shape[0] if known else module.num_features
        elif isinstance(module, nn.PReLU):
            module.num_parameters = _weight(module).numel()
        elif isinstance(module, nn.RNNBase):
            _set_recurrent(module)
        elif isinstance(module, nn.RNNCellBase):
            module.hidden_size = module.weight_hh.shape[1]
            module.input_size = module.weight_ih.shape[1]
        elif isinstance(module, nn.MultiheadAttention):
            _set_attention(original, module)


def _set_convolution(original: Any, module: Any, groups: int | None) -> None:
    rows, columns = _weight(module).shape[:2]
    if groups is not None and rows % groups == 0:
        module.groups = groups
    elif original.groups == original.in_channels:  # depthwise
        module.groups = max(rows * original.in_channels // original.out_channels, 1)
    module.in_channels, module.out_channels = columns * module.groups, rows


def _weight(module: nn.Module) -> Any:
    """The weight of a module, or the parameter of its shape that it is computed from.

    It is not computed: on ``meta`` that would mix devices.
    """
    if parametrize.is_parametrized(module, "weight"):
        found: Any = module.parametrizations
        return max(found["weight"].parameters(recurse=False), key=lambda p: p.numel())
    return getattr(module, "weight", None)


def _set_groups(module: nn.GroupNorm) -> None:
    """As many channels in a group as before, if that divides them."""
    channels = _weight(module).shape[0]
    wanted = module.num_groups * channels / module.num_channels
    divisors = (n for n in range(1, channels + 1) if channels % n == 0)
    if channels != module.num_channels:
        module.num_groups = min(divisors, key=lambda n: abs(n - wanted))
    module.num_channels = channels


def _set_recurrent(module: nn.RNNBase) -> None:
    parts: Any = module.all_weights[0]
    module.input_size = parts[0].shape[1]
    if module.proj_size > 0:
        module.proj_size = parts[-1].shape[0]
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    module.hidden_size = parts[0].shape[0] // gates


def _set_attention(original: Any, module: nn.MultiheadAttention) -> None:
    size = module.out_proj.weight.shape[1]
    packed = module.in_proj_weight is not None
    keys = module.embed_dim if packed else module.k_proj_weight.shape[1]
    values = module.embed_dim if packed else module.v_proj_weight.shape[1]
    module.kdim, module.vdim = (size, size) if packed else (keys, values)
    # whole heads as long as their size divides the new one, else as many narrower ones
    if size % original.head_dim == 0:
        module.num_heads = size // original.head_dim
    module.head_dim = size // module.num_heads
    module.embed_dim = size


def initialise(model: nn.Module, made: nn.Module) -> None:
    """Draw fresh values for all parameters of a copy, and fresh running statistics.

    Torch's generators go on afterwards as if nothing had been drawn: the values follow from their
    state, and the caller's numbers do not.
    """
    known = spreads(model)
    # leaving the inference mode turns gradients on, so they are turned off inside of it
    with undisturbed(generators="torch", trainable=True), torch.no_grad():
        # first: a module's own initialisation may leave out some of its parameters
        for name, parameter in made.named_parameters():
            mean, spread = known[name]
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.normal_(mean, spread) if spread > 0 else parameter.fill_(mean)
        for path, module in made.named_modules():
            prefix = f"{path}." if path else ""
            here = {name: known.get(prefix + name, (0.0, 0.02)) for name in module._parameters}
            for name, value in _own_values(module, here).items():
                target = module._parameters.get(name)
                target = module._buffers.get(name) if target is None else target
                if target is not None and target.shape == value.shape:
                    target.copy_(value)


def _own_values(module: nn.Module, known: dict[str, tuple[float, float]]) -> dict[str, Tensor]:
    """What a module's own initialisation gives; nothing if it fails or if there is none."""
    if not any(callable(getattr(module, name, None)) for name in _RESETS):
        return {}
    try:
        return fresh_values(module, known)
    except Exception:  # methods of that name may do anything
        return {}
