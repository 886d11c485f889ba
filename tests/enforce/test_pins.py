"""Pins hold against any optimizer, any loop and any hand that edits a parameter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lives
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import swa_utils

from autoeidetic.net import EideticNet

X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Convolutions, batch and layer norm, a residual, a gate and a free parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.gate = nn.Conv2d(8, 1, 1)
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = x + self.scale * self.conv(x)
        x = x * self.gate(x).sigmoid()
        return self.head(F.gelu(self.fc(self.norm(x.mean((2, 3))))))


@pytest.fixture
def life() -> lives.Life:
    """Task 0 is finished, task 1 open and trained a little; everything has momentum."""
    return lives.Life(Block(), X).first_task().second_task()


def pinned(net: EideticNet) -> dict[str, Tensor]:
    """Which elements of each parameter are pinned, counted from the owners, not from the pins."""
    plan, owners = net.call_plan.plan, net.owners
    level = torch.from_numpy(owners.levels)
    task = torch.from_numpy(owners.task.astype("int64"))
    result = {}
    for name, entry in plan.parameters.items():
        if entry.head:
            continue
        marked = (task[entry.units] >= 0).clone()
        for read in entry.reads:
            marked |= level[read.columns] > level[entry.units]
        result[name] = marked
    return result


def values(net: EideticNet) -> dict[str, Tensor]:
    """Values of the pinned elements."""
    parameters = dict(net.backbone.named_parameters())
    return {name: parameters[name].detach()[mask] for name, mask in pinned(net).items()}


def gradients_are_clean(net: EideticNet) -> int:
    """Gradients of pinned elements are exactly zero; returns how many of them there are."""
    count = 0
    parameters = dict(net.backbone.named_parameters())
    for name, mask in pinned(net).items():
        gradient = parameters[name].grad
        if gradient is not None:
            assert (gradient[mask] == 0).all(), name
            count += int(mask.sum())
    return count


# -- optimizers -----------------------------------------------------------------------------------


class WritesData(torch.optim.Optimizer):
    """Writes to ``p.data``, which no version counter sees, whatever the gradient."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.mul_(0.9).add_(torch.ones_like(p), alpha=group["lr"])


