"""Laterals: what a new column reads of the finished ones.

Earlier columns run as they are, in eval mode and without gradients; the inputs of their layers are
noted on the way. Only channels that their finished tasks own leave them, so that free values of an
earlier column can never reach a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..common.inputs import CallInputs
from ..common.torch_modes import recording_paused
from ..common.undisturbed import undisturbed
from ..couple.layer_graph import producers
from ..couple.tables import Read
from ..enforce.derive_guards import runs_by_level
from ..enforce.owners import Owners
from ..errors import EnforcementError, Place
from ..tasks.answer import want_gradients
from ..tasks.network import Network
from ..tasks.reference import type_now
from .readers import Column, Laterals, OutputReader, Reader, channel_dim, reading_weight

#: The keyword under which a column gets its laterals.
KEYWORD = "earlier_columns"


@dataclass(frozen=True)
class Source:
    """What leaves one layer of a finished column: ``index`` of the channels along ``dim``.

    ``path`` is that of the layer in the column's backbone. ``index`` None: all ``channels``.
    """

    path: str
    dim: int
    channels: int
    index: Tensor | None

    @property
    def width(self) -> int:
        return self.channels if self.index is None else len(self.index)


@dataclass(frozen=True)
class Finished:
    """A finished column and what can be read of it, by the path of the layer in the model.

    ``overwritten``: layers whose input the model changes in place later on; it must be copied.
    """

    network: Network
    sources: dict[str, Source]
    overwritten: set[str] = field(default_factory=set)


def finished(network: Network, before: Sequence[Finished] = ()) -> Finished:
    """A column after its last task; ``before`` are the columns that it reads.

    Layers that no call of the examples reaches as modules are left out: a model may use the weight
    of a layer without calling it.
    """
    reading = reading_layers(before[0].network if before else network)
    sources = {path: source for path, source in _sources(network) if path in reading}
    found = Finished(network, sources)
    for example in network.examples if found.sources else ():
        args, kwargs = example_values(network, example)
        with undisturbed(
            network, evaluate=True, attributes=True, generators="all", gradients=False
        ):
            network.before_pass(args, kwargs)
            notes = _run(found, args, kwargs)
        called = {note.path for note in notes}
        kept = {path: source for path, source in found.sources.items() if path in called}
        overwritten = {note.path for note in notes if note.changed} | found.overwritten
        found = Finished(network, kept, overwritten)
    return found


def reading_layers(first: Network) -> set[str]:
    """The layers that read earlier columns, by their paths in the model.

    Not every layer needs to: one that gets all it has from a single layer that reads is left out.

        residual stream --> layer 1 (reads) --> layer 2 (does not) --> residual stream

    That halves what must be kept for the backward pass.
    """
    graph = first.call_plan.plan.graph
    outputs = {head.layer for head in first.call_plan.heads}
    layers = {
        path for path, module in first.backbone.named_modules() if channel_dim(module) is not None
    }
    reading: set[str] = set()
    for path in first.backbone.state_dict():  # in the order of the model's code, mostly
        layer = path.rpartition(".")[0]
        if layer not in layers or layer not in graph:
            continue
        read = producers(graph, layer)  # none: the network's input, which a column reads itself
        makers = [each for each in read if each in layers]
        if layer in outputs or (read and (len(makers) != 1 or makers[0] not in reading)):
            reading.add(layer)
    return reading


def example_values(network: Network, example: CallInputs) -> tuple[Any, dict[str, Any]]:
    """The arguments of an example, in the type and on the device that the network has now."""
    device = next(network.backbone.parameters()).device

    def now(leaf: Tensor) -> Tensor:
        kind = type_now(network, leaf.dtype)
        if leaf.is_meta and device.type != "meta":
            made = torch.empty(leaf.shape, dtype=kind, device=device)
            return made.normal_() if made.is_floating_point() else made.zero_()
        return leaf.to(device, kind)

    with undisturbed(generators="torch"):
        return pytree.tree_map_only(Tensor, now, (example.args, example.kwargs))


def _sources(network: Network) -> Iterator[tuple[str, Source]]:
    owners, plan = network.owners, network.call_plan.plan
    if not owners.forward_transfer:
        return
    backbone = network.backbone
    inside = "model." if isinstance(backbone, Column) else ""
    model = backbone.model if isinstance(backbone, Column) else backbone
    skipped: set[str] = set()  # what a widening has put into a layer
    for path, module in model.named_modules():
        if path in skipped:
            continue
        output = isinstance(module, OutputReader)
        layer = module.layer if output else module
        if output or isinstance(module, Reader):
            skipped |= {f"{path}.layer", f"{path}.lateral"}
        dim = channel_dim(layer)
        place = f"{inside}{path}"
        # what runs once for every level gets other inputs each time
        if dim is None or runs_by_level(place, network.call_plan):
            continue
        weight = reading_weight(layer)
        name = f"{place}.layer.{weight}" if output else f"{place}.{weight}"
        entry = plan.parameters.get(plan.aliases.get(name, name))
        # without reads the layer reads the network's input, as the new column does itself
        if entry is None or not entry.reads:
            continue
        size = int(getattr(layer, weight).shape[1])
        channels = module.own_channels if output else size
        seen = _visible(owners, entry.reads, len(network.tasks) - 1, size)
        if seen is None or not bool(seen[:channels].any()):
            continue
        index = None if bool(seen[:channels].all()) else seen[:channels].nonzero().reshape(-1)
        yield path, Source(place, dim, channels, index)


def _visible(owners: Owners, reads: Sequence[Read], last: int, channels: int) -> Tensor | None:
    """Which input channels of a layer belong to the tasks up to the last; None: it is not known."""
    seen = torch.ones(channels, dtype=torch.bool)
    for read in reads:
        hidden = owners.hidden(last, read.columns)
        if hidden.dim() < 2 or hidden.shape[1] not in (1, channels):
            return None
        seen &= ~hidden.any([d for d in range(hidden.dim()) if d != 1])
    return seen


def laterals(columns: Sequence[Finished], args: Any, kwargs: Mapping[str, Any]) -> Laterals:
    """What the next column reads of these, for one call of the model."""
    found: Laterals = {}
    for number, column in enumerate(columns):
        found = with_column(found, column, args, column_kwargs(number, kwargs, found))
    return found


def column_kwargs(number: int, kwargs: Mapping[str, Any], found: Laterals) -> dict[str, Any]:
    """The keyword arguments of a column: column 0 reads of no other."""
    return {**kwargs, KEYWORD: found} if number else dict(kwargs)


def with_column(found: Laterals, column: Finished, args: Any, kwargs: dict[str, Any]) -> Laterals:
    """What can be read of the columns before, and of one more, which is run for it."""
    return _together(found, column, _noted(column, args, kwargs))


def read_while(run: Callable[[], Any], found: Laterals, column: Finished) -> Laterals:
    """What can be read of the columns before, and of one more while its bare model runs."""
    values: dict[str, list[Tensor]] = {path: [] for path in column.sources}
    for note in _while(run, column):
        values[note.path].append(note.value)
    return _together(found, column, {path: tuple(each) for path, each in values.items()})


def _together(found: Laterals, column: Finished, more: Laterals) -> Laterals:
    """The values of columns before, and those of one more behind them."""
    result = dict(found)
    for path, values in more.items():
        if path in found:
            pairs = zip(found[path], values, strict=True)
            values = tuple(torch.cat(pair, column.sources[path].dim) for pair in pairs)
        result[path] = values
    return result


def copies(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The same arguments with tensors that nobody else has: a model may write into its inputs.

    What a column reads of others is only read, and is not copied.
    """
    own = {name: value for name, value in kwargs.items() if name != KEYWORD}
    args, own = pytree.tree_map_only(Tensor, Tensor.clone, (args, own))
    return args, {**kwargs, **own}


