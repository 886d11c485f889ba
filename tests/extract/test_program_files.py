"""Programs in files: what comes out is what went in; a file that was edited is refused."""

from __future__ import annotations

import copy
import json
import operator
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoint.test_checkpoint import edit, small
from safetensors import safe_open
from torch import Tensor, nn

import autoeidetic
from autoeidetic.common import archive
from autoeidetic.errors import CheckpointError, InputError, MissingPackageError
from autoeidetic.extract import files
from autoeidetic.extract.files import exported, graph_json
from autoeidetic.extract.program import KEY, Program
from extract.programs import MAKE, REPORT, Builder, aten, convolutional, inputs
from extract.test_program import close, same


@pytest.fixture(params=MAKE)
def program(request: pytest.FixtureRequest) -> Program:
    return MAKE[request.param]()


def fails(path: Any, words: str, load: Callable[[Any], Any] = autoeidetic.load) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert words in str(caught.value)
    assert caught.value.remedy
    assert str(path) in caught.value.fact


# -- safetensors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spell", [True, False])
@pytest.mark.parametrize("make", MAKE.values())
def test_what_comes_out_is_what_went_in(
    make: Callable[..., Program], spell: bool, tmp_path: Path
) -> None:
    program = make(spell)
    path = tmp_path / "program.safetensors"
    program.save(path)
    again = autoeidetic.load(path)
    assert isinstance(again, Program)
    assert again.report == program.report
    assert again.meta[KEY] == program.meta[KEY]
    assert again.code == program.code
    for batch in (1, 3):
        given = inputs(program, batch)
        assert same(program(**given), again(**given))
    assert list(again.state_dict()) == list(program.state_dict())
    parameters = [name for name, _ in program.named_parameters()]
    assert [name for name, _ in again.named_parameters()] == parameters
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_everything_about_tensors_is_kept(tmp_path: Path) -> None:
    """Ties, layouts in memory, types, and which parameters take gradients."""
    b = Builder()
    x = b.graph.placeholder("x")
    first, second = b.normal("a.weight", 4, 4, 2, 2), b.graph.get_attr("b.weight")
    b.tensors["a.weight"] = b.tensors["a.weight"].to(memory_format=torch.channels_last)
    b.tensors["b.weight"] = b.tensors["a.weight"]
    x = b.call(aten.conv2d.default, b.call(aten.conv2d.default, x, first), second)
    x = b.call(aten.add.Tensor, x, b.normal("bias", 1))
    x = b.call(aten.index_select.default, x, 1, b.tensor("index", torch.tensor([1, 1])))
    program = b.program(x, (torch.ones(2, 4, 4, 4),), REPORT, True).double()
    program.get_parameter("bias").requires_grad_(False)
    program.save(tmp_path / "p.safetensors")
    again = autoeidetic.load(tmp_path / "p.safetensors")
    weight = again.get_parameter("b.weight")
    assert weight is again.get_parameter("a.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.requires_grad
    assert not again.get_parameter("bias").requires_grad
    assert {p.dtype for p in again.parameters()} == {torch.float64}
    assert again.get_buffer("index").dtype == torch.int64
    given = torch.randn(3, 4, 4, 4, dtype=torch.float64)
    assert torch.equal(again(given), program(given))


def test_every_kind_of_argument(tmp_path: Path) -> None:
    b = Builder()
    x = b.graph.placeholder("x")
    n = b.call(aten.sym_size.int, x, -1)
    half = b.graph.call_function(torch.ops.aten.slice.Tensor, (x, -1, None, n))
    wide = b.call(aten._to_copy.default, half, dtype=torch.float64)
    last = b.call(aten.clone.default, wide, memory_format=torch.channels_last)
    filled = b.call(aten.masked_fill.Scalar, last, b.call(aten.gt.Scalar, last, 0.5), float("inf"))
    summed = b.call(aten.gelu.default, filled, approximate="tanh")
    amount = b.call(operator.floordiv, n, 2)
    rolled = b.call(aten.roll.default, summed, [amount], [1])
    upper = b.call(aten.upsample_nearest2d.default, rolled, [8, 8], 2.0, 2.0)
    output = {"a": (upper, [None, True, 1.5, "text"]), 3: slice(0, n, None)}
    program = b.program(output, (torch.ones(2, 3, 4, 4),), REPORT, True)
    program.save(tmp_path / "p.safetensors")
    again = autoeidetic.load(tmp_path / "p.safetensors")
    given = torch.randn(2, 3, 4, 4)
    expected, found = program(given), again(given)
    assert torch.equal(expected["a"][0], found["a"][0])
    assert found["a"][0].stride() == expected["a"][0].stride()
    assert found["a"][1] == [None, True, 1.5, "text"]
    assert found[3] == slice(0, 4, None)
    assert "aten.upsample_nearest2d" in again.code


def test_names_of_nodes_may_be_anything(tmp_path: Path) -> None:
    """``torch.fx`` gives them names in the code that are right and different."""
    program = convolutional()
    for number, node in enumerate(program.graph.nodes):
        node.name = ("0_weight", "a.b", "class", "same", "same", "_0_weight")[number % 6]
    program.recompile()
    program.save(tmp_path / "p.safetensors")
    given = inputs(program, 2)
    assert same(autoeidetic.load(tmp_path / "p.safetensors")(**given), program(**given))


def test_training_it_goes_on_after_loading(tmp_path: Path) -> None:
    program = convolutional()
    with torch.inference_mode():
        program.save(tmp_path / "p.safetensors")
        again = autoeidetic.load(tmp_path / "p.safetensors")
    again(inputs(program, 2)["x"]).sum().backward()
    assert all(p.grad is not None for p in again.parameters())


def test_a_failed_save_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    program = convolutional()
    program.save(path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"cannot hold .*: it has no values"):
        copy.deepcopy(program).to("meta").save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p.safetensors"]


CANNOT: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], str]] = {
    "a function": (len, (), {}, "a call of builtins.len"),
    "in place": (aten.add_.Tensor, (1,), {}, "a call of aten.add_.Tensor"),
    "a device": (
        aten.zeros_like.default,
        (),
        {"device": torch.device("cpu")},
        "device(type='cpu')",
    ),
    "a complex number": (aten.mul.Tensor, (1j,), {}, "1j"),
    "a key": (aten.relu.default, (), {}, "under the key 1.5"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_no_file_can_hold(name: str, tmp_path: Path) -> None:
    target, args, kwargs, words = CANNOT[name]
    b = Builder()
    x = b.graph.placeholder("x")
    value = b.call(target, x, *args, **kwargs)
    output = {1.5: value} if name == "a key" else value
    program = b.program(output, (torch.ones(2),), REPORT, False)
    with pytest.raises(CheckpointError) as caught:
        program.save(tmp_path / "p.safetensors")
    assert words in str(caught.value)
    assert "the file" not in caught.value.fact
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["p", "p.txt", "p.pt", "p.safetensors.gz"])
def test_other_endings(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"use one of \.safetensors, \.pt2, \.onnx"):
        convolutional().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["safetensors", "pt2", "onnx"])
