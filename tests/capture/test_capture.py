"""Capture: the graph is the model, and the model is left as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

import autoeidetic
from autoeidetic.capture import whole_operators
from autoeidetic.capture.capture import capture
from autoeidetic.capture.graph import ABSENT, operator_name
from autoeidetic.common.inputs import call_inputs
from autoeidetic.errors import CaptureError, UnhandledOperatorWarning

aten = torch.ops.aten

# -- shapes without running kernels -------------------------------------------------------------


def r(*size: int) -> Tensor:
    return torch.rand(size)


def window(dims: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> Any:
    return [stride] * dims, [padding] * dims, [dilation] * dims


def recurrent_weights(gates: int, inputs: int, size: int, layers: int, directions: int) -> Any:
    weights = []
    for layer in range(layers):
        width = inputs if layer == 0 else size * directions
        for _ in range(directions):
            weights += [r(gates * size, width), r(gates * size, size)]
            weights += [r(gates * size), r(gates * size)]
    return weights


def recurrent(gates: int, layers: int = 1, directions: int = 1, batch_first: bool = False) -> Any:
    """Arguments of ``aten.lstm.input`` and its like for 5 steps of a batch of 3."""
    state = r(layers * directions, 3, 4)
    x = r(3, 5, 6) if batch_first else r(5, 3, 6)
    hidden: Any = [state, state.clone()] if gates == 4 else state
    weights = recurrent_weights(gates, 6, 4, layers, directions)
    return (x, hidden, weights, True, layers, 0.0, False, directions == 2, batch_first)


SHORTCUTS: dict[Any, list[tuple[Any, ...]]] = {
    aten.linear.default: [
        (r(2, 3), r(5, 3), r(5)),
        (r(2, 7, 3), r(5, 3), None),
        (r(3), r(5, 3), None),
    ],
    aten.conv1d.default: [
        (r(2, 4, 9), r(6, 4, 3), r(6), *window(1), 1),
        (r(2, 4, 9), r(6, 2, 3), None, *window(1, 2, 1, 2), 2),
    ],
    aten.conv2d.default: [
        (r(2, 4, 9, 8), r(6, 4, 3, 2), r(6), *window(2), 1),
        (r(2, 4, 9, 8), r(6, 2, 3, 3), None, *window(2, 2, 1), 2),
        (r(2, 4, 9, 8), r(4, 1, 3, 3), None, [2, 1], [1, 2], [2, 1], 4),
    ],
    aten.conv3d.default: [(r(1, 2, 5, 6, 7), r(4, 2, 3, 3, 3), r(4), *window(3, 2, 1), 1)],
    aten.batch_norm.default: [
        (r(2, 4, 5), r(4), r(4), r(4), r(4), False, 0.1, 1e-5, False),
        (r(2, 4), None, None, r(4), r(4), False, 0.1, 1e-5, False),
    ],
    aten.layer_norm.default: [
        (r(2, 5, 4), [4], r(4), r(4), 1e-5, False),
        (r(2, 5, 4), [5, 4], None, None, 1e-5, False),
    ],
    aten.group_norm.default: [(r(2, 4, 5), 2, r(4), r(4), 1e-5, False)],
    aten.scaled_dot_product_attention.default: [
        (r(2, 3, 5, 4), r(2, 3, 7, 4), r(2, 3, 7, 6), None, 0.0, False),
        (r(3, 5, 4), r(3, 5, 4), r(3, 5, 4), r(5, 5), 0.0, False),
        (r(2, 1, 5, 4), r(2, 3, 7, 4), r(2, 3, 7, 4), None, 0.0, False),
    ],
    aten.lstm.input: [
        recurrent(4),
        recurrent(4, 2, 2),
        recurrent(4, 1, 2, batch_first=True),
    ],
    aten.gru.input: [recurrent(3), recurrent(3, 2, 2)],
    aten.rnn_tanh.input: [recurrent(1), recurrent(1, 2, 2)],
    aten.rnn_relu.input: [recurrent(1)],
    **{
        getattr(aten, name).default: [(r(2, 3),), (r(2, 3).half(),), (r(2, 3, 4).transpose(1, 2),)]
        for name in ("relu", "gelu", "silu", "sigmoid", "hardswish", "hardsigmoid", "tanh")
    },
    **{
        getattr(aten, name).Tensor: [
            (r(2, 3), r(2, 3)),
            (r(2, 3), r(3)),
            (r(1, 3), r(2, 3)),
            (r(2, 3), r(2, 3).half()),
            (r(2, 3), 2),
            (r(2, 3).half(), 2.0),
            (torch.arange(6), 2),
            (torch.arange(6), 2.5),
            (torch.arange(6), torch.arange(6)),
        ]
        for name in ("add", "sub", "mul", "div")
    },
}
CASES = [(op, i) for op, examples in SHORTCUTS.items() for i in range(len(examples))]


def test_every_shortcut_is_tested() -> None:
    assert set(SHORTCUTS) == set(whole_operators._SHAPES)


@pytest.mark.parametrize(("op", "example"), CASES, ids=lambda v: str(v).removeprefix("aten."))
def test_shortcuts_agree_with_execution(op: Any, example: int) -> None:
    args = SHORTCUTS[op][example]
    on_meta = pytree.tree_map(lambda v: v.to("meta") if isinstance(v, Tensor) else v, args)
    found = whole_operators.shortcut(op, on_meta)
    if found is None:
        return
    expected = op(*args)
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        assert a.is_meta
        assert a.shape == b.shape
        assert a.dtype == b.dtype


LAYOUTS = {
    "transposed": lambda t: t.transpose(1, 2),
    "slice": lambda t: t[:, :, :2],
    "every second": lambda t: t[:, ::2],
    "expanded": lambda t: t[:, :1].expand(-1, 4, -1),
    "overlapping": lambda t: t.unfold(2, 3, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", [aten.relu.default, aten.gelu.default, aten.add.Tensor])
def test_shortcuts_give_the_strides_of_execution(op: Any, layout: str) -> None:
    """A result that seems to share memory within itself would be written to in other places."""
    real, meta = (LAYOUTS[layout](torch.rand(2, 4, 6, device=d)) for d in ("cpu", "meta"))
    args = (real, real) if op is aten.add.Tensor else (real,)
    found = whole_operators.shortcut(op, tuple(meta for _ in args))
    assert found is None or found.stride() == op(*args).stride()


def test_writing_to_a_sum_of_overlapping_views() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(5, 8), nn.Linear(5, 18), nn.Linear(18, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x).unfold(2, 3, 1) + self.b(x).unflatten(2, (6, 3))
            y[:, :, 0].mul_(2)
            return self.head(y.flatten(2)).mean(1)

    torch.manual_seed(0)
    x = torch.randn(2, 4, 5)
    net = autoeidetic.convert(Model(), x, rehearse=False)
    net.prepare_for_task(0, num_classes=3)
    net.prune(0.5)
    net.finish_task()
    before = net.eval()(x, task=0)
    net.prepare_for_task(1, num_classes=3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += torch.randn_like(parameter)
    assert torch.equal(net.eval()(x, task=0), before)


def test_most_shortcuts_are_taken() -> None:
    """The test above would pass if shortcuts always gave up."""
    for op, examples in SHORTCUTS.items():
        args = pytree.tree_map(lambda v: v.to("meta") if isinstance(v, Tensor) else v, examples[0])
        assert whole_operators.shortcut(op, args) is not None, op


def test_a_wrong_shape_is_left_to_the_operator() -> None:
    with pytest.raises(CaptureError, match=r"shapes cannot be multiplied|size"):
        autoeidetic.analyze(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 3)), r(2, 4))


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(5), nn.BatchNorm1d(5).eval(), nn.GroupNorm(3, 3)], ids=lambda n: repr(n)
)
def test_a_norm_of_another_size_is_left_to_the_operator(norm: nn.Module) -> None:
    with pytest.raises(CaptureError):
        autoeidetic.analyze(nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 3)), r(2, 4))


# -- the graph runs and gives what the model gives ----------------------------------------------


class Function(nn.Module):
    """A model from a function of (its linear layer, *inputs)."""

    def __init__(self, function: Callable[..., Any], width: int = 4) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(width, width)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.layer, *args, **kwargs)


def write_through_view(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    y[:, 1:3].mul_(2)
    y.t()[0].add_(y[:, 3])
    return y.relu_() + y.view(-1, 2, 2).sum(1).repeat(1, 2)


def write_into_constant(layer: nn.Module, x: Tensor) -> Tensor:
    canvas = torch.zeros(2, 6)
    canvas[:, 1:5] = layer(x)
    canvas[:, 0] += 1
    return canvas


def write_to_input(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.clone().clamp_(0.2, 0.7)) + x


def view_before_write(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    first = y[:, :2]
    y.add_(1)
    first.zero_()
    return y * 3


def channels_last(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x).view(2, 1, 2, 2).repeat(1, 3, 1, 1).contiguous(memory_format=torch.channels_last)
    y[:, 1].mul_(5)
    return y


def scaled_attention(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)[None]
    return F.scaled_dot_product_attention(y, y * 2, y, scale=0.7)


def causal_attention(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)[None]
    return F.scaled_dot_product_attention(y, y * 2, y, is_causal=True)


def dictionary(layer: nn.Module, x: Tensor, *, scale: Tensor) -> dict[str, Any]:
    y = layer(x) * scale
    return {"y": y, "parts": (y[:, :2], [y[:, 2:]]), "none": None}


def nested_inputs(layer: nn.Module, pair: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
    return layer(pair[0]) + pair[1]["b"]


class ViewOfBuffer(nn.Module):
    """Reads a buffer, writes a counter, indexes a table with a computed constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.table = nn.Parameter(torch.rand(5, 4))
        self.register_buffer("index", torch.tensor([4, 0]))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return self.layer(x) + self.table[self.index] * self.steps


