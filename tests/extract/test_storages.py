"""Writes through views: programs that have the same elements of each input, however many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import architectures
import pytest
import torch
import torch.nn.functional as F
from architectures import Block, Spec
from torch import Tensor, nn

from autoeidetic.extract.memory.views import index_of, rooms_of
from extract.networks import grown


def test_part_of_a_part() -> None:
    """A sum has the strides of a slice, with gaps; a body writes to a part of it."""
    layer = Block("residual", 0, 3, (Block("act", 3, 1),))
    written = Block("split", 1, 1, (Block("act", 0, 0),))
    spec = Spec("sequence", 4, (Block("split", 1, 1, (layer, written, layer)),), "pooled", 0)
    model, x = architectures.build(spec)
    net = grown(model, x, (1, 1))
    program = net.extract([0])
    assert "x: dimension 0" in program.report.dynamic
    other = torch.randn(7, *x.shape[1:])
    torch.testing.assert_close(program(other), [net(other, task=0)])


def written(part: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Write to a part of a copy."""

    def run(x: Tensor) -> Tensor:
        y = x.clone()
        part(y).relu_()
        return y

    return run


def gaps(part: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Write to two channels of what is computed from a part."""

    def run(x: Tensor) -> Tensor:
        y = part(x) * 2
        y[:, :, 1:3].relu_()
        return y

    return run


#: What is done to a sequence, the channels that are left, and the parameters of a small program.
WRITTEN: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    "some channels": (gaps(lambda x: x[:, :, :6]), 6, 42),
    "every other channel": (gaps(lambda x: x[:, :, ::2]), 4, 24),
    "some tokens": (gaps(lambda x: x[:, 1:]), 8, 51),
    "another order": (gaps(lambda x: x.transpose(1, 2)[:, :6].transpose(1, 2)), 6, 42),
    "rows": (written(lambda y: y.view(-1, 8)[:, :3]), 8, 51),
    "one of rows": (written(lambda y: y.view(-1, 8)[:, 3]), 8, 51),
    "heads of rows": (written(lambda y: y.view(-1, 2, 4)[:, :, :3]), 8, 51),
    "heads": (written(lambda y: y.unflatten(-1, (2, 4))[..., :3]), 8, 51),
}


class Written(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.between = between
        self.embed, self.layer = nn.Linear(5, 8), nn.Linear(channels, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.between(self.embed(x))).mean(1))


@pytest.mark.parametrize("name", WRITTEN)
def test_sizes_vary(name: str) -> None:
    between, channels, small = WRITTEN[name]
    torch.manual_seed(0)
    net = grown(Written(between, channels), torch.randn(2, 4, 5))
    program = net.extract(0)
    assert {"x: dimension 0", "x: dimension 1"} <= set(program.report.dynamic)
    assert program.report.parameters_after <= small
    x = torch.randn(7, 6, 5)
    torch.testing.assert_close(program(x), net(x, task=0))


def test_index_along_few_dimensions() -> None:
    shape = (2, 3, 4, 5)
    numbered = torch.arange(math.prod(shape)).view(shape)
    for first, behind in itertools.combinations(range(5), 2):
        flat = numbered.flatten(first, behind - 1)
        # the last position and twice the first: no index along fewer dimensions
        places = torch.tensor([flat.shape[first] - 1, 0, 0])
        *dims, found = index_of(shape, flat.index_select(first, places))
        assert dims == [first, behind]
        assert torch.equal(found, places)


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x,
        lambda x: x[:, :, 1:3],
        lambda x: x[:, ::2, ::4],
        lambda x: x.transpose(0, 2)[1:5],
        lambda x: x[:, :1].transpose(1, 2),
    ],
)
def test_memory_with_gaps(part: Callable[[Tensor], Tensor]) -> None:
    """A tensor, filled up with zeros, has its elements where memory of its strides has them."""
    value = part(torch.arange(1, 65).view(2, 4, 8))
    found = rooms_of(value.shape, value.stride())
    assert found is not None
    order, rooms = found
    memory = torch.zeros(math.prod(rooms), dtype=value.dtype)
    memory.as_strided(value.shape, value.stride(), 0).copy_(value)
    laid_out = value.permute(order).unsqueeze(-1)
    more = [room - size for room, size in zip(rooms, laid_out.shape, strict=True)]
    padding = [number for each in reversed(more) for number in (0, each)]
    assert torch.equal(F.pad(laid_out, padding).flatten(), memory)


def test_no_memory_for_shared_elements() -> None:
    x = torch.zeros(2, 8)
    for view in (x.unfold(1, 3, 1), x[:, :1].expand(2, 4)):
        assert rooms_of(view.shape, view.stride()) is None