def test_a_directory_that_does_not_exist(ending: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        convolutional().save(tmp_path / "none" / f"p.{ending}")


# -- hostile files --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "program.safetensors"
    convolutional().save(path)
    return path


def test_an_edit_without_change_still_loads(saved: Path) -> None:
    before = saved.read_bytes()
    edit(saved, lambda description, tensors: None)
    assert saved.read_bytes() == before
    autoeidetic.load(saved)


def test_a_file_cut_short(saved: Path) -> None:
    content = saved.read_bytes()
    for length in (0, 4, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:length])
        fails(saved, "is not a safetensors file, or is damaged")


def test_every_flipped_byte_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    for position in range(8, len(content), 101):
        saved.write_bytes(
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        )
        with pytest.raises(CheckpointError):
            files.load(saved)


def test_edited_json(saved: Path) -> None:
    """The text of the header, without a new digest."""
    content = saved.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + size].replace(b"torch.relu", b"torch.tanh")
    assert len(header) == size
    saved.write_bytes(content[:8] + header + content[8 + size :])
    fails(saved, "is damaged or was edited: its digest is not right")
    assert (
        "torch.tanh"
        in json.loads(safe_open(saved, "pt").metadata()["autoeidetic"])["network"][
            "graph"
        ].__str__()
    )


