"""The converted network: its tasks, its capacity, and that it is still the user's module."""

from __future__ import annotations

import copy
import io
import os
import pickle
import socket
from collections.abc import Callable
from typing import Any

import lives
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zoo import ZOO

import autoeidetic
from autoeidetic.errors import EnforcementError
from autoeidetic.net import EideticNet

X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Small(nn.Module):
    """Batch norm, a residual, a gate, layer norm; the first convolution is 2 blocks apart."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.gate = nn.Conv2d(8, 1, 1)
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = x + self.conv(x)
        return (x * self.gate(x).sigmoid()).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.fc(self.norm(self.features(x)))))


class Plain(nn.Module):
    """Nothing is locked."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        return self.head(F.gelu(self.fc(self.norm((x + self.conv(x)).mean((2, 3))))))


@pytest.fixture
def life() -> lives.Life:
    """Tasks 0 and 1 finished, task 2 in training."""
    return lives.live(Small(), X)


def tasks_of(net: EideticNet, name: str) -> Tensor:
    """The task that owns each element of a parameter of the backbone; -1: none."""
    owner = net.call_plan.plan.parameters[name].units
    return torch.from_numpy(net.owners.task.astype(np.int64))[owner]


# -- forward transfer -----------------------------------------------------------------------------


@torch.no_grad()
def scramble_owned(net: EideticNet, task: int) -> int:
    """New values for everything a finished task owns, pins included; locked classes are spared."""
    count = 0
    for pin, slot in zip(net.pins._pins, net.pins._slots, strict=True):
        name = pin.name.removeprefix("backbone.")
        tensor = slot[0][slot[1]]
        plan = net.call_plan.plan
        if name in plan.parameters:
            owner = plan.parameters[name].units
        elif name in plan.buffers:
            owner = plan.buffers[name]
        else:
            continue
        mine = torch.from_numpy((net.owners.task == task) & ~net.owners.locked)[owner]
        # zeros that keep units of task 0 from reading later ones are no values of its own
        fresh = torch.where(mine & (tensor != 0), torch.rand_like(tensor) + 0.1, tensor)
        count += int(mine.sum())
        tensor.copy_(fresh)
        if pin.frozen is not None:
            net.pins.values(pin.name).copy_(pin.frozen.take(fresh))
    return count


@pytest.mark.parametrize("transfer", [True, False])
def test_forward_transfer(transfer: bool) -> None:
    """Tasks that are kept apart do not depend on what other tasks own."""
    net = lives.live(Plain(), X, forward_transfer=transfer).net
    before = [lives.answers(net, X, task) for task in range(3)]
    assert scramble_owned(net, 0) > 50
    after = [lives.answers(net, X, task) for task in range(3)]
    assert not lives.same(before[0], after[0])
    assert lives.same(before[1], after[1]) != transfer
    assert lives.same(before[2], after[2]) != transfer


@pytest.mark.parametrize(
    "name",
    ["mlp", "residual", "attention_written", "lstm", "layer_norm", "group_norm", "std_conv", "eca"],
)
def test_disjoint_lives(name: str) -> None:
    lives.live(*ZOO[name](), forward_transfer=False)


# -- recycle --------------------------------------------------------------------------------------


def test_recycle_reinit() -> None:
    """Free elements are fresh, drawn by each module's own initialisation; owned ones stay."""
    life = lives.Life(Plain(), X).first_task()
    net = life.net
    owned = {n: tasks_of(net, n) == 0 for n in ("stem.weight", "bn.weight", "fc.weight")}
    with torch.no_grad():
        for name, mask in owned.items():
            parameter = net.backbone.get_parameter(name)
            parameter.copy_(torch.where(mask, parameter, torch.full_like(parameter, 77.0)))
        net.backbone.bn.running_mean.fill_(55.0)
    before = lives.state(net)
    net.prepare_for_task(1, num_classes=3)
    for name, mask in owned.items():
        now = net.backbone.get_parameter(name).detach()
        assert torch.equal(now[mask], before[f"backbone.{name}"][mask])
        assert not (now[~mask] == 77.0).any()
        assert now[~mask].abs().max() <= 1.0
    assert (net.backbone.bn.weight.detach()[~owned["bn.weight"]] == 1).all()
    assert (net.backbone.bn.running_mean[~owned["bn.weight"]] == 0).all()


