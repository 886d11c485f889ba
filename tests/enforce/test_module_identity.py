"""Modules, heads and parameters that somebody changes after the conversion are noticed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lives
import pytest
import torch
from torch import Tensor, nn

from autoeidetic import EideticNet
from autoeidetic.errors import EnforcementError

X = torch.randn(6, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.block = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.conv(x))).mean((2, 3))


@pytest.fixture
def life() -> lives.Life:
    """Task 0 is finished, task 1 open and trained a little."""
    return lives.Life(Net(), X).first_task().second_task()


def head(net: EideticNet, task: int) -> Any:
    return net.heads[str(task)]["head"]


def like(module: nn.Conv2d) -> nn.Conv2d:
    """A layer of the same shape with other values."""
    return nn.Conv2d(module.in_channels, module.out_channels, 1)


# -- for its like ---------------------------------------------------------------------------------


def test_an_exchanged_head_of_an_open_task_is_the_one_that_learns(life: lives.Life) -> None:
    """And the one that answers and is frozen."""
    net = life.net
    net.heads["1"]["head"] = new = like(head(net, 1))
    with torch.no_grad():
        new.weight.zero_()
        new.bias.fill_(7)
    assert (lives.answer(net, X, 1) == 7).all()
    life.train(lives.sgd(net))
    assert bool(new.weight.any()), "it does not learn"
    life.prune()
    life.finish()
    frozen = new.weight.detach().clone()
    life.prepare()
    life.train(lives.adamw(net))
    assert torch.equal(new.weight, frozen)
    life.verify()


def test_it_is_frozen_when_the_exchange_is_the_last_thing_before(life: lives.Life) -> None:
    net = life.net
    net.heads["1"]["head"] = new = like(head(net, 1))
    frozen = new.weight.detach().clone()
    net.finish_task()
    assert head(net, 1) is new
    said = lives.answers(net, X, 1)
    life.prepare()
    life.train(lives.adamw(net))
    assert torch.equal(new.weight, frozen)
    assert lives.same(lives.answers(net, X, 1), said)


STEPS: dict[str, Callable[[EideticNet], Any]] = {
    "asked": lambda net: None,
    "moved": lambda net: net.to("cpu"),
    "finished": lambda net: net.finish_task(),
    "prepared": lambda net: net.prepare_for_task(2, num_classes=5, on_full="reuse"),
    "taken back": lambda net: net.rollback(),
    "loaded": lambda net: net.load_state_dict(lives.state(net)),
    "trained": lambda net: lives.train(net, X, [lives.adamw(net)]),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_exchanged_head_of_a_finished_task_gets_its_values(life: lives.Life, step: str) -> None:
    net = life.net
    net.heads["0"]["head"] = like(head(net, 0))
    STEPS[step](net)
    life.check(f"exchanged and {step}")
    net.heads["0"] = nn.ModuleDict({"head": like(head(net, 0))})
    STEPS["asked"](net)
    life.check("exchanged with what holds it")
    life.verify()


def copied(net: EideticNet) -> EideticNet:
    return copy.deepcopy(net)


def pickled(net: EideticNet) -> EideticNet:
    return pickle.loads(pickle.dumps(net))


@pytest.mark.parametrize("again", [copied, pickled])
def test_copies_have_the_values_too(
    life: lives.Life, again: Callable[[EideticNet], EideticNet]
) -> None:
    life.net.heads["0"]["head"] = like(head(life.net, 0))
    life.net = again(life.net)
    life.check(again.__name__)


@pytest.mark.parametrize("name", ["conv", "block"])
def test_a_backbone_and_its_blocks_for_their_like(life: lives.Life, name: str) -> None:
    net = life.net
    setattr(net.backbone, name, getattr(lives.randomise(Net(), 5), name))
    life.check(f"{name} exchanged")
    net.backbone = lives.randomise(Net(), 6)
    life.check("backbone exchanged")
    life.train(lives.adamw(net))
    life.verify()


# -- anything else --------------------------------------------------------------------------------


def deleted(net: EideticNet, task: int) -> None:
    del net.heads[str(task)]


def emptied(net: EideticNet, task: int) -> None:
    del net.heads[str(task)]["head"]


def sequential(net: EideticNet, task: int) -> None:
    net.heads[str(task)]["head"] = nn.Sequential(like(head(net, task)))


def wider(net: EideticNet, task: int) -> None:
    net.heads[str(task)]["head"] = nn.Conv2d(8, 9, 1)


def without_bias(net: EideticNet, task: int) -> None:
    net.heads[str(task)]["head"] = nn.Conv2d(8, head(net, task).out_channels, 1, bias=False)


def padded(net: EideticNet, task: int) -> None:
    net.heads[str(task)]["head"] = nn.Conv2d(8, head(net, task).out_channels, 1, padding=1)


def doubled(net: EideticNet, task: int) -> None:
    net.heads[str(task)]["head"] = like(head(net, task)).double()


def one_more(net: EideticNet, task: int) -> None:
    net.heads[str(task)]["other"] = nn.Linear(8, 3)


def of_no_task(net: EideticNet, task: int) -> None:
    net.heads["7"] = nn.ModuleDict()


def none_at_all(net: EideticNet, task: int) -> None:
    net.heads = nn.ModuleDict()


HEADS: dict[Callable[[EideticNet, int], None], tuple[str, str]] = {
    deleted: ("was a ModuleDict when its task began, and is gone now", "heads.{}"),
    emptied: ("was a Conv2d when its task began, and is gone now", "heads.{}.head"),
    sequential: ("was a Conv2d when its task began, and is a Sequential now", "heads.{}.head"),
    wider: (r"'heads.\d.head.weight' has the shape \(9, 8, 1, 1\); it had", "heads.{}.head"),
    without_bias: (r"'heads.\d.head.bias' is gone", "heads.{}.head"),
    padded: (r"was made a Conv2d\(.*padding=\(1, 1\)\) after the conversion", "heads.{}.head"),
    doubled: (r"is of torch.float64; it was of torch.float32", "heads.{}.head"),
    one_more: ("a Linear was added after the conversion", "heads.{}.other"),
    of_no_task: ("a ModuleDict was added after the conversion", "heads.7"),
    none_at_all: ("was a ModuleDict when its task began, and is gone now", "heads.0"),
}


def appended(net: EideticNet) -> None:
    net.backbone.block.append(nn.Conv2d(8, 8, 1))


def appended_without_parameters(net: EideticNet) -> None:
    net.backbone.block.append(nn.Sigmoid())


def attribute(net: EideticNet) -> None:
    net.backbone.more = nn.Linear(2, 2)


def bias(net: EideticNet) -> None:
    net.backbone.conv.bias = nn.Parameter(torch.ones(8))


def parameter(net: EideticNet) -> None:
    net.backbone.block[2].scale = nn.Parameter(torch.ones(8))


def buffer(net: EideticNet) -> None:
    net.backbone.block[2].register_buffer("scale", torch.ones(8))


def other_inside(net: EideticNet) -> None:
    block = Net().block
    block[1] = nn.GELU()
    net.backbone.block = block


def other_backbone(net: EideticNet) -> None:
    net.backbone = nn.Sequential(Net())


BACKBONE: dict[Callable[[EideticNet], None], tuple[str, str]] = {
    appended: ("a Conv2d was added after the conversion", "block.3"),
    appended_without_parameters: ("a Sigmoid was added after the conversion", "block.3"),
    attribute: ("a Linear was added after the conversion", "more"),
    bias: ("a parameter 'bias' was added after the conversion", "conv"),
    parameter: ("a parameter 'scale' was added after the conversion", "block.2"),
    buffer: ("a buffer 'scale' was added after the conversion", "block.2"),
    other_inside: ("was a ReLU when the model was converted, and is a GELU now", "block.1"),
    other_backbone: ("the backbone was a Net when .*, and is a Sequential now", "backbone"),
}


def refused(net: EideticNet, message: str, module: str, path: Path) -> None:
    """By all that answers, goes on or stores; the tasks stay what they are."""
    tasks = net.tasks
    for action in (
        lambda: net(X),
        lambda: net(X, task=0),
        lambda: net.verify(X),
        lambda: net.prune(0.1),
        lambda: net.save(path),
        lambda: net.to("cpu"),
        lambda: copy.deepcopy(net),
        lambda: pickle.dumps(net),
        lambda: net.load_state_dict({}),
        lambda: net.prepare_for_task(2, num_classes=5, on_full="reuse"),
        net.seal,
        net.rollback,
        net.finish_task,
    ):
        with pytest.raises(EnforcementError, match=message) as caught:
            action()
        assert caught.value.module == module
        assert caught.value.remedy
        assert net.tasks == tasks
    assert not path.exists()


@pytest.mark.parametrize("task", [0, 1], ids=["finished", "open"])
@pytest.mark.parametrize("change", HEADS)
def test_other_heads_are_refused(
    life: lives.Life, change: Callable[[EideticNet, int], None], task: int, tmp_path: Path
) -> None:
    message, module = HEADS[change]
    before = {part: dict(part._modules) for part in (life.net, *life.net.heads.modules())}
    change(life.net, task)
    refused(life.net, message, module.format(task), tmp_path / "net")
    for part, children in before.items():
        part._modules.clear()
        part._modules.update(children)
    life.check("put back")


@pytest.mark.parametrize("change", BACKBONE)
def test_additions_to_the_backbone_are_refused(
    life: lives.Life, change: Callable[[EideticNet], None], tmp_path: Path
) -> None:
    message, module = BACKBONE[change]
    change(life.net)
    refused(life.net, message, module, tmp_path / "net")


def test_a_buffer_that_a_model_makes_for_itself_is_its_own_business(life: lives.Life) -> None:
    life.net.backbone.conv.register_buffer("cache", torch.ones(2), persistent=False)
    life.check("a cache made")
    life.prune()
    life.finish()
    life.prepare()
    del life.net.backbone.conv.cache
    life.check("a cache dropped")


def test_kept_head() -> None:
    """Task 0 has no head of its own to exchange; the model's is exchanged for its like."""
    life = lives.Life(Net(), X, classes=(None, 3), keep_head=True)
    life.first_task().second_task()
    life.net.backbone.head = like(life.net.backbone.head)
    life.check("exchanged")
    life.net.heads["0"]["head"] = like(life.net.backbone.head)
    with pytest.raises(EnforcementError, match="a Conv2d was added"):
        life.net(X, task=0)
