"""Programs of trained-like networks in use: ONNX, routers, errors, and an unchanged network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic.errors import ExtractionError, TaskError

NAMES = ("birds", "cars", "pets")


@cache
def network(name: str) -> autoeidetic.EideticNet:
    """A timm model with three finished tasks; affine parameters and statistics are random."""
    torch.manual_seed(0)
    model = timm.create_model(name)
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.dim() == 1 and tensor.is_floating_point():
            with torch.no_grad():
                tensor.copy_(torch.rand(tensor.shape) + (0.5 if "var" in key else 0.0))
    net = autoeidetic.convert(model, rehearse=False)
    for task, title in enumerate(NAMES):
        net.prepare_for_task(task, num_classes=2 + task, name=title)
        net.prune(0.5)
        net.finish_task()
    return net.eval()


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 160, 160, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_onnx_answers_like_the_network(name: str, tmp_path: Path) -> None:
    """One program of three tasks, opened by onnxruntime, at another batch size."""
    runtime = pytest.importorskip("onnxruntime")
    net, x = network(name), images(3)
    net.extract(list(NAMES)).save(tmp_path / "tasks.onnx")
    session = runtime.InferenceSession(tmp_path / "tasks.onnx")
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        expected = [net(x, task=task) for task in range(3)]
    assert len(found) == 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("task", [0, "pets", ["birds", 2]])
def test_the_network_stays_as_it_was(task: object) -> None:
    net, x = network("test_resnet"), images(2)
    with torch.no_grad():
        before = net(x, task="all")
        state = torch.get_rng_state()
        program = net.extract(task)  # type: ignore[arg-type]
        assert torch.equal(state, torch.get_rng_state())
        after = net(x, task="all")
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert program.report.difference < 1e-12
    assert program.report.parameters_after < program.report.parameters_before


def test_a_router_leaves_with_all_tasks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    net = autoeidetic.convert(nn.Sequential(*model, nn.Linear(16, 2)), torch.randn(2, 4))
    for task in range(3):
        net.prepare_for_task(task, num_classes=2 + task)
        net.prune(0.5)
        net.finish_task()
    data = [[(torch.randn(64, 4) + 3 * shift, torch.randint(2, (64,)))] for shift in (-1, 0, 1)]
    net.train_router(data, progress=False)
    x = torch.randn(50, 4) * 3
    found, program = net.predict(x), net.extract("all")
    answer = program(x)
    assert torch.equal(answer["task"], found.task)
    assert torch.equal(answer["label"], found.label)


def test_errors() -> None:
    net = network("test_resnet")
    with pytest.raises(TaskError, match="task 'dogs' does not exist"):
        net.extract("dogs")
    with pytest.raises(TaskError, match="empty"):
        net.extract([])
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    young = autoeidetic.convert(model, torch.randn(2, 4))
    with pytest.raises(TaskError, match="no task is finished"):
        young.extract("all")
    young.prepare_for_task(0)
    with pytest.raises(TaskError, match="still open"):
        young.extract(0)


class Looks(nn.Module):
    """Takes one of two paths, by the sum of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu() if x.sum() > 0 else self.a(x).tanh())


def test_a_path_that_depends_on_data_is_refused() -> None:
    net = autoeidetic.convert(Looks(), torch.ones(2, 4), rehearse=False)
    net.prepare_for_task(0)
    net.prune(0.5)
    net.finish_task()
    with pytest.raises(ExtractionError, match="looks at data"):
        net.extract(0)


@pytest.mark.parametrize("of", ["units", "multiply-adds", "parameters"])
def test_slim(of: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet").eval()
    x = images(2)
    before = model(x)
    program = autoeidetic.slim(model, 0.5, of=of)
    report = program.report
    left = {
        "multiply-adds": report.multiply_adds_after / report.multiply_adds_before,
        "parameters": report.parameters_after / report.parameters_before,
    }
    if of in left:
        assert abs(left[of] - 0.5) < 0.03
    assert program(x).shape == before.shape
    assert torch.equal(model(x), before)
    whole = autoeidetic.slim(model, 1.0)
    torch.testing.assert_close(whole(x), before, rtol=1e-3, atol=1e-4)