def test_recycle_keep() -> None:
    """Free elements hold what they held, pruned ones as well."""
    life = lives.Life(Plain(), X, recycle="keep")
    life.prepare()
    life.train(lives.sgd(life.net))
    before = lives.state(life.net)
    life.prune()
    life.finish()
    life.net.prepare_for_task(1, num_classes=3)
    for name in ("stem.weight", "stem.bias", "bn.weight", "fc.bias"):
        now = life.net.backbone.get_parameter(name)
        assert torch.equal(now, before[f"backbone.{name}"]), name
    assert torch.equal(life.net.backbone.bn.running_mean, before["backbone.bn.running_mean"])


@pytest.mark.parametrize("recycle", ["reinit", "keep"])
def test_preparing_leaves_the_generator_predictable(recycle: str) -> None:
    """The same seed, the same network: at any task."""
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(lives.live(Plain(), X, recycle=recycle).net)
    assert not lives.changed(states[0], lives.state(states[1]))


# -- capacity -------------------------------------------------------------------------------------


def counted(net: EideticNet) -> tuple[list[float], float]:
    """Shares of tasks and free share, element by element."""
    owners, plan = net.owners, net.call_plan.plan
    user = owners.task.astype(np.int64).copy()
    if owners.open_task is not None:
        user[(user < 0) & ~owners.pruned] = owners.open_task
    counts = [0] * len(net.tasks)
    free = total = 0
    for entry in plan.parameters.values():
        if entry.head or not entry.used:
            continue
        for owner in entry.units.flatten().tolist():
            total += 1
            if user[owner] < 0:
                free += 1
            else:
                counts[user[owner]] += 1
    return [count / total for count in counts], free / total


@pytest.mark.parametrize("name", ["residual", "lstm", "attention_written", "unused_parameter"])
def test_capacity_counts_elements(name: str) -> None:
    life = lives.Life(*ZOO[name]())

    def compare() -> None:
        report = life.net.capacity()
        shares, free = counted(life.net)
        assert report.tasks == pytest.approx(shares)
        assert report.free == pytest.approx(free)
        assert report.used == pytest.approx(1 - free)
        assert sum(report.tasks) + report.free == pytest.approx(1)

    life.prepare()
    compare()
    life.prune()
    compare()
    life.finish()
    compare()
    life.second_task()
    compare()
    life.prune()
    compare()
    assert 0 < life.net.capacity().free < 1


def test_capacity_by_group_and_layer(life: lives.Life) -> None:
    net = life.net
    report = net.capacity()
    for group, share in zip(net.call_plan.plan.groups, report.groups, strict=True):
        tasks = net.owners.task[list(group.units)]
        assert share.name == group.name
        assert share.size == group.size
        assert share.tasks[:2] == ((tasks == 0).sum(), (tasks == 1).sum())
        assert sum(share.tasks) + share.free == share.size
    for share in report.layers:
        names = [f"{share.name}.weight", f"{share.name}.bias"]
        elements = torch.cat([tasks_of(net, n).flatten() for n in names])
        assert share.size == len(elements)
        assert share.tasks[:2] == (int((elements == 0).sum()), int((elements == 1).sum()))
    assert {share.name for share in report.layers} == {"stem", "bn", "conv", "gate", "norm", "fc"}


def test_reuse() -> None:
    """Of the weights into a task's units, how much reads units of each task."""
    life = lives.live(Plain(), X)
    net = life.net
    report = net.capacity()
    total = torch.zeros(3, 4)
    level = torch.from_numpy(net.owners.levels)
    for name in ("conv.weight", "fc.weight"):
        entry = net.call_plan.plan.parameters[name]
        rows, columns = level[entry.units], level[entry.reads[0].columns]
        weight = net.backbone.get_parameter(name).detach().abs()
        for row in range(3):
            for column in range(3):
                total[row, column] += weight[(rows == row) & (columns == column)].sum()
    expected = total[:, :3] / total[:, :3].sum(1, keepdim=True)
    torch.testing.assert_close(torch.tensor(report.reuse), expected)
    assert report.reuse[0][1:] == (0, 0)
    assert report.reuse[1][2] == 0
    assert report.reuse[1][0] > 0
    assert "task 1 builds on" in str(report)
    assert report.to_dict()["free"] == report.free
    assert "<pre>" in report._repr_html_()


