"""Actions that train: ordinary loops, loops that diverge, the loop of the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lives
import timm.optim
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autoeidetic.errors import AutoeideticError

from .life import Life, Tolerated
from .registry import MANY, action
from .subjects import Call

# -- training -------------------------------------------------------------------------------------

Make = Callable[[Any, float], torch.optim.Optimizer]
TIMM = ("lion", "lamb", "adopt", "sgdw", "madgrad", "nadamw", "lookahead_sgd", "cadamw", "radam")
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=0.1),
    # without momentum: torch fails on a parameter that gets its first gradient later than others
    "sgd fused": lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1, fused=True),
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
        take_step(life, made, training_inputs(life, call), clip, under)
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


def take_step(
    life: Life, optimizer: torch.optim.Optimizer, inputs: Any, clip: bool, under: str = "none"
) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        if not life.subject.smooth:
            lives.any_gradients(life.net, inputs)
            return torch.zeros(())
        loss = loss_of(training_pass(life, inputs, under))
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


def loss_of(output: Any) -> Tensor:
    try:
        return lives.loss_of(output)
    except AssertionError as error:
        raise Tolerated("no output has a gradient") from error


def call_of(life: Life, number: int) -> Call:
    return life.subject.calls[number % len(life.subject.calls)]


def training_inputs(life: Life, number: int) -> Any:
    """Inputs of a call that the bare model can be trained with, and some noise."""
    usable = [call for call in life.subject.calls if call.trained]
    if not usable:
        raise Tolerated("the bare model cannot be trained")
    inputs = usable[number % len(usable)].inputs
    return real(lambda x: x + 0.1 * torch.randn_like(x), inputs)


def real(change: Callable[[Tensor], Tensor], inputs: Any) -> Any:
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
        take_step(life, optimizer, training_inputs(life, call), clip=False)


@action(1, value=[math.nan, math.inf, 1e38], mode=["train", "train", "eval"], call=MANY)
def bad_batch(life: Life, value: float, mode: str, call: int) -> None:
    """A pass, without training, on a batch that holds one number that is none."""

    def spoil(x: Tensor) -> Tensor:
        x = x.clone()
        x[(0,) * x.dim()] = value
        return x

    life.net.train(mode == "train")
    inputs = real(spoil, training_inputs(life, call))
    with torch.no_grad():
        training_pass(life, inputs)


@action(0.3, by=["l2", "taylor"], data=MANY)
def train_task(life: Life, by: str, data: int) -> None:
    """The loop of the package."""
    inputs = training_inputs(life, 0)
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


@action(0.7, mode=["grad", "values"], call=MANY, steps=[1])
def freeze(life: Life, mode: str, call: int, steps: int) -> None:
    """``requires_grad_(False)`` for a while, in which somebody asks or trains the head alone."""
    flags = {p: p.requires_grad for p in life.net.parameters()}
    life.net.backbone.requires_grad_(False)
    try:
        optimizer = torch.optim.SGD(life.net.parameters(), 0.1, weight_decay=0.1)
        inputs = training_inputs(life, call)
        if mode == "grad":
            take_step(life, optimizer, inputs, clip=False)
        else:
            training_pass(life, inputs)
    finally:
        for parameter in life.net.parameters():
            parameter.requires_grad_(flags.get(parameter, True))
