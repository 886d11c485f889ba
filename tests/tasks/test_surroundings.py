"""Networks in PyTorch's own tools: each takes a network and keeps its promise, or is refused.

Refused means an error of the package's own that names the true cause and a remedy.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import lives
import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx

import autoeidetic
from autoeidetic.common.bits import same
from autoeidetic.errors import EnforcementError, InputError
from autoeidetic.net import EideticNet

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
Y = torch.randn(9, 6, generator=torch.Generator().manual_seed(4))


class Twice(nn.Module):
    """A norm that is called twice on different channels, with a break for compilers between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        torch._dynamo.graph_break()
        return self.norm(self.second(x))


def model(middle: Callable[[], nn.Module] = lambda: nn.Linear(16, 16)) -> nn.Sequential:
    torch.manual_seed(0)
    built = nn.Sequential(
        nn.Linear(6, 16),
        nn.LayerNorm(16),
        nn.ReLU(),
        middle(),
        nn.BatchNorm1d(16),
        nn.Linear(16, 3),
    )
    lives.randomise(built)
    return built


def network(*, open_task: bool = True, **options: Any) -> EideticNet:
    """Task 0 is finished."""
    net = autoeidetic.convert(model(**options), X)
    net.prepare_for_task(0)
    net.prune(0.5)
    net.finish_task()
    if open_task:
        net.prepare_for_task(1)
    return net.eval()