def _noted(column: Finished, args: Any, kwargs: dict[str, Any]) -> Laterals:
    """Run a finished column and note the inputs of its layers."""
    network = column.network
    wanted = want_gradients((args, kwargs))
    with network.pass_lock, nullcontext() if wanted else torch.no_grad(), _slow_paths():
        with recording_paused():
            network.before_pass(args, kwargs)
        harmless = network.free.made_harmless(network.spreads) if network.diverged() else None
        with harmless or nullcontext():
            notes = _run(column, *copies(args, kwargs))
            overwritten = {note.path for note in notes if note.changed} - column.overwritten
            if overwritten:  # in a call that no example has shown
                column.overwritten.update(overwritten)
                notes = _run(column, *copies(args, kwargs))
    found: dict[str, list[Tensor]] = {path: [] for path in column.sources}
    for note in notes:
        found[note.path].append(note.value)
    for path, values in found.items():
        if not values:
            raise EnforcementError(
                f"layer '{path}' of a finished column was not called, so that later columns "
                "cannot read its input",
                place=Place(module=path),
                remedy="call the network as it was called when it was widened",
            )
    return {path: tuple(values) for path, values in found.items()}


@dataclass(frozen=True)
class _Note:
    """The input of one call of a layer, and the version that the tensor had."""

    path: str
    value: Tensor
    version: int | None

    @property
    def changed(self) -> bool:
        return self.version is not None and self.value._version != self.version


def _run(column: Finished, args: Any, kwargs: dict[str, Any]) -> list[_Note]:
    """One pass of a finished column; the inputs of its layers, in the order of the calls."""
    network = column.network
    return _while(lambda: network.bare_answers([len(network.tasks) - 1], args, kwargs), column)


def _while(run: Callable[[], Any], column: Finished) -> list[_Note]:
    """The inputs of a column's layers while something runs, in the order of the calls."""
    notes: list[_Note] = []
    hooks = []

    def noting(path: str, source: Source) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            value = _input(args, kwargs)
            if source.index is not None:
                value = value.index_select(source.dim, source.index.to(value.device))
            elif path in column.overwritten or value.is_inference():
                value = value.clone()  # tensors of inference mode do not count their versions
            counted = source.index is None and not value.is_inference()
            notes.append(_Note(path, value, value._version if counted else None))

        return hook

    try:
        for path, source in column.sources.items():
            layer = column.network.backbone.get_submodule(source.path)
            hooks.append(layer.register_forward_pre_hook(noting(path, source), with_kwargs=True))
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return notes


def input_shapes(
    model: nn.Module, paths: Iterable[str], args: Any, kwargs: Mapping[str, Any]
) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of what layers of a model get in one call of it, in order."""
    found: dict[str, list[tuple[int, ...]]] = {}

    def noting(path: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            value = _input(args, kwargs)
            found.setdefault(path, []).append(tuple(value.shape))

        return hook

    layers = {path: model.get_submodule(path) for path in paths}
    hooks = [
        layer.register_forward_pre_hook(noting(path), with_kwargs=True)
        for path, layer in layers.items()
    ]
    around = undisturbed(model, evaluate=True, attributes=True, generators="all", gradients=False)
    own, named = copies(args, kwargs)
    try:
        # the analysis of a model that does not run gives a better error
        with around, _slow_paths(), suppress(Exception):
            model(*own, **named)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _input(args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    """The input of a layer, or the queries of an attention."""
    given: Tensor = args[0] if args else kwargs.get("query", next(iter(kwargs.values())))
    return given


@contextmanager
def _slow_paths() -> Iterator[None]:
    """Torch's transformer layers as modules: fused kernels would pass the layers inside by."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
