"""Restricted layers against stock autograd: same bits forward, the active part backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autoeidetic.enforce.kernels import restricted_backward, statistics

CONVS = {
    "1d": (F.conv1d, (3, 4, 9), (6, 4, 3), (2, 1, 1, 1)),
    "2d": (F.conv2d, (3, 4, 7, 8), (6, 4, 3, 3), (1, 1, 1, 1)),
    "3d": (F.conv3d, (2, 4, 4, 5, 3), (6, 4, 3, 2, 1), ((1, 2, 1), (1, 0, 0), (1, 1, 2), 1)),
    "pointwise": (F.conv2d, (3, 4, 5, 5), (6, 4, 1, 1), ((2,), (0,), (1,), 1)),
    "valid": (F.conv2d, (3, 4, 7, 8), (6, 4, 3, 3), (2, "valid", 1, 1)),
    "same": (F.conv2d, (3, 4, 7, 8), (6, 4, 3, 5), (1, "same", 2, 1)),
    "same, even kernel": (F.conv2d, (3, 4, 7, 8), (6, 4, 2, 3), (1, "same", (1, 2), 1)),
    "unbatched": (F.conv2d, (4, 7, 8), (6, 4, 3, 3), (1, "same", 1, 1)),
    "depthwise": (F.conv2d, (3, 6, 7, 8), (6, 1, 3, 3), (1, 1, 1, 6)),
    "depthwise, unbatched": (F.conv1d, (6, 9), (6, 1, 4), (1, "same", 1, 6)),
    "multiplier": (F.conv2d, (3, 4, 7, 8), (8, 1, 3, 3), (1, 1, 1, 4)),
    "grouped": (F.conv2d, (3, 4, 7, 8), (6, 2, 3, 3), (2, 1, 1, 2)),
}
INDICES = {"some": [3, 0, 2], "one": [1], "none": [], "all": None}
LAYOUTS = list(itertools.product(INDICES, [*INDICES, "unrestricted"]))


def index(kind: str, size: int) -> Tensor | None:
    if kind == "unrestricted":
        return None
    chosen = INDICES[kind]
    return torch.arange(size) if chosen is None else torch.tensor(chosen, dtype=torch.long)


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.double) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def masked(tensor: Tensor, dim: int, chosen: Tensor | None) -> Tensor:
    """Zeros outside `chosen`, by a product: no code is shared with what is tested."""
    if chosen is None:
        return tensor
    mask = torch.zeros(tensor.shape[dim], dtype=tensor.dtype)
    mask[chosen] = 1
    return tensor * mask.view([-1 if d == dim % tensor.dim() else 1 for d in range(tensor.dim())])


def check(
    stock: Callable[..., Tensor],
    ours: Callable[..., Tensor],
    inputs: list[Tensor],
    channel: int,
    active: Tensor | None,
    columns: Tensor | None,
) -> None:
    expected, y = stock(*inputs), ours(*inputs)
    assert torch.equal(y, expected)
    single = [t.detach().float().requires_grad_() for t in inputs]
    assert torch.equal(ours(*single), stock(*single)), "other kernels than those of doubles"
    grad = torch.randn_like(y)
    reference = torch.autograd.grad(expected, inputs, masked(grad, channel, active))
    gradients = torch.autograd.grad(y, inputs, grad)
    torch.testing.assert_close(gradients[0], masked(reference[0], channel, columns))
    for gradient, wanted in zip(gradients[1:], reference[1:], strict=True):
        torch.testing.assert_close(gradient, wanted)
        assert torch.equal(gradient, masked(gradient, 0, active)), "exactly zero elsewhere"


@pytest.mark.parametrize(("row", "column"), LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (4,)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear(shape: tuple[int, ...], biased: bool, row: str, column: str) -> None:
    active, columns = index(row, 6), index(column, 4)
    inputs = leaves(shape, (6, 4), (6,))[: 3 if biased else 2]

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return restricted_backward.linear(x, weight, bias, active, columns)

    check(F.linear, ours, inputs, -1, active, columns)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(("row", "column"), LAYOUTS)
@pytest.mark.parametrize("case", CONVS)
def test_conv(case: str, row: str, column: str) -> None:
    function, shape, kernel, geometry = CONVS[case]
    channel = -len(kernel) + 1
    active, columns = index(row, kernel[0]), index(column, shape[channel])
    biased = row != "one"

    def stock(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return function(x, weight, bias, *geometry)

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return restricted_backward.conv(function, x, weight, bias, *geometry, active, columns)

    inputs = leaves(shape, kernel, (kernel[0],))[: 3 if biased else 2]
    check(stock, ours, inputs, channel, active, columns)


def test_nothing_is_lost_where_frozen_rows_do_not_read_active_columns() -> None:
    x, weight = leaves((5, 4), (6, 4))
    active, columns = torch.tensor([0, 4]), torch.tensor([1, 3])
    with torch.no_grad():
        weight[[[1], [2], [3], [5]], columns] = 0
    grad = torch.randn(5, 6, dtype=torch.double)
    full = torch.autograd.grad(F.linear(x, weight), x, grad)[0]
    ours = torch.autograd.grad(
        restricted_backward.linear(x, weight, None, active, columns), x, grad
    )[0]
    assert full[:, columns].abs().min() > 0
    torch.testing.assert_close(ours[:, columns], full[:, columns])


def test_stock_refuses_what_it_refuses() -> None:
    x, weight = leaves((1, 4, 5, 5), (6, 4, 3, 3))
    for padding in ("same", "sane"):
        with pytest.raises(RuntimeError) as stock:
            F.conv2d(x, weight, None, 2, padding)
        with pytest.raises(RuntimeError) as ours:
            restricted_backward.conv(
                F.conv2d, x, weight, None, 2, padding, 1, 1, torch.tensor([0]), None
            )
        assert str(ours.value) == str(stock.value)


class Calls(TorchDispatchMode):
    """Shapes of the tensors that the kernels of interest were called with."""

    KERNELS = {"mm", "convolution_backward", "native_batch_norm_backward"}

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[torch.Size, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket.__name__ in self.KERNELS:
            self.seen.append(tuple(a.shape for a in args if isinstance(a, Tensor)))
        return func(*args, **(kwargs or {}))


def kernels(y: Tensor) -> list[tuple[torch.Size, ...]]:
    with Calls() as calls:
        y.sum().backward()
    return [tuple(tuple(shape) for shape in shapes) for shapes in calls.seen]


def test_the_work_is_that_of_the_active_rows() -> None:
    active, columns = torch.tensor([1, 5]), torch.tensor([2])
    x, weight, kernel, image = leaves((7, 4), (6, 4), (6, 4, 3, 3), (1, 4, 5, 5))
    assert kernels(restricted_backward.linear(x, weight, None, active, columns)) == [
        ((7, 2), (2, 1)),
        ((2, 7), (7, 4)),
    ]
    geometry = (1, 1, 1, 1)
    assert kernels(
        restricted_backward.conv(F.conv2d, image, kernel, None, *geometry, active, columns)
    ) == [
        ((1, 2, 5, 5), (1, 1, 5, 5), (2, 1, 3, 3)),
        ((1, 2, 5, 5), (1, 4, 5, 5), (2, 4, 3, 3)),
    ]
    deep, thin = leaves((1, 6, 5, 5), (6, 1, 3, 3))
    assert kernels(
        restricted_backward.conv(F.conv2d, deep, thin, None, 1, 1, 1, 6, active, active)
    ) == [
        ((1, 2, 5, 5), (1, 2, 5, 5), (2, 1, 3, 3)),
        ((1, 2, 5, 5), (1, 2, 5, 5), (2, 1, 3, 3)),
    ]


def test_what_is_not_needed_is_not_computed() -> None:
    active, nothing = torch.tensor([1, 5]), torch.empty(0, dtype=torch.long)
    x, weight, kernel, image = leaves((7, 4), (6, 4), (6, 4, 3, 3), (1, 4, 5, 5))
    geometry = (1, 1, 1, 1)

    def convolve(x: Tensor, weight: Tensor, *indices: Tensor | None) -> Tensor:
        return restricted_backward.conv(F.conv2d, x, weight, None, *geometry, *indices)

    assert len(kernels(restricted_backward.linear(x.detach(), weight, None, active, None))) == 1
    assert len(kernels(restricted_backward.linear(x, weight.detach(), None, active, None))) == 1
    assert len(kernels(restricted_backward.linear(x, weight, None, active, nothing))) == 1
    assert len(kernels(convolve(image.detach(), kernel, active, None))) == 1
    assert len(kernels(convolve(image, kernel.detach(), active, None))) == 1
    assert len(kernels(convolve(image, kernel, active, nothing))) == 1
    assert kernels(convolve(image, kernel, nothing, None)) == []
    assert kernels(restricted_backward.linear(x, weight, None, nothing, None)) in (
        [],
        [((0, 7), (7, 4))],
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inside", [True, False])
def test_autocast(dtype: torch.dtype, inside: bool) -> None:
    active, columns = torch.tensor([1, 5]), torch.tensor([2, 0])
    inputs = leaves((7, 4), (6, 4), (6,), dtype=torch.float)
    images = leaves((2, 4, 5, 5), (6, 4, 3, 3), (6,), dtype=torch.float)

    def backward(y: Tensor, grad: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype, enabled=inside):
            return torch.autograd.grad(y, inputs, grad)

    with torch.autocast("cpu", dtype):
        pairs = [
            (F.linear(*inputs), restricted_backward.linear(*inputs, active, columns), inputs, -1),
            (
                F.conv2d(*images, 1, 1),
                restricted_backward.conv(F.conv2d, *images, 1, 1, 1, 1, active, columns),
                images,
                1,
            ),
        ]
    for stock, y, leaf, channel in pairs:
        assert y.dtype is dtype
        assert torch.equal(y, stock)
        grad = torch.randn_like(y)
        wanted = backward(stock, masked(grad, channel, active), leaf)
        gradients = backward(y, grad, leaf)
        assert {g.dtype for g in gradients} == {torch.float}
        torch.testing.assert_close(
            gradients, (masked(wanted[0], channel, columns), *wanted[1:]), rtol=0.02, atol=0.02
        )


def test_autocast_leaves_doubles_alone() -> None:
    x, weight = leaves((7, 4), (6, 4))
    with torch.autocast("cpu", torch.bfloat16):
        y = restricted_backward.linear(x, weight, None, torch.tensor([1]), None)
        assert y.dtype is torch.double
        assert torch.equal(y, F.linear(x, weight))


def test_channels_last_stays() -> None:
    image, kernel = (t.detach() for t in leaves((2, 4, 5, 5), (6, 4, 3, 3), dtype=torch.float))
    x, weight = (t.to(memory_format=torch.channels_last).requires_grad_() for t in (image, kernel))
    y = restricted_backward.conv(
        F.conv2d, x, weight, None, 1, 1, 1, 1, torch.tensor([1]), torch.tensor([2])
    )
    assert torch.equal(y, F.conv2d(x, weight, None, 1, 1))
    for tensor in (y, *torch.autograd.grad(y.sum(), [x, weight])):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_second_derivatives_raise() -> None:
    x, weight, kernel, image = leaves((7, 4), (6, 4), (6, 4, 3, 3), (1, 4, 5, 5))
    active = torch.tensor([1])
    for y, leaf in (
        (restricted_backward.linear(x, weight, None, active, None), x),
        (restricted_backward.conv(F.conv2d, image, kernel, None, 1, 1, 1, 1, active, None), image),
    ):
        (gradient,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


class Restricted(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear:
            return restricted_backward.linear(*args, torch.tensor([1]), None)
        return func(*args, **(kwargs or {}))


def test_inside_a_function_mode() -> None:
    layer = torch.nn.Linear(4, 3)
    with Restricted():
        layer(torch.randn(2, 4)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum(1).bool().tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "conv", "same", "depthwise", "batch_norm"])
def test_compiles_in_one_graph(name: str) -> None:
    active, columns = torch.tensor([1, 3]), torch.tensor([2, 0])
    image, bias = (2, 4, 5, 5), (4,)
    mean, var = running()
    functions: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
        "linear": (
            lambda *t: restricted_backward.linear(*t, active, columns),
            leaves((5, 4), (4, 4), bias),
        ),
        "conv": (
            lambda *t: restricted_backward.conv(F.conv2d, *t, 1, 1, 1, 1, active, columns),
            leaves(image, (4, 4, 3, 3), bias),
        ),
        "same": (
            lambda *t: restricted_backward.conv(F.conv2d, *t, 1, "same", 1, 1, active, columns),
            leaves(image, (4, 4, 2, 2), bias),
        ),
        "depthwise": (
            lambda *t: restricted_backward.conv(F.conv2d, *t, 1, 1, 1, 4, active, active),
            leaves(image, (4, 1, 3, 3), bias),
        ),
        "batch_norm": (
            lambda x, *affine: statistics.batch_norm(
                x, mean.clone(), var.clone(), *affine, 0.1, 1e-5, active
            ),
            leaves(image, bias, bias),
        ),
    }
    function, inputs = functions[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected, y = function(*inputs), compiled(*inputs)
    torch.testing.assert_close(y, expected)
    grad = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad(y, inputs, grad), torch.autograd.grad(expected, inputs, grad)
    )


NORMS = {
    "batch": (statistics.batch_norm, F.batch_norm),
    "instance": (statistics.instance_norm, F.instance_norm),
}
SHAPES = [(5, 4), (1, 4, 3), (3, 4, 3, 2), (2, 4, 3, 2, 2)]
NORM_CASES = [(n, s) for n in NORMS for s in SHAPES if n == "batch" or len(s) > 2]


def running(dtype: torch.dtype = torch.double) -> tuple[Tensor, Tensor]:
    """Statistics that no batch has, so that the wrong ones show."""
    return torch.randn(4, dtype=dtype), torch.rand(4, dtype=dtype) + 0.5


@pytest.mark.parametrize(("name", "shape"), NORM_CASES)
@pytest.mark.parametrize("kind", INDICES)
@pytest.mark.parametrize("affine", [0, 1, 2])
@pytest.mark.parametrize("restrict", [True, False])
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_norm(
    name: str, shape: tuple[int, ...], kind: str, affine: int, restrict: bool, dtype: torch.dtype
) -> None:
    ours, stock = NORMS[name]
    active = index(kind, 4)
    assert active is not None
    inputs = leaves(shape, *[(4,)] * affine, dtype=dtype)
    x, weight, bias, *_ = *inputs, None, None
    mean, var = running(dtype)
    fresh = mean.clone(), var.clone()
    old = mean.clone(), var.clone()

    training = stock(x, *fresh, weight, bias, True, 0.3, 1e-3)
    evaluation = stock(x, *old, weight, bias, False, 0.3, 1e-3)
    mask = torch.zeros(4, dtype=torch.bool)
    mask[active] = True
    wide = mask.view(-1, *[1] * (len(shape) - 2))
    expected = torch.where(wide, training, evaluation.detach() if restrict else evaluation)
    y = ours(x, mean, var, weight, bias, 0.3, 1e-3, active, restrict=restrict)

    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype is torch.double else {"rtol": 0, "atol": 2e-6}
    torch.testing.assert_close(y, expected, **tolerance)
    assert torch.equal(y[:, ~mask], evaluation[:, ~mask])
    for now, before, after in zip((mean, var), old, fresh, strict=True):
        assert torch.equal(now[~mask], before[~mask])
        torch.testing.assert_close(now[mask], after[mask])
    grad = torch.randn_like(y)
    gradients = torch.autograd.grad(y, inputs, grad)
    wanted = torch.autograd.grad(expected, inputs, grad)
    if dtype is torch.double:
        torch.testing.assert_close(gradients, wanted)
    if restrict:
        for gradient, dim in zip(gradients, (1, 0, 0), strict=False):
            assert torch.equal(gradient, masked(gradient, dim, active)), "exactly zero elsewhere"


@pytest.mark.parametrize("restrict", [True, False])
def test_norm_called_twice_before_backward(restrict: bool) -> None:
    x, weight, bias = leaves((5, 4), (4,), (4,))
    mean, var = running()
    active = torch.tensor([2])
    settings = (weight, bias, 0.3, 1e-3, active)
    y = statistics.batch_norm(x, mean, var, *settings, restrict=restrict)
    after = mean.clone()
    z = statistics.batch_norm(x + 1, mean, var, *settings, restrict=restrict)
    (y + z).square().sum().backward()
    assert mean[2] != after[2]
    assert x.grad is not None


def test_norm_works_on_the_active_channels_only() -> None:
    x, weight, bias = leaves((5, 4, 3), (4,), (4,))
    y = statistics.batch_norm(x, *running(), weight, bias, 0.1, 1e-5, torch.tensor([2, 3]))
    [shapes] = kernels(y)
    assert shapes[:3] == ((5, 2, 3), (5, 2, 3), (2,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("restrict", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_norm_of_half_precision(dtype: torch.dtype, restrict: bool, autocast: bool) -> None:
    x = torch.randn(6, 4, 3, 3).to(dtype).requires_grad_()
    weight, bias = leaves((4,), (4,), dtype=torch.float)
    mean, var = running(torch.float)
    fresh, old = (mean.clone(), var.clone()), (mean.clone(), var.clone())
    mask = torch.tensor([False, True, True, False])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = statistics.batch_norm(
            x, mean, var, weight, bias, 0.3, 1e-3, torch.tensor([1, 2]), restrict=restrict
        )
        training = F.batch_norm(x, *fresh, weight, bias, True, 0.3, 1e-3)
        evaluation = F.batch_norm(x, *old, weight, bias, False, 0.3, 1e-3)
    assert y.dtype is training.dtype is dtype
    assert torch.equal(y[:, ~mask], evaluation[:, ~mask])
    torch.testing.assert_close(y[:, mask], training[:, mask])
    torch.testing.assert_close(mean[mask], fresh[0][mask])
    assert torch.equal(var[~mask], old[1][~mask])
    gradients = torch.autograd.grad(y.float().square().sum(), [x, weight, bias])
    assert [g.dtype for g in gradients] == [dtype, torch.float, torch.float]


@pytest.mark.parametrize(("name", "shape"), [("batch", (1, 4)), ("instance", (3, 4, 1))])
def test_too_few_values(name: str, shape: tuple[int, ...]) -> None:
    ours, stock = NORMS[name]
    x, (mean, var) = torch.randn(shape, dtype=torch.double), running()
    before = mean.clone()
    with pytest.raises(ValueError, match="Expected more than 1") as expected:
        stock(x, mean, var, None, None, True)
    with pytest.raises(ValueError, match="Expected more than 1") as error:
        ours(x, mean, var, None, None, 0.1, 1e-5, torch.tensor([0]))
    assert str(error.value) == str(expected.value)
    assert torch.equal(mean, before)
    frozen = ours(x, mean, var, None, None, 0.1, 1e-5, torch.empty(0, dtype=torch.long))
    assert torch.equal(frozen, stock(x, mean, var, None, None, False))
