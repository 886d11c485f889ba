"""Narrow copies: the user's own modules with a part of the channels."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from autoeidetic.capture.graph import operator_name
from autoeidetic.commands.benchmark.families import KNOWN
from autoeidetic.common.inputs import CallInputs, call_inputs
from autoeidetic.plan.analysis import Analysis, run_analysis
from autoeidetic.widen.narrow import NarrowCopy, narrow_copy


def calls(*args: Any, **kwargs: Any) -> tuple[CallInputs, ...]:
    return (CallInputs(args, kwargs),)


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def operators(analysis: Analysis) -> list[tuple[str, str]]:
    """Operators with their modules; copies of values come and go with memory layouts."""
    nodes = [n for n in analysis.capture.graph.nodes if n.op == "call_function"]
    names = [(operator_name(n), n.meta["module"]) for n in nodes]
    return [
        (name.replace("_unsafe_view", "view"), module)
        for name, module in names
        if name not in ("aten.clone", "aten.alias")
    ]


def check(model: nn.Module, made: NarrowCopy, examples: tuple[CallInputs, ...]) -> None:
    """A narrow copy has the model's modules and operators, and can be trained."""
    assert made.reason == ""
    assert made.width < 0.8
    assert [(p, type(m)) for p, m in made.model.named_modules()] == [
        (p, type(m)) for p, m in model.named_modules()
    ]
    assert shapes(made.model).keys() == shapes(model).keys()
    before, after = run_analysis(model, list(examples)), run_analysis(made.model, list(examples))
    assert operators(before) == operators(after)
    assert [c.path for c in before.capture.calls.values()] == [
        c.path for c in after.capture.calls.values()
    ]
    assert {g.layers for g in before.groups} == {g.layers for g in after.groups}
    for rows in (2, 3):
        arguments = [torch.cat([x] * 2)[:rows] for x in examples[0].args]
        arguments = [torch.randn(x.shape) if x.is_floating_point() else x for x in arguments]
        made.model.train()
        out = first(made.model(*arguments))
        assert out.shape[1:] == first(model(*arguments)).shape[1:]
        assert out.isfinite().all()
        out.square().sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in made.model.parameters())


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


# -- sizes -----------------------------------------------------------------------------------------


