"""Programs made by hand, as extraction makes them: operators of ATen, sizes, constant indices."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from autoeidetic.extract.program import ExtractReport, Program
from autoeidetic.extract.spelling import spelled

aten = torch.ops.aten
REPORT = ExtractReport(
    tasks=("pets",),
    parameters_before=4000,
    parameters_after=1000,
    multiply_adds_before=90_000,
    multiply_adds_after=12_345,
    difference=1.5e-15,
    compared_in="float64",
    compared_at=((2, 3, 8, 8), ()),
    dynamic=("x: dimension 0",),
    fixed=("x: dimension 2 is 8: a view (model.py:7)",),
)


class Builder:
    """A graph that grows with its tensors."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.tensors: dict[str, Tensor] = {}
        self.trainable: set[str] = set()
        self.generator = torch.Generator().manual_seed(7)

    def normal(self, name: str, *size: int, positive: bool = False) -> fx.Node:
        """A tensor of random numbers; one that is not negative is a buffer."""
        value = torch.randn(size, generator=self.generator)
        if not positive:
            self.trainable.add(name)
        return self.tensor(name, value.abs() + 0.5 if positive else value)

    def tensor(self, name: str, value: Tensor) -> fx.Node:
        self.tensors[name] = value
        return self.graph.get_attr(name)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def program(self, output: Any, example: Any, report: ExtractReport, spell: bool) -> Program:
        self.graph.output(output)
        if spell:
            spelled(self.graph)
        return Program.of(self.tensors, self.graph, report, self.trainable, example)


def convolutional(spell: bool = True) -> Program:
    """Convolution, norm, a cut by an index, a concatenation, a view with the batch's size."""
    b = Builder()
    x = b.graph.placeholder("x")
    weight = b.normal("layer1.0.conv1.weight", 6, 3, 3, 3)
    value = b.call(aten.conv2d.default, x, weight, None, [2, 2], [1, 1], [1, 1], 1)
    norm = [b.normal(f"layer1.0.bn1.{name}", 6) for name in ("weight", "bias", "running_mean")]
    norm.append(b.normal("layer1.0.bn1.running_var", 6, positive=True))
    b.trainable.remove("layer1.0.bn1.running_mean")
    value = b.call(aten.batch_norm.default, value, *norm, False, 0.1, 1e-5, False)
    value = b.call(aten.relu.default, value)
    chosen = b.call(aten.index_select.default, value, 1, b.tensor("_index_0", torch.tensor([4, 0])))
    pooled = b.call(aten.max_pool2d_with_indices.default, value, [2, 2], [1, 1])
    pooled = b.call(operator.getitem, pooled, 0)
    pooled = b.call(aten.constant_pad_nd.default, pooled, [0, 1, 0, 1])
    value = b.call(aten.cat.default, [chosen, pooled], 1)
    size = b.call(aten.sym_size.int, x, 0)
    value = b.call(aten.view.default, value, [size, -1])
    weight, bias = b.normal("fc.weight", 5, 128), b.normal("fc.bias", 5)
    value = b.call(aten.linear.default, value, weight, bias)
    example = torch.randn(2, 3, 8, 8, generator=b.generator)
    return b.program(value, (example,), REPORT, spell)


def transformer(spell: bool = True) -> Program:
    """Embedding, attention with a mask of integers, norm; a dictionary comes out."""
    b = Builder()
    ids, mask = b.graph.placeholder("input_ids"), b.graph.placeholder("attention_mask")
    table = b.normal("embed.weight", 11, 8)
    x = b.call(aten.embedding.default, table, ids)
    rows, length = (b.call(aten.sym_size.int, ids, d) for d in (0, 1))
    parts = []
    for name in ("q", "k", "v"):
        weight, bias = (
            b.normal(f"blocks.0.{name}.weight", 8, 8),
            b.normal(f"blocks.0.{name}.bias", 8),
        )
        part = b.call(aten.linear.default, x, weight, bias)
        part = b.call(aten.view.default, part, [rows, length, 2, 4])
        parts.append(b.call(aten.transpose.int, part, 1, 2))
    seen = b.call(aten.ne.Scalar, mask, 0)
    seen = b.call(aten.unsqueeze.default, b.call(aten.unsqueeze.default, seen, 1), 1)
    y = b.call(aten.scaled_dot_product_attention.default, *parts, seen)
    y = b.call(
        aten.clone.default,
        b.call(aten.transpose.int, y, 1, 2),
        memory_format=torch.contiguous_format,
    )
    y = b.call(aten._unsafe_view.default, y, [rows, length, 8])
    x = b.call(aten.add.Tensor, x, y)
    weight, bias = b.normal("norm.weight", 8), b.normal("norm.bias", 8)
    x = b.call(aten.layer_norm.default, x, [8], weight, bias, 1e-6)
    first = b.call(aten.select.int, x, 1, 0)
    scores = b.call(aten.linear.default, first, b.graph.get_attr("embed.weight"))
    output = {
        "scores": scores,
        "label": b.call(aten.argmax.default, scores, -1),
        "all": [x, (first,)],
    }
    example = {
        "attention_mask": torch.tensor([[1, 1, 1, 0]]),
        "input_ids": torch.tensor([[3, 10, 0, 2]]),
    }
    dynamic = [f"{name}: dimension {d}" for name in ("input_ids", "attention_mask") for d in (0, 1)]
    return b.program(output, example, replace(REPORT, dynamic=tuple(dynamic)), spell)


def inputs(program: Program, batch: int, length: int = 5) -> dict[str, Tensor]:
    """Inputs with another size of the batch, and another length."""
    generator = torch.Generator().manual_seed(batch)
    names = [str(node.target) for node in program.graph.find_nodes(op="placeholder")]
    if names == ["x"]:
        return {"x": torch.randn(batch, 3, 8, 8, generator=generator)}
    ids = torch.randint(0, 11, (batch, length), generator=generator)
    mask = torch.arange(length).expand(batch, length) < length - 1
    return {"input_ids": ids, "attention_mask": mask.long()}


MAKE = {"convolutional": convolutional, "transformer": transformer}