class Classifier(nn.Module):
    """The last state of a recurrent layer into a linear one."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.recurrence = layer
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.recurrence(x)
        return self.head(out[:, -1])


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.SiLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding="same", groups=8),
        nn.GroupNorm(2, 8),
        nn.ConvTranspose2d(8, 6, 2, stride=2),
        nn.InstanceNorm2d(6, affine=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 5),
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "convolutions": lambda: (convolutions(), r(2, 3, 8, 8)),
    "transformer": lambda: (transformer(), r(2, 5, 8)),
    "lstm": lambda: (
        Classifier(nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True), 6),
        r(2, 5, 4),
    ),
    "gru": lambda: (Classifier(nn.GRU(4, 3, batch_first=True), 3), r(2, 5, 4)),
    "rnn": lambda: (Classifier(nn.RNN(4, 3, batch_first=True), 3), r(2, 5, 4)),
    "view_of_buffer": lambda: (ViewOfBuffer(), r(2, 4)),
    "dictionary": lambda: (Function(dictionary), {"x": r(2, 4), "scale": r(4)}),
    "nested_inputs": lambda: (Function(nested_inputs), ((r(2, 4), {"b": r(4)}),)),
    "twice": lambda: (Function(lambda layer, x: layer(layer(x).relu())), r(2, 4)),
    **{
        function.__name__: (lambda f=function: (Function(f), r(2, 4)))  # type: ignore[misc]
        for function in (
            write_through_view,
            write_into_constant,
            write_to_input,
            view_before_write,
            channels_last,
            scaled_attention,
            causal_attention,
        )
    },
}


#: nn.MultiheadAttention is recorded as smaller operators than the fused kernel it runs.
ROUNDED = {"transformer"}


def randomise(model: nn.Module) -> nn.Module:
    """No unit weights, no zero biases, no default statistics."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.3, 1.3)
    return model


