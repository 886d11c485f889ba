"""Actions with threads and compilers, and calls that make no sense."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lives
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic import EideticNet
from autoeidetic.errors import AutoeideticError

from .life import Life, Tolerated
from .oracle import Finding, ask
from .registry import MANY, action
from .subjects import Call
from .training import call_of, loss_of, training_inputs, training_pass

PATIENCE = 20.0  # seconds until a thread counts as hanging
A_MOMENT = 0.05  # until a thread that waits for another counts as waiting


class Asker:
    """Another thread that asks a task once."""

    def __init__(self, net: EideticNet, call: Call, task: int) -> None:
        self.said: list[Tensor] | None = None
        self.error: BaseException | None = None
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._ask, args=(net, call, task), daemon=True)

    def _ask(self, net: EideticNet, call: Call, task: int) -> None:
        try:
            # holds for one thread only: a new one computes with the default number, in other bits
            torch.set_num_threads(self._threads)
            self.said = ask(net, call, task)
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Give it a moment; it may have to wait itself until what goes on here is over."""
        self._thread.join(A_MOMENT)

    def is_here(self) -> bool:
        """Is it the thread that runs this?"""
        return threading.current_thread() is self._thread

    def result(self) -> list[Tensor] | None:
        """What it was told; None when it was refused."""
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise Finding("hang", "a pass in another thread does not end")
        if self.error is not None and not isinstance(self.error, AutoeideticError):
            raise self.error
        return self.said


class Disturbed(torch.optim.Optimizer):
    """SGD, in the middle of whose step something happens: values moved, hooks still to come."""

    def __init__(self, parameters: Any, lr: float, meanwhile: Callable[[], None]) -> None:
        super().__init__(parameters, {"lr": lr})
        self.meanwhile = meanwhile

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=-group["lr"])
        self.meanwhile()


def _finished(life: Life) -> list[int]:
    tasks = life.net.tasks
    own = [task for task in life.memory.said if tasks[task].answered_by is None]
    if not own or 0 not in life.memory.said[own[0]]:
        raise Tolerated("no finished task")
    return own


@action(1.5, task=MANY, while_=["step", "pass", "pass"])
def threads(life: Life, task: int, while_: str) -> None:
    """One thread asks while another is in the middle of a step or a pass."""
    own = _finished(life)
    asker = Asker(life.net.eval(), life.subject.calls[0], own[task % len(own)])
    if while_ == "step":
        _in_a_step(life, asker)
    else:
        _in_a_pass(life, asker, own[(task // 2) % len(own)])
    said = asker.result()
    if said is not None:
        life.memory.expect(said, own[task % len(own)], 0, f"in the middle of a {while_}")


def _in_a_step(life: Life, asker: Asker) -> None:
    """Another thread is in the middle of a pass when an optimizer writes, and goes on then."""
    entered, written = threading.Event(), threading.Event()

    def pause(*_: Any) -> None:
        if asker.is_here() and not entered.is_set():
            entered.set()
            written.wait(2 * A_MOMENT)

    def go_on() -> None:
        written.set()
        asker.wait()

    optimizer = Disturbed(life.net.parameters(), 0.1, go_on)
    if life.subject.smooth:
        loss_of(training_pass(life, training_inputs(life, 0))).backward()
    with _after_layers(life.net, pause):
        asker.start()
        entered.wait(A_MOMENT)
        optimizer.step()
        asker.result()


@contextmanager
def _after_layers(net: EideticNet, call: Callable[..., None]) -> Iterator[None]:
    """Something is called after every layer."""
    leaves = [m for m in net.backbone.modules() if not list(m.children())]
    handles = [leaf.register_forward_hook(call) for leaf in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_a_pass(life: Life, asker: Asker, task: int) -> None:
    """A pass for one task, in which another thread asks for another."""
    started: list[bool] = []

    def begin(*_: Any) -> None:
        if not asker.is_here() and not started:
            started.append(True)
            asker.start()
            asker.wait()

    with _after_layers(life.net, begin):
        said = ask(life.net, life.subject.calls[0], task)
    if not started:
        asker.start()
    life.memory.expect(said, task, 0, "when another thread asked in the middle of its pass")


def _close(left: Tensor, right: Tensor) -> bool:
    """Up to rounding, which a network that has diverged makes more of."""
    largest = float(right.abs().max()) if right.numel() else 0.0
    return largest > 1e6 or torch.allclose(left, right, 1e-3, 1e-4 * max(largest, 1.0))


@action(0.2, backend=["eager", "aot_eager"], call=[0])
def compiled(life: Life, backend: str, call: int) -> None:
    """A compiled network says what the other does, up to rounding."""
    own = _finished(life)
    made: Any = torch.compile(life.net.eval(), backend=backend)
    try:
        for task in own:
            said = ask(made, call_of(life, call), task)
            known = life.memory.said[task].get(call, said)
            if not all(_close(a, b) for a, b in zip(said, known, strict=True)):
                far = lives.distance(said, known)
                raise Finding("moved", f"task {task}, compiled, moved {far}", call="compiled")
    finally:
        torch._dynamo.reset()


#: Calls that need an error that says why, or an answer.
MISUSES: dict[str, Callable[[Life, Any], Any]] = {
    "another number": lambda life, x: life.net.prepare_for_task(99, num_classes=2),
    "no classes": lambda life, x: life.net.prepare_for_task(len(life.net.tasks), num_classes=0),
    "many classes": lambda life, x: life.net.prepare_for_task(
        len(life.net.tasks), num_classes=10**12, on_full="reuse"
    ),
    "too much": lambda life, x: life.net.prune(2.0),
    "unknown score": lambda life, x: life.net.prune(0.5, by="nonsense"),
    "score without data": lambda life, x: life.net.prune(0.5, by="taylor"),
    "unknown task": lambda life, x: lives.call(life.net, x, task=77),
    "nonsense task": lambda life, x: lives.call(life.net, x, task="nonsense"),
    "half a task": lambda life, x: lives.call(life.net, x, task=0.5),
    "save nowhere": lambda life, x: life.net.save(None),
    "save to a directory": lambda life, x: life.net.save(life.folder),
    "load nothing": lambda life, x: autoeidetic.load(life.folder / "nothing"),
    "convert again": lambda life, x: autoeidetic.convert(life.net, x),
    "convert the backbone": lambda life, x: autoeidetic.convert(life.net.backbone, x),
    "trace": lambda life, x: torch.jit.trace(
        life.net.eval(),
        x if isinstance(x, (Tensor, tuple)) else tuple(x.values()),
        check_trace=False,
    ),
    "quantize": lambda life, x: torch.ao.quantization.quantize_dynamic(life.net, {nn.Linear}),
}


@action(0.5, what=sorted(MISUSES))
def misuse(life: Life, what: str) -> None:
    MISUSES[what](life, life.subject.example)
