"""Norms by levels: values, bits, dtypes and gradients against a loop over levels."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sweeps import only
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autoeidetic.enforce.kernels import level_norms
from autoeidetic.enforce.kernels.level_norms import LevelTable

KINDS = ["layer", "rms", "group"]
EPS = 1e-5
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def table(layout: str, count: int, channels: int, current: int | None = None) -> LevelTable:
    """``count`` levels; the level in training, if any, also reads the channels of later ones."""
    owner = torch.randint(20, (channels,), generator=torch.Generator().manual_seed(channels))
    owner[: channels // 3] = torch.arange(channels // 3) % 5
    if layout == "gap":  # no channel of level 0 in the first half, so in the first groups
        owner[: channels // 2] += 1
    level = torch.arange(count)[:, None]
    include = owner == level if layout in ("disjoint", "constants") else owner <= level
    if layout == "late":  # disjoint at first, then nested
        include = torch.where(level < 3, owner == level, owner <= level)
    if current is not None:
        include[current] |= owner > current
    if layout == "constants":  # disjoint, but for one channel that every level reads
        include = include | (torch.arange(channels) == 1)
    return LevelTable(include, owner.clamp_max(count - 1), current)


def run(
    kind: str,
    x: Tensor,
    table: LevelTable,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    groups: int = 1,
    restrict: bool = True,
) -> Tensor:
    if kind == "layer":
        return level_norms.layer_norm(x, table, weight, bias, EPS, restrict=restrict)
    if kind == "rms":
        return level_norms.rms_norm(x, table, weight, EPS, restrict=restrict)
    return level_norms.group_norm(x, groups, table, weight, bias, EPS, restrict=restrict)


def reference(
    kind: str,
    x: Tensor,
    table: LevelTable,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    groups: int = 1,
) -> Tensor:
    """One level and one group after the other, over the channels gathered; in x's dtype."""
    dim = 1 if kind == "group" else x.dim() - 1
    channels = x.movedim(dim, -1).unbind(-1)
    size = len(channels) // groups
    out = []
    for c, value in enumerate(channels):
        reads = table.include[table.use[c]].nonzero()[:, 0].tolist()
        reads = [r for r in reads if r // size == c // size]
        if not reads:
            out.append(torch.zeros_like(value))
            continue
        gathered = torch.stack([channels[r] for r in reads], -1)
        dims = tuple(range(1, gathered.dim())) if kind == "group" else (-1,)
        if kind == "rms":
            var, mean = gathered.square().mean(dims, keepdim=True), torch.zeros(())
        else:
            var, mean = torch.var_mean(gathered, dims, correction=0, keepdim=True)
            mean = mean.squeeze(-1)
        y = (value - mean) * (var.squeeze(-1) + EPS).rsqrt()
        y = y if weight is None else y * weight[c]
        out.append(y if bias is None or kind == "rms" else y + bias[c])
    return torch.stack(out, -1).movedim(-1, dim)


def inputs(kind: str, rows: int, channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, channels, 3, 2) if kind == "group" else (rows, channels)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def affine(channels: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(channels)
    return (
        (torch.rand(channels, generator=generator) + 0.5).to(dtype),
        torch.randn(channels, generator=generator).to(dtype),
    )


def readable(table: LevelTable, groups: int = 1, least: int = 1) -> Tensor:
    """Output channels whose level reads at least so many channels in their group."""
    size = table.include.shape[1] // groups
    read = table.include.unflatten(1, (groups, -1)).sum(-1).repeat_interleave(size, 1)
    return read.gather(0, table.use[None])[0] >= least


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(*(t.contiguous().view(BITS[t.element_size()]) for t in (a, b)))


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.0, 50.0])
@pytest.mark.parametrize("layout", ["nested", "disjoint", "gap", "constants", "late"])
@pytest.mark.parametrize("count", [1, 5, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_values(kind: str, count: int, layout: str, mean: float) -> None:
    groups = 4 if kind == "group" else 1
    x = inputs(kind, 6, 96) + mean
    t = table(layout, count, 96)
    weight, bias = affine(96)
    for w, b in ((weight, bias), (None, None)):
        y = run(kind, x, t, w, b, groups=groups)
        exact = [None if v is None else v.double() for v in (w, b)]
        z = reference(kind, x.double(), t, *exact, groups=groups)
        # The variance of two or three values may be so small that float32 has no such accuracy.
        where = readable(t, groups, least=1 if kind == "group" else 4)
        assert y.isfinite().all()
        torch.testing.assert_close(y[:, where].double(), z[:, where], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(48,), (2, 3, 48)])
def test_any_number_of_leading_dimensions(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    t = table("nested", 5, 48)
    for kind in ("layer", "rms"):
        y = run(kind, x, t, *affine(48))
        torch.testing.assert_close(y, reference(kind, x, t, *affine(48)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows(kind: str) -> None:
    x = inputs(kind, 0, 48).requires_grad_()
    y = run(kind, x, table("nested", 5, 48, 4), *affine(48))
    assert y.shape == x.shape
    y.sum().backward()


@pytest.mark.parametrize("space", [(), (4,), (2, 3, 4)])
def test_any_number_of_space_dimensions(space: tuple[int, ...]) -> None:
    x = torch.randn(3, 48, *space).transpose(0, -1).contiguous().transpose(0, -1)
    t = table("nested", 20, 48)
    y = run("group", x, t, *affine(48), groups=2)
    z = reference("group", x, t, *affine(48), groups=2)
    torch.testing.assert_close(y, z, atol=1e-5, rtol=1e-5)


def test_one_level_equals_the_stock_norms() -> None:
    x, t = (
        torch.randn(5, 48, 4),
        LevelTable(torch.ones(1, 48, dtype=torch.bool), torch.zeros(48).long()),
    )
    w, b = affine(48)
    stock = F.group_norm(x, 6, w, b, EPS)
    torch.testing.assert_close(run("group", x, t, w, b, groups=6), stock)
    x = x.transpose(1, 2)
    torch.testing.assert_close(run("layer", x, t, w, b), F.layer_norm(x, (48,), w, b, EPS))
    torch.testing.assert_close(run("rms", x, t, w, b), F.rms_norm(x, (48,), w, EPS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_default_eps_of_rms_norm_is_the_stock_one(dtype: torch.dtype) -> None:
    x = torch.full((2, 8), 1e-3).to(dtype)
    t = LevelTable(torch.ones(1, 8, dtype=torch.bool), torch.zeros(8).long())
    torch.testing.assert_close(level_norms.rms_norm(x, t, None, None), F.rms_norm(x, (8,)))


def test_levels_without_channels_or_variance_are_finite() -> None:
    include = torch.tensor([[False] * 4, [True, False, False, False], [True] * 4])
    t = LevelTable(include, torch.tensor([2, 1, 0, 2]), 2)
    for x in (torch.ones(2, 4), torch.zeros(2, 4), torch.full((2, 4), 1e-30)):
        assert level_norms.layer_norm(x, t, None, None, 0.0).isfinite().all()
        assert level_norms.rms_norm(x, t, None, 0.0).isfinite().all()
        assert level_norms.group_norm(x, 2, t, None, None, 0.0).isfinite().all()


def test_impossible_tables_are_refused() -> None:
    include = torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="one of 2 levels"):
        LevelTable(include, torch.tensor([0, 0, 1, 2]))
    with pytest.raises(ValueError, match="the current level is 2, and there are 2"):
        LevelTable(include, torch.tensor([0, 0, 1, 1]), 2)
    with pytest.raises(ValueError, match="4 channels do not divide into 3 groups"):
        LevelTable(include, torch.tensor([0, 0, 1, 1])).grouped(3)


# -- bits --------------------------------------------------------------------------------------

SIZES = only([(7, 50)], [(1, 3), (1, 192), (7, 50), (5, 768), (592, 192), (3000, 12)])
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "channels"), SIZES)
@pytest.mark.parametrize("layout", ["nested", "disjoint", "constants", "late"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_outside_a_level_change_no_bit(
    kind: str, layout: str, rows: int, channels: int, dtype: torch.dtype
) -> None:
    x = inputs(kind, rows, channels, dtype) + 3
    weight, bias = affine(channels, dtype)
    t = table(layout, 5, channels)
    y = run(kind, x, t, weight, bias)
    largest = torch.finfo(dtype).max
    for level in range(5):
        own = (t.use == level) & t.include[level]
        outside = ~t.include[level]
        for size in (1.0, 1e10, 1e38):
            other = x.clone()
            noise = torch.randn_like(x[:, outside], dtype=torch.float64) * size
            other[:, outside] = noise.clamp(-largest, largest).to(dtype)
            z = run(kind, other, t, weight, bias)
            assert same_bits(y[:, own], z[:, own]), (level, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "channels"), SIZES)
@pytest.mark.parametrize("layout", ["nested", "disjoint", "gap", "constants", "late"])
@pytest.mark.parametrize("kind", KINDS)
def test_further_levels_change_no_bit(
    kind: str, layout: str, rows: int, channels: int, dtype: torch.dtype
) -> None:
    x = inputs(kind, rows, channels, dtype) + 3
    weight, bias = affine(channels, dtype)
    full = table(layout, 20, channels)
    y = run(kind, x, full, weight, bias)
    for count in (1, 2, 3, 8, 9, 16, 17, 19):
        z = run(kind, x, table(layout, count, channels), weight, bias)
        own = full.use < count
        assert same_bits(y[:, own], z[:, own]), count


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "channels"), SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_levels_of_other_channels_change_no_bit(
    kind: str, rows: int, channels: int, dtype: torch.dtype
) -> None:
    x = inputs(kind, rows, channels, dtype) + 3
    weight, bias = affine(channels, dtype)
    t = table("nested", 12, channels)
    y = run(kind, x, t, weight, bias)
    for level in (0, 3, 9):
        own = t.use == level
        use = torch.where(own, t.use, (t.use * 5 + 1) % 12)
        z = run(kind, x, LevelTable(t.include, use), weight, bias)
        assert same_bits(y[:, own], z[:, own]), level


@pytest.mark.parametrize("kind", KINDS)
def test_the_place_in_memory_changes_no_bit(kind: str) -> None:
    x = inputs(kind, 592, 192) + 3
    moved = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    t = table("nested", 5, 192)
    assert same_bits(run(kind, x, t, *affine(192)), run(kind, moved, t, *affine(192)))


def test_groups_are_as_stable() -> None:
    x = inputs("group", 5, 48)
    full = table("gap", 20, 48)
    y = run("group", x, full, *affine(48), groups=4)
    for count in range(1, 20):
        other, t = x.clone(), table("gap", count, 48)
        other[:, ~t.include[-1]] = 1e30
        z = run("group", other, t, *affine(48), groups=4)
        own = (full.use < count) & readable(t, 4)
        assert same_bits(y[:, own], z[:, own]), count


def test_the_sign_of_a_zero_does_not_depend_on_other_levels() -> None:
    include = torch.tensor([[True, True, False, False], [True] * 4])
    t = LevelTable(include, torch.tensor([0, 0, 1, 1]))
    results = []
    for value in (-5.0, 5.0):
        x = torch.tensor([[0.0, -0.0, value, value], [-0.0, -0.0, value, 0.0]])
        for bias in (None, torch.tensor([0.0, -0.0, 0.0, -0.0])):
            results.append(level_norms.layer_norm(x, t, None, bias, EPS)[:, :2])
    assert all(same_bits(r, results[0]) for r in results)


# -- dtypes ------------------------------------------------------------------------------------

STOCK: dict[str, Callable[..., Tensor]] = {
    "layer": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, EPS),
    "rms": lambda x, w, b: F.rms_norm(x, x.shape[-1:], w, EPS),
    "group": lambda x, w, b: F.group_norm(x, 1, w, b, EPS),
}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind: str, dtype: torch.dtype, mixed: bool, autocast: torch.dtype | None) -> None:
    if mixed and dtype == torch.float64:
        pytest.skip("the stock norms refuse float64 with float32 weights")
    x = inputs(kind, 6, 48, dtype).requires_grad_()
    weight, bias = affine(48, torch.float32 if mixed else dtype)
    t = table("nested", 5, 48, current=4)
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        stock = STOCK[kind](x, weight, bias)
        y = run(kind, x, t, weight, bias)
        (gradient,) = torch.autograd.grad(y.float().square().sum(), x)
    assert y.dtype == stock.dtype
    assert gradient.dtype == x.dtype
    assert gradient.isfinite().all()
    wide = torch.promote_types(dtype, torch.float32)
    z = run(kind, x.to(wide), t, weight.to(wide), bias.to(wide)).to(dtype)
    assert torch.equal(y, z)


# -- gradients ---------------------------------------------------------------------------------


def gradients(
    function: Callable[..., Tensor], kind: str, x: Tensor, t: LevelTable, which: Tensor, **kw: Any
) -> list[Tensor]:
    leaves = [v.clone().requires_grad_() for v in (x, *affine(x.shape[1], x.dtype))]
    y = function(kind, leaves[0], t, *leaves[1:], **kw)
    torch.manual_seed(0)
    seed = torch.randn(y.shape, dtype=y.dtype) * which.to(y.dtype).view(-1, *[1] * (y.dim() - 2))
    return list(torch.autograd.grad(y, leaves, seed, materialize_grads=True))


@pytest.mark.parametrize("layout", ["nested", "disjoint", "gap", "constants", "late"])
@pytest.mark.parametrize("current", [0, 4, 11])
@pytest.mark.parametrize("kind", KINDS)
def test_restricted_gradients(kind: str, current: int, layout: str) -> None:
    groups = 4 if kind == "group" else 1
    x = inputs(kind, 6, 48, torch.float64)
    whole = table(layout, current + 1, 48, current)
    pruned = whole.include.clone()
    pruned[current, 40:44] &= whole.use[40:44] != current  # written, but no longer read
    foreign = whole.use.clone()
    foreign[45] = 0  # read, but normalised by another level
    unused = whole.use.clone()
    unused[40:44] = current + 1  # by a later level, that of what no task uses: it reads all
    later = torch.cat([whole.include, torch.ones(1, 48, dtype=torch.bool)])
    for t in (
        whole,
        LevelTable(pruned, foreign, current),
        LevelTable(later, unused, current),
    ):
        written = (t.use == current) & readable(t, groups)
        active = t.include[current] & ~t.include[:current].any(0)
        got = gradients(run, kind, x, t, written | (t.use != current), groups=groups)
        expected = gradients(reference, kind, x, t, written, groups=groups)
        assert written.any()
        assert active.any() or current == 0 or layout == "constants"
        torch.testing.assert_close(got[0][:, active], expected[0][:, active], atol=1e-9, rtol=1e-9)
        assert (got[0][:, ~active] == 0).all()
        for g, e in zip(got[1:], expected[1:], strict=True):
            torch.testing.assert_close(g, e, atol=1e-9, rtol=1e-9)
            assert (g[t.use != current] == 0).all()


def test_a_table_with_written_and_read_apart_is_tested() -> None:
    assert table("nested", 5, 48, 4).same
    assert not LevelTable(torch.tensor([[True, False]]), torch.tensor([0, 0]), 0).same


@pytest.mark.parametrize("kind", KINDS)
def test_no_level_in_training_means_no_gradient(kind: str) -> None:
    x = inputs(kind, 6, 48).requires_grad_()
    weight, bias = (v.requires_grad_() for v in affine(48))
    assert not run(kind, x, table("nested", 5, 48), weight, bias).requires_grad
    assert run(kind, x, table("nested", 5, 48, 4), weight, bias).requires_grad


@pytest.mark.parametrize("layout", ["nested", "disjoint", "constants", "late"])
@pytest.mark.parametrize("current", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_unrestricted_gradients(kind: str, current: int | None, layout: str) -> None:
    groups = 4 if kind == "group" else 1
    x = inputs(kind, 6, 48, torch.float64)
    t = table(layout, 10, 48, current)
    which = readable(t, groups)
    got = gradients(run, kind, x, t, which, groups=groups, restrict=False)
    expected = gradients(reference, kind, x, t, which, groups=groups)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_asks_for_it_gets_a_gradient(kind: str) -> None:
    x, (weight, bias) = inputs(kind, 6, 48), affine(48)
    t = table("nested", 5, 48, 4)
    run(kind, x, t, weight.requires_grad_(), None).sum().backward()
    assert weight.grad is not None
    assert x.grad is None
    run(kind, x.requires_grad_(), t, None, bias).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_pass_is_narrow(kind: str) -> None:
    class Widths(torch.utils._python_dispatch.TorchDispatchMode):
        wide: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **kwargs or {})
            if isinstance(result, Tensor) and result.dim() > 1 and result.shape[1] == 400:
                self.wide.append(func.name())
            return result

    include = torch.ones(2, 400, dtype=torch.bool)
    include[0, 360:] = False
    t = LevelTable(include, (~include[0]).long(), 1)
    x = inputs(kind, 6, 400).requires_grad_()
    y = run(kind, x, t, *affine(400))
    seed = torch.randn_like(y)
    with Widths() as widths:
        torch.autograd.grad(y, x, seed)
    compute = [n for n in widths.wide if not n.startswith(("aten::view", "aten::_unsafe_view"))]
    allowed = ("aten::new_zeros", "aten::scatter_", "aten::index_copy_", "aten::reshape")
    assert [n for n in compute if not n.startswith(allowed)] == []


# -- tools -------------------------------------------------------------------------------------


class Norms(nn.Module):
    def __init__(self, current: int | None, restrict: bool) -> None:
        super().__init__()
        self.table = table("nested", 9, 24, current)
        self.grouped = self.table.grouped(4)
        self.weight, self.bias = (nn.Parameter(v) for v in affine(24))
        self.restrict = restrict

    def forward(self, x: Tensor) -> Tensor:
        kw: dict[str, Any] = {"restrict": self.restrict}
        y = run("group", x, self.grouped, self.weight, self.bias, groups=4, **kw).transpose(1, 2)
        y = run("rms", y * 2, self.table, self.weight, None, **kw)
        return run("layer", y + 1, self.table, self.weight, self.bias, **kw)


@pytest.mark.slow
@pytest.mark.parametrize("restrict", [True, False])
@pytest.mark.parametrize("current", [None, 8])
def test_compile_and_export(current: int | None, restrict: bool) -> None:
    torch.compiler.reset()
    net, x = Norms(current, restrict), torch.randn(3, 24, 5)
    expected = net(x)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    torch.testing.assert_close(y, expected)
    if expected.requires_grad:
        got = torch.autograd.grad(y.square().sum(), net.parameters())
        want = torch.autograd.grad(expected.square().sum(), net.parameters())
        torch.testing.assert_close(got, want)
    for strict in {False, restrict}:
        exported = torch.export.export(net, (x,), strict=strict).module()
        torch.testing.assert_close(exported(x), expected)


def test_under_a_function_mode() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **kwargs or {})

    net, x = Norms(8, True), torch.randn(3, 24, 5)
    expected = net(x)
    with Mode():
        assert torch.equal(net(x), expected)


def test_tables_can_be_copied_pickled_and_moved() -> None:
    x, t = torch.randn(4, 24), table("gap", 9, 24, 8)
    y = run("layer", x, t, *affine(24))
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert torch.equal(run("layer", x, other, *affine(24)), y)
    assert t.to(torch.device("cpu")) is t
    assert t.to(torch.device("cpu"), torch.float64).average[0].dtype == torch.float64
    w, b = (v.to("meta") for v in affine(24))
    moved = run("group", x.to("meta"), t.grouped(2).to(torch.device("meta")), w, b, groups=2)
    assert moved.shape == x.shape
    assert run("layer", x.to("meta"), t, w, b).device.type == "meta"
