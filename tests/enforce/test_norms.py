"""Norms: frozen channels keep their statistics, levels have their own, kept models their bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lives
import pytest
import timm
import torch
from sweeps import every_fourth
from timm.layers import (
    BatchNormAct2d,
    EcaModule,
    EvoNorm2dB0,
    EvoNorm2dS0,
    FrozenBatchNormAct2d,
    GroupNormAct,
    LayerNorm2d,
    LayerNormAct2d,
    RmsNorm,
    RmsNorm2d,
    ScaledStdConv2d,
    SEModule,
    StdConv2d,
    StdConv2dSame,
)
from timm.layers.cbam import CbamModule
from timm.layers.filter_response_norm import FilterResponseNormTlu2d
from timm.layers.grn import GlobalResponseNorm
from torch import Tensor, nn
from torch.nn import functional as F

import autoeidetic
from autoeidetic.propagate.parameter_channels import ParameterChannels
from autoeidetic.propagate.values import ParameterView, compress

C = 12
IMAGE = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Around(nn.Module):
    """Convolution, the norm, convolution, pooled head; in 1, 2 or 3 dimensions."""

    def __init__(self, norm: nn.Module, dims: int = 2) -> None:
        super().__init__()
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
        self.stem = conv(3, C, 3, padding=1)
        self.norm = norm
        self.after = conv(C, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.after(self.norm(self.stem(x)))).flatten(2).mean(2))


class Last(nn.Module):
    """The norm over the last dimension of an image, between linear layers."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Linear(3, C)
        self.norm = norm
        self.after = nn.Linear(C, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x.permute(0, 2, 3, 1)))
        return self.head(F.relu(self.after(x)).mean((1, 2)))


def standardised(kind: Callable[..., nn.Module]) -> nn.Module:
    return nn.Sequential(kind(C, C, 3, padding=1), nn.ReLU(), kind(C, C, 1))


#: Norms with running statistics.
RUNNING: dict[str, Callable[[], nn.Module]] = {
    "batch_norm": lambda: Around(nn.BatchNorm2d(C)),
    "batch_norm_1d": lambda: Around(nn.BatchNorm1d(C), 1),
    "batch_norm_3d": lambda: Around(nn.BatchNorm3d(C), 3),
    "sync_batch_norm": lambda: Around(nn.SyncBatchNorm(C)),
    "cumulative": lambda: Around(nn.BatchNorm2d(C, momentum=None)),
    "no_affine": lambda: Around(nn.BatchNorm2d(C, affine=False)),
    "batch_norm_act": lambda: Around(BatchNormAct2d(C)),
    "instance_norm": lambda: Around(nn.InstanceNorm2d(C, affine=True, track_running_stats=True)),
}

#: All others that keep channels apart.
APART: dict[str, Callable[[], nn.Module]] = {
    "frozen_batch_norm": lambda: Around(FrozenBatchNormAct2d(C)),
    "no_statistics": lambda: Around(nn.BatchNorm2d(C, track_running_stats=False)),
    "instance_norm_plain": lambda: Around(nn.InstanceNorm2d(C)),
    "instance_norm_affine": lambda: Around(nn.InstanceNorm2d(C, affine=True)),
    "instance_norm_1d": lambda: Around(nn.InstanceNorm1d(C, affine=True), 1),
    "filter_response_norm": lambda: Around(FilterResponseNormTlu2d(C)),
}

#: Norms over channels: statistics of a level are those of its channels.
LEVELS: dict[str, Callable[[], nn.Module]] = {
    "layer_norm": lambda: Last(nn.LayerNorm(C)),
    "layer_norm_no_affine": lambda: Last(nn.LayerNorm(C, elementwise_affine=False)),
    "layer_norm_no_bias": lambda: Last(nn.LayerNorm(C, bias=False)),
    "layer_norm_2d": lambda: Around(LayerNorm2d(C)),
    "rms_norm": lambda: Last(nn.RMSNorm(C)),
    "timm_rms_norm": lambda: Last(RmsNorm(C)),
    "group_norm": lambda: Around(nn.GroupNorm(3, C)),
    "group_norm_one": lambda: Around(nn.GroupNorm(1, C)),
}

#: Other modules that mix channels, and convolutions with computed weights.
MIXING: dict[str, Callable[[], nn.Module]] = {
    "timm_rms_norm_2d": lambda: Around(RmsNorm2d(C)),  # written out: black box, zeros count
    "group_norm_act": lambda: Around(GroupNormAct(C, 3)),
    "layer_norm_act": lambda: Around(LayerNormAct2d(C)),
    "evo_norm_batch": lambda: Around(EvoNorm2dB0(C)),
    "evo_norm_sample": lambda: Around(EvoNorm2dS0(C, groups=3)),
    "grn": lambda: Around(GlobalResponseNorm(C, channels_last=False)),
    "grn_last": lambda: Last(GlobalResponseNorm(C)),
    "std_conv": lambda: Around(standardised(StdConv2d)),
    "std_conv_same": lambda: Around(standardised(StdConv2dSame)),
    "scaled_std_conv": lambda: Around(standardised(ScaledStdConv2d)),
    "eca": lambda: Around(EcaModule(C)),
    "cbam": lambda: Around(CbamModule(C)),
    "squeeze_excite": lambda: Around(SEModule(C, rd_channels=4)),
}

