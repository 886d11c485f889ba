"""Spelling: ATen calls as people write them, where that means the same.

``torch.ops.aten.conv2d.default(x, w, None, [2, 2], [1, 1], [1, 1], 1)`` becomes
``torch.conv2d(x, w, stride=[2, 2], padding=[1, 1])``, which is easier to read, and faster: an
overload is called through Python code. What has no row in the table stays as it is.
"""

from __future__ import annotations

import inspect
import operator
import re
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from .rows import POINTWISE, PYTHON, ROWS

#: A function, or the name of a method.
Target = Callable[..., Any] | str


def spelled(graph: fx.Graph) -> None:
    """Rewrite the calls of a graph in place, where the table has a spelling that fits.

    >>> graph = fx.Graph()
    >>> x = graph.placeholder("x")
    >>> rows = graph.create_node("call_function", torch.ops.aten.sym_size.int, (x, 0), name="rows")
    >>> flat = graph.call_function(torch.ops.aten.view.default, (x, [rows, -1]))
    >>> _ = graph.output(flat)
    >>> spelled(graph)
    >>> print(fx.GraphModule({}, graph).code.strip())
    def forward(self, x):
        rows = x.size(0)
        view_default = x.view(rows, -1);  x = rows = None
        return view_default
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            name = str(node.target).removeprefix("aten.")
            if name in table():
                _rewrite(node, Call(node.target, node.args, node.kwargs), table()[name])
            elif name in _ITEMS:
                _rewrite_item(node, Call(node.target, node.args, node.kwargs), _ITEMS[name])


class Call:
    """The arguments of a call by the names in the operator's schema, defaults included.

    Raises:
        TypeError: they are not those of the operator.
    """

    def __init__(self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._arguments = {each.name: each for each in overload._schema.arguments}
        names = [name for name, each in self._arguments.items() if not each.kwarg_only]
        given = dict(zip(names, args, strict=False))
        needed = {n for n, each in self._arguments.items() if not each.has_default_value()}
        if (
            len(args) > len(names)
            or given.keys() & kwargs.keys()
            or not needed <= given.keys() | kwargs.keys() <= self._arguments.keys()
        ):
            raise TypeError(f"{overload} takes {', '.join(self._arguments)}")
        defaults = {name: each.default_value for name, each in self._arguments.items()}
        self.values: dict[str, Any] = {**defaults, **given, **kwargs}

    def is_default(self, name: str) -> bool:
        """Has an argument the default of the operator?"""
        argument = self._arguments[name]
        return argument.has_default_value() and _same(self.values[name], argument.default_value)

    def is_keyword(self, name: str) -> bool:
        """Is an argument passed by keyword only?"""
        return bool(self._arguments[name].kwarg_only)


@dataclass(frozen=True)
class Spelling:
    """How calls of an overload are written; a row of the table.

    ``positional`` and ``keywords`` (keyword -> argument) name arguments of the operator, ``spread``
    the last positional one if it is a list that is written without brackets. ``fixed``: arguments
    that must have a value. ``added``: keywords that the operator does not have.
    """

    target: Target
    positional: tuple[str, ...]
    spread: bool
    keywords: dict[str, str]
    added: dict[str, Any]
    fixed: dict[str, Any]
    ignored: str
    results: str

    def fits(self, call: Call) -> bool:
        """Does the call mean the same in this spelling?"""
        written = {*self.positional, *self.keywords.values(), *self.fixed, self.ignored}
        return (
            all(name in written or call.is_default(name) for name in call.values)
            and all(_same(call.values[name], value) for name, value in self.fixed.items())
            # may be None for the operator, but x.to(None) is no call
            and not any(call.is_keyword(n) and call.values[n] is None for n in self.positional)
        )

    def write(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in this spelling, without those that have their default."""
        given = list(self.positional)
        while given and call.is_default(given[-1]):
            given.pop()
        args = [call.values[name] for name in given]
        # x.view([]) stays: x.view() is no call
        if self.spread and isinstance(args[-1], (list, tuple)) and args[-1]:
            args = [*args[:-1], *args[-1]]
        defaults = _defaults(self.target)
        keywords = {
            key: call.values[name]
            for key, name in self.keywords.items()
            if not call.is_default(name) and not _same(call.values[name], defaults.get(key, ...))
        }
        return tuple(args), {**keywords, **self.added}


def _rewrite(node: fx.Node, call: Call, spellings: Sequence[Spelling]) -> None:
    for spelling in spellings:
        if spelling.fits(call) and _only(spelling.results, node):
            # in place, so that the node keeps its name and all that is known about it
            node.op = "call_method" if isinstance(spelling.target, str) else "call_function"
            node.target = spelling.target
            node.args, node.kwargs = spelling.write(call)
            if spelling.results == "first":
                _drop_parts(node)
            return


def _only(results: str, node: fx.Node) -> bool:
    """Are only the items of a result used (``parts``), or only the first one (``first``)?"""
    items = [user.args[1] for user in node.users if user.target is operator.getitem]
    used = [user.args[1] for user in node.users if user.users and len(user.args) == 2]
    whole = len(items) != len(node.users) or any(type(item) is not int for item in items)
    return not results or (not whole and (results == "parts" or not any(used)))


