"""Actions: what a user may do with a network, one small function each.

``@action(weight, option=[values, ...])`` registers one; each option is drawn from its values. The
numbers of tasks, calls and layers are taken modulo how many there are, so that every step fits
every moment, and dropping one leaves the others as they are.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import lives
import timm.optim
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autoeidetic
from autoeidetic.errors import AutoeideticError

from .life import Life, Tolerated
from .oracle import Finding, ask, verified
from .script import Step
from .subjects import Call

HERE = str(Path(autoeidetic.__file__).parent)
MANY = tuple(range(12))  # numbers that are taken modulo what there is


@dataclass(frozen=True)
class Action:
    """``weight``: how often it is drawn; ``inner``: names of actions that it is wrapped around."""

    run: Callable[..., None]
    weight: float
    options: dict[str, Sequence[Any]]
    inner: tuple[str, ...] = ()


ACTIONS: dict[str, Action] = {}


def action(weight: float, *, inner: tuple[str, ...] = (), **options: Sequence[Any]) -> Any:
    """Register an action under the name of its function; a second one of a name is an error."""

    def add(run: Callable[..., None]) -> Callable[..., None]:
        if run.__name__ in ACTIONS:
            raise ValueError(f"two actions are called {run.__name__!r}")
        ACTIONS[run.__name__] = Action(run, weight, options, inner)
        return run

    return add


def drawn(rng: Random, name: str | None = None) -> Step:
    """A step with random options; without a name, of any action."""
    if name is None:
        names = list(ACTIONS)
        (name,) = rng.choices(names, [ACTIONS[each].weight for each in names])
    found = ACTIONS[name]
    options = {key: rng.choice(values) for key, values in found.options.items()}
    if found.inner:
        options["inner"] = drawn(rng, rng.choice(found.inner))
    return Step(name, rng.randrange(1000), rng.random() < 0.2, options)


def run(life: Life, step: Step) -> None:
    """Take a step, with random numbers of its own."""
    torch.manual_seed(step.seed)
    ACTIONS[step.name].run(life, **step.options)


# -- the life of tasks ----------------------------------------------------------------------------


@action(0.5, classes=[2, 3, 4, 5])
def prepare(life: Life, classes: int) -> None:
    net = life.net
    count = len(net.tasks)
    sizes = None if net.keep_head and count == 0 else classes
    net.prepare_for_task(count, num_classes=sizes, on_full="reuse")


@action(1, task=MANY)
def revisit(life: Life, task: int) -> None:
    net = life.net
    count = len(net.tasks)
    net.prepare_for_task(count, revisit=task % max(count, 1), on_full="reuse")


@action(1, task=MANY, by=[*MANY, None])
def replace(life: Life, task: int, by: int | None) -> None:
    """A second go answers for a task; of those there are, if there are some."""
    count = len(life.net.tasks) or 1
    seconds = [each for each in life.net.tasks if each.revisits is not None and each.finished]
    if seconds and by is not None:
        second = seconds[by % len(seconds)]
        life.net.replace_task(second.revisits, by=second.index)  # type: ignore[arg-type]
    else:
        life.net.replace_task(task % count, by=None if by is None else by % count)


@action(1, fraction=[0.2, 0.5, 0.5, 0.8], by=["l1", "l2", "random"])
def prune(life: Life, fraction: float, by: str) -> None:
    life.net.prune(fraction, by=by)


@action(0.5)
def finish(life: Life) -> None:
    """Freezing changes nothing of what the task says."""
    net, call = life.net, life.subject.calls[0]
    task = net.open_task
    steady = task is not None and life.steady
    before = _said(life, call, task) if steady else None
    net.finish_task()
    after = None if before is None else _said(life, call, task)
    if before and after and not lives.same(before, after) and all(map(_finite, before)):
        raise Finding("finish", f"finishing moved task {task} {lives.distance(after, before)}")


def _said(life: Life, call: Call, task: Any) -> list[Tensor] | None:
    """What a task says in eval mode; None when it refuses to.

    A change of mode puts pinned values back that somebody wrote over through ``.data``.
    """
    training = life.net.training
    try:
        life.net.train()
        return ask(life.net.eval(), call, task)
    except AutoeideticError:
        return None
    finally:
        life.net.train(training)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


@action(0.5)
def rollback(life: Life) -> None:
    life.net.rollback()


@action(1, call=MANY)
def verify(life: Life, call: int) -> None:
    """Says no only when something moved, which the next look will see; and changes nothing."""
    before = _open_says(life)
    life.cried = not verified(life.net, _call(life, call)) or life.cried
    after = _open_says(life)
    if before and after and all(map(_finite, before)) and not lives.same(before, after):
        raise Finding("verify", "verify changed what the open task says")


def _open_says(life: Life) -> list[Tensor] | None:
    task = life.net.open_task
    return None if task is None else _said(life, life.subject.calls[0], task)


# -- training -------------------------------------------------------------------------------------

Make = Callable[[Any, float], torch.optim.Optimizer]
TIMM = ("lion", "lamb", "adopt", "sgdw", "madgrad", "nadamw", "lookahead_sgd", "cadamw", "radam")
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=0.1),
    "sgd fused": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True, fused=True),
    "adam": lambda p, lr: torch.optim.Adam(p, lr, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.5),
    "adamw fused": lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.5, fused=True),
    "rmsprop": lambda p, lr: torch.optim.RMSprop(p, lr, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr, weight_decay=0.1),
    "asgd": lambda p, lr: torch.optim.ASGD(p, lr, weight_decay=0.1),
    "lbfgs": lambda p, lr: torch.optim.LBFGS(p, lr, max_iter=3),
    **{
        f"timm {name}": lambda p, lr, name=name: timm.optim.create_optimizer_v2(  # type: ignore[misc]
            list(p), opt=name, lr=lr, weight_decay=0.1, momentum=0.9
        )
        for name in TIMM
    },
}


@action(
    4,
    optimizer=sorted(OPTIMIZERS),
    lr=[0.001, 0.01, 0.1, 1.0],
    steps=[1, 2, 3],
    call=MANY,
    mode=["train", "train", "eval"],
    under=["none", "none", "none", "none", "autocast"],
    clip=[True, True, False],
    over=["all", "all", "open", "carried", "carried"],
)
def train(
    life: Life,
    optimizer: str,
    lr: float,
    steps: int,
    call: int,
    mode: str,
    under: str,
    clip: bool,
    over: str,
) -> None:
    """An ordinary loop that knows nothing of tasks."""
    life.net.train(mode == "train")
    made = _optimizer(life, optimizer, lr, over)
    for _ in range(steps):
        _step(life, made, _training_call(life, call), clip, under)
    life.optimizer = made


def _optimizer(life: Life, name: str, lr: float, over: str) -> torch.optim.Optimizer:
    net = life.net
    if over == "carried" and life.optimizer is not None:
        return _with_all(life.optimizer, net)
    parameters, own = list(net.parameters()), str(net.open_task)
    if over == "open" and own in net.heads:
        parameters = [*net.backbone.parameters(), *net.heads[own].parameters()]
    return OPTIMIZERS[name](parameters, lr)


def _with_all(optimizer: torch.optim.Optimizer, net: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of an earlier task, momentum and all, that gets what is new as well."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    new = [p for p in net.parameters() if id(p) not in known]
    if new and not isinstance(optimizer, torch.optim.LBFGS):
        optimizer.add_param_group({"params": new})
    return optimizer


def _step(
    life: Life, optimizer: torch.optim.Optimizer, inputs: Any, clip: bool, under: str = "none"
) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        if not life.subject.smooth:
            lives.any_gradients(life.net, inputs)
            return torch.zeros(())
        loss = _loss(training_pass(life, inputs, under))
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(life.net.parameters(), 1.0)
        return loss

    with torch.compiler.set_stance("force_eager"):  # one of timm's would need a C compiler
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def training_pass(life: Life, inputs: Any, under: str = "none") -> Any:
    """A pass with gradients; an error that the bare model raises as well is its own."""

    def call(model: nn.Module) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=under == "autocast"):
            return lives.call(model, inputs)

    try:
        return call(life.net)
    except AutoeideticError:
        raise
    except Exception as error:
        kind = next(life.net.parameters()).dtype
        bare = life.subject.build().to(kind).train(life.net.training)
        try:
            call(bare)
        except type(error) as own:
            raise Tolerated(f"the bare model raises {type(own).__name__}, too") from own
        raise


def _loss(output: Any) -> Tensor:
    try:
        return lives.loss_of(output)
    except AssertionError as error:
        raise Tolerated("no output has a gradient") from error


def _call(life: Life, number: int) -> Call:
    return life.subject.calls[number % len(life.subject.calls)]


def _training_call(life: Life, number: int) -> Any:
    """Inputs of a call that the bare model can be trained with, and some noise."""
    usable = [call for call in life.subject.calls if call.trained]
    if not usable:
        raise Tolerated("the bare model cannot be trained")
    inputs = usable[number % len(usable)].inputs
    return _real(lambda x: x + 0.1 * torch.randn_like(x), inputs)


def _real(change: Callable[[Tensor], Tensor], inputs: Any) -> Any:
    """The same inputs with their real numbers changed."""
    return pytree.tree_map_only(Tensor, lambda x: change(x) if x.is_floating_point() else x, inputs)


@action(
    2,
    lr=[1e3, 1e4, 1e5, 1e6, 1e7, 1e12, 1e30],
    steps=[1, 2, 3, 4],
    mode=["train", "eval"],
    call=MANY,
)
def diverge(life: Life, lr: float, steps: int, mode: str, call: int) -> None:
    """A learning rate that is far too high."""
    life.net.train(mode == "train")
    optimizer = torch.optim.SGD(life.net.parameters(), lr)
    for _ in range(steps):
        _step(life, optimizer, _training_call(life, call), clip=False)


@action(1, value=[math.nan, math.inf, 1e38], mode=["train", "train", "eval"], call=MANY)
def bad_batch(life: Life, value: float, mode: str, call: int) -> None:
    """A pass, without training, on a batch that holds one number that is none."""

    def spoil(x: Tensor) -> Tensor:
        x = x.clone()
        x[(0,) * x.dim()] = value
        return x

    life.net.train(mode == "train")
    inputs = _real(spoil, _training_call(life, call))
    with torch.no_grad():
        training_pass(life, inputs)


@action(0.3, by=["l2", "taylor"], data=MANY)
def train_task(life: Life, by: str, data: int) -> None:
    """The loop of the package."""
    inputs = _training_call(life, 0)
    with torch.no_grad():
        said = lives.call(life.net.eval(), inputs)
    if not isinstance(said, Tensor) or said.dim() != 2 or not life.subject.smooth:
        raise Tolerated("not a classifier")
    if len(said) == 1:
        raise Tolerated("a batch of one")
    targets = torch.randint(0, said.shape[1], (len(said),))
    life.net.train_task(
        [(inputs, targets)],
        pruning=by,
        step=0.3,
        max_epochs=2,
        recovery_epochs=1,
        patience=1,
        progress=False,
    )


# -- asking ---------------------------------------------------------------------------------------


@action(1, mode=["train", "eval"])
def switch(life: Life, mode: str) -> None:
    life.net.train(mode == "train")


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@action(1, call=MANY, task=[*MANY, "all", None], mode=["train", "eval"])
def answer(life: Life, call: int, task: Any, mode: str) -> None:
    """Ask for a task, with gradients, in either mode."""
    if not life.net.tasks:
        raise Tolerated("no task")
    task = task % len(life.net.tasks) if isinstance(task, int) else task
    life.net.train(mode == "train")
    try:
        lives.call(life.net, _call(life, call).inputs, task=task)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise Tolerated("a batch norm wants more") from error


@action(
    1.5,
    context=sorted(CONTEXTS),
    inner=("prepare", "prune", "finish", "verify", "answer", "save_load", "rollback"),
)
def within(life: Life, context: str, inner: Step) -> None:
    with CONTEXTS[context]():
        run(life, inner)


@action(0.7, mode=["grad", "values"], call=MANY, steps=[1])
def freeze(life: Life, mode: str, call: int, steps: int) -> None:
    """``requires_grad_(False)`` for a while, in which somebody asks or trains the head alone."""
    flags = {p: p.requires_grad for p in life.net.parameters()}
    life.net.backbone.requires_grad_(False)
    try:
        optimizer = torch.optim.SGD(life.net.parameters(), 0.1, weight_decay=0.1)
        inputs = _training_call(life, call)
        if mode == "grad":
            _step(life, optimizer, inputs, clip=False)
        else:
            training_pass(life, inputs)
    finally:
        for parameter in life.net.parameters():
            parameter.requires_grad_(flags.get(parameter, True))


# -- copies and files -----------------------------------------------------------------------------


@action(1.2, after=["go on with the copy", "go on with the original"])
def deepcopy(life: Life, after: str) -> None:
    made = copy.deepcopy(life.net)
    _choose(life, made, after)


def _choose(life: Life, made: Any, after: str) -> None:
    if after == "go on with the copy":
        life.go_on_with(made, remember=True)
    else:
        life.others = [(made, life.memory.copy())]


@action(0.7, after=["go on with the copy", "go on with the original"])
def pickled(life: Life, after: str) -> None:
    try:
        pickle.dumps(life.subject.build())
    except Exception as error:
        raise Tolerated("the bare model cannot be pickled") from error
    _choose(life, pickle.loads(pickle.dumps(life.net)), after)


@action(1.5, after=["go on with the copy", "go on with the copy", "go on with the original"])
def save_load(life: Life, after: str) -> None:
    path = life.folder / "net.safetensors"
    life.net.save(path)
    try:
        made = autoeidetic.load(path, model=life.subject.build())
    except AutoeideticError as error:
        if life.undo or life.edited:
            raise
        raise Finding("lost", f"what was saved cannot be opened: {error.fact}") from error
    made.train(life.net.training)
    _choose(life, made, after)


@action(0.5)
def torch_save(life: Life) -> None:
    """The state_dict through torch.save, into the same network."""
    file = io.BytesIO()
    torch.save(life.net.state_dict(), file)
    file.seek(0)
    _load(life, torch.load(file, weights_only=True))


@action(0.5)
def keep_state(life: Life) -> None:
    life.state = {name: value.clone() for name, value in life.net.state_dict().items()}


@action(0.5)
def load_state(life: Life) -> None:
    """A state of an earlier moment, perhaps of an earlier task."""
    if life.state is None:
        raise Tolerated("none was kept")
    _load(life, life.state)


def _load(life: Life, state: dict[str, Any]) -> None:
    try:
        life.net.load_state_dict(state)
    except RuntimeError as error:  # what load_state_dict raises, by torch's own convention
        if not str(error).startswith(("Nothing was loaded", "Error(s) in loading")):
            raise
        raise Tolerated("load_state_dict refused") from error


# -- interruptions --------------------------------------------------------------------------------


@action(
    3,
    after=[1, 2, 4, 7, 12, 20, 33, 55, 90, 150, 250, 400, 650, 1000, 2000],
    inner=(
        *("prepare", "finish", "prune", "rollback", "revisit", "verify", "train", "switch"),
        *("finish", "save_load", "deepcopy", "dtype", "answer", "load_state", "undo"),
    ),
)
def interrupt(life: Life, after: int, inner: Step) -> None:
    """Ctrl-C at the n-th call that the package makes."""
    try:
        with _interrupted(after):
            run(life, inner)
    except KeyboardInterrupt:
        life.net.float()  # a change of type that stops halfway leaves any model in two types


@contextmanager
def _interrupted(after: int) -> Iterator[None]:
    left = after

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        code = frame.f_code
        if event in ("call", "c_call") and code.co_filename.startswith(HERE):
            if code.co_name == "_remove":  # what is done when an object is gone; it is swallowed
                return
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    sys.setprofile(trace)
    try:
        yield
    finally:
        sys.setprofile(None)


from . import edits, loose_ends  # noqa: E402, F401  they register more actions