def test_a_perceptron() -> None:
    model = nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 5)
    )
    x = calls(torch.randn(2, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert [tuple(p.shape) for p in made.model.parameters()] == [
        (4, 6), (4,), (3, 4), (3,), (5, 3), (5,)
    ]  # fmt: skip
    assert made.model[0].out_features == 4
    assert made.width == pytest.approx(0.25)


class Residual(nn.Module):
    def __init__(self, stem: int = 16, groups: int = 1, norm: Any = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, padding=1)
        self.norm = norm(stem)
        self.branch = nn.Conv2d(stem, stem, 3, padding=1, groups=groups)
        self.head = nn.Linear(stem, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = x + self.branch(x)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize(
    ("groups", "branch"),
    [(1, (4, 4, 3, 3)), (2, (4, 2, 3, 3)), (4, (4, 1, 3, 3)), (16, (4, 1, 3, 3))],
    ids=["dense", "two groups", "four groups", "depthwise"],
)
def test_convolutions(groups: int, branch: tuple[int, ...]) -> None:
    model, x = Residual(groups=groups), calls(torch.randn(2, 3, 8, 8))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert tuple(made.model.branch.weight.shape) == branch
    assert made.model.branch.in_channels == made.model.branch.out_channels == 4
    assert made.model.branch.groups == 4 // branch[1]
    assert made.model.norm.num_features == len(made.model.norm.running_mean) == 4
    assert tuple(made.model.head.weight.shape) == (5, 4)


def test_group_norm_keeps_the_size_of_its_groups() -> None:
    model, x = Residual(norm=lambda n: nn.GroupNorm(8, n)), calls(torch.randn(2, 3, 8, 8))
    made = narrow_copy(model, x, 0.5)
    check(model, made, x)
    assert (made.model.norm.num_channels, made.model.norm.num_groups) == (8, 4)


def test_a_depthwise_convolution_with_several_outputs_for_each_input() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 1), nn.Conv2d(16, 32, 3, groups=16), nn.Flatten(), nn.Linear(128, 5)
    )
    x = calls(torch.randn(2, 3, 4, 4))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert [tuple(m.weight.shape)[:2] for m in (made.model[0], made.model[1], made.model[3])] == [
        (4, 3), (8, 1), (5, 32)
    ]  # fmt: skip
    assert made.model[1].groups == 4


class Split(nn.Module):
    """Both halves are of one group: the first half alone would be half of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 8
        self.stem, self.head = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).split([self.width, self.width], 1)
        return self.head(torch.cat([right, left], 1))


def test_sizes_in_attributes() -> None:
    model, x = Split(), calls(torch.randn(2, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert made.model.width == 2
    assert model.width == 8


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.embed = nn.Linear(6, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2)
        x = x + self.out(y.reshape(batch, tokens, width))
        return self.head(x.mean(1))


def test_widths_snap_to_whole_heads() -> None:
    # the code takes the width of the stream for that of all heads: both go by a third
    model, x = Attention(48, 3), calls(torch.randn(2, 4, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert (made.model.heads, made.model.scale) == (1, 16**-0.5)
    assert tuple(made.model.qkv.weight.shape) == (48, 16)
    assert made.model.norm.normalized_shape == (16,)
    assert made.width == pytest.approx(1 / 3)


def test_one_head_becomes_narrower() -> None:
    model, x = Attention(32, 1), calls(torch.randn(2, 4, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert (made.model.heads, made.model.scale) == (1, 8**-0.5)
    assert tuple(made.model.qkv.weight.shape) == (24, 8)


class Stock(nn.Module):
    """Multi-head attention of torch, and a position table of which a call reads a part."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(11, 32), nn.Parameter(torch.randn(9, 32))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.places[: x.shape[1]]
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


def test_multihead_attention() -> None:
    model, x = Stock(), calls(torch.randint(11, (2, 6)))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert made.model.attention.num_heads == 1
    assert made.model.attention.embed_dim == made.model.embed.embedding_dim == 8
    assert tuple(made.model.attention.in_proj_weight.shape) == (24, 8)
    assert tuple(made.model.embed.weight.shape) == (11, 8)
    assert tuple(made.model.places.shape) == (9, 8)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.cell = kind(6, 16, batch_first=True, **options)
        self.head = nn.Linear(options.get("proj_size", 16) * 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"num_layers": 2}),
        (nn.LSTM, {"proj_size": 8}),
        (nn.GRU, {}),
        (nn.RNN, {}),
    ],
    ids=["lstm", "projection", "gru", "rnn"],
)
def test_recurrent_layers(kind: Any, options: dict[str, int]) -> None:
    model, x = Recurrent(kind, bidirectional=True, **options), calls(torch.randn(2, 4, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert (made.model.cell.input_size, made.model.cell.hidden_size) == (6, 4)


class Cell(nn.Module):
    """The state starts with zeros of a size that is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.cell, self.head = 16, nn.LSTMCell(6, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = state = x.new_zeros(x.shape[0], self.size)
        for _ in range(2):
            hidden, state = self.cell(x, (hidden, state))
        return self.head(hidden)


def test_a_recurrent_cell() -> None:
    model, x = Cell(), calls(torch.randn(2, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert (made.model.size, made.model.cell.hidden_size) == (4, 4)


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm])
def test_computed_weights(norm: Any) -> None:
    model = nn.Sequential(
        norm(nn.Linear(6, 16)), nn.ReLU(), norm(nn.Linear(16, 12)), nn.Linear(12, 5)
    )
    x = calls(torch.randn(2, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert tuple(made.model[2].weight.shape) == (3, 4)


def test_several_calls() -> None:
    model = Twice()
    x = (*calls(torch.randn(2, 6)), *calls(torch.randn(2, 3, 6)))
    check(model, narrow_copy(model, x, 0.25), x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.shared, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.shared(self.shared(x).relu()))


def test_a_module_that_is_called_twice() -> None:
    model, x = Twice(), calls(torch.randn(2, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert tuple(made.model.shared.weight.shape) == (4, 4)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.decoder = (
            nn.Embedding(11, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 11, bias=False),
        )
        self.decoder.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.body(self.embed(x)).relu())


def test_tied_weights_stay_tied() -> None:
    model, x = Tied(), calls(torch.randint(11, (2, 4)))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert made.model.decoder.weight is made.model.embed.weight
    assert tuple(made.model.embed.weight.shape) == (11, 4)


class Table(nn.Module):
    """A buffer of the size of the channels, added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 16), nn.Linear(16, 5)
        self.register_buffer("table", torch.randn(1, 4, 16))
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.stem(x) + self.table[:, self.order]).mean(1))


def test_buffers() -> None:
    model, x = Table(), calls(torch.randn(2, 4, 6))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert torch.equal(made.model.table, model.table[..., :4])
    assert torch.equal(made.model.order, model.order)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
def test_models_of_timm(name: str) -> None:
    model = timm.create_model(name, num_classes=7)
    made = narrow_copy(model, (call_inputs(model),), 0.25)
    check(model, made, calls(torch.randn(2, *call_inputs(model).args[0].shape[1:])))
    assert made.width < 0.34
    assert made.model.get_classifier().out_features == 7


# -- values ----------------------------------------------------------------------------------------


