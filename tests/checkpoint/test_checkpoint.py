"""A network in a file: what comes out is what went in, bit for bit, or an error that says why."""

from __future__ import annotations

import ast
import copy
import json
import os
import pickle
import random
import resource
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lives
import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import save_file
from sweeps import every_fourth
from torch import Tensor, nn
from zoo import ZOO

import autoeidetic
from autoeidetic.checkpoint import rebuild
from autoeidetic.common import archive
from autoeidetic.errors import CheckpointError, InputError, TaskError
from autoeidetic.net import EideticNet

# -- helpers --------------------------------------------------------------------------------------


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def task(net: EideticNet, inputs: Any, number: int, *, finish: bool = True) -> None:
    """A task from a fixed seed: trained, pruned, recovered, finished."""
    torch.manual_seed(100 + number)
    net.prepare_for_task(number, on_full="reuse")
    half = any(parameter.dtype == torch.float16 for parameter in net.parameters())
    lives.train(net, inputs, [lives.sgd(net) if half else lives.adamw(net)])  # Adam needs range
    net.prune(0.4)
    if finish:
        rest(net, inputs)


def rest(net: EideticNet, inputs: Any) -> None:
    """What is left of a task after pruning."""
    torch.manual_seed(7)
    lives.train(net, inputs, [lives.sgd(net)], steps=1)
    net.finish_task()


def bits(tensor: Tensor) -> tuple[Any, ...]:
    """All there is to a tensor: minus zero is not zero, and NaN is itself."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device.type, data


def everything(net: EideticNet, inputs: Any) -> dict[str, Any]:
    """All values, pins and buffers included, all flags, and what every task says."""
    tensors = dict([*net.named_parameters(), *net.named_buffers()])
    found: dict[str, Any] = {name: bits(tensor) for name, tensor in tensors.items()}
    found["requires_grad"] = [name for name, p in net.named_parameters() if p.requires_grad]
    found["modes"] = [(name, module.training) for name, module in net.named_modules()]
    found["tasks"], found["open"] = net.tasks, net.open_task
    found["owners"], found["pruned"] = net.owners.task.tolist(), net.owners.pruned.tolist()
    found["spreads"] = net.spreads
    found["options"] = (net.owners.forward_transfer, net.keep_head, net.recycle)
    if net.tasks:
        found["capacity"] = net.capacity().to_dict()
    for index in range(len(net.tasks)):
        said = lives.tensors(lives.answer(net, inputs, index))
        found[f"task {index} says"] = [bits(value) for value in said]
    return found


def differences(left: EideticNet, right: EideticNet, inputs: Any) -> list[str]:
    one, other = everything(left, inputs), everything(right, inputs)
    return [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]


def reloaded(net: EideticNet, path: Path, model: nn.Module | None = None) -> EideticNet:
    net.save(path)
    return autoeidetic.load(path, model=model)


def resumes(net: EideticNet, again: EideticNet, inputs: Any) -> None:
    """The loaded network goes through the next task as the saved one does."""
    assert not differences(net, again, inputs)
    if net.open_task is not None:
        for each in (net, again):
            rest(each, inputs)
        assert not differences(net, again, inputs)
    for each in (net, again):
        task(each, inputs, len(each.tasks))
    assert not differences(net, again, inputs)


def started(build: Callable[[], nn.Module], inputs: Any, when: str, **options: Any) -> EideticNet:
    """A network after its first task, or in the middle of the second."""
    net = autoeidetic.convert(lives.randomise(build()), inputs, **options)
    task(net, inputs, 0)
    if when == "in the middle":
        task(net, inputs, 1, finish=False)
    return net


WHEN = ("between tasks", "in the middle")

# -- resuming -------------------------------------------------------------------------------------

#: Running statistics, norms by level, modules run level by level, recurrences, computed weights,
#: ties, tables of indices, integers and dictionaries as inputs, heads of every kind.
MODELS = """
conv_bn_relu residual batch_norm_no_affine instance_norm_stats layer_norm group_norm rms_norm
eca global_response_norm lstm gru_states std_conv scaled_std_grouped tied_linear tied_transposed
shared_bias called_twice multihead_self transformer_encoder_pre_norm swin_block window_attention
relative_position_bias position_embedding embedding dict_input two_inputs dict_output two_heads
conv_head_pooled dense_prediction einsum_parameter mixture_of_experts buffer_mask
unused_parameter learned_condition weight_norm_conv
""".split()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", every_fourth(MODELS))
def test_resuming_is_as_if_one_had_never_stopped(name: str, when: str, tmp_path: Path) -> None:
    model, inputs = ZOO[name]()
    net = started(lambda: model, inputs, when)
    other = lives.randomise(ZOO[name]()[0], seed=3)
    resumes(net, reloaded(net, tmp_path / "net", other), inputs)


class Features(nn.Module):
    """No output layer: heads are attached to what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.more = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y + self.more(y).relu()


