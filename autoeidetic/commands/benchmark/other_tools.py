"""Other tools on the same models: ``torch.export``, and Torch-Pruning used as documented.

Used by the stage ``compare`` of ``autoeidetic benchmark``, and ``benchmarks/speed.py analyze``.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import nn

from ...common.inputs import CallInputs
from .models import as_example, batch, build, example, logits
from .runner import Record, error_line, seconds_of, time_limit

WARM_UP = ("test_resnet", "test_vit")  # the second one if the first is being measured
ROUNDS = 3
LONGEST = 20  # time limit of one timed call, in seconds
PATIENCE = 60  # time limit for Torch-Pruning to prune a model, in seconds
Action = Callable[[], object]


def compare(name: str) -> Record:
    """Seconds of each tool: the median of three alternating rounds after a warm-up.

    A tool that raises on a model is not tried again; its first error is recorded.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ways: dict[str, Callable[[nn.Module], Action]] = {
        "analyze": _analyze,
        "export": _export,
    }
    if has_torch_pruning():
        ways["torch_pruning"] = _dependency_graph
    other = build(WARM_UP[0] if name != WARM_UP[0] else WARM_UP[1])
    # On another model: the first call of a tool imports and compiles, which is not measured.
    for prepare in ways.values():
        prepare(other)()
    model = build(name)
    times: dict[str, list[float]] = {way: [] for way in ways}
    errors: dict[str, str] = {}
    # Tools alternate, so that a machine that slows down affects all of them.
    for _ in range(ROUNDS):
        for way, prepare in ways.items():
            if way in errors:
                continue
            try:
                action = prepare(model)
                # garbage of one tool must not be collected in the time of the next
                gc.collect()
                with time_limit(LONGEST):
                    times[way].append(seconds_of(action))
            except Exception as error:  # a tool may raise anything
                errors[way] = error_line(error)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": {way: median(t) for way, t in times.items() if t and way not in errors},
        "errors": errors,
    }


def compare_and_prune(name: str) -> Record:
    """The times, and how far Torch-Pruning gets when it removes half of the channels."""
    record = compare(name)
    return {**record, "torch_pruning": halve(name)} if has_torch_pruning() else record


def has_torch_pruning() -> bool:
    """Whether Torch-Pruning, of the extra ``bench``, is installed."""
    return find_spec("torch_pruning") is not None


def _analyze(model: nn.Module) -> Action:
    import autoeidetic

    return lambda: autoeidetic.analyze(model, example(model))


def _export(model: nn.Module) -> Action:
    model.eval()
    x = batch(model)
    return lambda: torch.export.export(model, x.args, x.kwargs, strict=False)


# -- Torch-Pruning --------------------------------------------------------------------------------


def _dependency_graph(model: nn.Module) -> Action:
    """Build its graph and find its groups, which the constructor of a pruner does."""
    x = _single(model)
    with torch.no_grad():
        outputs = logits(model(*x.args, **x.kwargs)).shape[1]
    return lambda: _pruner(model, x, outputs)


def _pruner(model: nn.Module, x: CallInputs, outputs: int, **options: Any) -> Any:
    import torch_pruning

    return torch_pruning.pruner.MagnitudePruner(
        model,
        as_example(x),
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=0.5,
        ignored_layers=_classifiers(model, outputs),
        **options,
    )


def _single(model: nn.Module) -> CallInputs:
    """A batch of one, with the model in eval mode and gradients on, as in its documentation."""
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    x = batch(model)
    first = {key: value[:1] for key, value in x.kwargs.items()}
    return CallInputs(tuple(value[:1] for value in x.args), first)


def halve(name: str) -> Record:
    """Prune half of the channels by magnitude, as its example for timm models does.

    Fused attention is off, the classifier is excluded, the numbers of heads are passed, and the
    sizes stored in attention layers are corrected afterwards. ``stage`` is the step that failed:
    "build" the graph, "group" the layers, "prune", "run"; or "done" for a smaller model with as
    many outputs as before.
    """
    import timm

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fused = bool(timm.layers.use_fused_attn())
    timm.layers.set_fused_attn(False)
    record: Record = {"stage": "build"}
    try:
        with time_limit(PATIENCE):
            _halve(build(name), record)
    except Exception as error:  # a tool may raise anything
        record["error"] = error_line(error)
    finally:
        timm.layers.set_fused_attn(fused)
    return record


def _halve(model: nn.Module, record: Record) -> None:
    import torch_pruning

    x = _single(model)
    before = logits(model(*x.args, **x.kwargs)).shape
    graph = torch_pruning.DependencyGraph()
    record["seconds"] = seconds_of(lambda: graph.build_dependency(model, as_example(x)))
    record["stage"] = "group"
    attentions = list(_attentions(model))
    heads = {weight: layer.num_heads for layer, weight in attentions}
    pruner = _pruner(model, x, before[1], num_heads=heads)
    # `stage` is set before each step: after an exception it names the step that failed.
    size = sum(p.numel() for p in model.parameters())
    record["stage"] = "prune"
    pruner.step()
    record["stage"] = "run"
    record["left"] = sum(p.numel() for p in model.parameters()) / size
    for layer, weight in attentions:
        # qkv has 3 * heads * head_dim rows; the layer stores both numbers, and the pruner one.
        layer.num_heads = pruner.num_heads[weight]
        layer.head_dim = weight.out_features // (3 * layer.num_heads)
        layer.attn_dim = layer.num_heads * layer.head_dim
    after = logits(model(*x.args, **x.kwargs)).shape
    if after != before:
        raise ValueError(f"{after[1]} outputs instead of {before[1]}")
    record["stage"] = "done"


def _attentions(model: nn.Module) -> Iterator[tuple[Any, nn.Linear]]:
    """Attention layers whose queries, keys and values come from one linear layer."""
    for layer in model.modules():
        weight = getattr(layer, "qkv", None)
        if isinstance(weight, nn.Linear) and isinstance(getattr(layer, "num_heads", None), int):
            yield layer, weight


def _classifiers(model: nn.Module, outputs: int) -> list[nn.Module]:
    # By size: models name their classifier differently, and some have two.
    sizes = {nn.Linear: "out_features", nn.Conv2d: "out_channels"}
    return [
        module
        for module in model.modules()
        for kind, size in sizes.items()
        if isinstance(module, kind) and getattr(module, size) == outputs
    ]