def call(model: nn.Module, inputs: Any) -> Any:
    arguments = call_inputs(model, inputs)
    with torch.no_grad():
        return model(*arguments.args, **arguments.kwargs)


def run_graph(module: fx.GraphModule, inputs: Any) -> tuple[Tensor | None, ...]:
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    with torch.no_grad():
        return module(*leaves)


@pytest.mark.parametrize("name", MODELS)
def test_graph_reproduces_the_model(name: str) -> None:
    model, inputs = MODELS[name]()
    randomise(model).eval()
    captured = capture(model, call_inputs(model, inputs))
    assert captured.way == "meta"
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = run_graph(captured.module(), copy.deepcopy(inputs))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), f"running the graph changed {key}"
    expected = call(model, inputs)
    for a, b in zip(found, pytree.tree_leaves(expected), strict=True):
        assert (a is None) == (b is None)
        if b is not None and name in ROUNDED:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
        elif b is not None:
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_nodes_have_the_shapes_of_execution(name: str) -> None:
    model, inputs = MODELS[name]()
    captured = capture(model.eval(), call_inputs(model, inputs))
    seen: list[str] = []

    class Checker(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            result = super().run_node(node)
            if isinstance(result, Tensor):
                assert node.meta["shape"] == tuple(result.shape), node
                assert node.meta["dtype"] == result.dtype, node
                seen.append(node.name)
            return result

    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    with torch.no_grad():
        Checker(captured.module()).run(*leaves)
    assert len(seen) > 3


def test_output_keeps_its_structure() -> None:
    model, inputs = MODELS["dictionary"]()
    output = capture(model, call_inputs(model, inputs)).outputs[0]
    assert set(output) == {"y", "parts", "none"}
    assert output["none"] is ABSENT
    assert isinstance(output["parts"][0], fx.Node)


def test_places() -> None:
    """Every operator knows its module and the user's line."""
    model, inputs = MODELS["write_through_view"]()
    nodes = list(capture(model, call_inputs(model, inputs)).graph.nodes)
    linear = next(n for n in nodes if operator_name(n) == "aten.linear")
    assert linear.meta["module"] == "layer"
    multiply = next(n for n in nodes if operator_name(n) == "aten.mul")
    assert multiply.meta["module"] == ""
    file, _, number = multiply.meta["line"].rpartition(":")
    assert file == __file__
    source = Path(__file__).read_text().splitlines()[int(number) - 1]
    assert source.strip() == "y[:, 1:3].mul_(2)"


def test_meta_models() -> None:
    real = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    a = capture(real, call_inputs(real, r(2, 4)))
    b = capture(meta, call_inputs(meta, torch.empty(2, 4, device="meta")))
    assert [n.target for n in a.graph.nodes] == [n.target for n in b.graph.nodes]
    assert [n.meta.get("shape") for n in a.graph.nodes] == [
        n.meta.get("shape") for n in b.graph.nodes
    ]


# -- data-dependent code ------------------------------------------------------------------------


def branch_on_sum(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    return y * 2 if y.sum() > -1e9 else y


def branch_on_item(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    return y[:, : 2 + int(y.max().item() > -1e9)]


def boolean_mask(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    return y[y[:, 0] > -1e9]


@pytest.mark.parametrize("function", [branch_on_sum, branch_on_item])
def test_data_dependent_code_falls_back_to_real_tensors(function: Callable[..., Tensor]) -> None:
    model, x = Function(function).eval(), r(2, 4)
    with pytest.warns(UnhandledOperatorWarning, match="looks at a value"):
        deps = autoeidetic.analyze(model, x)
    assert deps.capture.way == "real"
    (found,) = run_graph(deps.capture.module(), x)
    assert torch.equal(found, call(model, x))


def test_boolean_masks_fall_back_to_real_tensors() -> None:
    model, x = Function(boolean_mask).eval(), r(2, 4)
    deps = autoeidetic.analyze(model, x)
    assert deps.capture.way == "real"
    (found,) = run_graph(deps.capture.module(), x)
    assert torch.equal(found, call(model, x))


def test_data_dependent_code_on_inputs_alone_locks_nothing() -> None:
    def branch(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x) * 2 if x.sum() > -1e9 else layer(x)

    deps = autoeidetic.analyze(Function(branch), r(2, 4))
    assert deps.capture.way == "real"
    assert len(deps.locked) == 0


def test_fall_back_does_not_write_to_the_model() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.steps.add_(1)
            if x.sum() > -1e9:
                self.steps.add_(1)
            return self.layer(x) + self.steps

    model = Counts().eval()
    deps = autoeidetic.analyze(model, r(2, 4))
    assert deps.capture.way == "real"
    assert model.steps == 0


# -- the model is left as it was ----------------------------------------------------------------


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that must not change, by value and by identity."""
    return {
        "training": {name: m.training for name, m in model.named_modules()},
        "tensors": {
            name: (id(t), t.detach().clone())
            for name, t in (*model.named_parameters(), *model.named_buffers())
        },
        "gradients": {
            name: (id(p.grad), None if p.grad is None else p.grad.clone(), p.requires_grad)
            for name, p in model.named_parameters()
        },
        "hooks": {
            name: [
                list(getattr(m, attribute))
                for attribute in sorted(vars(m))
                if attribute.endswith("_hooks")
            ]
            for name, m in model.named_modules()
        },
        "attributes": {
            name: {k: id(v) for k, v in vars(m).items() if k != "training"}
            for name, m in model.named_modules()
        },
        "rng": torch.get_rng_state(),
        "call": id(nn.Module.__call__),
        "grad mode": torch.is_grad_enabled(),
    }


def assert_same(before: Any, after: Any, where: str = "model") -> None:
    if isinstance(before, Tensor):
        assert torch.equal(before, after), where
    elif isinstance(before, dict):
        assert before.keys() == after.keys(), where
        for key in before:
            assert_same(before[key], after[key], f"{where}.{key}")
    elif isinstance(before, (tuple, list)):
        assert len(before) == len(after), where
        for index, (a, b) in enumerate(zip(before, after, strict=True)):
            assert_same(a, b, f"{where}[{index}]")
    else:
        assert before == after, where


class Eventful(nn.Module):
    """Statistics, dropout, hooks, gradients, a frozen parameter, mixed modes."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.5)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.head = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(2))
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        x = self.drop(self.norm(self.conv(x)).relu_() + torch.rand(()))
        if self.fails:
            raise ValueError("half way")
        return self.head(self.spectral(x.mean((2, 3))))


def eventful(fails: bool) -> tuple[nn.Module, list[str]]:
    model, log = Eventful(fails), []
    if not fails:
        model(r(2, 3, 6, 6)).sum().backward()
    model.conv.register_forward_hook(lambda *_: log.append("after conv"))
    model.head.weight.requires_grad_(False)
    model.train()
    model.norm.eval()
    model.spectral.parametrizations.eval()
    return model, log


@pytest.mark.parametrize("fails", [False, True])
def test_analysis_leaves_the_model_as_it_was(fails: bool) -> None:
    model, _ = eventful(fails)
    before = snapshot(model)
    if fails:
        with pytest.raises(CaptureError, match="half way"):
            autoeidetic.analyze(model, r(2, 3, 6, 6))
        torch.set_rng_state(before["rng"])  # the example inputs were random, too
        with pytest.raises(CaptureError):
            autoeidetic.analyze(model, torch.ones(2, 3, 6, 6))
    else:
        autoeidetic.analyze(model, torch.ones(2, 3, 6, 6))
    assert_same(before, snapshot(model))


def test_inputs_are_left_as_they_were() -> None:
    x = r(2, 4)
    before = x.clone()
    autoeidetic.analyze(Function(lambda layer, x: layer(x.mul_(2))), x)
    assert torch.equal(x, before)


class Reassigns(nn.Module):
    """Stores tensors on itself, as models with caches do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))
        self.cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.steps = self.steps + 1
        self.cache = self.layer(x)
        return self.cache


def test_tensors_that_forward_stores_are_put_back() -> None:
    model = Reassigns()
    before = snapshot(model)
    buffer = model.steps
    autoeidetic.analyze(model, torch.ones(2, 4))
    assert model.steps is buffer
    assert model.cache is None
    assert_same(before, snapshot(model))


def test_tensors_that_a_failing_forward_stored_are_put_back() -> None:
    class Fails(Reassigns):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise ValueError("half way")

    model = Fails()
    before = snapshot(model)
    with pytest.raises(CaptureError):
        autoeidetic.analyze(model, torch.ones(2, 4))
    assert_same(before, snapshot(model))
