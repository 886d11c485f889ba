"""Finish: a cut graph gets the names, the structure and the spelling that the user knows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..common.inputs import CallInputs
from ..enforce.guard import original_class
from .cutting import Cut
from .own_names import own_name, own_path
from .spelling import spelled

#: Outputs beside tensors that a program returns, too.
_PLAIN = (bool, int, float, str)


def finish(found: Cut, inputs: Sequence[str], single: int | None, routes: bool) -> None:
    """Give a cut graph the user's names and structure, and the spelling that people read.

    ``single`` is the only task of the program; with several, their heads keep their numbers.
    """
    graph = found.graph
    renamed: dict[str, str] = {}
    for name in found.attributes:
        renamed[name] = _unused(own_name(name, single), renamed.values())
    for node in graph.nodes:
        if node.op == "get_attr":
            node.target = renamed[str(node.target)]
            node.name = str(node.target).replace(".", "_")
        if "module" in node.meta:
            node.meta["module"] = own_path(node.meta["module"], single)
        node.meta["calls"] = _calls(node, found, single)
    for node, name in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.target = node.name = name
    _structure(graph, found, single is not None and not routes)
    graph.eliminate_dead_code()
    spelled(graph)
    graph.lint()
    used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    tensors = {renamed[name]: value for name, value in found.attributes.items()}
    found.attributes = {name: value for name, value in tensors.items() if name in used}
    found.trainable = {renamed[name] for name in found.trainable} & used


def as_before(found: Cut, kind: torch.dtype) -> None:
    """Take a graph in double precision back to the type of its network."""
    _follow_type(found)
    types = {torch.float64: kind, torch.complex128: kind.to_complex()}
    for name, value in found.attributes.items():
        if value.dtype is torch.float64:
            value = _limited(value, kind)
        found.attributes[name] = value.to(types.get(value.dtype, value.dtype))
    own = lambda each: types.get(each, each)  # noqa: E731
    number = lambda each: _limited(torch.tensor(each, dtype=torch.float64), kind).item()  # noqa: E731
    for node in found.graph.nodes:
        for arguments in ("args", "kwargs"):
            given = pytree.tree_map_only(torch.dtype, own, getattr(node, arguments))
            setattr(node, arguments, pytree.tree_map_only(float, number, given))


def _follow_type(found: Cut) -> None:
    """Let casts back to the type of the network follow the type of the program."""
    graph = found.graph
    inputs = graph.find_nodes(op="placeholder")
    like = next((each for each in inputs if each.meta.get("dtype") is torch.float64), None)
    casts = [
        node
        for node in graph.nodes
        if (node.op, node.target) == ("call_method", "to")
        and (*node.args[1:], *node.kwargs.values()) == (torch.float64,)
    ]
    if casts and like is None:  # inputs are integers: a parameter has the type
        attributes = graph.find_nodes(op="get_attr")
        like = next((each for each in attributes if str(each.target) in found.trainable), None)
        if like is not None and inputs:
            inputs[-1].append(like)  # before everything that needs it
    for node in casts if like is not None else ():
        node.target, node.args, node.kwargs = "type_as", (node.args[0], like), {}


def _limited(value: Tensor, kind: torch.dtype) -> Tensor:
    """Numbers that a model takes from ``torch.finfo`` of its type: of another type now."""
    wide, own = torch.finfo(torch.float64), torch.finfo(kind)
    # the lowest number, or a part of it, stands for minus infinity in masks
    large = value.isfinite() & (value.abs() > wide.max**0.9)
    value = torch.where(large, value * (own.max / wide.max), value)
    for name in ("eps", "tiny"):
        value = torch.where(value == getattr(wide, name), getattr(own, name), value)
    return value


def type_name(kind: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(kind).removeprefix("torch.")


def _calls(node: fx.Node, found: Cut, single: int | None) -> list[tuple[int, str, str]]:
    """The calls of the user's modules around a node, the outermost first."""
    captured = found.writer.known.capture
    calls: list[tuple[int, str, str]] = []
    for number in node.meta.get("scope", ()):
        path = captured.calls[number].path
        own = own_path(path, single)
        # a head stands in the place of a layer, and is called by it
        if path and (not calls or own != calls[-1][1]):
            calls.append((number, own, captured.types[path]))
    return calls


def _unused(name: str, taken: Any) -> str:
    while name in taken:
        name += "_"
    return name


def _structure(graph: fx.Graph, found: Cut, single: bool) -> None:
    """Give the output the structure of the model's."""
    (output,) = graph.find_nodes(op="output")
    (captured,) = found.writer.known.capture.outputs
    leaves, spec = pytree.tree_flatten(captured)
    filled = []
    for leaf, node in zip(leaves, output.args[0], strict=True):
        constant = leaf if isinstance(leaf, _PLAIN) else None
        filled.append(node if isinstance(leaf, fx.Node) else constant)
    result = plain(pytree.tree_unflatten(filled, spec))
    output.args = (result[0] if single else result,)


def plain(value: Any) -> Any:
    """The same structure in lists, tuples and dicts; anything else is left as it is."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return value


def input_names(model: nn.Module, inputs: CallInputs) -> list[str]:
    """A name for each tensor of a call: that of the argument, numbered inside of containers."""
    signature = inspect.signature(original_class(model).forward)  # type: ignore[attr-defined]
    positional = [
        each.name
        for each in list(signature.parameters.values())[1:]
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    names: list[str] = []
    groups = [
        *(
            (positional[n] if n < len(positional) else f"input_{n}", each)
            for n, each in enumerate(inputs.args)
        ),
        *inputs.kwargs.items(),
    ]
    for name, value in groups:
        count = sum(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))
        names += [name] if count == 1 else [f"{name}_{number}" for number in range(count)]
    return [_unused(name, names[:position]) for position, name in enumerate(names)]


def arguments(inputs: CallInputs) -> CallInputs:
    """The tensors of a call, which a program takes one by one."""
    leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
    return CallInputs(tuple(leaf for leaf in leaves if isinstance(leaf, Tensor)), {})
