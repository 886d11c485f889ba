"""Modules of a program: the calls of the user's modules that its operators come from.

A program is one flat graph. For the analysis and for drawings it takes the form of the user's
model again: modules inside modules, each of which runs its own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from torch import fx, nn

from ...errors import CheckpointError

#: Calls of modules around an operator, the outermost first: number, path and class of each.
Calls = Sequence[tuple[int, str, str]]


def recorded(nodes: Iterable[fx.Node], usable: Callable[[str], str] = str) -> dict[str, Any]:
    """The calls of modules in ``node.meta["calls"]`` of operators, as plain data.

    ``types`` has the class of each module, ``calls`` the number of the call around each call (-1:
    none) and its path, ``nodes`` the number of the call of each operator. ``usable`` gives the path
    that a module of the user's model has in the program.

    >>> graph = fx.Graph()
    >>> made = graph.call_function(abs, (graph.placeholder("x"),))
    >>> made.meta["calls"] = ((1, "", "Net"), (4, "block", "Block"))
    >>> recorded(graph.nodes)
    {'types': {'': 'Net', 'block': 'Block'}, 'calls': [[-1, ''], [0, 'block']],
     'nodes': {'abs_1': 1}}
    """
    types: dict[str, str] = {}
    calls: list[list[Any]] = []
    numbers: dict[tuple[int, ...], int] = {}
    found: dict[str, int] = {}
    for node in nodes:
        around: Calls = node.meta.get("calls", ())
        chain: tuple[int, ...] = ()
        for number, path, kind in around:
            parent = numbers.get(chain, -1)
            chain = (*chain, number)
            if chain not in numbers:
                own = usable(path) if path else ""
                numbers[chain] = len(calls)
                calls.append([parent, own])
                types[own] = kind
        if chain:
            found[node.name] = numbers[chain]
    return {"types": types, "calls": calls, "nodes": found}


def checked(data: Any, tensors: Collection[str]) -> dict[str, Any]:
    """The record in a file.

    Raises:
        CheckpointError: it is not one, or has a module where the program has a tensor.
    """
    try:
        types, calls, nodes = data["types"], data["calls"], data["nodes"]
        fits = (
            data.keys() == {"types", "calls", "nodes"}
            and all(type(kind) is str and _fits(path, tensors) for path, kind in types.items())
            and all(
                type(parent) is int and -1 <= parent < number and path in types
                for number, (parent, path) in enumerate(calls)
            )
            and all(type(call) is int and 0 <= call < len(calls) for call in nodes.values())
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise CheckpointError(
            f"the file has modules that are not those of a program ({data!r:.80})",
            remedy="save the program again",
        )
    return dict(data)


def _fits(path: str, tensors: Collection[str]) -> bool:
    parts = path.split(".") if path else []
    around = {".".join(parts[: level + 1]) for level in range(len(parts))}
    # names of attributes that all modules have would raise when the modules are made
    return all(parts) and not around & {*tensors} and not {*parts} & {*dir(nn.Module())}


# -- the form of the user's model ------------------------------------------------------------------


def staged(program: fx.GraphModule, record: Mapping[str, Any]) -> nn.Module:
    """A module with the program's own tensors and operators, in modules that call each other."""
    types = record["types"]
    root = _named(types.get("", type(program).__name__), _Root)(program, record)
    parameters = dict(program.named_parameters(remove_duplicate=False))
    buffers = dict(program.named_buffers(remove_duplicate=False))
    outer = [name.rpartition(".")[0] for name in (*parameters, *buffers)]
    for path in _with_prefixes([*(path for _, path in record["calls"]), *outer]):
        parent, _, name = path.rpartition(".")
        # a module that is never called is most often a list
        made = _named(types.get(path, "ModuleList"), _Stage)()
        root.get_submodule(parent).add_module(name, made)
    for path, parameter in parameters.items():
        parent, _, name = path.rpartition(".")
        root.get_submodule(parent).register_parameter(name, parameter)
    for path, buffer in buffers.items():
        parent, _, name = path.rpartition(".")
        root.get_submodule(parent).register_buffer(name, buffer)
    return root


def _named(name: str, base: type[nn.Module]) -> type[nn.Module]:
    return type(name, (base,), {})


def _with_prefixes(paths: Iterable[str]) -> list[str]:
    """All modules around some modules, each before those inside of it, and these modules."""
    found: dict[str, None] = {}
    for path in paths:
        parts = path.split(".") if path else []
        found.update(dict.fromkeys(".".join(parts[: n + 1]) for n in range(len(parts))))
    return sorted(found, key=lambda path: path.count("."))


class _Stage(nn.Module):
    """Stands for a module of the user's model; the values that it reads are its arguments."""

    def forward(self, run: Callable[[], Any], *values: Any) -> Any:
        return run()


class _Root(nn.Module):
    """Runs the operators of a program, each inside of the calls of modules that it comes from."""

    def __init__(self, program: fx.GraphModule, record: Mapping[str, Any]) -> None:
        super().__init__()
        self._program = (program,)  # as an attribute it would give all tensors a second name
        self._calls: Sequence[Sequence[Any]] = record["calls"]
        self._nodes: Mapping[str, int] = record["nodes"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (program,) = self._program
        steps = fx.Interpreter(program)
        inputs = program.graph.find_nodes(op="placeholder")
        steps.env.update(zip(inputs, args, strict=False))
        steps.env.update({node: kwargs[node.target] for node in inputs[len(args) :]})
        rest = []
        for node in program.graph.nodes:
            if node.op == "get_attr":
                steps.env[node] = steps.run_node(node)
            elif node.op != "placeholder":
                rest.append(node)
        return self._run(steps, rest, 0)

    def _run(self, steps: fx.Interpreter, nodes: Sequence[fx.Node], level: int) -> Any:
        """Run operators that have this many calls in common; returns what others read of them."""
        for call, group in groupby(nodes, lambda node: self._call(node, level)):
            inner = list(group)
            if call is not None:
                stage = self.get_submodule(self._calls[call][1])
                read = dict.fromkeys(each for node in inner for each in node.all_input_nodes)
                values = [steps.env[each] for each in read if each not in inner]
                stage(partial(self._run, steps, inner, level + 1), *values)
                continue
            for node in inner:
                steps.env[node] = steps.run_node(node)
        here = set(nodes)
        left = [steps.env[n] for n in nodes if n.op == "output" or not here.issuperset(n.users)]
        return left[0] if len(left) == 1 else left

    def _call(self, node: fx.Node, level: int) -> int | None:
        """The call around an operator at a level, the outermost at 0."""
        chain: list[int] = []
        call = self._nodes.get(node.name, -1)
        while call >= 0:
            chain.append(call)
            call = self._calls[call][0]
        # calls of the whole model are not inside of anything
        chain = [each for each in reversed(chain) if self._calls[each][1]]
        return chain[level] if level < len(chain) else None