def test_values_are_fresh() -> None:
    model, x = Residual(), calls(torch.randn(2, 3, 8, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(100.0)
        model.norm.running_mean.fill_(100.0)
    made = narrow_copy(model, x, 0.25)
    made.model.requires_grad_(False)
    for parameter in made.model.parameters():
        assert parameter.abs().max() <= 1
    assert torch.equal(made.model.norm.running_mean, torch.zeros(4))
    # the spread follows from the new number of inputs: 4 channels of 3 x 3
    assert float(made.model.branch.weight.abs().max()) == pytest.approx(1 / 6, rel=0.1)


def test_free_parameters_have_the_spread_they_had() -> None:
    model, x = Stock(), calls(torch.randint(11, (2, 6)))
    with torch.no_grad():
        model.places.normal_(3.0, 0.01)
    made = narrow_copy(model, x, 0.25)
    made.model.requires_grad_(False)
    assert float(made.model.places.mean()) == pytest.approx(3.0, abs=0.01)
    assert 0.005 < made.model.places.std() < 0.02


def test_the_seed_decides_the_values() -> None:
    model, x = Twice(), calls(torch.randn(2, 6))
    copies = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        copies.append(narrow_copy(model, x, 0.5).model.stem.weight)
    assert torch.equal(copies[0], copies[1])
    assert not torch.equal(copies[0], copies[2])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_device_type_and_gradients_stay(device: str) -> None:
    model = Residual().to(device, torch.float64)
    model.stem.weight.requires_grad_(False)
    made = narrow_copy(model, calls(torch.randn(2, 3, 8, 8, dtype=torch.float64)), 0.25)
    assert made.reason == ""
    for tensor in (*made.model.parameters(), made.model.norm.running_mean):
        assert (tensor.device.type, tensor.dtype) == (device, torch.float64)
    assert not made.model.stem.weight.requires_grad
    assert made.model.head.weight.requires_grad


def test_a_copy_made_in_inference_mode_can_be_trained() -> None:
    model, x = Twice(), calls(torch.randn(2, 6))
    with torch.inference_mode():
        made = narrow_copy(model, x, 0.25)
    check(model, made, x)


# -- the model -------------------------------------------------------------------------------------


def test_the_model_stays_as_it_was() -> None:
    model, x = Attention(48, 3), calls(torch.randn(2, 4, 6))
    model.train()
    model.norm.eval()
    hook = model.out.register_forward_hook(lambda *_: None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    same = {name: id(p) for name, p in model.named_parameters()}
    attributes = [dict(vars(module)) for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    made = narrow_copy(model, x, 0.25)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert {name: id(p) for name, p in model.named_parameters()} == same
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    for module, known in zip(model.modules(), attributes, strict=True):
        assert vars(module).keys() == known.keys()
        assert all(vars(module)[name] is value for name, value in known.items())
    assert [m.training for m in model.modules()] == [m.training for m in made.model.modules()]
    assert len(made.model.out._forward_hooks) == 1
    hook.remove()


# -- where there is no narrow copy -----------------------------------------------------------------


class HardCoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x).relu().view(-1, 64))


def test_a_size_in_the_code_is_named() -> None:
    model, x = HardCoded(), calls(torch.randn(2, 6))
    made = narrow_copy(model, x, 0.25)
    assert "aten.view" in made.reason
    assert "test_narrow_copy.py" in made.reason
    assert made.width == 1
    assert shapes(made.model) == shapes(model)
    assert not torch.equal(made.model.stem.weight, model.stem.weight)
    assert made.model(x[0].args[0]).shape == (2, 5)


def test_a_single_layer_has_nothing_to_leave_out() -> None:
    model = nn.Linear(6, 5)
    made = narrow_copy(model, calls(torch.randn(2, 6)), 0.25)
    assert (made.width, made.reason) == (1, "too few channels can be left out")


def test_the_full_width() -> None:
    model = Twice()
    made = narrow_copy(model, calls(torch.randn(2, 6)), 1.0)
    assert (made.width, made.reason) == (1, "")
    assert shapes(made.model) == shapes(model)


class Auxiliary(nn.Module):
    """A second output layer that only trains: the analysis, in eval mode, does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.aux = nn.Linear(6, 16), nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x).relu()
        return (self.head(x), self.aux(x)) if self.training else self.head(x)


def test_a_part_that_only_trains_is_named() -> None:
    model, x = Auxiliary(), calls(torch.randn(2, 6))
    made = narrow_copy(model, x, 0.25)
    assert made.reason.startswith("in train mode: RuntimeError")
    assert len(made.model.train()(x[0].args[0])) == 2


class Failing(nn.Module):
    """The model's code raises for any other width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if x.shape[1] != 16:
            raise KeyError("sixteen")
        return self.head(x)


def test_errors_of_the_model_are_reasons() -> None:
    made = narrow_copy(Failing(), calls(torch.randn(2, 6)), 0.25)
    assert made.width == 1
    assert "sixteen" in made.reason


class WithInput(nn.Module):
    """The stream has the width of the input, which stays."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.down(self.up(x).relu()))


def test_what_meets_the_input_has_its_size() -> None:
    model, x = WithInput(), calls(torch.randn(2, 8))
    made = narrow_copy(model, x, 0.25)
    check(model, made, x)
    assert tuple(made.model.down.weight.shape) == (8, 8)
    assert made.width < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    "byobnet coat convnext densenet efficientnet efficientvim ghostnet levit mobilenetv3 mvitv2 "
    "nfnet pvt_v2 resnest rexnet sknet swin_transformer vision_transformer_relpos".split(),
)
def test_families(family: str) -> None:
    model = timm.create_model(KNOWN[family])
    examples = (call_inputs(model),)
    made = narrow_copy(model, examples, 0.25)
    assert made.reason == ""
    x = torch.randn(2, *examples[0].args[0].shape[1:])
    first(made.model.train()(x)).sum().backward()