def node(description: Any, name: str) -> Any:
    (found,) = [each for each in description["graph"] if each["name"] == name]
    return found


#: With a new digest each: only the loader stands between these and ``exec``.
EVIL = 'x"); __import__("os").system("touch broken"); ("'
EDITS: dict[str, tuple[Callable[[Any, dict[str, Tensor]], Any], str]] = {
    "os.system": (
        lambda d, t: node(d, "relu_default").update(target="os.system"),
        "'os.system' is not a function that a program may call",
    ),
    "builtins.eval": (
        lambda d, t: node(d, "relu_default").update(target="builtins.eval"),
        "'builtins.eval' is not a function",
    ),
    "a module of torch": (
        lambda d, t: node(d, "relu_default").update(target="torch.load"),
        "'torch.load' is not a function",
    ),
    "another library": (
        lambda d, t: node(d, "relu_default").update(target="torch.ops.prims.abs.default"),
        "is not a function",
    ),
    "an operator that reads files": (
        lambda d, t: node(d, "relu_default").update(target="torch.ops.aten.from_file.default"),
        "is not a function",
    ),
    "an operator that writes files": (
        lambda d, t: node(d, "relu_default").update(target="torch.ops.aten.save.default"),
        "is not a function",
    ),
    "an operator in place": (
        lambda d, t: node(d, "relu_default").update(target="torch.ops.aten.relu_.default"),
        "is not a function",
    ),
    "a private operator": (
        lambda d, t: node(d, "relu_default").update(target="torch.ops.aten._print.default"),
        "is not a function",
    ),
    "no overload": (
        lambda d, t: node(d, "relu_default").update(target="torch.ops.aten.relu.__class__"),
        "is not a function",
    ),
    "a function that is a list": (
        lambda d, t: node(d, "relu_default").update(target=["torch.relu"]),
        "is not a function",
    ),
    "arguments that an operator does not have": (
        lambda d, t: node(d, "relu_default").update(
            target="torch.ops.aten.relu.default", args={"tuple": []}
        ),
        "aten.relu.default takes self",
    ),
    "a method": (
        lambda d, t: node(d, "view_default").update(target="__reduce__"),
        "'__reduce__' is not a method that a program may call",
    ),
    "a method of a number": (
        lambda d, t: node(d, "view_default").update(args={"tuple": [1]}),
        "is not a method",
    ),
    "a call of a module": (
        lambda d, t: node(d, "relu_default").update(op="call_module"),
        "is no node",
    ),
    "code in the name of a node": (
        lambda d, t: node(d, "relu_default").update(name=EVIL),
        "is not a name",
    ),
    "code in the name of an input": (
        lambda d, t: node(d, "x").update(target="x=__import__('os').system('touch broken')"),
        "is not a name",
    ),
    "an input called self": (lambda d, t: node(d, "x").update(target="self"), "is not a name"),
    "code in the name of a tensor": (
        lambda d, t: (
            node(d, "fc_bias").update(target=f"fc.{EVIL}"),
            t.update({f"fc.{EVIL}": t.pop("fc.bias")}),
        ),
        "is not the name of a tensor",
    ),
    "code in a keyword": (
        lambda d, t: node(d, "cat_default").update(kwargs={"dict": [["dim=print()), (", 1]]}),
        "is not a name",
    ),
    "a keyword of Python": (
        lambda d, t: node(d, "cat_default").update(kwargs={"dict": [["class", 1]]}),
        "is not a name",
    ),
    "an unknown argument": (
        lambda d, t: node(d, "relu_default").update(args={"tuple": [{"pickle": "gASV"}]}),
        "is not that of a program",
    ),
    "an unknown type": (
        lambda d, t: node(d, "relu_default").update(args={"tuple": [{"dtype": "torch.os"}]}),
        "has a tensor type 'torch.os'",
    ),
    "a node that comes later": (
        lambda d, t: node(d, "relu_default").update(args={"tuple": [{"node": "linear_default"}]}),
        "relu_default reads 'linear_default', which does not come before it",
    ),
    "a node that reads itself": (
        lambda d, t: node(d, "relu_default").update(args={"tuple": [{"node": "relu_default"}]}),
        "which does not come before it",
    ),
    "a node that does not exist": (
        lambda d, t: node(d, "relu_default").update(args={"tuple": [{"node": "none"}]}),
        "which does not come before it",
    ),
    "two nodes of a name": (
        lambda d, t: d["graph"].insert(1, dict(d["graph"][1])),
        "two nodes have the name",
    ),
    "no output": (lambda d, t: d["graph"].pop(), "an output is not its last"),
    "two outputs": (
        lambda d, t: d["graph"].append({**d["graph"][-1], "name": "more"}),
        "an output is not its last",
    ),
    "a late input": (
        lambda d, t: d["graph"].insert(3, {**d["graph"][0], "name": "y", "target": "y"}),
        "inputs are not its first nodes",
    ),
    "an input with a default": (
        lambda d, t: node(d, "x").update(args={"tuple": [1]}),
        "x has 1 arguments",
    ),
    "no arguments": (lambda d, t: node(d, "relu_default").update(args=1), "has no arguments"),
    "no graph": (lambda d, t: d.update(graph=7), "is not that of a program"),
    "nodes that are none": (lambda d, t: d.update(graph=[1, 2]), "is not that of a program"),
    "a very deep argument": (
        lambda d, t: node(d, "relu_default").update(args=deep(300)),
        "cannot be made",
    ),
    "a tensor inside of a tensor": (
        lambda d, t: (
            node(d, "fc_bias").update(target="fc.weight.bias"),
            t.update({"fc.weight.bias": t.pop("fc.bias")}),
            d["tensors"].update({"fc.weight.bias": d["tensors"].pop("fc.bias")}),
            d["parameters"].update({"fc.weight.bias": d["parameters"].pop("fc.bias")}),
        ),
        "cannot be made",
    ),
    "missing tensor": (lambda d, t: t.pop("fc.bias"), "lacks or adds tensors: ['fc.bias']"),
    "extra tensor": (
        lambda d, t: t.update({"more": torch.ones(1)}),
        "lacks or adds tensors: ['more']",
    ),
    "a tensor that nobody reads": (
        lambda d, t: (
            t.update({"more": torch.ones(1)}),
            d["tensors"].update(more=["torch.float32", [1]]),
        ),
        "has a graph that adds ['more']",
    ),
    "a tensor that is not there": (
        lambda d, t: (
            t.pop("fc.bias"),
            d["tensors"].pop("fc.bias"),
            d["parameters"].pop("fc.bias"),
        ),
        "has a graph that lacks ['fc.bias']",
    ),
    "wrong shape": (
        lambda d, t: t.update({"fc.bias": torch.ones(6)}),
        "has fc.bias as torch.float32 [6], and its program expects ['torch.float32', [5]]",
    ),
    "wrong type": (
        lambda d, t: t.update({"fc.bias": torch.ones(5).double()}),
        "has fc.bias as torch.float64 [5]",
    ),
    "ties to nothing": (lambda d, t: d.update(same={"a": "b"}), "second names of tensors"),
    "parameters that are numbers": (
        lambda d, t: d["parameters"].update(_index_0=True),
        "parameters that can be none",
    ),
    "flags that are none": (
        lambda d, t: d["parameters"].update({"fc.bias": 1}),
        "parameters that can be none",
    ),
    "a missing field": (lambda d, t: d.pop("report"), "lacks or adds report"),
    "an extra field": (lambda d, t: d.update(code="print()"), "lacks or adds code"),
    "another kind": (lambda d, t: d.update(kind="more"), "is not that of a network"),
    "a report of nothing": (lambda d, t: d.update(report=None), "a report that is none"),
    "a report of words": (
        lambda d, t: d["report"].update(parameters_after="few"),
        "a report that is none",
    ),
    "other inputs": (
        lambda d, t: d["example"][0].update(name="y"),
        "example inputs that are not those of the program",
    ),
    "no modules": (lambda d, t: d.update(modules=[]), "modules that are not those of a program"),
    "a call in a later call": (
        lambda d, t: d["modules"].update(types={"": "Net"}, calls=[[1, ""], [-1, ""]]),
        "modules that are not those of a program",
    ),
    "a module in the place of a tensor": (
        lambda d, t: d["modules"].update(types={"fc.bias.inner": "Net"}),
        "modules that are not those of a program",
    ),
    "a module with the name of a method": (
        lambda d, t: d["modules"].update(types={"fc.forward": "Net"}),
        "modules that are not those of a program",
    ),
    "an operator in no call": (
        lambda d, t: d["modules"].update(nodes={"relu_default": 3}),
        "modules that are not those of a program",
    ),
    "a negative size": (
        lambda d, t: d["example"][0].update(shape=[-1, 3]),
        "example inputs that are not those of the program",
    ),
    "an endless size": (
        lambda d, t: d["example"][0].update(shape=[2**40, 2**40]),
        "example inputs that are not those of the program",
    ),
    "a value of another shape": (
        lambda d, t: d["example"][0].update(value=[1, 2], dtype="torch.int64"),
        "example inputs that are not those of the program",
    ),
    "an example of words": (
        lambda d, t: d["example"][0].update(value="evil"),
        "example inputs that are not those of the program",
    ),
}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"tuple": [value]}
    return value


