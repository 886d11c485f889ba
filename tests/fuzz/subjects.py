"""Subjects: a model and the calls that it is asked with.

The first call is the example that ``convert`` gets. The others differ from it in one thing, which
their kind names: "batch", "length", "size", "layout"; "flag", other arguments; "path", other code;
"streams", two lengths; "view", a size on which the place of channels depends.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import architectures
import lives
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from zoo import ZOO

from . import models

NOT_DIFFERENTIABLE = "modified by an inplace operation"


@dataclass(frozen=True)
class Call:
    """Inputs, and in what they differ from the example."""

    kind: str
    inputs: Any
    trained: bool = True  # can a training pass be made with it?


@dataclass(frozen=True)
class Subject:
    """``build`` gives the same model each time; ``smooth``: autograd can differentiate it."""

    name: str
    build: Callable[[], nn.Module]
    calls: tuple[Call, ...]
    smooth: bool = True

    @property
    def example(self) -> Any:
        return self.calls[0].inputs


@dataclass(frozen=True)
class _Family:
    make: Callable[[], nn.Module]
    calls: dict[str, Callable[[], Any]] = field(default_factory=dict)


def _tokens(batch: int = 2, length: int = 5, width: int = 6) -> Callable[[], Tensor]:
    return lambda: torch.randn(batch, length, width)


def _image(batch: int = 2, height: int = 6, width: int = 6) -> Callable[[], Tensor]:
    return lambda: torch.randn(batch, 3, height, width)


def _words(batch: int = 2, length: int = 5) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, 11, (batch, length))


def _mask(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


_VECTORS: dict[str, Callable[[], Any]] = {
    "example": lambda: torch.randn(3, 6),
    "batch": lambda: torch.randn(7, 6),
    "batch 1": lambda: torch.randn(1, 6),
}
_IMAGES: dict[str, Callable[[], Any]] = {
    "example": _image(),
    "size": _image(2, 8, 5),
    "batch": _image(3),
    "layout": lambda: _image()().contiguous(memory_format=torch.channels_last),
}
_SEQUENCES: dict[str, Callable[[], Any]] = {
    "example": _tokens(),
    "length": _tokens(2, 4),
    "batch": _tokens(4),
}

FAMILIES: dict[str, _Family] = {
    **{
        f"mlp {depth} {norm}": _Family(lambda d=depth, n=norm: models.perceptron(d, n), _VECTORS)  # type: ignore[misc]
        for depth, norm in [(1, "none"), (1, "batch"), (1, "layer"), (7, "none"), (3, "layer")]
    },
    **{
        f"conv {norm}": _Family(lambda n=norm: models.convolutional(n), _IMAGES)  # type: ignore[misc]
        for norm in ("batch", "group")
    },
    "features": _Family(models.features, _VECTORS),
    "auxiliary": _Family(models.Auxiliary, _IMAGES),
    "recurrent": _Family(models.Recurrent, _SEQUENCES),
    "branch": _Family(
        models.Branch,
        {
            "example": lambda: (torch.randn(3, 6), _mask(0, 0, 0)),
            "path": lambda: (torch.randn(3, 6), _mask(1, 0, 1)),
            "batch": lambda: (torch.randn(2, 6), _mask(0, 0)),
        },
    ),
    "branch seen": _Family(
        models.Branch,
        {
            "example": lambda: (torch.randn(3, 6), _mask(1, 0, 1)),
            "path": lambda: (torch.randn(3, 6), _mask(0, 0, 0)),
        },
    ),
    "optional mask": _Family(
        models.OptionalMask,
        {
            "example": lambda: {"x": torch.randn(2, 3, 6)},
            "flag": lambda: {"x": torch.randn(2, 3, 6), "mask": _mask(1, 0, 0, 0, 1, 1).view(2, 3)},
            "length": lambda: {"x": torch.randn(2, 7, 6)},
        },
    ),
    "long inputs": _Family(
        models.LongInputs,
        {
            "example": _tokens(2, 4),
            "length": _tokens(2, 3),
            "path": _tokens(2, 8),
            "batch": _tokens(3, 4),
        },
    ),
    "experts": _Family(
        models.Experts,
        {"example": _tokens(1, 2), "path": _tokens(1, 2), "path, longer": _tokens(2, 9)},
    ),
    "hidden states": _Family(
        models.HiddenStates,
        {
            "example": lambda: (torch.randn(2, 3, 6),),
            "flag": lambda: (torch.randn(2, 3, 6), True),
            "length": lambda: (torch.randn(2, 5, 6),),
        },
    ),
    "two streams": _Family(
        models.TwoStreams,
        {
            "example": lambda: (torch.randn(2, 3, 6), torch.randn(2, 5, 5)),
            "streams": lambda: (torch.randn(2, 5, 6), torch.randn(2, 3, 5)),
            "batch": lambda: (torch.randn(4, 3, 6), torch.randn(4, 5, 5)),
        },
    ),
    "viewed as image": _Family(
        models.ViewedAsImage,
        {"example": _image(2, 2, 2), "view": _image(2, 4, 2), "batch": _image(3, 2, 2)},
    ),
    "words": _Family(
        models.Words,
        {
            "example": _words(),
            "length": _words(2, 7),
            "flag": lambda: (_words()(), _mask(0, 0, 0, 1, 1).expand(2, 5)),
            "batch": _words(1),
        },
    ),
}

#: Two thirds of all lives are on networks from here: they are what the fuzzer is for.
KINDS = ("family", "family", "family", "family", "blocks", "zoo")


def draw(rng: Random) -> str:
    """The name of a subject."""
    kind = rng.choice(KINDS)
    if kind == "blocks":
        return f"blocks {rng.randrange(10**6)}"
    if kind == "zoo":
        return f"zoo {rng.choice(sorted(ZOO))}"
    return rng.choice(sorted(FAMILIES))


def subject(name: str, seed: int, without: frozenset[str] = frozenset()) -> Subject:
    """The subject of a name. ``without``: kinds of calls to leave out ("call:path", say)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build, calls = _parts(name, seed)
        kept = [call for call in calls if f"call:{re.split('[ ,]', call.kind)[0]}" not in without]
        tried = [_tried(build, call) for call in kept]
    usable = tuple(call for call, _ in tried if call is not None)
    return Subject(name, build, usable, smooth=all(smooth for _, smooth in tried))