# -- prune ----------------------------------------------------------------------------------------

PRUNED = ["residual", "attention_written", "spatial_gate", "lstm", "multihead_self", "swin_block",
          "squeeze_excite", "mixture_of_experts", "unet", "grouped_conv"]  # fmt: skip


@pytest.mark.parametrize("name", PRUNED)
@pytest.mark.parametrize("fraction", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("by", ["l1", "random"])
def test_prune(name: str, fraction: float, by: str) -> None:
    """Closed under requires, nothing owned is touched, no group is emptied, twice is no less."""
    life = lives.Life(*ZOO[name]())
    net = life.net
    requires = net.call_plan.plan.requires
    for _ in range(2):
        life.prepare()
        owned = net.owners.task.copy()
        for _ in range(2):
            before = net.owners.pruned
            net.prune(fraction, by=by)
            owners = net.owners
            assert (owners.task == owned).all()
            assert not (owners.pruned & (owned >= 0)).any()
            assert not (before & ~owners.pruned).any()
            kept = owners.in_training | (owners.task >= 0)
            for source, needed in requires:
                if kept[source] and not owners.outside[needed]:
                    assert kept[needed] or net.call_plan.plan.elements[needed] == 0
            for group in net.call_plan.plan.groups:
                assert kept[list(group.units)].any(), group.name
            assert not (owners.pruned & owners.locked).any()
        life.finish()


def test_prune_takes_the_lowest_of_each_group() -> None:
    """Nothing requires anything here: exactly half of every group, those of the least norm."""
    model, x = ZOO["mlp"]()
    net = autoeidetic.convert(lives.randomise(model), x)
    net.prepare_for_task(0, num_classes=3)
    weight = {n: p.detach().clone() for n, p in net.backbone.named_parameters()}
    net.prune(0.5, by="l2")
    for name, entry in net.call_plan.plan.parameters.items():
        if entry.head or not name.endswith("weight"):
            continue
        rows = entry.units[:, 0]
        worth = weight[name].square().sum(1)
        if (bias := name.replace("weight", "bias")) in weight:
            worth = worth + weight[bias].square()
        pruned = torch.from_numpy(net.owners.pruned)[rows]
        assert int(pruned.sum()) == len(rows) // 2
        assert worth[pruned].max() < worth[~pruned].min()


def test_pruned_units_vanish() -> None:
    """What was pruned has no influence on the task any more, whatever it holds."""
    life = lives.Life(Plain(), X)
    life.prepare()
    life.train(lives.sgd(life.net))
    before = lives.answers(life.net, X, 0)
    life.prune()
    after = lives.answers(life.net, X, 0)
    assert not lives.same(before, after)
    with torch.no_grad():
        for name, entry in life.net.call_plan.plan.parameters.items():
            if not entry.head:
                mask = torch.from_numpy(life.net.owners.pruned)[entry.units]
                p = life.net.backbone.get_parameter(name)
                p.copy_(torch.where(mask, torch.randn_like(p), p))
    assert lives.same(lives.answers(life.net, X, 0), after)


# -- still the user's module ----------------------------------------------------------------------


def test_names_stay(life: lives.Life) -> None:
    plain = Small()
    assert list(life.net.backbone.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in life.net.backbone.named_modules()] == [
        n for n, _ in plain.named_modules()
    ]
    assert isinstance(life.net.backbone, Small)
    assert type(life.net.backbone.norm).__name__ == "LayerNorm"
    assert isinstance(life.net.backbone.norm, nn.LayerNorm)
    plain.load_state_dict(life.net.backbone.state_dict())


def test_conversion_leaves_the_model_alone() -> None:
    model = lives.randomise(Small())
    before = lives.state(model)
    torch.manual_seed(1)
    random = torch.get_rng_state()
    net = autoeidetic.convert(model, X)
    assert torch.equal(torch.get_rng_state(), random)
    assert not lives.changed(model, before)
    assert type(model.norm) is nn.LayerNorm
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in net.parameters()}
    assert autoeidetic.convert(model, X, inplace=True).backbone is model


