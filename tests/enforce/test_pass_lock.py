"""Threads: passes, optimizer steps and life steps of one network exclude each other."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import lives
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoeidetic.enforce.pass_lock import PassLock
from autoeidetic.net import EideticNet

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Wide(nn.Module):
    """Large enough for a step to take a while."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 256)
        self.b = nn.Linear(256, 256)
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        return self.head(self.norm(x + F.gelu(self.b(x))))


@pytest.fixture
def life() -> lives.Life:
    """Task 0 is finished, task 1 open; nothing changes the mode from here on."""
    life = lives.Life(Wide(), X).first_task()
    life.prepare()
    life.net.eval()
    return life


@contextmanager
def restless() -> Iterator[None]:
    """Threads that are switched as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def together(work: Callable[[], Any], *others: Callable[[], Any], seconds: float = 60) -> list[Any]:
    """Do some work while other threads do theirs again and again; what those came to."""
    done, found, errors = threading.Event(), [], []

    def again(other: Callable[[], Any]) -> None:
        try:
            while not done.is_set():
                found.append(other())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=again, args=(other,), daemon=True) for other in others]
    with restless():
        for thread in threads:
            thread.start()
        try:
            work()
        finally:
            done.set()
            for thread in threads:
                thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    assert not errors, errors
    return found


def ask(net: EideticNet, said: Tensor) -> Callable[[], bool]:
    def answer() -> bool:
        with torch.no_grad():
            return torch.equal(net(X, task=0), said)

    return answer


class WritesData(torch.optim.Optimizer):
    """Element by element, through ``.data``, with a rest in between."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(torch.randn_like(p), alpha=0.01)
                for _ in range(100):
                    pass  # time for others
        return loss


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1e-3, weight_decay=0.5, foreach=False)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [sgd, adam, WritesData])
@pytest.mark.parametrize("closure", [False, True])
def test_answers_while_another_thread_trains(life: lives.Life, make: Any, closure: bool) -> None:
    net = life.net
    optimizer = make(net.parameters())

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = lives.loss_of(net(X))
        value.backward()
        return value

    def train() -> None:
        for _ in range(150):
            if closure:
                optimizer.step(loss)
            else:
                loss()
                optimizer.step()

    found = together(train, *[ask(net, life.said[0][0])] * 2)
    assert len(found) > 50
    assert all(found)
    life.check("trained and asked")


def test_answers_while_optimizers_step_during_backward(life: lives.Life) -> None:
    net = life.net
    owners = {p: sgd([p]) for p in net.parameters()}
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: owners[p].step())

    def train() -> None:
        for _ in range(60):
            lives.loss_of(net(X)).backward()
            net.zero_grad()

    assert all(together(train, ask(net, life.said[0][0])))


def test_answers_during_a_life(life: lives.Life) -> None:
    """Tasks are pruned, finished and prepared, taken back and put into other types meanwhile."""
    net = life.net

    def live() -> None:
        for task in (2, 3, 4):
            optimizer = sgd(net.parameters())
            lives.loss_of(net(X)).backward()
            optimizer.step()
            net.prune(0.3)
            net.rollback()
            net.prune(0.3)
            net.load_state_dict(net.state_dict())
            net.finish_task()
            net.verify(X, rounds=1)
            net.prepare_for_task(task, num_classes=2, on_full="reuse")
            net.eval()

    assert all(together(live, *[ask(net, life.said[0][0])] * 2))
    life.check("lived and asked")


# -- steps that fail ------------------------------------------------------------------------------


class Fails(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(1.0)
        raise ValueError("out of memory, say")


def test_a_step_that_fails_holds_nobody_up(life: lives.Life) -> None:
    net, failed = life.net, threading.Event()
    optimizer = Fails(net.parameters(), lr=0.1)
    errors: list[ValueError] = []

    def fail() -> None:
        try:
            optimizer.step()
        except ValueError as error:
            errors.append(error)  # and its frames with it
        failed.set()

    thread = threading.Thread(target=fail)
    thread.start()
    failed.wait()
    answered = []
    other = threading.Thread(target=lambda: answered.append(ask(net, life.said[0][0])()))
    other.start()
    other.join(10)
    assert answered == [True]
    thread.join()
    fail()  # in this thread as well
    life.check("failed")
    sgd(net.parameters()).step()
    answered = together(lambda: None, ask(net, life.said[0][0]))
    assert all(answered)
    assert len(errors) == 2


def test_the_lock_of_a_step_ends_with_it() -> None:
    lock, order = PassLock(), []

    def step(fails: bool) -> None:
        lock.begin_step(sys._getframe())
        with lock, lock:
            order.append("step")
        if fails:
            raise ValueError
        lock.end_step(sys._getframe())

    def other() -> None:
        with lock:
            order.append("other")

    for fails in (False, True):
        with lock:
            with suppress(ValueError):
                step(fails)
            thread = threading.Thread(target=other)
            thread.start()
            order.append("block")
        thread.join(10)
        assert order == ["step", "block", "other"]
        order.clear()
    with pytest.raises(ValueError):
        step(True)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(10)
    assert order == ["step", "other"]
    assert copy.deepcopy(lock).number != lock.number


# -- several networks -----------------------------------------------------------------------------


def test_one_optimizer_of_two_networks(life: lives.Life) -> None:
    other = copy.deepcopy(life)
    networks = [life.net, other.net]
    forth = sgd([p for net in networks for p in net.parameters()])
    back = sgd([p for net in reversed(networks) for p in net.parameters()])

    def step(optimizer: torch.optim.Optimizer) -> Callable[[], bool]:
        def one() -> bool:
            for net in networks:
                for p in net.parameters():
                    p.grad = torch.ones_like(p)
            optimizer.step()
            return True

        return one

    def train() -> None:
        for _ in range(40):
            step(forth)()

    asked = [ask(each.net, each.said[0][0]) for each in (life, other)]
    assert all(together(train, step(back), *asked))


def test_networks_that_are_gone_are_not_waited_for(life: lives.Life) -> None:
    other = copy.deepcopy(life).net
    parameters = list(other.parameters())
    del other
    gc.collect()
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    sgd(parameters).step()
    life.check("the other one is gone")