class ReplacesData(WritesData):
    """Gives every parameter new memory."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data * 0.9 + group["lr"]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, weight_decay=0.1),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, weight_decay=0.1),
    "adagrad_fused": lambda p: torch.optim.Adagrad(p, lr=0.05, weight_decay=0.1, fused=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, weight_decay=0.1),
    "rprop": lambda p: torch.optim.Rprop(p),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05, weight_decay=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, weight_decay=0.1),
    "writes_data": lambda p: WritesData(p, lr=0.01),
    "replaces_data": lambda p: ReplacesData(p, lr=0.01),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_optimizer(life: lives.Life, name: str) -> None:
    """After every single step, and without any call in between, pinned values are in place."""
    net, before = life.net, values(life.net)
    free = lives.state(net)
    optimizer = OPTIMIZERS[name](net.parameters())
    net.train()
    for _ in range(3):
        optimizer.zero_grad()
        lives.backward(net, X)
        optimizer.step()
        for parameter, value in values(net).items():
            assert torch.equal(value, before[parameter]), parameter
    assert "backbone.stem.weight" in lives.changed(net, free)
    life.check(name)
    life.prune()
    life.finish()
    life.prepare()
    optimizer.add_param_group({"params": list(net.heads["2"].parameters())})
    life.train(optimizer)


def test_lbfgs(life: lives.Life) -> None:
    """Evaluates the network many times in one step, and writes flat updates to all elements."""
    net, before = life.net, values(life.net)
    learning = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.LBFGS(learning, lr=0.1, max_iter=4, line_search_fn="strong_wolfe")
    net.train()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = lives.loss_of(net(X))
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        assert all(torch.equal(v, before[n]) for n, v in values(net).items())
    life.check("lbfgs")


def test_random_gradients(life: lives.Life) -> None:
    """Even gradients that do not come from autograd move nothing that is pinned."""
    life.gradients = lives.any_gradients
    life.train(lives.adamw(life.net), life.carried, steps=3)


def test_two_optimizers_in_one_step(life: lives.Life) -> None:
    net = life.net
    first = torch.optim.AdamW([net.backbone.stem.weight], weight_decay=0.5)
    rest = [p for p in net.parameters() if p is not net.backbone.stem.weight]
    life.train(first, torch.optim.SGD(rest, lr=0.1, weight_decay=0.5), steps=3)


# -- loops ----------------------------------------------------------------------------------------


def by_data(p: nn.Parameter) -> None:
    p.data.sub_(0.1 * torch.ones_like(p)).mul_(0.9)


def by_copy(p: nn.Parameter) -> None:
    with torch.no_grad():
        p.copy_(p * 0.9 - 0.1)


def by_subtraction(p: nn.Parameter) -> None:
    with torch.no_grad():
        p -= 0.1 * torch.ones_like(p)


def by_new_data(p: nn.Parameter) -> None:
    p.data = p.data * 0.9 - 0.1


@pytest.mark.parametrize("write", [by_data, by_copy, by_subtraction, by_new_data])
def test_loop_by_hand(life: lives.Life, write: Callable[[nn.Parameter], None]) -> None:
    """No optimizer at all: every pass starts from the pinned values, and so does finish_task."""
    net, before, masks = life.net, values(life.net), pinned(life.net)
    net.train()
    for _ in range(3):
        net.zero_grad()
        lives.loss_of(net(X)).backward()
        assert gradients_are_clean(net) > 100
        for p in net.parameters():
            if p.grad is not None:
                write(p)
    net.finish_task()
    for name, parameter in net.backbone.named_parameters():
        if name in masks:
            assert torch.equal(parameter.detach()[masks[name]], before[name]), name
    life.check("by hand")


@pytest.mark.parametrize("pruned", [False, True])
def test_gradients_of_pinned_elements_are_zero(life: lives.Life, pruned: bool) -> None:
    """So a clipped norm is that of the free elements."""
    net = life.net
    if pruned:
        life.prune()
    net.train()
    net.zero_grad()
    lives.loss_of(net(X)).backward()
    assert gradients_are_clean(net) > 100
    free = []
    parameters = dict(net.backbone.named_parameters())
    masks = pinned(net)
    for name, p in parameters.items():
        if p.grad is not None and name in masks:
            free.append(p.grad[~masks[name]].clone())
    free += [p.grad.clone().flatten() for p in net.heads["1"].parameters()]
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1e9)
    torch.testing.assert_close(norm, torch.cat(free).norm())
    assert norm > 0


def test_gradients_are_those_of_the_plain_formula(life: lives.Life) -> None:
    """Free elements get the gradient they would get without any restriction."""
    net = life.net
    net.train()

    def gradients(x: Tensor) -> dict[str, Tensor]:
        net.zero_grad()
        lives.loss_of(net(x)).backward()
        return {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}

    restricted = gradients(X)
    whole = gradients(X.clone().requires_grad_())
    assert restricted.keys() == whole.keys()
    for name, gradient in restricted.items():
        torch.testing.assert_close(gradient, whole[name], msg=name)


def test_gradient_accumulation(life: lives.Life) -> None:
    net = life.net
    net.train()
    optimizer = lives.adamw(net)
    for _ in range(2):
        optimizer.zero_grad()
        for part in X.split(2):
            lives.loss_of(net(part)).backward()
        assert gradients_are_clean(net) > 100
        optimizer.step()
    life.check("accumulated")


def test_two_passes_before_one_backward(life: lives.Life) -> None:
    """A contrastive loss: the second pass must not touch what the first one's backward needs."""
    net = life.net
    net.train()
    optimizer = lives.adamw(net)
    for _ in range(2):
        optimizer.zero_grad()
        (net(X) - net(X.flip(-1))).square().mean().backward()
        assert gradients_are_clean(net) > 100
        optimizer.step()
    life.check("two passes")