class Caches(nn.Module):
    """A permutation, a random constant and a table that no state_dict holds; a cache that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("order", torch.randperm(8))
        self.register_buffer("noise", torch.randn(1, 1), persistent=False)
        self.register_buffer("grown", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.grown = torch.zeros(len(x))
        return self.second(self.first(x).relu()[:, self.order]) + self.noise


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("build", "inputs", "options"),
    [
        (small, (2, 4), {"forward_transfer": False}),
        (small, (2, 4), {"keep_head": True}),
        (small, (2, 4), {"recycle": "keep"}),
        (small, (2, 4), {"forward_transfer": False, "keep_head": True, "recycle": "keep"}),
        (Features, (2, 3, 6, 6), {}),
        (Caches, (2, 4), {}),
    ],
)
def test_options_and_kinds_of_state(
    build: Any, inputs: Any, options: Any, when: str, tmp_path: Path
) -> None:
    x = torch.randn(inputs)
    net = autoeidetic.convert(lives.randomise(build()), x, **options)
    sizes: dict[str, Any] = {"num_classes": 3}
    for number in range(1 + (when != "between tasks")):
        net.prepare_for_task(number, **sizes)
        lives.train(net, x, [lives.adamw(net)])
        net.prune(0.4)
        if number == 0:
            net.finish_task()
    again = reloaded(net, tmp_path / "net", build())
    assert not differences(net, again, x)
    for each in (net, again):
        if each.open_task is not None:
            rest(each, x)
        torch.manual_seed(1)
        each.prepare_for_task(len(each.tasks), **sizes)
        lives.train(each, x, [lives.adamw(each)])
    assert not differences(net, again, x)


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda: timm.create_model("test_resnet", num_classes=5), 32),
        (lambda: timm.create_model("test_vit", num_classes=5, img_size=32, in_chans=1), 32),
        (lambda: torchvision.models.shufflenet_v2_x0_5(num_classes=5), 32),
    ],
    ids=["test_resnet", "test_vit", "shufflenet_v2_x0_5"],
)
def test_models_of_timm_and_torchvision_come_back_by_name(
    build: Any, size: int, when: str, tmp_path: Path
) -> None:
    model = build()
    channels = next(m for m in model.modules() if isinstance(m, nn.Conv2d)).in_channels
    inputs = torch.randn(2, channels, size, size)
    net = started(lambda: model, inputs, when)
    resumes(net, reloaded(net, tmp_path / "net"), inputs)


def test_a_saved_network_can_be_saved_again_to_the_same_bytes(tmp_path: Path) -> None:
    model, inputs = ZOO["embedding"]()
    net = started(lambda: model, inputs, "in the middle")
    again = reloaded(net, tmp_path / "net", ZOO["embedding"]()[0])
    again.save(tmp_path / "again")
    assert (tmp_path / "net").read_bytes() == (tmp_path / "again").read_bytes()


def test_before_the_first_task(tmp_path: Path) -> None:
    net = autoeidetic.convert(small(), torch.randn(2, 4))
    again = reloaded(net, tmp_path / "net", small())
    assert not differences(net, again, None)
    x = torch.randn(2, 4)
    for each in (net, again):
        task(each, x, 0)
    assert not differences(net, again, x)


@pytest.mark.slow
def test_another_process_with_other_hashes(tmp_path: Path) -> None:
    """Classes have the same numbers there: nothing in the analysis hangs on the order of a set."""
    x = torch.randn(2, 3, 32, 32)
    model = timm.create_model("test_vit", num_classes=5, img_size=32)
    net = started(lambda: model, x, "between tasks")
    net.save(tmp_path / "net")
    task(net, x, 1)
    net.save(tmp_path / "here")
    save_file({"x": x}, tmp_path / "x")
    code = f"""
import sys, torch, autoeidetic, safetensors.torch
sys.path.insert(0, "tests")
torch.set_num_threads(1)
from checkpoint import test_checkpoint
net = autoeidetic.load(r"{tmp_path / "net"}")
test_checkpoint.task(net, safetensors.torch.load_file(r"{tmp_path / "x"}")["x"], 1)
net.save(r"{tmp_path / "there"}")
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, check=True)
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