def _drop_parts(node: fx.Node) -> None:
    """Let the users of a call's first result use the call itself."""
    for part in list(node.users):
        part.replace_all_uses_with(node)
        node.graph.erase_node(part)


# -- brackets -------------------------------------------------------------------------------------


def _rewrite_item(node: fx.Node, call: Call, index: Callable[..., Any]) -> None:
    tensor, dim, *others = call.values.values()
    if type(dim) is int:
        # x[i], x[:, i] and x[..., i] for dimensions 0, 1 and -1
        after = [slice(None)] * (-dim - 1)
        item = (..., index(*others), *after) if dim < 0 else (*[slice(None)] * dim, index(*others))
        node.target, node.kwargs = operator.getitem, {}
        node.args = (tensor, item[0] if len(item) == 1 else item)


def _slice(start: Any, end: Any, step: Any) -> slice:
    # ATen writes the largest number for a slice without end
    endless = type(end) is int and end >= 2**63 - 1
    first, every = (
        None if _same(value, default) else value
        for value, default in zip((start, step), (0, 1), strict=True)
    )
    return slice(first, None if endless else end, every)


#: Overloads with the arguments (tensor, dimension, ...) -> what stands in the brackets.
_ITEMS: dict[str, Callable[..., Any]] = {"select.int": lambda index: index, "slice.Tensor": _slice}

# -- the table ------------------------------------------------------------------------------------

_MODULES = {"torch": torch, "F": F, "operator": operator}
#: overload, function or method, its arguments, what is fixed, what is ignored, which results
_ROW = re.compile(r"(\S+)\s+([\w.]+)\((.*)\)(?: with (\S+))?(?: ignoring (\S+))?(?: (\w+))?")


@cache
def table() -> dict[str, tuple[Spelling, ...]]:
    """The spellings of each overload, in the order in which they are tried."""
    found: dict[str, tuple[Spelling, ...]] = {}
    for row in rows():
        overload = row.partition(" ")[0]
        # some versions of torch lack some operators
        if overload_of(overload) is not None:
            found[overload] = (*found.get(overload, ()), _read(row))
    return found


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """The functions of the table, by their public names."""
    known = [row.split() for row in rows() if row.split()[0] in table()]
    targets = (words[1].partition("(")[0] for words in known)
    names = {name.replace("F.", "torch.nn.functional.") for name in targets if name[0] != "."}
    return {name: _resolved(name) for name in sorted(names)}


@cache
def methods() -> frozenset[str]:
    """The names of the tensor methods of the table."""
    targets = (spelling.target for row in table().values() for spelling in row)
    return frozenset(target for target in targets if isinstance(target, str))


def rows() -> list[str]:
    """All rows of the table, written out."""
    pairs = (pair.split() for pair in re.split(r"\s{2,}|\n", PYTHON.strip()))
    return [
        *(f"{name}.default torch.{name}(self)" for name in POINTWISE.split()),
        *(f"{overload} operator.{name}(self, other)" for overload, name in pairs),
        *filter(None, ROWS.splitlines()),
    ]


def overload_of(name: str) -> Any:
    """The overload of ATen of a name such as ``add.Tensor``; None if there is none."""
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    return found if isinstance(found, torch._ops.OpOverload) else None


def _read(row: str) -> Spelling:
    match = _ROW.fullmatch(row)
    assert match is not None, row
    overload, target, arguments, fixed, ignored, results = match.groups()
    known = {each.name for each in overload_of(overload)._schema.arguments}
    method = target[0] == "."
    parts = [part.partition("=") for part in re.split(r",\s*", arguments) if part]
    positional = [name for name, equals, _ in parts if not equals]
    named = {key: name or key for key, equals, name in parts if equals}
    key, _, value = (fixed or "").partition("=")
    return Spelling(
        target=target[1:] if method else _resolved(target),
        positional=("self",) * method + tuple(name.removeprefix("*") for name in positional),
        spread=any(name[0] == "*" for name in positional),
        keywords={key: name for key, name in named.items() if name in known},
        added={key: literal_eval(name) for key, name in named.items() if name not in known},
        fixed={key: _literal(value)} if key else {},
        ignored=ignored or "",
        results=results or "",
    )


def _literal(text: str) -> Any:
    return _resolved(text) if text.startswith("torch.") else literal_eval(text)


def _resolved(text: str) -> Any:
    """A function or constant of the table by its name."""
    module, *path = text.split(".")
    found: Any = _MODULES[module]
    for part in path:
        found = getattr(found, part)
    return found


@cache
def _defaults(target: Target) -> dict[str, Any]:
    """The defaults of a function that is written in Python."""
    if not inspect.isfunction(target):
        return {}
    parameters = inspect.signature(target).parameters
    return {name: p.default for name, p in parameters.items() if p.default is not p.empty}


def _same(value: Any, other: Any) -> bool:
    """Equality of plain values: 1 is not True, and a node is only itself."""
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, fx.Node) or isinstance(value, bool) != isinstance(other, bool):
        return value is other
    return bool(value == other)
