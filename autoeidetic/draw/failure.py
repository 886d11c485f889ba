"""Failure: a drawing of a model that could not be analysed, as far as it was captured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx, nn
from torch.utils import _pytree as pytree

from ..analyze import analysable, analyze
from ..capture.capture import capture, captured_part
from ..capture.graph import Capture, place
from ..common.inputs import example_calls
from ..errors import AutoeideticError, CaptureError, InputError, Place
from .drawing import describe, describe_capture
from .elements import Drawing, Edge, Failure, Module, Node, Summary
from .source_lines import short


def attempt(model: nn.Module, example_inputs: Any = None, title: str = "") -> Drawing:
    """A drawing in any case: if the analysis fails, of the captured part and the failure.

    Raises:
        InputError: the model cannot even be called with these inputs.
    """
    try:
        return describe(analyze(model, example_inputs), title=title)
    except InputError:
        raise
    except AutoeideticError as error:
        part = captured_part(error)
        if part is None and not isinstance(error, CaptureError):  # it failed in the analysis
            model, example_inputs = analysable(model, example_inputs)
            part = capture(model, *example_calls(model, example_inputs))
        return failed(error, part, title or type(model).__name__)


def failed(error: AutoeideticError, part: Capture | None, title: str) -> Drawing:
    """The captured part with a node where it failed."""
    failure = Failure(
        module=error.place.module,
        operator=error.place.operator,
        line=short(error.place.line),
        message=error.fact,
        remedy=error.remedy,
    )
    drawing, sources = _known(part, title, error.place)
    node = Node(
        id=f"n{len(drawing.nodes)}",
        module=_home(drawing, error.place.module),
        kind="failure",
        label="failed here",
        type=type(error).__name__,
        path=error.place.module,
        line=failure.line,
    )
    edges = [
        Edge(source, node.id, "coupled", (), error.place.operator, failure.line)
        for source in sources
    ]
    return replace(
        drawing,
        nodes=(*drawing.nodes, node),
        edges=(*drawing.edges, *edges),
        failure=failure,
    )


def _known(part: Capture | None, title: str, where: Place) -> tuple[Drawing, list[str]]:
    """The drawing of a part, and the nodes whose values led to the failure."""
    if part is None:
        root = Module("m0", "", "", "", None, 0)
        return Drawing(title, Summary(0), (root,), (), ()), []
    drawing, ids = describe_capture(part, title)
    last = _last_values(part, where)
    found = dict.fromkeys(ids[value] for value in last if value in ids)
    return drawing, list(found) or [node.id for node in drawing.nodes[-1:]]


def _last_values(part: Capture, where: Place) -> list[fx.Node]:
    """The inputs of the operator or module that failed, or the last values it computed."""
    at = [node for node in part.graph.nodes if node.op == "call_function" and place(node) == where]
    if at:
        return at[:1]
    broken = [(i, c) for i, c in part.calls.items() if c.outputs is None and c.path == where.module]
    for ident, call in broken[:1]:  # the innermost call, which was left first
        inside = [node for node in part.graph.nodes if ident in node.meta.get("scope", ())]
        given = pytree.tree_leaves((call.args, call.kwargs))
        return inside[-1:] or [value for value in given if isinstance(value, fx.Node)]
    return []


def _home(drawing: Drawing, path: str) -> str:
    """The innermost module box around the failure; of several calls of it, the last."""
    modules = {module.path: module.id for module in drawing.modules}
    while path not in modules:
        path = path.rpartition(".")[0]
    return modules[path]