NORMS = {**RUNNING, **APART, **LEVELS, **MIXING}


def inputs_for(model: nn.Module) -> Tensor:
    if isinstance(model, Around) and isinstance(model.stem, nn.Conv1d):
        return IMAGE.flatten(2)
    if isinstance(model, Around) and isinstance(model.stem, nn.Conv3d):
        return IMAGE.unflatten(3, (2, 3))
    return IMAGE


def build(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = NORMS[name]()
    return model, inputs_for(model)


@pytest.mark.parametrize("name", every_fourth(NORMS))
def test_life(name: str) -> None:
    life = lives.live(*build(name))
    assert 0 < life.net.capacity().tasks[0] < 1


@pytest.mark.parametrize("name", every_fourth(NORMS))
def test_disjoint_life(name: str) -> None:
    lives.live(*build(name), forward_transfer=False)


# -- running statistics ---------------------------------------------------------------------------


def levels_of(net: autoeidetic.EideticNet, name: str) -> Tensor:
    """The task of each row of a parameter: owned, or in training."""
    owner = net.call_plan.plan.parameters[name].units
    return torch.from_numpy(net.owners.levels)[owner.flatten(1)[:, 0] if owner.dim() > 1 else owner]


@pytest.mark.parametrize("name", sorted(RUNNING))
def test_statistics_of_frozen_channels(name: str) -> None:
    """Not by a bit, while the others follow the batch; in train mode as in eval mode."""
    model, x = build(name)
    life = lives.Life(model, x).first_task()
    norm = life.net.backbone.norm
    frozen = levels_of(life.net, "stem.weight") == 0
    assert frozen.any()
    assert not frozen.all()
    before = {n: b.clone() for n, b in norm.named_buffers() if b.dim()}
    life.prepare()
    fresh = {n: b.clone() for n, b in norm.named_buffers() if b.dim()}
    optimizer = lives.adamw(life.net)
    life.net.train()
    for _ in range(3):
        optimizer.zero_grad()
        lives.loss_of(life.net(x)).backward()
        for n, b in norm.named_buffers():
            if b.dim():
                assert torch.equal(b[frozen], before[n][frozen]), f"{n} before the step"
                assert not (b[~frozen] == fresh[n][~frozen]).any(), f"{n} does not learn"
        optimizer.step()
    with torch.no_grad():
        assert torch.equal(life.net(x, task=0), life.said[0][0])


@pytest.mark.parametrize("name", sorted(set(RUNNING) - {"instance_norm"}))
def test_statistics_of_free_channels(name: str) -> None:
    """They are those of a plain norm on the same batches."""
    model, x = build(name)
    life = lives.Life(model, x).first_task()
    life.prepare()
    norm, free = life.net.backbone.norm, levels_of(life.net, "stem.weight") == 1
    plain = type(model.norm)(C, momentum=model.norm.momentum)
    plain.load_state_dict(norm.state_dict(), strict=False)
    seen: list[Tensor] = []
    handle = norm.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    life.net.train()
    for batch in (x, x.flip(0) * 2):
        life.net(batch)
    handle.remove()
    plain.train()
    for value in seen:
        plain(value)
    torch.testing.assert_close(norm.running_mean[free], plain.running_mean[free])
    torch.testing.assert_close(norm.running_var[free], plain.running_var[free])


# -- levels ---------------------------------------------------------------------------------------


def groups_of(norm: nn.Module) -> int:
    return norm.num_groups if isinstance(norm, nn.GroupNorm) else 1


def brute(norm: nn.Module, x: Tensor, include: Tensor) -> Tensor:
    """The norm in double precision over some channels only; ``x`` is [N, C, *space]."""
    result = torch.zeros_like(x, dtype=torch.float64)
    size = C // groups_of(norm)
    for start in range(0, C, size):
        chosen = include.nonzero()[:, 0]
        chosen = chosen[(chosen >= start) & (chosen < start + size)]
        if not len(chosen):
            continue
        values = x[:, chosen].double()
        over = (1,) if groups_of(norm) == 1 and not isinstance(norm, nn.GroupNorm) else None
        dims = over or tuple(range(1, x.dim()))
        if "rms" in type(norm).__name__.lower():
            eps = norm.eps if norm.eps is not None else torch.finfo(torch.float32).eps
            normed = values * (values.square().mean(dims, keepdim=True) + eps).rsqrt()
        else:
            mean = values.mean(dims, keepdim=True)
            var = (values - mean).square().mean(dims, keepdim=True)
            normed = (values - mean) * (var + norm.eps).rsqrt()
        result[:, chosen] = normed
    shape = [-1] + [1] * (x.dim() - 2)
    if getattr(norm, "weight", None) is not None:
        result = result * norm.weight.detach().double().view(shape)
    if getattr(norm, "bias", None) is not None:
        result = result + norm.bias.detach().double().view(shape)
    return result


@pytest.mark.parametrize("name", sorted(LEVELS))
@pytest.mark.parametrize("transfer", [True, False])
@pytest.mark.parametrize("offset", [0.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_statistics_of_a_level(name: str, transfer: bool, offset: float) -> None:
    """Those of its channels and nothing else, in training and in eval mode."""
    model, x = build(name)
    with torch.no_grad():
        model.stem.bias.add_(offset)
    net = lives.live(model, x, forward_transfer=transfer).net
    level = levels_of(net, "stem.weight")
    assert set(level.tolist()) == {0, 1, 2}
    norm, seen = net.backbone.norm, []
    handle = norm.register_forward_hook(lambda m, args, out: seen.extend([args[0], out]))
    with torch.no_grad():
        net.eval()(x)
        net.train()(x)
    handle.remove()
    for before, after in (seen[:2], seen[2:]):
        if isinstance(model, Last):
            before, after = before.movedim(-1, 1), after.movedim(-1, 1)
        for task in range(3):
            include = level <= task if transfer else level == task
            expected = brute(norm, before, include)[:, level == task]
            # one channel of a group alone is its own mean: only rounding is left to compare
            torch.testing.assert_close(
                after[:, level == task].double(), expected, rtol=1e-3, atol=2e-3
            )


# -- a kept model ---------------------------------------------------------------------------------


def kept(model: nn.Module, x: Any) -> None:
    """The first task keeps every unit: not a bit changes, before and after it is finished."""
    lives.randomise(model).eval()
    with torch.no_grad():
        expected = lives.tensors(lives.call(copy.deepcopy(model), x))
    net = autoeidetic.convert(model, x, keep_head=True, recycle="keep")
    net.prepare_for_task(0)
    assert lives.same(lives.answers(net, x, 0), expected)
    net.finish_task()
    assert lives.same(lives.answers(net, x, 0), expected)
    with torch.no_grad():
        assert lives.same(lives.tensors(lives.call(model.eval(), x)), expected)
    net.prepare_for_task(1, num_classes=2, on_full="reuse")
    assert lives.same(lives.answers(net, x, 0), expected)
    lives.train(net, x, [lives.adamw(net)])
    assert lives.same(lives.answers(net, x, 0), expected)


@pytest.mark.parametrize("name", every_fourth(NORMS))
def test_kept_model_computes_what_it_did(name: str) -> None:
    kept(*build(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["test_resnet", "test_vit", "test_convnext", "test_efficientnet", "test_nfnet", "test_byobnet"],
)
def test_kept_timm_model_computes_what_it_did(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name)
    kept(model, torch.randn(2, *model.pretrained_cfg["input_size"]))


def test_what_no_task_uses_stays_finite_in_a_deep_network() -> None:
    """Free channels are normalised by themselves, or they would grow at every norm."""
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=48, depth=12, num_heads=6, num_classes=3
    )
    x = torch.randn(2, 3, 16, 16)
    net = autoeidetic.convert(lives.randomise(model), x)
    net.prepare_for_task(0, num_classes=3)
    net.prune(0.5)
    net.finish_task()
    assert net.verify(x).ok


# -- memory ---------------------------------------------------------------------------------------


def test_a_standardised_weight_is_told_apart_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written element by element, a network of a billion parameters needs more than 12 GiB."""
    written: list[int] = []
    scatter = ParameterChannels._scatter

    def counted(self: ParameterChannels, view: ParameterView, tags: Tensor, dense: Tensor) -> None:
        written.append(dense.numel())
        scatter(self, view, tags, dense)

    monkeypatch.setattr(ParameterChannels, "_scatter", counted)
    conv = StdConv2d(6, 8, 3, padding=0)
    autoeidetic.analyze(nn.Sequential(conv, nn.Flatten(), nn.Linear(8, 3)), torch.ones(2, 6, 3, 3))
    assert written == [conv.out_channels]


def test_small_tags_keep_no_large_storage() -> None:
    tags = torch.arange(4).repeat(1000, 1)
    small = compress(tags)
    assert torch.equal(small, tags)
    assert small.untyped_storage().nbytes() == 4 * tags.itemsize