@pytest.mark.parametrize("name", EDITS)
def test_edited_files_are_refused(name: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, words = EDITS[name]
    edit(saved, change)
    monkeypatch.chdir(saved.parent)
    fails(saved, words)
    assert os.listdir(saved.parent) == [saved.name]


def test_a_network_where_a_program_is_expected(tmp_path: Path) -> None:
    net = autoeidetic.convert(small(), torch.ones(2, 4))
    net.save(tmp_path / "net.safetensors")
    fails(tmp_path / "net.safetensors", "holds a network, not a program", files.load)


def test_a_program_where_a_network_is_expected(saved: Path) -> None:
    fails(saved, "is not that of a network", autoeidetic.audit)
    with pytest.raises(InputError, match="holds a program, which needs no model"):
        autoeidetic.load(saved, model=small())


def test_things_that_are_no_file(tmp_path: Path) -> None:
    fails(tmp_path / "none.safetensors", "does not exist")
    fails(tmp_path, "is a directory")
    assert archive.kind(tmp_path) == ""
    with pytest.raises(InputError, match="is not the path of a file"):
        autoeidetic.load(3)


def test_operators_that_a_file_may_name() -> None:
    """None that changes tensors, reads or writes files, or returns nothing."""
    names = torch._C._dispatch_get_all_op_names()
    allowed = set()
    for name in names:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::"):
            found = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if graph_json._is_harmless(found):
                allowed.add(packet)
                assert not any(
                    arg.alias_info and arg.alias_info.is_write for arg in found._schema.arguments
                )
                assert not any(arg.name == "filename" for arg in found._schema.arguments)
    assert {"conv2d", "lstm", "index", "_softmax", "grid_sampler_2d"} <= allowed
    assert not allowed & {"from_file", "save", "set_", "resize_", "_print", "manual_seed", "warn"}


class Applies(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.a, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.a(x)).mean((2, 3)))


PRIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "nearest": lambda h: F.interpolate(h, (5, 4), mode="nearest-exact"),
    "bilinear": lambda h: F.interpolate(h, (5, 4), mode="bilinear", antialias=True),
    "bicubic": lambda h: F.interpolate(h, (5, 4), mode="bicubic", antialias=True),
    "distances": lambda h: h @ torch.cdist(h, h),
    "determinant": lambda h: h * torch.linalg.det(h)[..., None, None].tanh(),
    "singular values": lambda h: h * torch.linalg.svdvals(h)[..., None],
    "solution": lambda h: torch.linalg.solve(h, h.mT),
}


@pytest.mark.filterwarnings("ignore::autoeidetic.errors.UnhandledOperatorWarning")
@pytest.mark.parametrize("name", PRIVATE)
def test_private_operators_of_models(name: str, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    program = autoeidetic.slim(Applies(PRIVATE[name]), 0.5, x)
    program.save(tmp_path / "program.safetensors")
    assert same(autoeidetic.load(tmp_path / "program.safetensors")(x), program(x))


# -- exported files -------------------------------------------------------------------------------


def test_pt2(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for batch, length in ((1, 3), (2, 4), (6, 7)):
        given = inputs(program, batch, length)
        assert close(loaded(*given.values()), program(**given))
    assert os.listdir(tmp_path) == ["program.pt2"]


@pytest.mark.slow
def test_onnx(program: Program, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "program.onnx"
    program.save(path)
    assert os.listdir(tmp_path) == ["program.onnx"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [str(node.target) for node in program.graph.find_nodes(op="placeholder")]
    assert [each.name for each in session.get_inputs()] == names
    for batch, length in ((1, 3), (2, 4), (6, 7)):
        given = inputs(program, batch, length)
        found = session.run(None, {name: value.numpy() for name, value in given.items()})
        assert close([torch.from_numpy(value) for value in found], program(**given))


def test_converted_programs_are_exported(tmp_path: Path) -> None:
    program = convolutional().double()
    program.save(tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    given = inputs(program, 3)["x"].double()
    assert close(loaded(given), program(given))


@pytest.mark.parametrize("missing", [["onnx"], ["onnx", "onnxscript"]])
def test_onnx_is_optional(missing: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    found = exported.find_spec
    monkeypatch.setattr(
        exported, "find_spec", lambda name: None if name in missing else found(name)
    )
    with pytest.raises(MissingPackageError) as caught:
        convolutional().save(tmp_path / "program.onnx")
    assert " and ".join(missing) in caught.value.fact
    assert 'pip install "autoeidetic[deploy]"' in caught.value.remedy
    assert not list(tmp_path.iterdir())


def sized() -> Program:
    """It says that its batch may vary, but adds a tensor that fixes it."""
    b = Builder()
    x = b.graph.placeholder("x")
    value = b.call(aten.add.Tensor, x, b.normal("weight", 2, 3, 4))
    report = replace(REPORT, dynamic=("x: dimension 0", "x: dimension 1"))
    return b.program(value, (torch.ones(2, 3, 4),), report, True)


def test_sizes_that_torch_must_fix_are_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="fixed in the exported file: x: dimension 0, x: dimen"):
        sized().save(tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    assert loaded(torch.ones(2, 3, 4)).shape == (2, 3, 4)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    b = Builder()
    x = b.graph.placeholder("x")
    value = b.call(aten.linear.default, x, b.normal("weight", 3, 5))
    program = b.program(value, (torch.ones(2, 4),), REPORT, True)
    with pytest.raises(CheckpointError, match=r"torch\.export does not accept the program"):
        program.save(tmp_path / "program.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_onnx_does_not_have(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The operator is named, and nothing else is printed."""
    pytest.importorskip("onnxscript")
    b = Builder()
    x = b.graph.placeholder("x")
    value = b.call(operator.getitem, b.call(aten.linalg_svd.default, x), 0)
    program = b.program(value, (torch.ones(2, 4),), REPORT, True)
    with pytest.raises(CheckpointError, match=r"ONNX has no counterpart .*aten\._linalg_svd"):
        program.save(tmp_path / "program.onnx")
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:sizes of inputs")  # torch fixes the length of an LSTM's input
def test_what_no_runtime_of_onnx_would_load(tmp_path: Path) -> None:
    """Torch writes a file for an LSTM with projections, but not one that runs."""
    pytest.importorskip("onnxscript")
    file = tmp_path / "program.onnx"
    program = autoeidetic.slim(Projected(), 1.0, torch.randn(2, 5, 6))
    with suppress(CheckpointError):
        program.save(file)
    if file.exists():  # later versions of torch
        session = pytest.importorskip("onnxruntime").InferenceSession(file)
        x = torch.randn(3, 5, 6)
        (found,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), program(x).detach())


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(6, 8, proj_size=4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0].mean(1))


def test_what_is_too_large_for_onnx(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(exported, "_MOST_BYTES", 1000)
    with pytest.raises(CheckpointError, match="ONNX files have at most 2 GiB"):
        convolutional().save(tmp_path / "program.onnx")
