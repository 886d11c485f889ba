"""The life of three tasks on any model, with everything compared bit for bit on the way.

Task 0 is trained, pruned by half, recovers and is finished. Task 1 is trained in train mode with
AdamW at a high weight decay and with SGD, pruned and finished. Task 2 is trained with the SGD of
task 1, momentum and all. After every step all finished tasks must answer with the bits that were
recorded when they were finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autoeidetic
from autoeidetic.net import EideticNet

CLASSES = (4, 3, 5)


class Forgotten(AssertionError):  # noqa: N818
    """A bit of a finished task has moved."""


# -- small parts ----------------------------------------------------------------------------------


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """No parameter is constant, no running statistic is that of a fresh model."""
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: Tensor) -> Tensor:
        return torch.rand(tensor.shape, generator=generator).to(tensor) - 0.5

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and (parameter == parameter.flatten()[0]).all():
                parameter.add_(noise(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(noise(buffer))
    return model


def call(net: nn.Module, inputs: Any, **options: Any) -> Any:
    """A module on a tensor, a tuple of positional or a dict of keyword arguments."""
    if isinstance(inputs, dict):
        return net(**inputs, **options)
    if isinstance(inputs, (tuple, list)):
        return net(*inputs, **options)
    return net(inputs, **options)


def tensors(output: Any) -> list[Tensor]:
    """Copies of all tensors in an output."""
    leaves = pytree.tree_leaves(output)
    return [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    """The same bits, of numbers: 0 is not -0, and NaN is like nothing."""
    return len(left) == len(right) and all(
        a.dtype == b.dtype and torch.equal(a, b) and torch.equal(_bytes(a), _bytes(b))
        for a, b in zip(left, right, strict=True)
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def distance(left: list[Tensor], right: list[Tensor]) -> str:
    if [a.shape for a in left] != [b.shape for b in right]:
        return f"shapes {[tuple(a.shape) for a in left]} and {[tuple(b.shape) for b in right]}"
    far = [float((a.double() - b.double()).abs().max()) for a, b in zip(left, right, strict=True)]
    return f"by {max(far):.3g}"


def answer(net: EideticNet, inputs: Any, task: int | str | None = None) -> Any:
    """What a network says in eval mode; its mode is put back."""
    training = net.training
    net.eval()
    try:
        with torch.no_grad():
            return call(net, inputs, task=task)
    finally:
        net.train(training)


def answers(net: EideticNet, inputs: Any, task: int) -> list[Tensor]:
    return tensors(answer(net, inputs, task))


def loss_of(output: Any) -> Tensor:
    """Something to minimise, whatever the structure of the output."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    leaves = [leaf for leaf in leaves if leaf.is_floating_point() and leaf.requires_grad]
    assert leaves, "no output has a gradient"
    return torch.stack([(leaf.float() - 0.3).square().mean() for leaf in leaves]).sum()


def sgd(net: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.5)


def backward(net: EideticNet, inputs: Any) -> None:
    """Gradients of :func:`loss_of`, clipped."""
    loss_of(call(net, inputs)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)


def any_gradients(net: EideticNet, inputs: Any) -> None:
    """Random gradients, for pinned elements as well: a model need not be differentiable."""
    with torch.no_grad():
        call(net, inputs)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)


def train(
    net: EideticNet,
    inputs: Any,
    optimizers: Iterable[torch.optim.Optimizer],
    steps: int = 2,
    gradients: Callable[[EideticNet, Any], None] = backward,
) -> None:
    """An ordinary loop in train mode that knows nothing of tasks."""
    net.train()
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
            gradients(net, inputs)
            optimizer.step()