# -- precision, layout, flags ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("changed", ["before", "after"])
def test_precision(dtype: torch.dtype, changed: str, tmp_path: Path) -> None:
    """Converted in another precision than float32, or brought to it afterwards."""
    model, x = ZOO["conv_bn_relu"]()
    if changed == "before":
        net = autoeidetic.convert(lives.randomise(model).to(dtype), x.to(dtype))
    else:
        net = autoeidetic.convert(lives.randomise(model), x).to(dtype)
    x = x.to(dtype)
    task(net, x, 0)
    again = reloaded(net, tmp_path / "net", ZOO["conv_bn_relu"]()[0])
    assert next(again.backbone.parameters()).dtype == dtype
    resumes(net, again, x)


def test_precision_that_was_lost_stays_lost(tmp_path: Path) -> None:
    """Buffers that no state_dict holds have been rounded, too."""
    x = torch.randn(2, 4)
    net = autoeidetic.convert(Caches(), x).half().float()
    task(net, x, 0)
    resumes(net, reloaded(net, tmp_path / "net", Caches()), x)


def test_layout_in_memory(tmp_path: Path) -> None:
    model, x = ZOO["conv_bn_relu"]()
    net = autoeidetic.convert(lives.randomise(model), x).to(memory_format=torch.channels_last)
    task(net, x, 0)
    assert any(not p.is_contiguous() for p in net.backbone.parameters())
    resumes(net, reloaded(net, tmp_path / "net", ZOO["conv_bn_relu"]()[0]), x)


def test_modes_and_gradients(tmp_path: Path) -> None:
    model, x = ZOO["residual"]()
    net = started(lambda: model, x, "in the middle")
    net.train()
    modules = list(net.backbone.modules())
    modules[2].eval()
    next(net.backbone.parameters()).requires_grad_(False)
    again = reloaded(net, tmp_path / "net", ZOO["residual"]()[0])
    assert [m.training for m in net.modules()] == [m.training for m in again.modules()]
    assert not differences(net, again, x)
    net.eval()
    assert not reloaded(net, tmp_path / "net", ZOO["residual"]()[0]).training


def test_ties_are_ties_again_and_stored_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(self.one(x).relu()).relu())

    x = torch.randn(2, 6)
    net = started(Tied, x, "between tasks")
    again = reloaded(net, tmp_path / "net", Tied())
    assert again.backbone.two.weight is again.backbone.one.weight
    with safe_open(tmp_path / "net", framework="pt") as file:
        assert "backbone.two.weight" not in file.keys()  # noqa: SIM118
    resumes(net, again, x)


def test_the_model_passed_is_not_touched_and_may_be_empty(tmp_path: Path) -> None:
    model, x = ZOO["lstm"]()
    net = started(lambda: model, x, "between tasks")
    fresh = ZOO["lstm"]()[0]
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    net.save(tmp_path / "net")
    autoeidetic.load(tmp_path / "net", model=fresh)
    assert all(torch.equal(before[name], t) for name, t in fresh.state_dict().items())
    assert type(fresh) is type(ZOO["lstm"]()[0])
    resumes(net, autoeidetic.load(tmp_path / "net", model=fresh.to("meta")), x)


