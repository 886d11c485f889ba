"""Graph as JSON: the operators of a program, written and read without pickle.

A file may have been edited, and ``torch.fx`` turns a graph into Python code. So a name in a file is
looked up in lists (functions, methods, operators of ATen) or must be a plain identifier, values are
of a closed set of types, and a node reads only nodes before it.
"""

from __future__ import annotations

import inspect
import keyword
import math
import operator
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import fx

from ...checkpoint.example import dtype_of
from ...common import codec
from ...errors import CheckpointError, Place
from ..program import usable
from ..spelling import Call, functions, methods, overload_of

_AGAIN = "use an intact copy of the file, or save the program again"
_ATEN = "torch.ops.aten."
#: Functions of numbers, for sizes and checks of them, beside those that have a spelling.
_NUMBERS = {
    **{f"operator.{f.__name__}": f for f in (operator.floordiv, operator.mod, operator.getitem)},
    **{f"operator.{f.__name__}": f for f in (operator.eq, operator.ge, operator.le)},
    "torch._assert": torch._assert,
    **{f"math.{f.__name__}": f for f in (math.ceil, math.floor, math.sqrt, math.trunc)},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in "sym_float sym_int sym_max sym_min".split()
    },
}
#: Private operators of ATen that models consist of. Others may expect arguments that nobody checks.
_PRIVATE = frozenset(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _cdist_forward _embedding_bag _fft_c2c _fft_c2r
    _fft_r2c _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _log_softmax
    _native_batch_norm_legit_no_training _pdist_forward _prelu_kernel _safe_softmax
    _scaled_dot_product_flash_attention_for_cpu _softmax _to_copy _trilinear _unsafe_view
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm_interface
    """.split()
)
#: The results that an operator may have; those of from_file are the content of any file.
_RESULTS = frozenset(("Tensor", "List[Tensor]", "int", "float", "bool", "number"))
_EXCLUDED = frozenset(("from_file",))
_MEMORY = {
    str(kind): kind
    for kind in (torch.contiguous_format, torch.preserve_format, torch.channels_last)
} | {str(torch.channels_last_3d): torch.channels_last_3d}
_FIELDS = {"op", "name", "target", "args", "kwargs"}


# -- writing --------------------------------------------------------------------------------------


def to_json(graph: fx.Graph) -> list[dict[str, Any]]:
    """The nodes of a graph.

    Raises:
        CheckpointError: an operator or an argument cannot be read back.
    """
    names = _node_names(graph)
    leaf = partial(_leaf, names=names)
    return [
        {
            "op": node.op,
            "name": names[node],
            "target": _written(node),
            "args": codec.encode(node.args, leaf, _key),
            "kwargs": codec.encode(node.kwargs, leaf, _key),
        }
        for node in graph.nodes
    ]


def _node_names(graph: fx.Graph) -> dict[fx.Node, str]:
    """A name for each node: its own, if that is an identifier and no other node has it."""
    names: dict[fx.Node, str] = {}
    taken = {*keyword.kwlist, "self"}
    for node in graph.nodes:
        name = re.sub(r"\W", "_", node.name, flags=re.ASCII)
        name = f"_{name}" if not name or name[0].isdigit() else name
        while name in taken:
            name += "_"
        taken.add(name)
        names[node] = name
    return names


def _written(node: fx.Node) -> str:
    if isinstance(node.target, str):
        if node.op != "call_method" or node.target in methods():
            return node.target
    elif isinstance(node.target, torch._ops.OpOverload):
        if _is_harmless(node.target):
            return f"torch.ops.{node.target}"
    elif node.target in _names():
        return _names()[node.target]
    name = str(node.target)
    if inspect.isroutine(node.target):
        name = f"{node.target.__module__}.{node.target.__qualname__}"
    raise CheckpointError(
        f"the file cannot hold a call of {name}, which is not an operator that programs consist of",
        place=Place(operator=name, module=node.meta.get("module", "")),
        remedy="save it as .pt2 instead",
    )


@cache
def _known() -> dict[str, Callable[..., Any]]:
    """Functions by name."""
    return {**functions(), **_NUMBERS}


@cache
def _names() -> dict[Callable[..., Any], str]:
    return {function: name for name, function in _known().items()}


def _leaf(value: Any, name: str, names: dict[fx.Node, str]) -> Any:
    if isinstance(value, fx.Node):
        return {"node": names[value]}
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return {"slice": [_leaf(part, name, names) for part in parts]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, torch.memory_format):
        return {"memory format": str(value)}
    if value is ...:
        return {"ellipsis": None}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise CheckpointError(
        f"the file cannot hold the argument {value!r:.80} of an operator",
        remedy="save it as .pt2 instead",
    )


def _key(key: Any, name: str) -> Any:
    if type(key) not in (str, int):
        raise CheckpointError(
            f"the file cannot hold an output under the key {key!r:.80}",
            remedy="return a dictionary whose keys are strings",
        )
    return key


# -- reading --------------------------------------------------------------------------------------


def from_json(data: Any) -> fx.Graph:
    """The graph of a file.

    Raises:
        CheckpointError: it is not one, or has something that no program has.
    """
    graph, made = fx.Graph(), dict[str, fx.Node]()
    try:
        for fields in data:
            if fields.keys() != _FIELDS or fields["op"] not in _TARGETS:
                raise ValueError(f"{fields!r:.80} is no node")
            name = _identifier(fields["name"])
            if name in made:
                raise ValueError(f"two nodes have the name {name}")
            made[name] = _read(graph, made, fields)
        _check_order([node.op for node in graph.nodes])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())
        raise CheckpointError(
            f"the file has a graph that is not that of a program: {what:.200}", remedy=_AGAIN
        ) from error
    return graph


def _check_order(ops: list[str]) -> None:
    inputs = ops.count("placeholder")
    if "placeholder" in ops[inputs:] or ops[-1:] != ["output"] or ops.count("output") > 1:
        raise ValueError("inputs are not its first nodes, or an output is not its last")


def _read(graph: fx.Graph, made: dict[str, fx.Node], fields: dict[str, Any]) -> fx.Node:
    op, name, target = fields["op"], fields["name"], fields["target"]

    def leaf(found: dict[str, Any]) -> Any:
        ((kind, value),) = found.items()
        if kind != "node":
            return _read_leaf(kind, value, leaf)
        if value not in made:
            raise ValueError(f"{name} reads {value!r:.80}, which does not come before it")
        return made[value]

    args, kwargs = (codec.decode(fields[part], leaf) for part in ("args", "kwargs"))
    if type(args) is not tuple or type(kwargs) is not dict:
        raise TypeError(f"{name} has no arguments")
    for key in kwargs:
        _identifier(key)
    if len(args) + len(kwargs) != _ARGUMENTS.get(op, len(args) + len(kwargs)):
        raise ValueError(f"{name} has {len(args)} arguments")
    return graph.create_node(op, _TARGETS[op](target, args, kwargs), args, kwargs, name)


def _read_leaf(kind: str, value: Any, leaf: Callable[[dict[str, Any]], Any]) -> Any:
    if kind == "slice":
        start, stop, step = codec.decode(value, leaf)
        return slice(start, stop, step)
    if kind == "dtype":
        return dtype_of(value)
    return ... if kind == "ellipsis" else _MEMORY[value]


def _function(name: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    found = _function_of(name)
    if isinstance(found, torch._ops.OpOverload):
        Call(found, args, kwargs)  # raises if these are not its arguments
    return found


def _method(name: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if name not in methods() or not args or not isinstance(args[0], fx.Node):
        raise ValueError(f"{name!r:.80} is not a method that a program may call")
    return str(name)


def _function_of(name: Any) -> Callable[..., Any]:
    """A function by its name, looked up in lists.

    Raises:
        ValueError: no program calls it.
    """
    if not isinstance(name, str) or name not in _known():
        found = None
        if isinstance(name, str) and re.fullmatch(r"torch\.ops\.aten\.\w+\.\w+", name, re.ASCII):
            found = overload_of(name.removeprefix(_ATEN))
        if found is None or not _is_harmless(found):
            raise ValueError(f"{name!r:.80} is not a function that a program may call")
        return found
    return _known()[name]


def _is_harmless(overload: Any) -> bool:
    """Does an operator compute new tensors or numbers, and nothing else?"""
    schema, packet = overload._schema, str(overload._overloadpacket).removeprefix("aten.")
    return (
        not schema.is_mutable
        and bool(schema.returns)
        and all(str(each.type) in _RESULTS for each in schema.returns)
        and packet not in _EXCLUDED
        and (packet[0] != "_" or packet in _PRIVATE)
    )


def _attribute(name: Any, *_: Any) -> str:
    if not isinstance(name, str) or usable([name]) != {name: name}:
        raise ValueError(f"{name!r:.80} is not the name of a tensor")
    return name


def _identifier(text: Any, *_: Any) -> str:
    """A text that may stand in the code of a program as a name."""
    plain = isinstance(text, str) and re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII)
    if not plain or keyword.iskeyword(text) or text == "self":
        raise ValueError(f"{text!r:.80} is not a name")
    return str(text)


#: How the target of each kind of node is read, and the number of arguments where it is fixed.
_TARGETS: dict[str, Callable[..., Any]] = {
    "placeholder": _identifier,
    "get_attr": _attribute,
    "call_function": _function,
    "call_method": _method,
    "output": _identifier,
}
_ARGUMENTS = {"placeholder": 0, "get_attr": 0, "output": 1}
