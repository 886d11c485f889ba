"""Torch-Pruning used as its README and its example for timm models use it.

Fused attention is off, layers that compute the output are excluded, the numbers of heads are
passed, and the sizes stored in attention layers are corrected afterwards.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ...common.inputs import CallInputs
from .models import as_example, batch, build, logits, multiply_adds, parameters
from .runner import Record, error_line, seconds_of, time_limit

PATIENCE = 60  # time limit to prune a model, in seconds
ATTEMPTS = 12  # ratios tried to reach a number of multiply-adds; each halves the interval


def has_torch_pruning() -> bool:
    """Whether Torch-Pruning, of the extra ``bench``, is installed."""
    return find_spec("torch_pruning") is not None


@contextmanager
def _unfused_attention() -> Iterator[None]:
    """Turn off fused attention in the timm models that are built inside the block."""
    import timm

    fused = bool(timm.layers.use_fused_attn())
    timm.layers.set_fused_attn(False)
    try:
        yield
    finally:
        timm.layers.set_fused_attn(fused)


def dependency_graph(model: nn.Module) -> Callable[[], object]:
    """Build its graph and find its groups, which the constructor of a pruner does."""
    x = single(model)
    with torch.no_grad():
        outputs = logits(model(*x.args, **x.kwargs)).shape[1]
    return lambda: _pruner(model, x, outputs)


def single(model: nn.Module) -> CallInputs:
    """A batch of one, with the model in eval mode and gradients on, as in its documentation."""
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    x = batch(model)
    first = {key: value[:1] for key, value in x.kwargs.items()}
    return CallInputs(tuple(value[:1] for value in x.args), first)


# -- pruning half of a model of the benchmark -----------------------------------------------------


def halve(name: str) -> Record:
    """Prune half of the channels by magnitude.

    ``stage`` is the step that failed: "build" the graph, "group" the layers, "prune", "run"; or
    "done" for a smaller model with as many outputs as before. ``left`` and ``multiply_adds_left``
    are the shares of parameters and multiply-adds that it has.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    record: Record = {"stage": "build"}
    try:
        with _unfused_attention(), time_limit(PATIENCE):
            _halve(build(name), record)
    except Exception as error:  # a tool may raise anything
        record["error"] = error_line(error)
    return record


def _halve(model: nn.Module, record: Record) -> None:
    import torch_pruning

    x = single(model)
    before = logits(model(*x.args, **x.kwargs)).shape
    work = multiply_adds(model, x)
    graph = torch_pruning.DependencyGraph()
    record["seconds"] = seconds_of(lambda: graph.build_dependency(model, as_example(x)))
    record["stage"] = "group"
    size = parameters(model)
    attentions = list(_attentions(model))
    pruner = _pruner(model, x, before[1], num_heads=_heads(attentions))
    # `stage` is set before each step: after an exception it names the step that failed.
    record["stage"] = "prune"
    pruner.step()
    record["stage"] = "run"
    record["left"] = parameters(model) / size
    _correct(attentions, pruner)
    after = logits(model(*x.args, **x.kwargs)).shape
    if after != before:
        raise ValueError(f"{after[1]} outputs instead of {before[1]}")
    record["multiply_adds_left"] = multiply_adds(model, x) / work
    record["stage"] = "done"


# -- pruning to a number of multiply-adds ---------------------------------------------------------


def pruned_to(
    model: nn.Module,
    x: CallInputs,
    target: float,
    *,
    importance: Any = None,
    **options: Any,
) -> nn.Module:
    """A pruned copy whose multiply-adds are as close to ``target`` as a ratio gets.

    Gradients of the model's parameters are copied, for importances that use them.
    """
    found: list[tuple[float, nn.Module]] = []
    low, high = 0.0, 1.0
    for _ in range(ATTEMPTS):
        ratio = (low + high) / 2
        smaller = _pruned(model, x, ratio, importance, options)
        left = multiply_adds(smaller, x)
        found.append((abs(left - target), smaller))
        low, high = (ratio, high) if left > target else (low, ratio)
        found = [min(found, key=lambda each: each[0])]
    return found[0][1]


def _pruned(
    model: nn.Module, x: CallInputs, ratio: float, importance: Any, options: dict[str, Any]
) -> nn.Module:
    result = copy.deepcopy(model).eval()
    for ours, theirs in zip(result.parameters(), model.parameters(), strict=True):
        ours.requires_grad_(True)
        ours.grad = None if theirs.grad is None else theirs.grad.clone()
    attentions = list(_attentions(result))
    for layer, _ in attentions:
        # Fused attention divides by the root of the new head's size, which the model did not.
        layer.fused_attn = False
    outputs = logits(result(*x.args, **x.kwargs)).shape[1]
    given = {"pruning_ratio": ratio, "importance": importance, "num_heads": _heads(attentions)}
    pruner = _pruner(result, x, outputs, **given, **options)
    pruner.step()
    _correct(attentions, pruner)
    result.zero_grad(set_to_none=True)
    return result


# -- its arguments --------------------------------------------------------------------------------


def _pruner(
    model: nn.Module, x: CallInputs, outputs: int, *, importance: Any = None, **options: Any
) -> Any:
    import torch_pruning

    return torch_pruning.pruner.MagnitudePruner(
        model,
        as_example(x),
        importance=importance or torch_pruning.importance.GroupMagnitudeImportance(p=2),
        ignored_layers=_classifiers(model, outputs),
        **{"pruning_ratio": 0.5, **options},
    )


Attention = tuple[Any, nn.Linear]


def _attentions(model: nn.Module) -> Iterator[Attention]:
    """Attention layers whose queries, keys and values come from one linear layer."""
    for layer in model.modules():
        weight = getattr(layer, "qkv", None)
        if isinstance(weight, nn.Linear) and isinstance(getattr(layer, "num_heads", None), int):
            yield layer, weight


def _heads(attentions: list[Attention]) -> dict[nn.Linear, int]:
    return {weight: layer.num_heads for layer, weight in attentions}


def _correct(attentions: list[Attention], pruner: Any) -> None:
    """Correct the sizes that attention layers store."""
    for layer, weight in attentions:
        # qkv has 3 * heads * head_dim rows; the layer stores both numbers, and the pruner one.
        layer.num_heads = pruner.num_heads[weight]
        layer.head_dim = weight.out_features // (3 * layer.num_heads)
        layer.attn_dim = layer.num_heads * layer.head_dim


def _classifiers(model: nn.Module, outputs: int) -> list[nn.Module]:
    # By size: models name their classifier differently, and some have two.
    sizes = {nn.Linear: "out_features", nn.Conv2d: "out_channels"}
    return [
        module
        for module in model.modules()
        for kind, size in sizes.items()
        if isinstance(module, kind) and getattr(module, size) == outputs
    ]