def test_pins_hold_in_a_loaded_network(tmp_path: Path) -> None:
    model, x = ZOO["conv_bn_relu"]()
    net = started(lambda: model, x, "between tasks")
    net = reloaded(net, tmp_path / "net", copy.deepcopy(model))
    before = lives.answers(net, x, 0)
    net.prepare_for_task(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    lives.train(net, x, [lives.adamw(net)])
    assert lives.same(lives.answers(net, x, 0), before)
    assert net.verify(x).ok


def test_what_was_changed_by_hand_is_put_right_before_saving(tmp_path: Path) -> None:
    model, x = ZOO["conv_bn_relu"]()
    net = started(lambda: model, x, "between tasks")
    before = lives.answers(net, x, 0)
    for parameter in net.parameters():
        parameter.data.add_(1)  # leaves no trace
    again = reloaded(net, tmp_path / "net", ZOO["conv_bn_relu"]()[0])
    assert lives.same(lives.answers(again, x, 0), before)


class Counts(nn.Module):
    """What it computes hangs on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.one = nn.Embedding(9, 8), nn.Linear(8, 8)
        self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words).mean(1)
        return self.head(self.one(x).relu() if int(words.max()) > 4 else self.two(x).tanh())


def test_integers_of_the_example_are_kept(tmp_path: Path) -> None:
    words = torch.tensor([[1, 8, 3], [4, 5, 6]])
    net = started(Counts, words, "between tasks")
    resumes(net, reloaded(net, tmp_path / "net", Counts()), words)


@pytest.mark.slow
def test_generators_are_left_alone(tmp_path: Path) -> None:
    net = autoeidetic.convert(torchvision.models.regnet_y_400mf(num_classes=2))
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    reloaded(net, tmp_path / "net")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


@pytest.mark.slow
def test_the_file_is_about_as_large_as_the_model(tmp_path: Path) -> None:
    net = autoeidetic.convert(timm.create_model("resnet10t", num_classes=10))
    model = sum(t.numel() * t.element_size() for t in net.backbone.state_dict().values())
    for number in range(3):
        net.prepare_for_task(number, num_classes=10)
        net.prune(0.5)
        net.finish_task()
    net.save(tmp_path / "net")
    heads = sum(t.numel() * t.element_size() for t in net.heads.state_dict().values())
    assert model < (tmp_path / "net").stat().st_size < 1.01 * (model + heads)


# -- rolling back ---------------------------------------------------------------------------------


def test_a_later_task_is_rolled_back_after_loading(tmp_path: Path) -> None:
    model, x = ZOO["conv_bn_relu"]()
    net = started(lambda: model, x, "in the middle")
    again = reloaded(net, tmp_path / "net", ZOO["conv_bn_relu"]()[0])
    for each in (net, again):
        each.rollback()
    assert not differences(net, again, x)


@pytest.mark.parametrize(("recycle", "number"), [("reinit", 0), ("keep", 0), ("keep", 1)])
def test_a_start_that_no_seed_gives_is_forgotten(recycle: str, number: int, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    net = autoeidetic.convert(small(), x, recycle=recycle)
    for index in range(number):
        task(net, x, index)
    task(net, x, number, finish=False)
    again = reloaded(net, tmp_path / "net", small())
    with pytest.raises(TaskError, match="not known any more"):
        again.rollback()
    assert not differences(net, again, x)
    rest(again, x)
    rest(net, x)
    assert not differences(net, again, x)


# -- how models are rebuilt -----------------------------------------------------------------------


def test_recipes() -> None:
    def recipe(model: nn.Module, classes: int) -> Any:
        found = rebuild.recipe(model, classes)
        return found.get("name"), found.get("arguments", found.get("why_not"))

    vit = timm.create_model("test_vit", num_classes=5, in_chans=1, img_size=96)
    arguments = {"num_classes": 5, "in_chans": 1, "img_size": [96, 96]}
    assert recipe(vit, 5) == ("test_vit", arguments)
    replaced = torchvision.models.mobilenet_v3_small()
    replaced.classifier[3] = nn.Linear(1024, 4)
    assert recipe(replaced, 4) == ("mobilenet_v3_small", {"num_classes": 4})
    stem_computes = torchvision.models.regnet_y_400mf(num_classes=2)  # not on meta
    assert recipe(stem_computes, 2) == ("regnet_y_400mf", {"num_classes": 2})
    stochastic = timm.create_model("test_efficientnet", drop_rate=0.2)
    name, why = recipe(stochastic, 1000)
    assert name is None
    assert "drop_rate = 0.2, not '' has drop_rate = 0.0" in why
    hooked = timm.create_model("test_resnet")
    hooked.conv1.register_forward_hook(lambda *args: None)
    assert recipe(hooked, 1000)[0] is None
    cut = timm.create_model("test_resnet")
    cut.layer4 = nn.Identity()
    assert recipe(cut, 1000)[0] is None
    assert "is not a model of timm or torchvision" in recipe(small(), 3)[1]


def test_a_guard_does_not_show_in_a_description() -> None:
    model = timm.create_model("test_vit", num_classes=5, img_size=32)
    net = autoeidetic.convert(model, torch.randn(2, 3, 32, 32))
    task(net, torch.randn(2, 3, 32, 32), 0)
    assert repr(net.backbone) == repr(model)
    assert rebuild.describe(net.backbone) == rebuild.describe(model)


def test_without_a_recipe_the_model_must_be_passed(tmp_path: Path) -> None:
    autoeidetic.convert(small(), torch.randn(2, 4)).save(tmp_path / "net")
    with pytest.raises(CheckpointError, match="does not tell how to build the model") as caught:
        autoeidetic.load(tmp_path / "net")
    assert "model=" in caught.value.remedy
    with pytest.raises(InputError, match=r"not a torch\.nn\.Module"):
        autoeidetic.load(tmp_path / "net", model=nn.Linear)  # type: ignore[arg-type]


class Wider(nn.Module):
    def __init__(self, *, activation: Any = torch.relu, swap: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)
        self.activation, self.swap = activation, swap

    def forward(self, x: Tensor) -> Tensor:
        if self.swap:
            return self.c(self.activation(self.a(x) * self.b(x).mean(1, keepdim=True)))
        return self.c(self.activation(self.a(x) * self.b(x)))


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (lambda: Wider(activation=torch.tanh), "is of another model: operators differ"),
        (lambda: Wider(swap=True), "is of another model: number of units"),
        (lambda: nn.Sequential(Wider()), "has nothing for backbone.0.a.weight"),
        (lambda: nn.Linear(4, 3), "has nothing for backbone.weight"),
        (lambda: _with(Wider(), c=nn.Linear(6, 5)), "has backbone.c.weight of shape [3, 6]"),
        (lambda: _with(Wider(), c=nn.Linear(6, 3, bias=False)), "has backbone.c.bias, for which"),
        (lambda: autoeidetic.convert(Wider(), torch.randn(2, 4)), "has nothing for backbone.back"),
    ],
)
def test_another_model_is_refused(model: Any, fact: str, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    started(Wider, x, "between tasks").save(tmp_path / "net")
    fails(tmp_path / "net", fact, model())


def _with(model: nn.Module, **parts: nn.Module) -> nn.Module:
    for name, part in parts.items():
        setattr(model, name, part)
    return model


def test_part_of_a_network_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    net = started(Wider, x, "between tasks")
    net.save(tmp_path / "net")
    fails(tmp_path / "net", "needs a model that is not part of a network", net.backbone)


# -- what cannot be saved -------------------------------------------------------------------------


def test_state_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"anything": 1}

        def set_extra_state(self, state: Any) -> None: ...

    shared = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    shared[1].weight = nn.Parameter(shared[0].weight.data)
    for model, fact in [
        (nn.Sequential(Extra(4, 8), nn.Linear(8, 2)), "extra state"),
        (small().to("meta"), "no values"),
        (shared, "different parameters in one memory"),
    ]:
        net = autoeidetic.convert(model, torch.randn(2, 4), inplace=True)  # a copy shares nothing
        with pytest.raises(CheckpointError, match=fact) as caught:
            net.save(tmp_path / "net")
        assert str(tmp_path / "net") in str(caught.value)
        assert caught.value.remedy
    assert not list(tmp_path.iterdir())


# -- writing --------------------------------------------------------------------------------------


def test_paths(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    net = started(small, x, "between tasks")
    net.save(str(tmp_path / "a name with ünïcode.net"))
    (tmp_path / "link").symlink_to(tmp_path / "target")
    net.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    os.chmod(tmp_path / "target", 0o640)
    net.save(tmp_path / "target")
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o640
    for path in tmp_path.iterdir():
        assert not differences(net, autoeidetic.load(path, model=small()), x)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.fixture
def kept(tmp_path: Path) -> tuple[EideticNet, Path, bytes]:
    """A network, a file with an older state of it, and what is in the file."""
    net = autoeidetic.convert(small(), torch.randn(2, 4))
    net.save(tmp_path / "net")
    task(net, torch.randn(2, 4), 0)
    return net, tmp_path / "net", (tmp_path / "net").read_bytes()


@pytest.mark.parametrize(
    "step", ["safetensors.torch.save_file", "autoeidetic.common.files.to_disk", "os.replace"]
)
def test_a_failure_leaves_the_old_file(step: str, kept: Any, monkeypatch: Any) -> None:
    net, path, before = kept

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, fail)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        net.save(path)
    assert str(path) in str(caught.value)
    assert "has room" in caught.value.remedy
    assert [path.read_bytes()] == [each.read_bytes() for each in path.parent.iterdir()] == [before]


def test_an_interruption_leaves_the_old_file(kept: Any, monkeypatch: Any) -> None:
    net, path, before = kept

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        net.save(path)
    assert [each.read_bytes() for each in path.parent.iterdir()] == [before]


def test_a_full_disk_leaves_the_old_file(kept: Any) -> None:
    net, path, before = kept
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(CheckpointError, match="cannot be written"):
            net.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.read_bytes() for each in path.parent.iterdir()] == [before]


@pytest.mark.parametrize("where", ["missing/net", "file/net", "folder", "long" * 99])
def test_a_place_that_cannot_be_written_to(where: str, kept: Any) -> None:
    net, path, _ = kept
    (path.parent / "file").write_text("")
    (path.parent / "folder").mkdir()
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(CheckpointError, match="cannot be written"):
        net.save(path.parent / where)
    assert sorted(path.parent.rglob("*")) == before


@pytest.mark.parametrize("reader", [False, True])
def test_a_fifo_is_not_replaced(reader: bool, tmp_path: Path) -> None:
    net, fifo = autoeidetic.convert(small(), torch.randn(2, 4)), tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK) if reader else None
    for path in (fifo, tmp_path / "link"):
        for call in (net.save, lambda path: autoeidetic.load(path, small()), autoeidetic.audit):
            with pytest.raises(CheckpointError, match=f"^'{path}' .*is a FIFO") as caught:
                call(path)
            assert "the path of a file" in caught.value.remedy
    assert fifo.is_fifo()
    assert len(list(tmp_path.iterdir())) == 2
    if descriptor is not None:
        os.close(descriptor)


def test_a_socket_and_a_device_are_not_replaced(tmp_path: Path) -> None:
    net = autoeidetic.convert(small(), torch.randn(2, 4))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(tmp_path / "s"))
        with pytest.raises(CheckpointError, match="is a socket"):
            net.save(tmp_path / "s")
    device = Path("/dev/null")
    if os.geteuid() == 0:  # who could replace the one of the system
        device = tmp_path / "null"
        try:
            os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError:
            pytest.skip("no device can be made here")
    with pytest.raises(CheckpointError, match="cannot be written: it is a device"):
        net.save(device)
    assert device.is_char_device()


def test_an_open_file_without_a_name(tmp_path: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("open files have no paths here")
    net = autoeidetic.convert(small(), torch.randn(2, 4))
    with open(tmp_path / "file", "wb") as file:
        (tmp_path / "file").unlink()
        with pytest.raises(CheckpointError, match="a link to a file without a name"):
            net.save(f"/proc/self/fd/{file.fileno()}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 3, "", b"net", "a\0b", "\ud800", ["net"], 1.5])
def test_what_is_no_path(path: Any) -> None:
    net = autoeidetic.convert(small(), torch.randn(2, 4))
    net.prepare_for_task(0)
    data = [(torch.randn(2, 4), torch.zeros(2, dtype=torch.int64))]
    calls: dict[str, Callable[[], Any]] = {
        "path": lambda: net.save(path),
        "path ": lambda: autoeidetic.load(path, small()),
        "path  ": lambda: autoeidetic.audit(path, small()),
    }
    if path is not None:  # which keeps states in memory
        calls["checkpoint"] = lambda: net.train_task(data, checkpoint=path, progress=False)
    for what, call in calls.items():
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.fact.startswith(f"{what.strip()} is {path!r}, which is not the path")
        assert "pathlib.Path" in caught.value.remedy


#: What a fact without a subject begins with.
VERBS = "is has was cannot does did needs holds are had gives takes makes will must".split()


def test_every_fact_has_a_subject() -> None:
    """Errors are sentences: no text of one in the package begins with a verb."""
    wrong = []
    for file in sorted(Path(autoeidetic.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if not node.func.id.endswith(("Error", "kind")) or not node.args:
                continue
            fact: Any = node.args[0]
            fact = fact.values[0] if isinstance(fact, ast.JoinedStr) else fact
            text = fact.value if isinstance(fact, ast.Constant) else ""
            if isinstance(text, str) and text.split()[:1] and text.split()[0] in VERBS:
                wrong.append(f"{file.name}:{node.lineno}: {text}")
    assert wrong == []


# -- damage ---------------------------------------------------------------------------------------


def fails(path: Path, fact: str, model: nn.Module | None = None) -> None:
    """Loading says what is wrong, where, and what to do."""
    with pytest.raises(CheckpointError) as caught:
        autoeidetic.load(path, model=small() if model is None else model)
    assert fact in str(caught.value)
    assert str(caught.value).startswith(f"'{path}' ")
    assert caught.value.remedy


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small network in the middle of its second task, in a file."""
    started(small, torch.randn(2, 4), "in the middle").save(tmp_path / "net")
    return tmp_path / "net"


@pytest.mark.slow
def test_every_flipped_bit_is_found(saved: Path) -> None:
    intact = saved.read_bytes()
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        saved.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            autoeidetic.load(saved, model=small())
    saved.write_bytes(intact)
    autoeidetic.load(saved, model=small())


def test_every_cut_is_found(saved: Path) -> None:
    intact = saved.read_bytes()
    for length in [*range(200), *range(200, len(intact), 97), len(intact) - 1]:
        saved.write_bytes(intact[:length])
        fails(saved, "damaged")
    saved.write_bytes(intact + b"x")
    fails(saved, "damaged")


def test_what_is_no_saved_network(tmp_path: Path) -> None:
    fails(tmp_path / "missing", "does not exist")
    fails(tmp_path, "is a directory")
    (tmp_path / "empty").write_bytes(b"")
    fails(tmp_path / "empty", "is not a safetensors file, or is damaged")
    save_file(small().state_dict(), tmp_path / "foreign")
    fails(tmp_path / "foreign", "a safetensors file that net.save has not written")
    save_file(small().state_dict(), tmp_path / "tagged", {"format": "pt"})
    fails(tmp_path / "tagged", "a safetensors file that net.save has not written")
    torch.save(small().state_dict(), tmp_path / "torch")
    fails(tmp_path / "torch", "is not a safetensors file, or is damaged")
    (tmp_path / "long").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    fails(tmp_path / "long", "is not a safetensors file, or is damaged")
    for text in ("[]", "{}", "null", "{", '{"format":1}', '{"format":"1"}', ""):
        save_file({}, tmp_path / "text", {"autoeidetic": text})
        fails(tmp_path / "text", "is damaged or was edited")


class Malicious:
    def __reduce__(self) -> Any:
        return (os.mkdir, (os.environ["AUTOEIDETIC_TRAP"],))


def test_no_code_is_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("AUTOEIDETIC_TRAP", str(tmp_path / "trap"))
    for name, write in [("pickle", pickle.dumps), ("torch", _torch_bytes)]:
        (tmp_path / name).write_bytes(write(Malicious()))
        fails(tmp_path / name, "is not a safetensors file, or is damaged")
        assert not (tmp_path / "trap").exists()
    pickle.loads((tmp_path / "pickle").read_bytes())  # it does bite
    assert (tmp_path / "trap").exists()


def _torch_bytes(value: Any) -> bytes:
    import io

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


# -- edits whose digest is right ------------------------------------------------------------------


def edit(path: Path, change: Callable[[Any, dict[str, Tensor]], None]) -> None:
    description, tensors = archive.read(path)
    change(description, tensors)
    archive.write(path, description, tensors)


def test_an_edit_without_change_still_loads(saved: Path) -> None:
    edit(saved, lambda description, tensors: None)
    autoeidetic.load(saved, model=small())


def test_a_later_format(saved: Path, monkeypatch: Any) -> None:
    _, tensors = archive.read(saved)
    with monkeypatch.context() as later:
        later.setattr(archive, "FORMAT", 2)
        archive.write(saved, {"of": "the future"}, tensors)
    fails(saved, "has format 2, and this autoeidetic reads up to 1")


TENSORS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing value": (lambda t: t.pop("backbone.0.weight"), "has nothing for backbone.0.weight"),
    "extra value": (lambda t: t.update({"backbone.9.weight": torch.ones(1)}), "has no place"),
    "missing head": (lambda t: t.pop("heads.1.2.bias"), "has nothing for heads.1.2.bias"),
    "extra head": (lambda t: t.update({"heads.2.2.bias": torch.ones(3)}), "has no place"),
    "another head": (
        lambda t: t.update({"heads.1.2.weight": torch.ones(5, 8)}),
        "has heads.1.2.weight of shape [5, 8], and the network has it of shape [3, 8]",
    ),
    "integers": (
        lambda t: t.update({"backbone.0.bias": torch.ones(8, dtype=torch.int64)}),
        "of torch.int64",
    ),
    "unknown": (lambda t: t.update({"other": torch.ones(1)}), "of an unknown kind"),
    "no owners": (lambda t: t.pop("owners"), "does not have owners for every unit"),
    "few owners": (
        lambda t: t.update(owners=t["owners"][:-1]),
        "does not have owners for every unit",
    ),
    "no pruned": (lambda t: t.pop("pruned"), "does not have pruned for every unit"),
    "owner to come": (lambda t: t["owners"].fill_(1), "has owners that are not finished tasks"),
    "negative owner": (lambda t: t["owners"].fill_(-2), "has owners that are not finished tasks"),
    "real owners": (
        lambda t: t.update(owners=t["owners"].float()),
        "owners that are not finished tasks",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_do_not_fit(name: str, saved: Path) -> None:
    change, fact = TENSORS[name]
    edit(saved, lambda _, tensors: change(tensors))
    fails(saved, fact)


DESCRIPTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "task missing": (lambda d: d["tasks"].pop(), "for which the network has no place"),
    "tasks swapped": (lambda d: d["tasks"].reverse(), "does not follow"),
    "two open": (lambda d: d["tasks"][0].update(finished=False), "does not follow"),
    "another head": (lambda d: d["tasks"][1].update(classes={"7": 3}), "does not follow"),
    "head size": (lambda d: d["tasks"][1]["classes"].update({"2": 4}), "of shape [3, 8]"),
    "spread missing": (lambda d: d["spreads"].pop("0.bias"), "has no spread of every parameter"),
    "recycle": (lambda d: d["options"].update(recycle="burn"), "recycle='burn' is unknown"),
    "text": (lambda d: d["options"].update(keep_head="yes"), "is not that of a network"),
    "a number for a name": (lambda d: d["tasks"][0].update(name=3), "is not that of a network"),
    "example": (lambda d: d.update(example=[{"tuple": 3}, {"dict": []}]), "example inputs"),
    "example type": (lambda d: _example(d).update(dtype="torch.load"), "type 'torch.load'"),
    "example shape": (lambda d: _example(d).update(shape=[2, 5]), "does not fit the model"),
    "example value": (lambda d: _example(d).update(value="nowhere"), "example inputs"),
    "analysed": (lambda d: d.update(analysed_as={"backbone.0.bias": "os"}), "tensor type 'os'"),
}  # fmt: skip


def _example(description: Any) -> Any:
    return description["example"][0]["tuple"][0]


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_that_do_not_fit(name: str, saved: Path) -> None:
    change, fact = DESCRIPTIONS[name]
    edit(saved, lambda description, _: change(description))
    fails(saved, fact)


def test_incomplete_descriptions(saved: Path) -> None:
    description, tensors = archive.read(saved)
    for key in description:
        archive.write(saved, {k: v for k, v in description.items() if k != key}, tensors)
        fails(saved, "has a description that is not that of a network")
    archive.write(saved, [], tensors)  # type: ignore[arg-type]
    fails(saved, "has a description that is not that of a network")


@pytest.mark.parametrize(
    "recipe",
    [
        {"library": "os", "name": "system", "arguments": {}},
        {"library": "timm", "name": "hf-hub:someone/something", "arguments": {}},
        {"library": "timm", "name": "local-dir:/tmp", "arguments": {}},
        {"library": "timm", "name": "test_vit", "arguments": {"checkpoint_path": "/tmp/x"}},
        {"library": "timm", "name": "test_vit", "arguments": {"num_classes": "3"}},
        {"library": "timm", "name": "test_vit", "arguments": ["num_classes"]},
        {"library": "timm", "name": ["test_vit"], "arguments": {}},
        {"library": ["timm"], "name": "test_vit", "arguments": {}},
        {"library": "torchvision", "name": "__import__", "arguments": {}},
        {"library": "torchvision", "name": "resnet18", "arguments": {"weights": 1}},
        {},
    ],
)
def test_only_known_models_are_built(recipe: Any, saved: Path, monkeypatch: Any) -> None:
    built: list[str] = []
    monkeypatch.setattr(rebuild, "_build", lambda *args: built.append("something"))
    edit(saved, lambda description, _: description.update(recipe=recipe))
    with pytest.raises(CheckpointError, match="which is not known here"):
        autoeidetic.load(saved)
    assert not built


def test_a_model_that_cannot_be_built(saved: Path) -> None:
    recipe = {"library": "timm", "name": "test_vit", "arguments": {"in_chans": -3}}
    edit(saved, lambda description, _: description.update(recipe=recipe))
    with pytest.raises(CheckpointError, match="which cannot be built"):
        autoeidetic.load(saved)


def test_the_text_of_the_description_counts(saved: Path) -> None:
    """The same description in other words is an edit, too."""
    with safe_open(saved, framework="pt") as file:
        text = file.metadata()["autoeidetic"]
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    save_file(tensors, saved, {"autoeidetic": text.replace(":true", ": true")})
    fails(saved, "is damaged or was edited")
    save_file(tensors, saved, {"autoeidetic": text})
    autoeidetic.load(saved, model=small())


def test_strides_with_holes(tmp_path: Path) -> None:
    """Not even a right digest gets more memory than there are values."""
    archive.write(tmp_path / "net", {}, {"t": torch.ones(2, 3).t()})
    with safe_open(tmp_path / "net", framework="pt") as file:
        outer = json.loads(file.metadata()["autoeidetic"])
        tensors = {"t": file.get_tensor("t")}
    assert outer["strides"] == {"t": [1, 3]}
    assert archive.read(tmp_path / "net")[1]["t"].stride() == (1, 3)
    outer["strides"] = {"t": [1, 10**9]}
    content = {key: outer[key] for key in ("network", "strides")}
    outer["digest"] = archive._digest(content, tensors)
    save_file(tensors, tmp_path / "net", {"autoeidetic": archive._canonical(outer)})
    with pytest.raises(CheckpointError, match="damaged"):
        archive.read(tmp_path / "net")


def test_file_that_is_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of two files do not make a damaged one: the new one is read."""
    path = tmp_path / "file"
    archive.write(path, {"number": 0}, {"a": torch.zeros(3)})
    digest, reads = archive._digest, []

    def torn(content: Any, stored: Any) -> str:
        reads.append(content)
        if len(reads) > 1:
            return digest(content, stored)
        archive.write(path, {"number": 1}, {"a": torch.ones(3)})
        return "of a mixture"

    monkeypatch.setattr(archive, "_digest", torn)
    description, tensors = archive.read(path)
    assert description == {"number": 1}
    assert (tensors["a"] == 1).all()
