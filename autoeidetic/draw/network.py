"""Network: the analysis of a converted network's backbone, and what of it leaves with a task."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..analyze import analyze
from ..errors import EnforcementError, UnhandledOperatorWarning
from ..extract.extract import asked_tasks, extract
from ..extract.program import Program
from ..report.dependencies import Dependencies
from ..tasks.network import Network
from .drawing import describe
from .elements import Drawing, Node, TaskEntry

#: The number of a task before the layers of its head, in a program of several tasks.
_HEAD = re.compile(r"^(columns\.\d+\.)?heads\.\d+\.")


def analyzed(net: Network) -> Dependencies:
    """The backbone as it was when it was converted, analysed again.

    A network keeps the plan but not the graph, which would keep a second model alive. The guards
    are off while the analysis runs: they are not part of the model.

    Raises:
        EnforcementError: the backbone has been changed since it was converted.
    """
    with net.unguarded():
        deps = _quietly(net.drawn_model(), list(net.networks[0].examples))
    if len(net.networks) > 1:  # columns that read each other may form other groups together
        return deps
    before = [(group.name, group.size) for group in net.call_plan.plan.groups]
    if before != [(group.name, group.size) for group in deps.groups]:
        raise EnforcementError(
            "the backbone has other groups than when it was converted",
            remedy="draw the network as convert() made it, or convert the changed model again",
        )
    return deps


def _quietly(model: Any, example_inputs: Any = None) -> Dependencies:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnhandledOperatorWarning)  # given by the conversion
        return analyze(model, example_inputs)


# -- what leaves with a task -----------------------------------------------------------------------


def with_leaving(drawing: Drawing, net: Network, task: Any) -> Drawing:
    """The drawing of a network with what its program of a task (or some) has of each layer.

    ``ownership`` then has one owner, the program, in place of the tasks. Its ``leaving`` has for
    each layer the units and parameters that leave and all of them, and the nodes of which nothing
    leaves.

    Raises:
        TaskError: there is no such task, or it is not finished.
        ExtractionError: the network cannot be made a program.
    """
    asked = asked_tasks(net, task)
    with net.pass_lock:
        program = extract(net, task)
    inside = "columns.0." if len(net.networks) > 1 else ""
    counts = dict(_counts(drawing, program, inside))
    layers: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for node in drawing.nodes:
        if node.kind == "layer" and node.parameters:
            _, _, kept, whole = counts[node.id]
            layers.setdefault(node.path, [kept])
            sizes.setdefault(node.path, whole)
    classes = sum(sum(net.tasks[number].classes.values()) for number in set(asked.answering))
    return replace(
        drawing,
        tasks=(TaskEntry(", ".join(asked.names), 0, classes),),
        ownership={
            "groups": {},
            "layers": layers,
            "sizes": sizes,
            "leaving": {
                "nodes": counts,
                "gone": _gone(drawing, counts),
                "parameters": [program.report.parameters_after, program.report.parameters_before],
            },
        },
    )


def _counts(drawing: Drawing, program: Program, inside: str) -> Iterator[tuple[str, list[int]]]:
    """For each layer: units that leave, all of its units, and the same of parameters.

    ``inside``: what names begin with in the drawing, if a program needs the first column only.
    """
    known = {node.path for node, _ in _calls(drawing)}
    kept: dict[tuple[str, int], list[Node]] = defaultdict(list)
    for node, call in _calls(describe(_quietly(program))):
        path = _HEAD.sub(r"\1", node.path)
        path = path if path.startswith("columns.") or not inside else inside + path
        # a tensor that was computed from parameters alone belongs to the layer that computed it
        while path and path not in known:
            path = path.rpartition(".")[0]
        kept[path, call].append(node)
    for node, call in _calls(drawing):
        found = kept[node.path, call]
        units = max((each.units for each in found), default=0)
        parameters = sum(_parameters(each, node) for each in found)
        if node.kind == "head":  # the task has a head of its own, which leaves as it is
            yield node.id, [units, units, parameters, parameters]
        else:
            yield node.id, [units, node.units, parameters, node.parameters]


def _calls(drawing: Drawing) -> Iterator[tuple[Node, int]]:
    """The layers of a drawing, each with the number of its call."""
    seen: Counter[str] = Counter()
    for node in drawing.nodes:
        if node.kind in ("layer", "head"):
            yield node, seen[node.path]
            seen[node.path] += 1


def _parameters(kept: Node, whole: Node) -> int:
    """The parameters of a layer in a program.

    A norm that is evaluated level by level has a tensor for each level: ``weight``, ``weight_1``.
    """
    sizes: dict[str, int] = defaultdict(int)
    for name, shape in kept.parameter_shapes.items():
        first = re.sub(r"_\d+$", "", name)
        own = first if first in whole.parameter_shapes else name
        sizes[own] = max(sizes[own], math.prod(shape))
    return sum(sizes.values())


def _gone(drawing: Drawing, counts: dict[str, list[int]]) -> list[str]:
    """Layers of which nothing leaves, and operators that pass on only what such layers make."""
    gone = {ident for ident, (units, _, parameters, _) in counts.items() if not units + parameters}
    idle = {group.id for group in drawing.groups if gone.issuperset(group.nodes)}
    for node in drawing.nodes:
        if node.kind == "operator" and node.carries and idle.issuperset(node.carries):
            gone.add(node.id)
    return sorted(gone, key=lambda ident: int(ident[1:]))
