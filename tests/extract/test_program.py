"""A program is an ordinary module: whatever one does with modules works, without this package."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

import autoeidetic
from autoeidetic.errors import InputError
from autoeidetic.extract.files.exported import exported
from autoeidetic.extract.program import Program, report_of, usable
from extract.programs import MAKE, REPORT, Builder, aten, convolutional, inputs, transformer


def same(one: Any, other: Any) -> bool:
    """The same structure, and the same bits."""
    first, structure = pytree.tree_flatten(one)
    second, other_structure = pytree.tree_flatten(other)
    return structure == other_structure and all(map(torch.equal, first, second))


def close(one: Any, other: Any) -> bool:
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5) for a, b in pairs)


@pytest.fixture(params=MAKE)
def make(request: pytest.FixtureRequest) -> Callable[..., Program]:
    return MAKE[request.param]


# -- what it computes -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_spelling_changes_no_bit(make: Callable[..., Program], batch: int) -> None:
    program, unspelled = make(), make(False)
    assert "torch.ops" not in program.code
    assert "torch.ops.aten" in unspelled.code
    given = inputs(program, batch)
    assert same(program(**given), unspelled(**given))
    assert same(program(*given.values()), unspelled(*given.values()))


def test_gradients_are_those_of_the_operators(make: Callable[..., Program]) -> None:
    gradients = []
    for program in (make(), make(False)):
        leaves = pytree.tree_leaves(program(**inputs(program, 3)))
        sum(leaf.square().sum() for leaf in leaves if leaf.is_floating_point()).backward()
        gradients.append({name: p.grad for name, p in program.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert gradient is not None
        assert gradient.abs().sum() > 0
        assert torch.equal(gradient, gradients[1][name])  # type: ignore[arg-type]


def test_modes_change_nothing(make: Callable[..., Program]) -> None:
    program = make()
    given = inputs(program, 4)
    before = copy.deepcopy(program.state_dict())
    answers = [mode()(**given) for mode in (program.eval, program.train, program.eval)]
    assert same(answers[0], answers[1])
    assert same(answers[0], answers[2])
    assert same(dict(before), dict(program.state_dict()))


def test_code_is_readable_and_is_the_code() -> None:
    b = Builder()
    x = b.graph.placeholder("x")
    n = b.call(aten.sym_size.int, x, 0)
    first = b.call(aten.slice.Tensor, x, 0, 1, n)
    second = b.call(aten.select.int, b.call(aten.slice.Tensor, x, 1, 0, -1, 2), -1, 0)
    norm = b.call(aten.linalg_vector_norm.default, first, 2.0, [-1])
    program = b.program([norm, b.call(aten.gelu.default, second)], [torch.ones(3, 4)], REPORT, True)
    for text in (
        "x[1:",
        "x[:, :-1:2]",
        "[..., 0]",
        "torch.linalg.vector_norm(",
        "functional.gelu(",
    ):
        assert text in program.code
    assert " = None" not in program.code
    namespace: dict[str, Any] = {"torch": torch}
    exec(program.code, namespace)
    given = torch.randn(3, 4)
    assert same(namespace["forward"](program, given), program(given))


# -- tensors --------------------------------------------------------------------------------------


def test_tensors_have_the_names_of_the_model() -> None:
    program = convolutional()
    assert isinstance(program.get_submodule("layer1.0"), nn.Module)
    assert {name for name, _ in program.named_buffers()} == {
        "_index_0",
        "layer1.0.bn1.running_mean",
        "layer1.0.bn1.running_var",
    }
    assert all(p.requires_grad for p in program.parameters())
    assert program.get_parameter("layer1.0.conv1.weight").shape == (6, 3, 3, 3)
    assert all(type(module) is nn.Module for module in program.children())


def test_state_dict(make: Callable[..., Program]) -> None:
    program, other = make(), make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    given = inputs(program, 3)
    assert not same(program(**given), other(**given))
    other.load_state_dict(program.state_dict())
    assert same(program(**given), other(**given))


def test_tensors_are_copies_and_ties_stay() -> None:
    b = Builder()
    x = b.graph.placeholder("x")
    first, second = b.normal("encoder.weight", 4, 4), b.graph.get_attr("decoder.weight")
    b.tensors["decoder.weight"] = b.tensors["encoder.weight"]
    b.tensors["not.used"] = torch.ones(3)
    value = b.call(aten.linear.default, b.call(aten.linear.default, x, first), second)
    program = b.program(value, (torch.ones(2, 4),), REPORT, True)
    assert len(list(program.parameters())) == 1
    assert set(program.state_dict()) == {"encoder.weight", "decoder.weight"}
    weight = program.get_parameter("decoder.weight")
    assert weight is program.get_parameter("encoder.weight")
    assert weight.data_ptr() != b.tensors["encoder.weight"].data_ptr()
    copied = copy.deepcopy(program)
    assert copied.get_parameter("decoder.weight") is copied.get_parameter("encoder.weight")


def test_names_that_a_module_cannot_have() -> None:
    b = Builder()
    x = b.graph.placeholder("x")
    names = ["report.weight", "graph", 'a"b.0', "class.bias", "class_.bias", "training"]
    for name in names:
        x = b.call(aten.add.Tensor, x, b.normal(name, 2))
    program = b.program(x, (torch.ones(2),), REPORT, True)
    expected = ["report_.weight", "graph_", "a_b.0", "class_.bias", "class_.bias_", "training_"]
    assert set(program.state_dict()) == set(expected)
    total = torch.ones(2)
    for name in names:
        total = total + b.tensors[name]
    assert torch.equal(program(torch.ones(2)), total)
    assert same(pickle.loads(pickle.dumps(program))(torch.ones(2)), total)
    assert program.report == REPORT
    assert program.graph is b.graph


def test_all_names_of_common_models_stay() -> None:
    names = ["0.weight", "features.10.conv.0.weight", "_constant_0", "cls_token", "model.type"]
    assert list(usable(names).values()) == [*names[:-1], "model.type_"]


@pytest.mark.parametrize("example", [(), (torch.ones(1),) * 2, {"y": torch.ones(1)}])
def test_an_example_that_is_none(example: Any) -> None:
    b = Builder()
    x = b.graph.placeholder("x")
    with pytest.raises(InputError, match="the program has the inputs x, and the example has"):
        b.program(x, example, REPORT, True)


# -- what one does with modules -------------------------------------------------------------------


def test_deepcopy(make: Callable[..., Program]) -> None:
    program = make()
    copied = copy.deepcopy(program)
    given = inputs(program, 3)
    assert isinstance(copied, Program)
    assert type(copied).__name__ == "Program"
    assert copied.report == program.report
    assert same(program(**given), copied(**given))
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1)
    assert same(program(**given), make()(**given))
    assert same(copy.deepcopy(copied)(**given), copied(**given))


def test_conversions(make: Callable[..., Program]) -> None:
    program = make()
    given = inputs(program, 3)
    expected = program(**given)
    double = copy.deepcopy(program).double()
    assert {p.dtype for p in double.parameters()} == {torch.float64}
    wide = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    found = double(**wide)
    assert all(leaf.dtype in (torch.float64, torch.int64) for leaf in pytree.tree_leaves(found))
    assert close(expected, found)
    assert same(double.to(torch.float32)(**given), expected)
    meta = program.to("meta")(**{name: value.to("meta") for name, value in given.items()})
    shapes = [leaf.shape for leaf in pytree.tree_leaves(meta)]
    assert shapes == [leaf.shape for leaf in pytree.tree_leaves(expected)]


IMPORTED = """
import importlib.abc, io, pickle, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "autoeidetic":
            raise ImportError("not in this process")