def by_deepcopy(net: EideticNet) -> EideticNet:
    return copy.deepcopy(net)


def by_pickle(net: EideticNet) -> EideticNet:
    return pickle.loads(pickle.dumps(net))


def by_torch_save(net: EideticNet) -> EideticNet:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [by_deepcopy, by_pickle, by_torch_save])
@pytest.mark.parametrize("open_task", [True, False])
def test_copies_keep_the_promise(
    duplicate: Callable[[EideticNet], EideticNet], open_task: bool
) -> None:
    """A copy is a network of its own with all its safeguards, and the original is untouched."""
    life = lives.Life(Small(), X).first_task()
    if open_task:
        life.second_task()
    before = lives.state(life.net)
    other = lives.Life.__new__(lives.Life)
    other.__dict__.update(life.__dict__, net=duplicate(life.net), said=dict(life.said))
    assert not lives.changed(other.net, before)
    other.check("copied")
    if not open_task:
        other.prepare()
    other.train(lives.adamw(other.net), lives.sgd(other.net))
    other.prune()
    other.finish()
    other.verify()
    assert not lives.changed(life.net, before)
    life.check("copy trained")
    with torch.no_grad():
        for p in other.net.backbone.parameters():
            p.fill_(0.5)
    life.check("copy overwritten")
    other.check("overwritten")


def test_copy_in_the_middle_of_a_task_can_roll_back() -> None:
    life = lives.Life(Small(), X, recycle="keep").first_task()
    life.prepare()
    start = lives.state(life.net)
    life.train(lives.adamw(life.net))
    other = by_pickle(life.net)
    del life
    other.rollback()
    assert not lives.changed(other, start)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", ["to", "word"])
def test_another_precision(dtype: torch.dtype, how: str) -> None:
    """What was said before is said in the new precision, and from then on bit for bit."""
    life = lives.Life(Small(), X).first_task()
    life.prepare()
    words = {torch.float64: "double", torch.float16: "half", torch.bfloat16: "bfloat16"}
    before = life.said[0][0]
    if how == "to":
        life.net.to(dtype)
    else:
        getattr(life.net, words[dtype])()
    life.inputs = X.to(dtype)
    life.said = {0: lives.answers(life.net, life.inputs, 0)}
    loose = {torch.float64: 1e-5, torch.float16: 2e-2, torch.bfloat16: 2e-1}[dtype]
    torch.testing.assert_close(life.said[0][0].float(), before, rtol=loose, atol=loose)
    assert life.said[0][0].dtype == dtype
    life.train(lives.sgd(life.net))
    life.prune()
    life.finish()
    life.prepare()
    life.train(lives.sgd(life.net))  # in half precision AdamW divides by zero
    life.verify()


def test_precision_of_the_backbone_alone(life: lives.Life) -> None:
    """Moved behind the network's back."""
    life.net.backbone.double()
    for head in life.net.heads.values():
        head.double()
    life.inputs = X.double()
    life.said = {t: lives.answers(life.net, life.inputs, t) for t in (0, 1)}
    life.train(lives.adamw(life.net))
    life.verify()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled(life: lives.Life) -> None:
    """A compiled network trains, and what it says stays what it said."""
    torch._dynamo.reset()
    net = life.net
    compiled = torch.compile(net, backend="aot_eager")
    net.eval()
    with torch.no_grad():
        said = compiled(X, task=0)
        torch.testing.assert_close(said, life.said[0][0])
    optimizer = lives.adamw(net)
    net.train()
    for _ in range(3):
        optimizer.zero_grad()
        lives.loss_of(compiled(X)).backward()
        optimizer.step()
    life.check("compiled")
    net.eval()
    with torch.no_grad():
        assert torch.equal(compiled(X, task=0), said)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_exported(life: lives.Life) -> None:
    net = life.net.eval()
    with torch.no_grad():
        program = torch.export.export(net, (X,), {"task": 0})
        torch.testing.assert_close(program.module()(X, task=0), life.said[0][0])
        program = torch.export.export(net, (X,), {"task": "all"}, strict=False)
        for exported, said in zip(program.module()(X, task="all"), net(X, task="all"), strict=True):
            torch.testing.assert_close(exported, said)
    life.check("exported")