def _parts(name: str, seed: int) -> tuple[Callable[[], nn.Module], list[Call]]:
    if name in FAMILIES:
        family = FAMILIES[name]
        calls = [Call(kind, make()) for kind, make in family.calls.items()]
        return lambda: _seeded(family.make, seed), calls
    kind, _, rest = name.partition(" ")
    if kind == "zoo":
        example = ZOO[rest]()[1]
        return lambda: lives.randomise(ZOO[rest]()[0], seed), _with_other_batch(example)
    spec = _spec(Random(int(rest)))
    example = architectures.build(spec)[1]
    build = lambda: lives.randomise(architectures.build(spec)[0], seed)  # noqa: E731
    return build, _with_other_batch(example)


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return lives.randomise(make().eval(), seed)


def _with_other_batch(example: Any) -> list[Call]:
    def longer(tensor: Tensor) -> Tensor:
        more = tensor.flip(0)[:1]
        return torch.cat([tensor, more]) if tensor.dim() else tensor

    return [
        Call("example", example),
        Call("batch", pytree.tree_map_only(Tensor, longer, example)),
    ]


def _spec(rng: Random) -> architectures.Spec:
    def block(depth: int) -> architectures.Block:
        a, b = rng.randrange(4), rng.randrange(4)
        if depth and rng.random() < 0.4:
            inner = tuple(block(depth - 1) for _ in range(rng.randint(1, 2)))
            name = rng.choice(sorted(architectures.NESTING))
            return architectures.Block(name, a, b, inner)
        return architectures.Block(rng.choice(sorted(architectures.LEAVES)), a, b)

    return architectures.Spec(
        rng.choice(["image", "sequence"]),
        rng.choice([4, 8, 12]),
        tuple(block(2) for _ in range(rng.randint(1, 3))),
        rng.choice(["pooled", "flattened", "conv"]),
        rng.randrange(4),
    )


def _tried(build: Callable[[], nn.Module], call: Call) -> tuple[Call | None, bool]:
    """The call when the bare model takes it; can it be differentiated?"""
    model = build()
    try:
        with torch.no_grad():
            lives.call(copy.deepcopy(model).eval(), call.inputs)
    except Exception:
        return None, True
    try:
        lives.loss_of(lives.call(model.train(), call.inputs)).backward()
    except Exception as error:
        smooth = NOT_DIFFERENTIABLE not in str(error)
        return Call(call.kind, call.inputs, trained=not smooth), smooth
    return call, True
