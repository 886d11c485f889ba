"""Norms with one set of statistics per level, by stock operators.

``level_norms.py`` computes all levels at once, in products whose bits never change. A program that
leaves the network needs no such bits: here each level is an ordinary norm of the channels that it
reads, of which the channels that it normalises are taken.

    x  -> channels of level 0 -> norm -> outputs of level 0 --,
    x  -> channels of level 1 -> norm -> outputs of level 1 --+-> side by side -> in their order

The result is equal to that of ``level_norms`` up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .level_tables import LevelTable

#: (values of the channels that a level reads, their index, weight, bias) -> normalised values
_Norm = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


def layer_norm(
    x: Tensor, table: LevelTable, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """``F.layer_norm`` over the last dimension, each channel with its level's statistics.

    >>> include = torch.tensor([[True, True, False], [True, True, True]])
    >>> table = LevelTable(include, torch.tensor([0, 0, 1]))
    >>> layer_norm(torch.tensor([[1.0, 3.0, 8.0]]), table, None, None, 0.0)
    tensor([[-1.0000,  1.0000,  1.3587]])
    """

    def norm(read: Tensor, index: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.layer_norm(read, (len(index),), weight, bias, eps)

    return _by_level(x, -1, table, weight, bias, norm)


def rms_norm(x: Tensor, table: LevelTable, weight: Tensor | None, eps: float | None) -> Tensor:
    """``F.rms_norm`` over the last dimension, each channel with its level's statistics."""

    def norm(read: Tensor, index: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.rms_norm(read, (len(index),), weight, eps)

    return _by_level(x, -1, table, weight, None, norm)


def group_norm(
    x: Tensor,
    groups: int,
    table: LevelTable,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """``F.group_norm`` of ``[N, C, *space]``, each channel with its level's statistics."""
    size = x.shape[1] // groups

    def norm(read: Tensor, index: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        members = torch.bincount(index // size, minlength=groups)
        members = members[members > 0]
        if bool((members == members[0]).all()):
            return F.group_norm(read, len(members), weight, bias, eps)
        return _uneven_groups(read, members, weight, bias, eps)

    return _by_level(x, 1, table, weight, bias, norm)


def _uneven_groups(
    x: Tensor, members: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """A group norm whose groups have different numbers of channels.

    ``average [C, G]`` takes the mean over a group, ``of [C]`` is the group of each channel.
    """
    of = torch.repeat_interleave(torch.arange(len(members), device=members.device), members)
    average = F.one_hot(of, len(members)).to(x.dtype) / members
    flat = x.flatten(2) if x.dim() > 2 else x[..., None]
    means = (flat.mean(-1) @ average).index_select(1, of)
    centred = flat - means[..., None]
    variances = (centred * centred).mean(-1) @ average
    scale = torch.rsqrt(variances + eps).index_select(1, of)
    if weight is not None:
        scale = scale * weight
    result = centred * scale[..., None]
    if bias is not None:
        result = result + bias[:, None]
    return result.reshape(x.shape)


def _by_level(
    x: Tensor, dim: int, table: LevelTable, weight: Tensor | None, bias: Tensor | None, norm: _Norm
) -> Tensor:
    """Apply a norm to what each level reads, and put the channels together again."""
    results, places = [], []
    for level in table.use.unique():
        own = (table.use == level).nonzero().reshape(-1)
        # A level normalises channels that it reads; where it does not, they would need statistics
        # that they are no part of, which no stock norm takes.
        read = (table.include[level] | (table.use == level)).nonzero().reshape(-1)
        parts = [None if p is None else p.index_select(0, read) for p in (weight, bias)]
        result = norm(x.index_select(dim, read), read, *parts)
        results.append(result.index_select(dim, torch.searchsorted(read, own)))
        places.append(own)
    return torch.cat(results, dim).index_select(dim, torch.cat(places).argsort())
