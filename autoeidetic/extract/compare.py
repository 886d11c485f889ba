"""Compare: is a program equal to its network up to rounding, and if not, where does it differ?"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.capture import first_line
from ..capture.graph import place as place_of
from ..common.inputs import CallInputs
from ..common.undisturbed import undisturbed
from ..errors import ExtractionError, Place
from ..tasks.network import Network
from .extents import Extent, cut, holds
from .writer import Writer

#: The largest difference, relative to the largest value, that is rounding.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}
_COARSE = 5e-2
#: Copies of the network in memory while it is compared, its frozen values included.
_COPIES = 4
_REPORT = "report the model; the network itself is unchanged and answers as before"


class _Precisions(TorchDispatchMode):
    """Notes the types of real numbers that operators compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                self.seen.add(leaf.dtype)
        return result


def can_double(network: Network) -> bool:
    """Can a model be compared in double precision? It needs memory, and one type of its own."""
    tensors = [t for each in network.networks for t in (*each.parameters(), *each.buffers())]
    if len({t.dtype for t in tensors if t.is_floating_point()}) > 1:
        return False  # casts between types would have to be told from casts that the model wants
    elements = sum(t.numel() for t in tensors)
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # systems that do not tell
        return elements < 2**27
    return 8 * _COPIES * elements < free


def only_type(model: nn.Module) -> torch.dtype:
    """The type of a model's first real tensor."""
    tensors = (*model.parameters(), *model.buffers())
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())


@contextmanager
def quiet(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Eval mode, without gradients, the same random numbers."""
    with undisturbed(
        model, evaluate=True, generators="all", seed=seed, gradients=False, eager=True, quiet=True
    ):
        yield


def difference(expected: Any, found: Any) -> float:
    """The largest difference, relative to the largest value of each output."""
    pairs = list(zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True))
    worst = 0.0
    for one, other in pairs:
        if not isinstance(one, Tensor):
            # a number may depend on sizes; other objects are left out of programs
            worst = max(worst, 0.0 if other is None or one == other else float("inf"))
            continue
        if not isinstance(other, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
            return float("inf")
        if one.is_complex():
            one, other = torch.view_as_real(one), torch.view_as_real(other)
        if not one.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(one, other) else float("inf"))
            continue
        if not one.numel():
            continue
        same = (one == other) | (one.isnan() & other.isnan())
        gap = torch.where(same, 0, (one - other).abs()).max()
        size = one.abs().nan_to_num(0, 0, 0).max()
        found = float(gap / size) if size else float(gap)
        worst = max(worst, float("inf") if math.isnan(found) else found)  # max() ignores NaN
    return worst


def run(program: fx.GraphModule, inputs: CallInputs, seed: int = 0) -> tuple[Any, float]:
    """The answer of a program, and the difference that is rounding.

    It is that of the least precise type that the program computes in.
    """
    with quiet(program, seed), _Precisions() as noted:
        # not program(...), which prints what it raises
        answer = program.forward(*inputs.args, **inputs.kwargs)
    return answer, max((_ROUNDING.get(each, _COARSE) for each in noted.seen), default=_COARSE)


def first_difference(writer: Writer, inputs: CallInputs, limit: float) -> Place | None:
    """The first node of a cut graph whose value is not that of the captured graph.

    Both graphs run side by side, at the sizes that they were written for.
    """
    full = _values(writer.known.capture.module(), inputs)
    narrow = _values(fx.GraphModule(dict(writer.attributes), writer.graph), inputs)
    for source, made in writer.made.items():
        value, other = full.get(source.name), narrow.get(made.node.name)
        if not isinstance(value, Tensor) or not isinstance(other, Tensor):
            continue
        for box in writer.known.wanted.get(source, ()):
            inside = writer.known.kept(source, box)
            assert isinstance(made.extent, tuple)
            if not holds(made.extent, inside):
                continue
            if difference(cut(value, inside), _inside(other, made.extent, inside)) > limit:
                return place_of(source)
    return None


class _Replay(fx.Interpreter):
    """Runs a captured graph on values, whose memory need not be laid out as in the capture."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default
        return super().call_function(target, args, kwargs)


def _inside(value: Tensor, have: Extent, want: Extent) -> Tensor:
    """The wanted part of a value that holds more."""
    positions = tuple(
        wanted if there is None else None if wanted is None else wanted[there]
        for there, wanted in zip(have, want, strict=True)
    )
    return cut(value, positions)


def _values(module: fx.GraphModule, inputs: CallInputs) -> dict[str, Any]:
    """The value of every node of a graph, by name; those before one that raises an error."""
    leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
    interpreter = _Replay(module, garbage_collect_values=False)
    with torch.no_grad(), suppress(Exception):  # the place of a difference is only a hint
        interpreter.run(*(leaf for leaf in leaves if isinstance(leaf, Tensor)))
    return {node.name: value for node, value in interpreter.env.items()}


def refusal(
    found: float, limit: float, writer: Writer | None = None, inputs: CallInputs | None = None
) -> ExtractionError:
    """The error for a program that is not its network; ``writer`` has written it for ``inputs``."""
    place = None
    if writer is not None and inputs is not None:
        place = first_difference(writer, inputs, limit)
    return ExtractionError(
        f"the program differs from the network by {found:.1e} of the largest output, and rounding "
        f"explains {limit:.0e}",
        place=place,
        remedy=_REPORT,
    )


def broken(error: Exception) -> ExtractionError:
    """The error for a program that does not run."""
    return ExtractionError(f"the program does not run: {first_line(error)}", remedy=_REPORT)