def test_evaluation_between_forward_and_backward(life: lives.Life) -> None:
    """Distillation: a finished task is the teacher in the same step."""
    net = life.net
    net.train()
    optimizer = lives.adamw(net)
    for _ in range(2):
        optimizer.zero_grad()
        output = net(X)
        with torch.no_grad():
            target = net(X, task=0)
        (output[:, :3] - target[:, :3]).square().mean().backward()
        optimizer.step()
    life.check("distilled")


@pytest.mark.parametrize("cached", [True, False])
def test_autocast(life: lives.Life, cached: bool) -> None:
    net = life.net
    net.train()
    optimizer = lives.adamw(net)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        said = net.eval()(X, task=0)
    net.train()
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            output = net(X)
            assert output.dtype == torch.bfloat16
            loss = lives.loss_of(output)
        loss.backward()
        assert gradients_are_clean(net) > 100
        optimizer.step()
    life.check("autocast")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net.eval()(X, task=0), said)


def test_gradient_mode_does_not_matter(life: lives.Life) -> None:
    """With gradients, without them and in inference mode: the same bits."""
    net = life.net.eval()
    assert torch.equal(net(X, task=0), life.said[0][0])
    with torch.no_grad():
        assert torch.equal(net(X, task=0), life.said[0][0])
    with torch.inference_mode():
        assert torch.equal(net(X, task=0), life.said[0][0])
    assert torch.equal(net(X.clone().requires_grad_(), task=0), life.said[0][0])


# -- averages of weights --------------------------------------------------------------------------


def test_averaged_model(life: lives.Life) -> None:
    net = life.net
    average = swa_utils.get_ema_multi_avg_fn(0.9)
    ema = swa_utils.AveragedModel(net, multi_avg_fn=average, use_buffers=True)
    plain = swa_utils.AveragedModel(net)
    optimizer = lives.adamw(net)
    for _ in range(3):
        life.train(optimizer, steps=1)
        ema.update_parameters(net)
        plain.update_parameters(net)
    for averaged in (ema, plain):
        assert lives.same(lives.answers(averaged.module, X, 0), life.said[0])
        assert averaged.module.verify(X).ok
    net.load_state_dict(ema.module.state_dict())
    life.check("averaged weights loaded")
    swa_utils.update_bn([X, X], net)
    life.check("update_bn")


def test_average_by_hand(life: lives.Life) -> None:
    net = life.net
    shadow = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = lives.adamw(net)
    for _ in range(3):
        life.train(optimizer, steps=1)
        for name, value in net.state_dict().items():
            if value.is_floating_point() and not name.startswith("pins."):
                shadow[name].mul_(0.9).add_(value * 1.01, alpha=0.1)
            else:
                shadow[name].copy_(value)
    net.load_state_dict(shadow)
    life.check("average loaded")
    life.finish()


@torch.no_grad()
def lerp_state(net: EideticNet, other: EideticNet) -> None:
    """As timm's ModelEmaV3 does it: through the tensors of the state."""
    for mine, new in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        if mine.is_floating_point():
            mine.lerp_(new, 0.3)


@torch.no_grad()
def average_all(net: EideticNet, other: EideticNet) -> None:
    """As AveragedModel(use_buffers=True) does it: parameters and buffers, with rounding."""
    for part in (EideticNet.parameters, EideticNet.buffers):
        for mine, new in zip(part(net), part(other), strict=True):
            if mine.is_floating_point():
                mine.mul_(0.999).add_(new, alpha=1 - 0.999)


@torch.no_grad()
def noise_on_state(net: EideticNet, _: EideticNet) -> None:
    for value in net.state_dict().values():
        if value.is_floating_point():
            value.add_(torch.rand_like(value))


