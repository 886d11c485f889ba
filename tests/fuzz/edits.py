"""Actions that write into a network, change its type or exchange its modules."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lives
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from autoeidetic import EideticNet

from .life import Life, Tolerated
from .oracle import ask, verified
from .registry import MANY, action
from .training import call_of, real, take_step, training_inputs

# -- writing --------------------------------------------------------------------------------------

WHERE: dict[str, Callable[[EideticNet], Iterator[Tensor]]] = {
    "parameters": lambda net: iter(list(net.parameters())),
    "buffers": lambda net: iter(list(net.buffers())),
    "state_dict": lambda net: iter(net.state_dict().values()),
}

WHAT: dict[str, Callable[[Tensor], Tensor]] = {
    "noise": lambda t: t + 0.1 * torch.randn_like(t),
    "average": lambda t: 0.999 * t + 0.001 * t,  # the same up to the last bit
    "half": lambda t: 0.5 * t,
}

WAYS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "copy_": lambda t, values: t.copy_(values),
    "data": lambda t, values: t.data.copy_(values),
    "new data": lambda t, values: setattr(t, "data", values),
}


@action(3, where=sorted(WHERE), what=sorted(WHAT), way=sorted(WAYS))
def write(life: Life, where: str, what: str, way: str) -> None:
    """Like an average of weights that is swapped in: everywhere, in one of several ways."""
    with torch.no_grad():
        for tensor in WHERE[where](life.net):
            if tensor.is_floating_point():
                WAYS[way](tensor, WHAT[what](tensor.detach()))


@action(0.5, number=MANY)
def new_parameter(life: Life, number: int) -> None:
    """A new ``nn.Parameter`` in the place of one."""
    named = list(life.net.named_parameters())
    name, value = named[number * 7 % len(named)]
    holder, _, leaf = name.rpartition(".")
    made = nn.Parameter(torch.randn_like(value))
    setattr(life.net.get_submodule(holder), leaf, made)


# -- types and layouts ----------------------------------------------------------------------------

#: What is expected after another type and back: the same "bits"; or, where a warning of the
#: package "told" that values were rounded, those of the rounded values from there on.
ROUND_TRIPS = "bits"
TYPES = {"double": torch.double, "bfloat16": torch.bfloat16, "half": torch.half}


@action(
    1.5,
    via=sorted(TYPES),
    meanwhile=["nothing", "nothing", "ask", "train", "finish", "prepare", "verify", "copy"],
)
def dtype(life: Life, via: str, meanwhile: str) -> None:
    """To another type and back; something may happen meanwhile."""
    kind = TYPES[via]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            life.net.to(kind)
            _meanwhile(life, meanwhile, kind)
        except RuntimeError as error:
            if "not implemented for" not in str(error):
                raise
            raise Tolerated(f"torch cannot do this in {via}") from error
        finally:
            life.net.float()
    life.rounded = life.rounded or any(_of_the_package(each) for each in caught)
    if ROUND_TRIPS == "told" and life.rounded:
        life.memory.said.clear()  # recorded anew at the next look


def _of_the_package(warning: warnings.WarningMessage) -> bool:
    return warning.category.__module__.startswith("autoeidetic")


def _meanwhile(life: Life, what: str, kind: torch.dtype) -> None:
    net, call = life.net, life.subject.calls[0]
    inputs = real(lambda x: x.to(kind), call.inputs)
    if what == "ask" and net.tasks:
        with torch.no_grad():
            lives.call(net, inputs, task=0)
    elif what == "train":
        optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.5)
        take_step(life, optimizer, real(lambda x: x.to(kind), training_inputs(life, 0)), clip=True)
    elif what == "finish":
        net.finish_task()
    elif what == "prepare":
        net.prepare_for_task(len(net.tasks), num_classes=3, on_full="reuse")
    elif what == "verify":
        verified(net, type(call)(call.kind, inputs))
    elif what == "copy":
        life.go_on_with(copy.deepcopy(net), remember=False)


@action(0.7, train=[True, False])
def memory_format(life: Life, train: bool) -> None:
    """The network in the format for GPUs for a while."""
    if not any(p.dim() == 4 for p in life.net.parameters()):
        raise Tolerated("no convolution")
    layout = {p: p.stride() for p in life.net.parameters()}
    life.net.to(memory_format=torch.channels_last)
    try:
        if train:
            optimizer = torch.optim.SGD(life.net.parameters(), 0.1, momentum=0.9)
            take_step(life, optimizer, training_inputs(life, 0), clip=True)
    finally:
        for parameter in life.net.parameters():
            stride = layout.get(parameter, parameter.stride())
            parameter.data = torch.empty_strided(parameter.shape, stride).copy_(parameter.data)


@action(0.5, how=["cpu", "share_memory", "to", "requires_grad_", "zero_grad"])
def move(life: Life, how: str) -> None:
    """Moves that change no value."""
    if how == "to":
        life.net.to("cpu", torch.float32)
    else:
        getattr(life.net, how)()


# -- modules --------------------------------------------------------------------------------------


@action(2, task=MANY, how=["exchange", "sequential", "delete", "delete all", "new weight"])
def edit_head(life: Life, task: int, how: str) -> None:
    """Something is done to the heads of a task by hand."""
    net = life.net
    name = str(task % max(len(net.tasks), 1))
    if name not in net.heads or not len(net.heads[name]):  # type: ignore[arg-type]
        raise Tolerated("no head of its own")
    heads: Any = net.heads[name]
    key = next(iter(heads))
    _remember_heads(life, name)
    if how == "exchange":
        heads[key] = _other(heads[key])
    elif how == "sequential":
        heads[key] = nn.Sequential(copy.deepcopy(heads[key]), nn.Tanh())
    elif how == "delete":
        del heads[key]
    elif how == "delete all":
        del net.heads[name]
    else:
        leaf = next(n for n, _ in heads[key].named_parameters())
        holder, _, last = leaf.rpartition(".")
        value = heads[key].get_parameter(leaf)
        setattr(heads[key].get_submodule(holder), last, nn.Parameter(torch.randn_like(value)))


def _remember_heads(life: Life, name: str) -> None:
    """How to put the heads of a task back, unless it has got others meanwhile."""
    heads: Any = life.net.heads
    own = heads[name]
    modules, now = dict(own._modules), life.net

    def put_back() -> None:
        if life.net is now and heads._modules.get(name, own) is own:
            heads._modules[name] = own
            own._modules.clear()
            own._modules.update(modules)

    life.undo.append(put_back)


def _other(module: nn.Module) -> nn.Module:
    """One of the same class and shapes, with other values."""
    made = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return made


def _remember(life: Life, *holders: nn.Module) -> None:
    """How to put modules back that are held now."""
    held = [(holder, dict(holder._modules)) for holder in holders]

    def put_back() -> None:
        for holder, modules in held:
            holder._modules.clear()
            holder._modules.update(modules)

    life.undo.append(put_back)


@action(
    2,
    number=MANY,
    how=["exchange", "identity", "delete", "wrap", "append", "insert", "add", "parametrize"],
)
def edit_module(life: Life, number: int, how: str) -> None:
    """Something is done to a layer of the model by hand."""
    backbone = life.net.backbone
    if how in ("append", "insert"):
        _lengthen(life, number, how)
        return
    leaves = [path for path, m in backbone.named_modules() if path and not list(m.children())]
    path = leaves[number * 5 % len(leaves)]
    holder, _, name = path.rpartition(".")
    parent = backbone.get_submodule(holder)
    module = parent._modules[name]
    assert module is not None
    if how == "parametrize":
        _parametrize(life, module)
        return
    _remember(life, parent)
    if how == "exchange":
        fresh = dict(life.subject.build().named_modules())
        if path not in fresh:
            raise Tolerated("a layer that the model does not have")
        parent._modules[name] = _other(fresh[path])
    elif how == "identity":
        parent._modules[name] = nn.Identity()
    elif how == "delete":
        delattr(parent, name)
    elif how == "wrap":
        parent._modules[name] = nn.Sequential(module)
    else:
        parent.add_module("extra", nn.Linear(3, 3))


def _lengthen(life: Life, number: int, how: str) -> None:
    chains = [m for m in life.net.backbone.modules() if isinstance(m, nn.Sequential)]
    if not chains:
        raise Tolerated("no Sequential")
    chain = chains[number % len(chains)]
    _remember(life, chain)
    if how == "append":
        chain.append(nn.Tanh())
    else:
        try:
            chain.insert(0, nn.Tanh())
        except KeyError as error:  # torch's own, where a layer is missing
            raise Tolerated("a chain with a hole") from error


def _parametrize(life: Life, module: nn.Module) -> None:
    if not isinstance(getattr(module, "weight", None), nn.Parameter) or module.weight.dim() < 2:  # type: ignore[union-attr]
        raise Tolerated("no matrix")
    before, kind = dict(module._parameters), type(module)
    parametrizations.weight_norm(module)

    def put_back() -> None:
        module.__class__ = kind
        module._modules.pop("parametrizations", None)
        module._parameters.clear()
        module._parameters.update(before)

    life.undo.append(put_back)


@action(2)
def undo(life: Life) -> None:
    """Everything that was done to modules is taken back."""
    if not life.undo:
        raise Tolerated("nothing to take back")
    life.take_back()


@action(0.3, call=MANY)
def hooked(life: Life, call: int) -> None:
    """A hook that only looks, for as long as one pass takes."""
    seen: list[Any] = []
    first = next(m for m in life.net.backbone.modules() if not list(m.children()))
    handle = first.register_forward_hook(lambda *given: seen.append(given))
    try:
        if life.net.tasks:
            ask(life.net.eval(), call_of(life, call), 0)
    finally:
        handle.remove()