def test_gradient_of_the_input(life: lives.Life) -> None:
    """Through frozen units as well: adversarial examples, saliency."""
    net = life.net.eval()
    for task in range(3):
        x = X.double().clone().requires_grad_()
        double = copy.deepcopy(net).double().eval()
        assert torch.autograd.gradcheck(
            lambda x, net=double, task=task: net(x, task=task).sum(), (x[:1, :, :2, :2],)
        )
        (gradient,) = torch.autograd.grad(double(x, task=task).square().sum(), x)
        assert gradient.abs().sum() > 0


class Checkpointed(Plain):
    """Activation checkpointing around the residual block."""

    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.head(F.gelu(self.fc(x)))

    def block(self, x: Tensor) -> Tensor:
        return self.norm((x + self.conv(x)).mean((2, 3)))


class CheckpointedReentrant(Checkpointed):
    reentrant = True


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("kind", [Checkpointed, CheckpointedReentrant])
def test_activation_checkpointing(kind: type[nn.Module]) -> None:
    """The same life, gradients and all."""
    torch.manual_seed(0)
    plain = lives.live(Plain(), X)
    torch.manual_seed(0)
    life = lives.live(kind(), X)
    now = life.net.state_dict()
    for name, value in plain.net.state_dict().items():
        torch.testing.assert_close(now[name], value, msg=name)


def test_checkpointed_module_that_is_called_twice() -> None:
    """Says so instead of counting wrongly."""
    model, x = ZOO["norm_called_twice"]()
    life = lives.Life(model, x).first_task()
    life.prepare()
    inner = next(g.path for g in life.net.guards.values() if g.counter and g.counter.calls > 1)
    module = life.net.backbone.get_submodule(inner)
    forward = module.forward
    module.forward = lambda *args: checkpoint(forward, *args, use_reentrant=False)
    life.net.train()
    with pytest.raises(EnforcementError, match="during the backward pass"):
        lives.loss_of(life.net(x)).backward()


# -- several processes ----------------------------------------------------------------------------


def process(rank: int, port: int, path: str) -> None:
    """One of two processes that train task 1 on different data."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    life = lives.Life(Small(), X).first_task()
    life.prepare()
    parallel = nn.parallel.DistributedDataParallel(life.net, find_unused_parameters=True)
    optimizer = lives.adamw(life.net)
    life.net.train()
    for _ in range(3):
        optimizer.zero_grad()
        lives.loss_of(parallel(X[2 * rank : 2 * rank + 2])).backward()
        optimizer.step()
    life.check("trained by two")
    life.verify()
    torch.save({n: p.detach() for n, p in life.net.named_parameters()}, f"{path}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Any) -> None:
    """DistributedDataParallel: nothing is forgotten, and both have learned the same."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(process, (port, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_completion_shows_what_is_for_users() -> None:
    net = autoeidetic.convert(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(2, 4))
    shown = {name for name in dir(net) if name[0] != "_"} - set(dir(nn.Sequential()))
    methods = {name for name in vars(autoeidetic.EideticNet) if name[0] != "_"}
    drawings = {"drawing", *(f"to_{kind}" for kind in "html svg png dot mermaid graphml".split())}
    documented = {"backbone", "heads", "tasks", "open_task", "router", "check_calls", "call_plan"}
    assert shown == methods - set(dir(nn.Module())) | drawings | documented
    assert callable(net.settle)  # rooms use it all the same
    net.note = "mine"
    assert "note" in dir(net)
