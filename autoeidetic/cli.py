"""The command line: ``autoeidetic demo``, ``inspect MODEL`` and ``visualize MODEL``."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .analysis import analyze
from .dependencies import Dependencies
from .draw import FORMATS, Drawing, describe, save
from .draw.failure import attempt
from .errors import AutoeideticError, InputError

DEMO = ("torchvision:resnet18", "vit_tiny_patch16_224")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 2 (and one line on stderr) when the user can fix it."""
    options = _parser().parse_args(argv)
    try:
        options.command(options)
        sys.stdout.flush()
    except AutoeideticError as error:
        print(f"autoeidetic: {_one_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autoeidetic", description="The channel structure of PyTorch models."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="analyse a stock ResNet-18 and a ViT-tiny")
    demo.set_defaults(command=_demo)
    inspect = commands.add_parser("inspect", help="print the channel structure of a model")
    _add_model(inspect)
    inspect.add_argument("--json", action="store_true", help="print JSON instead of a table")
    inspect.set_defaults(command=_inspect)
    visualize = commands.add_parser("visualize", help="draw how a model hangs together")
    _add_model(visualize)
    visualize.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="a name that ends in .html (the default), .svg, .png, .dot, .mmd, .graphml or .json",
    )
    visualize.add_argument("--format", choices=FORMATS, help="instead of the ending of the name")
    visualize.add_argument(
        "--depth",
        type=_depth,
        metavar="N",
        help="open modules N levels deep in .svg, .png, .dot and .mmd; by default as far as one "
        "can still read it",
    )
    visualize.set_defaults(command=_visualize)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a timm name, torchvision:NAME, or package.module:factory (a function without "
        "required arguments that returns an nn.Module)",
    )
    parser.add_argument(
        "--input",
        metavar="SHAPE",
        action="append",
        type=_shape,
        help="shape of an input tensor, such as 2,3,32,32 (repeat it for several inputs); may be "
        "left out for timm, torchvision and transformers models",
    )


def _depth(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of levels such as 2")
    return int(text)


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 2,3,32,32")
    return shape


def _one_line(error: AutoeideticError) -> str:
    parts = [" ".join(error.fact.split())]
    if str(error.place):
        parts.append(str(error.place))
    if error.remedy:
        parts.append(error.remedy)
    return "; ".join(parts)


# -- commands -----------------------------------------------------------------------------------


def _inspect(options: argparse.Namespace) -> None:
    deps = inspect_model(options.model, _inputs(options))
    print(deps.to_json() if options.json else deps)


def _inputs(options: argparse.Namespace) -> tuple[Tensor, ...] | None:
    shapes = options.input
    return None if not shapes else tuple(torch.empty(s, device="meta") for s in shapes)


def _visualize(options: argparse.Namespace) -> None:
    name = re.sub(r"[^\w.-]+", "_", options.model)
    path = Path(options.output or f"{name}.{options.format or 'html'}")
    format = options.format or path.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise InputError(
            f"the name {str(path)!r} tells no format of drawings",
            remedy=f"end it in one of {', '.join(f'.{f}' for f in FORMATS)}, or pass --format",
        )
    drawing = draw_model(options.model, _inputs(options))
    print(save(drawing, path, format, options.depth))
    if drawing.failure is not None:
        fact = " ".join(drawing.failure.message.split())
        print(f"autoeidetic: drawn in part: {fact}", file=sys.stderr)


def _demo(options: argparse.Namespace) -> None:
    for name in DEMO:
        start = time.perf_counter()
        deps = inspect_model(name, None)
        seconds = time.perf_counter() - start
        print(f"== {name}, built and analysed in {seconds:.1f} s\n\n{deps}\n")
        print(f"{_divided(deps)}\n")


def _divided(deps: Dependencies) -> str:
    classes = sum(group.size for group in deps.groups)
    heads = ", ".join(head.layer for head in deps.heads) or "none"
    return (
        f"{classes:,} classes of channels in {len(deps.groups)} groups can be divided between "
        f"tasks; {deps.locked.share:.1%} of the backbone is locked; a head for each task: {heads}."
    )


# -- models -------------------------------------------------------------------------------------


def inspect_model(name: str, inputs: tuple[Tensor, ...] | None) -> Dependencies:
    """Build a model without memory for its weights and analyse it.

    Code that looks at its parameters' values cannot do without them: then the model is built
    a second time, with its weights.
    """
    build = find_model(name)
    try:
        with parameters_on_meta():
            model = build()
        return analyze(model, inputs)
    except InputError:
        raise
    except Exception:  # whatever a constructor or a forward may raise without data
        return analyze(_built(name, build), inputs)


def draw_model(name: str, inputs: tuple[Tensor, ...] | None) -> Drawing:
    """Draw a model; one that fails as far as it gets, with its weights when it fails without."""
    try:
        return describe(inspect_model(name, inputs), title=name)
    except InputError:
        raise
    except AutoeideticError:
        return attempt(_built(name, find_model(name)), inputs, title=name)


def find_model(name: str) -> Callable[[], Any]:
    """A function that builds the model of this name.

    Raises:
        InputError: there is no such model.
    """
    source, colon, rest = name.partition(":")
    if not colon:
        return _timm_model(name)
    if source == "torchvision":
        return _torchvision_model(rest)
    return _factory(source, rest)


def _timm_model(name: str) -> Callable[[], nn.Module]:
    import timm

    if not timm.is_model(name):
        raise InputError(
            f"timm has no model {name!r}",
            remedy="see timm.list_models(); other models are torchvision:NAME or "
            "package.module:factory",
        )
    return lambda: timm.create_model(name, pretrained=False)


def _torchvision_model(name: str) -> Callable[[], nn.Module]:
    from torchvision import models

    if name not in models.list_models():
        raise InputError(
            f"torchvision has no model {name!r}", remedy="see torchvision.models.list_models()"
        )
    backbone = {"weights_backbone": None} if _has_backbone(name) else {}
    return lambda: models.get_model(name, weights=None, **backbone)


def _has_backbone(name: str) -> bool:
    from torchvision import models

    builder = models.get_model_builder(name)
    return builder.__module__.startswith(("torchvision.models.seg", "torchvision.models.det"))


def _factory(module: str, function: str) -> Callable[[], Any]:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: a console script does not see the directory
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"cannot import {module!r}: {error}",
            remedy="name a module that python can import from here",
        ) from error
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InputError(
            f"{module!r} has no function or class {function!r}",
            remedy="write package.module:factory",
        )
    factory: Callable[[], Any] = found
    return factory


def _built(name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except Exception as error:  # the user's own code
        raise InputError(
            f"{name} cannot be built: {type(error).__name__}: {error}",
            remedy="call it without arguments in Python to see where it fails",
        ) from error


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Give parameters no memory, while buffers keep their values.

    Under ``torch.device("meta")`` the index tables that some models hold in buffers would be
    lost, and with them the knowledge which unit they pick.
    """
    original = nn.Module.register_parameter
    moved: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if type(param) is nn.Parameter and not param.is_meta:
            if id(param) not in moved:  # the first one is kept, so that its id stays taken
                meta = nn.Parameter(param.detach().to("meta"), param.requires_grad)
                moved[id(param)] = (param, meta)
            param = moved[id(param)][1]
        original(module, name, param)

    nn.Module.register_parameter = register  # type: ignore
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


if __name__ == "__main__":
    raise SystemExit(main())