def state(net: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers."""
    return {name: value.clone() for name, value in net.state_dict().items()}


def changed(net: nn.Module, before: dict[str, Tensor]) -> list[str]:
    """Names of what is not as it was, bit for bit; of what is new, and of what is gone."""
    now = net.state_dict()
    both = [name for name in now if name in before]
    different = [name for name in both if not torch.equal(now[name], before[name])]
    return different + sorted(set(now) ^ set(before))


@contextmanager
def unchanged(net: EideticNet) -> Any:
    """Nothing inside may change the network: neither values nor tasks nor owners."""
    before, tasks, owners, mode = state(net), net.tasks, net.owners, net.training
    yield
    assert not changed(net, before)
    assert net.tasks == tasks
    assert net.owners is owners
    assert net.training == mode


# -- a life ---------------------------------------------------------------------------------------


class Life:
    """A network and what its finished tasks said when they were finished."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        *,
        classes: tuple[int | None, ...] = CLASSES,
        fraction: float = 0.5,
        gradients: Callable[[EideticNet, Any], None] = backward,
        **options: Any,
    ) -> None:
        self.inputs, self.classes, self.fraction = inputs, classes, fraction
        self.gradients = gradients
        self.net: EideticNet = autoeidetic.convert(randomise(model), inputs, **options)
        self.said: dict[int, list[Tensor]] = {}

    def prepare(self) -> None:
        """Open the next task and see that this changed nothing for the others."""
        task = len(self.net.tasks)
        self.net.prepare_for_task(task, num_classes=self.classes[task], on_full="reuse")
        self.check(f"task {task} prepared")

    def train(self, *optimizers: torch.optim.Optimizer, steps: int = 2) -> None:
        train(self.net, self.inputs, optimizers, steps, self.gradients)
        self.check(f"task {self.net.open_task} trained")

    def prune(self) -> None:
        self.net.prune(self.fraction)
        self.check(f"task {self.net.open_task} pruned")

    def finish(self) -> None:
        """Finish the open task; that does not change what it says."""
        task = int(self.net.open_task or 0)
        before = answers(self.net, self.inputs, task)
        self.net.finish_task()
        self.said[task] = answers(self.net, self.inputs, task)
        if not same(before, self.said[task]):
            raise Forgotten(f"finishing moved task {task} {distance(before, self.said[task])}")
        self.check(f"task {task} finished")

    def check(self, where: str) -> None:
        """Every finished task says what it said, alone and with all others."""
        if not self.said:
            return
        together = answer(self.net, self.inputs, "all")
        for task, said in self.said.items():
            now = answers(self.net, self.inputs, task)
            if not same(now, said):
                raise Forgotten(f"{where}: task {task} has moved {distance(now, said)}")
            now = tensors(together[task])
            if not same(now, said):
                raise Forgotten(f"{where}: with all, task {task} moved {distance(now, said)}")

    def verify(self) -> None:
        args = self.inputs if isinstance(self.inputs, (tuple, list)) else (self.inputs,)
        if isinstance(self.inputs, dict):
            report = self.net.verify(**self.inputs, rounds=2)
        else:
            report = self.net.verify(*args, rounds=2)
        if not report.ok:
            raise Forgotten(str(report))

    def first_task(self, steps: int = 2) -> Life:
        """Task 0 from beginning to end."""
        self.prepare()
        self.train(sgd(self.net), steps=steps)
        self.prune()
        self.train(sgd(self.net), steps=1)
        self.finish()
        return self

    def second_task(self) -> Life:
        """Task 1 in training."""
        self.prepare()
        self.carried = sgd(self.net)
        self.train(adamw(self.net), self.carried)
        return self

    def run(self) -> Life:
        """All of it."""
        self.first_task()
        self.second_task()
        self.prune()
        self.finish()
        self.prepare()
        heads = self.net.heads["2"].parameters()
        self.carried.add_param_group({"params": list(heads)})
        before = state(self.net)
        self.train(self.carried)
        self.learned = changed(self.net, before)
        self.verify()
        return self


def live(model: nn.Module, inputs: Any, **options: Any) -> Life:
    """The life of three tasks."""
    return Life(model, inputs, **options).run()