sys.meta_path.insert(0, Block())
import torch
torch.set_num_threads(1)
with open(sys.argv[1], "rb") as file:
    content = pickle.load(file)
program, given, expected = content["program"], content["given"], content["expected"]
found = program(**given)
assert torch.utils._pytree.tree_all(lambda t: True, found)
leaves = torch.utils._pytree.tree_leaves
assert all(map(torch.equal, leaves(found), leaves(expected)))
assert program.meta["autoeidetic"]["report"]["tasks"] == ["pets"]
saved = torch.load(io.BytesIO(content["saved"]), weights_only=False)
assert all(map(torch.equal, leaves(saved(**given)), leaves(expected)))
try:
    import autoeidetic
except ImportError:
    print(type(program).__mro__[1].__module__, type(program).__mro__[1].__name__)
"""


def test_pickled_it_needs_no_autoeidetic(make: Callable[..., Program], tmp_path: Path) -> None:
    program = make()
    given = inputs(program, 3)
    saved = io.BytesIO()
    torch.save(program, saved)
    content = {
        "program": program,
        "given": given,
        "expected": program(**given),
        "saved": saved.getvalue(),
    }
    (tmp_path / "content").write_bytes(pickle.dumps(content))
    command = [sys.executable, "-c", IMPORTED, str(tmp_path / "content")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "torch.fx.graph_module GraphModule\n", done.stderr


def test_unpickled_here(make: Callable[..., Program]) -> None:
    program = make()
    again = pickle.loads(pickle.dumps(program))
    given = inputs(program, 3)
    assert isinstance(again, fx.GraphModule)
    assert not isinstance(again, Program)
    assert again.meta["autoeidetic"] == program.meta["autoeidetic"]
    assert report_of(again.meta["autoeidetic"]["report"]) == program.report
    assert list(again.state_dict()) == list(program.state_dict())
    names = [name for name, _ in program.named_parameters()]
    assert [name for name, _ in again.named_parameters()] == names
    assert same(again(**given), program(**given))


@pytest.mark.slow
def test_compile(make: Callable[..., Program]) -> None:
    program = make()
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", dynamic=True, fullgraph=True)
    for batch in (2, 3, 5):
        given = inputs(program, batch)
        assert close(compiled(**given), program(**given))
    compiled(**inputs(program, 3))


def test_export_with_sizes_that_vary(make: Callable[..., Program]) -> None:
    program = make()
    made = exported(program)
    for batch, length in ((1, 2), (2, 4), (7, 6)):
        given = inputs(program, batch, length)
        assert close(made.module()(*given.values()), program(**given))
    assert set(made.state_dict) <= set(program.state_dict())


def test_an_optimizer_trains_it() -> None:
    program = transformer()
    optimizer = torch.optim.SGD(program.parameters(), lr=0.1)
    given, target = inputs(program, 6), torch.arange(6)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(program(**given)["scores"], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


# -- the report -----------------------------------------------------------------------------------


def test_report() -> None:
    program = convolutional()
    assert program.report == REPORT
    assert report_of(json.loads(json.dumps(REPORT.to_dict()))) == REPORT
    json.dumps(program.meta["autoeidetic"])
    assert str(REPORT).splitlines() == [
        "task pets",
        "               before   after",
        "parameters      4,000   1,000  25.0%",
        "multiply-adds  90,000  12,345  13.7%",
        "outputs differ by at most 1.5e-15 of the largest one (in float64, inputs of 2x3x8x8, a "
        "number)",
        "sizes that may vary: x: dimension 0",
        "fixed: x: dimension 2 is 8: a view (model.py:7)",
    ]
    assert "<pre>" in REPORT._repr_html_()
    several = replace(REPORT, tasks=("a", "b"), dynamic=(), fixed=())
    assert str(several).splitlines()[0] == "tasks a, b"
    assert "may vary" not in str(several)
    assert not str(replace(several, tasks=())).startswith("task")


def test_sizes_that_vary() -> None:
    report = replace(REPORT, dynamic=("x: dimension 0", "y: dimension 1", "x: dimension 3"))
    assert report.dynamic_sizes() == {"x": (0, 3), "y": (1,)}


def test_example_is_kept_as_plain_data() -> None:
    example = transformer().meta["autoeidetic"]["example"]
    assert [each["name"] for each in example] == ["input_ids", "attention_mask"]
    assert example[0] == {
        "name": "input_ids",
        "shape": [1, 4],
        "dtype": "torch.int64",
        "value": [[3, 10, 0, 2]],
    }
    (image,) = convolutional().meta["autoeidetic"]["example"]
    assert (image["shape"], image["value"]) == ([2, 3, 8, 8], None)


def test_hand_made_programs_are_not_trivial(make: Callable[..., Program]) -> None:
    """Other inputs give other outputs, in every row."""
    program = make()
    one, other = (pytree.tree_leaves(program(**inputs(program, n)))[0] for n in (3, 4))
    assert isinstance(one, Tensor)
    assert not torch.equal(one, other[:3])


# -- statistics of batch norms --------------------------------------------------------------------


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, eps=1e-3, momentum=0.3), nn.ReLU(),
        nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(),
        nn.Linear(64, 2),
    )  # fmt: skip


def test_statistics_are_learned_as_in_the_model() -> None:
    model, x = normed(), torch.randn(5, 3, 8, 8)
    program = autoeidetic.slim(model.eval(), 1.0, x).learn_statistics().train()
    torch.testing.assert_close(program(x), model.train()(x))
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(program.get_buffer(name), model.get_buffer(name))
    torch.testing.assert_close(program.eval()(x), model.eval()(x))


def test_statistics_stay_unless_asked_for() -> None:
    x = torch.randn(5, 3, 8, 8)
    program = autoeidetic.slim(normed().eval(), 0.5, x)
    expected, state = program(x), {k: v.clone() for k, v in program.state_dict().items()}
    assert torch.equal(program.train()(x), expected)
    program.learn_statistics().learn_statistics(False)
    assert torch.equal(program(x), expected)
    assert all(torch.equal(value, state[name]) for name, value in program.state_dict().items())


@pytest.mark.filterwarnings("ignore")
def test_programs_that_learn_statistics_leave_as_others_do(tmp_path: Path) -> None:
    x = torch.randn(5, 3, 8, 8)
    program = autoeidetic.slim(normed().eval(), 0.5, x)
    code, expected = program.code, program(x)
    program.learn_statistics().train()
    assert "training = True" in program.code
    copied = copy.deepcopy(program)
    assert copied.code == program.code
    assert copied.eval().code != program.code
    program.save(tmp_path / "program.safetensors")
    assert torch.equal(autoeidetic.load(tmp_path / "program.safetensors")(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(program))(x), expected)
    program.save(tmp_path / "program.pt2")
    answer = torch.export.load(tmp_path / "program.pt2").module()(x)
    torch.testing.assert_close(answer, expected)
    assert torch.equal(program.eval()(x), expected)
    assert program.code == code


def test_means_over_all_batches_are_not_learned() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 2))
    program = autoeidetic.slim(model.eval(), 0.5, torch.randn(3, 4))
    with pytest.raises(InputError, match="has no momentum"):
        program.learn_statistics()
    code = program.code
    assert program.train().code == code
    program.learn_statistics(False)