def train(net: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
    net.train()
    for _ in range(steps):
        optimizer.zero_grad()
        net(X).square().mean().backward()
        optimizer.step()
    net.eval()


# -- recorded passes ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("open_task", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_trace_answers_as_the_network_does(open_task: bool, gradients: bool) -> None:
    net = network(open_task=open_task)
    with torch.set_grad_enabled(gradients):
        trace = torch.jit.trace(net, X)
    assert same(trace(X), net(X))
    assert same(trace(Y), net(Y))  # another batch size
    file = io.BytesIO()
    torch.jit.save(trace, file)
    file.seek(0)
    assert same(torch.jit.load(file)(Y), net(Y))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_training_through_a_trace_forgets_nothing() -> None:
    net = network()
    before = net(X, task=0)
    net(X).sum().backward()
    expected = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    trace = torch.jit.trace(net, X)
    trace(X).sum().backward()
    for name, gradient in expected.items():
        torch.testing.assert_close(net.get_parameter(name).grad, gradient)
    train(trace)
    assert same(net(X, task=0), before)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("part", [lambda net: net, lambda net: net.backbone])
def test_scripts_are_refused(part: Any) -> None:
    with pytest.raises(EnforcementError, match=r"torch\.jit\.script cannot read") as e:
        torch.jit.script(part(network()))
    assert "torch.jit.trace(net, inputs)" in e.value.remedy


@pytest.mark.parametrize("open_task", [True, False])
def test_make_fx_and_fake_tensors(open_task: bool) -> None:
    net = network(open_task=open_task)
    graph = make_fx(net)(X)
    assert same(graph(X), net(X))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert net(mode.from_tensor(X)).shape == (5, 3)
    assert same(graph(X), net(X))


def test_a_recorded_pass_puts_pinned_values_back_before_it() -> None:
    net = network()
    before = net(X, task=0)
    with torch.no_grad():
        for parameter in net.backbone.parameters():
            parameter.add_(1)
    graph = make_fx(lambda x: net(x, task=0))(X)
    assert same(graph(X), before)


# -- compiled parts -------------------------------------------------------------------------------


def compile_forward(module: nn.Module) -> None:
    module.forward = torch.compile(module.forward, backend="eager")  # type: ignore[method-assign]


TORCH_ASKS = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
COMPILED = {
    "backbone": lambda net: net.backbone.compile(backend="eager"),
    "norm": lambda net: net.backbone[1].compile(backend="eager"),
    "middle": lambda net: net.backbone[3].compile(backend="eager"),
    "forward of the norm": lambda net: compile_forward(net.backbone[1]),
}


@pytest.mark.slow
@TORCH_ASKS
@pytest.mark.parametrize("how", COMPILED.values(), ids=COMPILED)
def test_compiled_parts_forget_nothing(how: Any) -> None:
    torch.compiler.reset()
    net = network(middle=Twice if how is COMPILED["backbone"] else partial(nn.Linear, 16, 16))
    before = net(X, task=0)
    how(net)
    torch.testing.assert_close(net(X, task=0), before)
    first = net(X, task=0)
    train(net)
    assert same(net(X, task=0), first)
    net.prune(0.5)
    net.finish_task()
    second = net(X, task=1)
    net.prepare_for_task(2)
    train(net)
    assert same(net(X, task=0), first)
    assert same(net(X, task=1), second)


@pytest.mark.slow
@TORCH_ASKS
@pytest.mark.parametrize("part", [lambda net: net, lambda net: net.backbone[1]])
def test_copies_of_compiled_networks_are_their_own(part: Any) -> None:
    """What is compiled belongs to the original: its copies must not call it."""
    torch.compiler.reset()
    net = network()
    before = net(X, task=0)
    part(net).compile(backend="eager")
    net(X)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        with torch.no_grad():
            copied.heads["1"]["5"].bias.zero_()
            copied.heads["1"]["5"].weight.zero_()
        assert not copied(X).any()
        assert net(X).any()
        torch.testing.assert_close(copied(X, task=0), before)


@pytest.mark.slow
def test_a_model_that_was_compiled_before() -> None:
    torch.compiler.reset()
    net = autoeidetic.convert(torch.compile(model(), backend="eager"), X)
    net.prepare_for_task(0)
    net.prune(0.5)
    net.finish_task()
    before = net.eval()(X, task=0)
    net.prepare_for_task(1)
    train(net)
    assert same(net(X, task=0), before)


# -- exchanged modules ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*quanti.*")
@pytest.mark.parametrize("inplace", [True, False])
def test_quantized_networks_are_refused(inplace: bool) -> None:
    net = torch.ao.quantization.quantize_dynamic(network(open_task=False), inplace=inplace)
    with pytest.raises(EnforcementError) as caught:
        net(X, task=0)
    assert caught.value.fact == (
        "module '0' was a torch.nn.modules.linear.Linear when the model was converted, and is a "
        "torch.ao.nn.quantized.dynamic.modules.linear.Linear now"
    )
    assert "put back what was there" in caught.value.remedy


@pytest.mark.filterwarnings("ignore:.*quanti.*")
def test_quantized_models_are_refused() -> None:
    quantized = torch.ao.quantization.quantize_dynamic(model())
    with pytest.raises(InputError, match="the packed weights of a torch") as caught:
        autoeidetic.convert(quantized, X)
    assert caught.value.module == "0._packed_params"


def test_another_backbone_is_refused() -> None:
    net = network()
    net.backbone = torch.compile(net.backbone, backend="eager")
    with pytest.raises(EnforcementError) as caught:
        net(X)
    assert caught.value.fact == (
        "the backbone was a Sequential when the model was converted, and is an OptimizedModule now"
    )
    assert "torch.compile" in caught.value.remedy


# -- tensors that are no longer plain -------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def mesh(group: None) -> Any:
    return init_device_mesh("cpu", (1,))


def test_sharded_networks_are_refused(mesh: Any) -> None:
    net = network()
    fully_shard(net, mesh=mesh)
    with pytest.raises(EnforcementError) as caught:
        train(net)
    assert caught.value.fact == (
        "'backbone.0.weight' is now a DTensor, which cannot keep frozen values"
    )
    assert "DistributedDataParallel" in caught.value.remedy


def test_tensor_parallelism_is_refused(mesh: Any) -> None:
    net = network()
    parallelize_module(net.backbone, mesh, {"3": ColwiseParallel()})
    with pytest.raises(EnforcementError, match=r"'backbone\.3\.weight' is now a DTens"):
        net(X, task=0)


def test_sharded_models_are_refused(mesh: Any) -> None:
    sharded = model()
    fully_shard(sharded, mesh=mesh)
    with pytest.raises(InputError, match=r"'0\.weight' is a DTensor, which cannot"):
        autoeidetic.convert(sharded, X)
    with pytest.raises(InputError, match=r"'0\.weight' is a DTensor, which cannot"):
        autoeidetic.analyze(sharded, X)


@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:UserWarning")
def test_fsdp_with_flat_parameters_is_refused(group: None) -> None:
    cpu = torch.device("cpu")
    net = FullyShardedDataParallel(network(), device_id=cpu)
    with pytest.raises(EnforcementError, match="has no 'weight' any more") as caught:
        net(X)
    assert caught.value.module == "0"
    wrapped = FullyShardedDataParallel(model(), use_orig_params=True, device_id=cpu)
    with pytest.raises(InputError, match="a FullyShardedDataParallel cannot be"):
        autoeidetic.convert(wrapped, X)


def test_a_shard_of_a_tensor_is_refused() -> None:
    """FSDP with original parameters in several processes leaves a part of each tensor there."""
    net = network()
    weight = net.backbone[0].weight
    weight.data = weight.detach().flatten()[:20]
    with pytest.raises(EnforcementError) as caught:
        net.train()
    assert caught.value.fact == "'backbone.0.weight' has the shape (20,); it had (16, 6)"
    assert "FSDP cuts tensors into shards" in caught.value.remedy


# -- torch.func -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("open_task", [True, False])
def test_transforms_of_the_inputs(open_task: bool) -> None:
    net = network(open_task=open_task)
    each = torch.func.vmap(lambda x: net(x[None])[0])(X)
    torch.testing.assert_close(each, net(X))
    inputs = X.clone().requires_grad_()
    net(inputs).sum().backward()
    gradient = torch.func.grad(lambda x: net(x).sum())(X)
    torch.testing.assert_close(gradient, inputs.grad)


def test_transforms_of_the_parameters_are_refused() -> None:
    net = network()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(net, parameters, (X,)).sum()

    with pytest.raises(EnforcementError, match=r"of a torch\.func transform") as caught:
        torch.func.grad(loss)({name: p.detach() for name, p in net.named_parameters()})
    assert "loss.backward()" in caught.value.remedy


def test_functional_calls_answer_with_frozen_values() -> None:
    net = network()
    before = net(X, task=0)
    given = {name: p.detach() + 1 for name, p in net.named_parameters()}
    assert same(torch.func.functional_call(net, given, (X,), {"task": 0}), before)
    assert same(net(X, task=0), before)


# -- wrappers -------------------------------------------------------------------------------------


def test_data_parallel_and_averages() -> None:
    net = network()
    before = net(X, task=0)
    parallel = nn.DataParallel(net)
    average = torch.optim.swa_utils.AveragedModel(net, use_buffers=True)
    for _ in range(2):
        train(parallel)
        average.update_parameters(net)
    assert same(parallel(X, task=0), before)
    assert same(average.eval()(X, task=0), before)