@torch.no_grad()
def noise_on_buffers(net: EideticNet, _: EideticNet) -> None:
    for value in net.buffers():
        if value.is_floating_point():
            value.add_(torch.rand_like(value))


@pytest.mark.parametrize("write", [lerp_state, average_all, noise_on_state, noise_on_buffers])
def test_the_store_of_frozen_values_is_out_of_reach(
    life: lives.Life, write: Callable[[EideticNet, EideticNet], None]
) -> None:
    copied = copy.deepcopy(life)
    life.train(lives.adamw(life.net), steps=1)
    before = {name: v for name, v in lives.state(life.net).items() if name.startswith("pins.")}
    assert len(before) > 8
    for _ in range(3):
        write(copied.net, life.net)
        write(life.net, copied.net)
        copied.check("averaged")
        life.check("averaged")
    life.train(lives.adamw(life.net))
    now = life.net.state_dict()
    assert all(torch.equal(now[name], value) for name, value in before.items())
    copied.net.load_state_dict(now)
    copied.check("loaded")
    life.verify()


# -- other types ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_to_another_type_and_back(life: lives.Life, kind: torch.dtype) -> None:
    """Frozen values come back with all their bits; the answers meanwhile are of the other type."""
    net, seals = life.net, [task.seal for task in life.net.tasks]
    meanwhile = lives.answers(net.to(kind), X.to(kind), 0)
    assert meanwhile[0].dtype == kind
    torch.testing.assert_close(meanwhile[0].float(), life.said[0][0], atol=0.05, rtol=0.05)
    assert (net.tasks[0].seal.converted == "") == (kind == torch.float32)
    net.load_state_dict(net.state_dict())
    net.float()
    life.check("to another type and back")
    assert [task.seal for task in net.tasks] == seals
    life.verify()
    assert lives.same(lives.answers(net.to(kind), X.to(kind), 0), meanwhile)
    assert lives.same(lives.answers(copy.deepcopy(net).float(), X, 0), life.said[0])


def test_a_task_finished_in_another_type(life: lives.Life) -> None:
    """What earlier tasks froze stays exact; the new task has the values that it was trained to."""
    net, low = life.net.bfloat16(), X.bfloat16()
    lives.train(net, low, [lives.sgd(net)])
    net.prune(0.5)
    net.finish_task()
    said = [lives.answers(net, low, task) for task in (0, 1)]
    life.net.float()
    life.check("one task in bfloat16")
    net.prepare_for_task(2, num_classes=5, on_full="reuse")
    lives.train(net, X, [lives.adamw(net)])
    life.check("and another one after it")
    net.bfloat16()
    assert all(lives.same(lives.answers(net, low, task), said[task]) for task in (0, 1))


# -- edits by hand --------------------------------------------------------------------------------


def edit_copy(net: EideticNet) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p))


def edit_fill(net: EideticNet) -> None:
    for p in net.parameters():
        nn.init.constant_(p, 0.5)


def edit_data(net: EideticNet) -> None:
    for p in net.parameters():
        p.data.add_(1.0)


def edit_new_data(net: EideticNet) -> None:
    for p in net.parameters():
        p.data = torch.randn_like(p)


def edit_replaced(net: EideticNet) -> None:
    for module in net.modules():
        for name, p in module._parameters.items():
            if p is not None:
                setattr(module, name, nn.Parameter(torch.randn_like(p)))


def edit_buffers(net: EideticNet) -> None:
    with torch.no_grad():
        for name, buffer in net.backbone.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand_like(buffer) + 0.5)
            assert "running" in name or "num_batches" in name


def edit_buffers_replaced(net: EideticNet) -> None:
    bn = net.backbone.bn
    bn.running_mean = torch.randn(8)
    bn.running_var = torch.rand(8) + 0.5


def edit_statistics_reset(net: EideticNet) -> None:
    net.backbone.bn.reset_running_stats()
    net.backbone.bn.reset_parameters()


def edit_layer_initialised(net: EideticNet) -> None:
    net.backbone.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)


EDITS = [
    edit_copy,
    edit_fill,
    edit_data,
    edit_new_data,
    edit_replaced,
    edit_buffers,
    edit_buffers_replaced,
    edit_statistics_reset,
    edit_layer_initialised,
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("edit", EDITS)
def test_edit_is_undone_by_a_forward_pass(
    life: lives.Life, edit: Callable[[EideticNet], None], training: bool
) -> None:
    net = life.net.train(training)
    net(X)  # no step or change of mode is left that would be looked after anyway
    edit(net)
    if training:
        net(X)
        net.eval()
    with torch.no_grad():
        assert torch.equal(net(X, task=0), life.said[0][0])
    life.check("edited")


@pytest.mark.parametrize("edit", EDITS)
def test_edit_is_undone_by_a_step(life: lives.Life, edit: Callable[[EideticNet], None]) -> None:
    net = life.net.train()
    before = values(net)
    edit(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    lives.backward(net, X)
    optimizer.step()
    assert all(torch.equal(v, before[n]) for n, v in values(net).items())
    life.check("edited and stepped")


@pytest.mark.parametrize("edit", EDITS)
def test_edit_is_undone_by_finishing(life: lives.Life, edit: Callable[[EideticNet], None]) -> None:
    net = life.net.eval()
    edit(net)
    net.finish_task()
    life.check("edited and finished")
    assert net.verify(X).ok


def test_gradients_after_a_parameter_was_replaced(life: lives.Life) -> None:
    life.prune()
    net = life.net.train()
    edit_replaced(net)
    lives.loss_of(net(X)).backward()
    assert gradients_are_clean(net) > 100


def test_gradients_after_a_state_was_assigned(life: lives.Life) -> None:
    life.prune()
    net = life.net.train()
    net.load_state_dict(lives.state(net), assign=True)
    lives.loss_of(net(X)).backward()
    assert gradients_are_clean(net) > 100
    life.check("assigned")


# -- states ---------------------------------------------------------------------------------------


def test_own_earlier_state_is_loaded(life: lives.Life) -> None:
    """The usual 'restore the best epoch': free values come back, frozen ones never left."""
    net = life.net
    best = copy.deepcopy(net.state_dict())
    life.train(lives.adamw(net), steps=3)
    net.load_state_dict(best)
    assert not lives.changed(net, best)
    life.check("restored")


@pytest.mark.parametrize("strict", [True, False])
def test_foreign_state_is_refused(life: lives.Life, strict: bool) -> None:
    other = lives.Life(Block(), X)
    with torch.no_grad():
        for p in other.net.parameters():
            p.mul_(3)
    other.first_task().second_task()
    assert life.net.state_dict().keys() == other.net.state_dict().keys()
    with pytest.raises(RuntimeError, match=r"frozen values of .* differ"):
        life.net.load_state_dict(other.net.state_dict(), strict=strict)
    life.check("foreign state refused")


def test_foreign_backbone_is_loaded_into_free_elements(life: lives.Life) -> None:
    """The state of a plain model may be loaded into the backbone: free elements take it."""
    torch.manual_seed(5)
    foreign = lives.randomise(Block(), seed=7).state_dict()
    before = values(life.net)
    life.net.backbone.load_state_dict(foreign)
    with torch.no_grad():
        life.net.eval()(X, task=0)
    assert all(torch.equal(v, before[n]) for n, v in values(life.net).items())
    mask = pinned(life.net)["stem.weight"]
    assert torch.equal(life.net.backbone.stem.weight[~mask], foreign["stem.weight"][~mask])
    life.check("foreign backbone")


def test_optimizer_of_another_network_moves_nothing(life: lives.Life) -> None:
    """Two networks in one process do not disturb each other."""
    other = lives.Life(Block(), X).first_task().second_task()
    before = lives.state(life.net)
    other.train(lives.adamw(other.net))
    assert not lives.changed(life.net, before)
    life.check("other")
    other.check("other")
