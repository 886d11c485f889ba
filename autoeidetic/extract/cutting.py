"""Cutting: captures of a pass at several input sizes become one narrow graph for all of them.

    captures                one for each way in which the sizes of inputs may vary
    analyse, write          each capture is folded and cut by itself      (known.py, writer.py)
    generalise              the cut graphs become one                     (sizes.py)

Sizes for which no single graph is found are fixed, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, fx

from ..capture.capture import first_line
from ..capture.graph import Capture
from ..common.inputs import CallInputs
from ..errors import AutoeideticError
from .known import analyse
from .own_names import own_path
from .sizes import SizeProblem, Variant, Variation, generalise
from .writer import Writer

#: How often each size is varied: two values leave formulas that a third one tells apart.
_TIMES = 3
#: The ways in which all sizes vary at once.
_ALL_VARY = (2, 3)
Captures = list[Capture]


@dataclass
class Cut:
    """A narrow graph, its tensors, and the sizes of inputs for which it holds.

    ``trainable`` are the tensors that are made of parameters; ``writer`` has the graph as it was
    written for the base sizes, with the value of the captured graph that each node stands for.
    ``pinned`` are sizes that are fixed although the model takes others.
    """

    graph: fx.Graph
    attributes: dict[str, Tensor]
    trainable: set[str]
    writer: Writer
    varying: list[Variation] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    pinned: list[Variation] = field(default_factory=list)

    def module(self) -> fx.GraphModule:
        """The graph as a module that can be run."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        for node in graph.find_nodes(op="get_attr"):  # a model may have a module called "graph"
            node.target = f"tensors.{node.target}"
        return fx.GraphModule({f"tensors.{n}": t for n, t in self.attributes.items()}, graph)


def cut(
    capture: Callable[[CallInputs], Capture], inputs: CallInputs, variations: Sequence[Variation]
) -> Cut:
    """Capture a pass and cut it; sizes of inputs that can vary, vary.

    Raises:
        AutoeideticError: the pass cannot be captured.
    """
    base = capture(inputs)
    found: list[tuple[Variation, Captures]] = []
    fixed: dict[str, str] = {}
    pinned: list[Variation] = []
    covered: set[tuple[int, int]] = set()
    for variation in variations:
        if covered.issuperset(variation.places):
            continue
        varied, captures, reason = _varied(capture, base, inputs, variation)
        if reason:
            fixed.setdefault(variation.name, reason)
            pinned += [variation] if len(varied.captured) > 1 else []
        else:
            found.append((varied, captures))
            covered.update(variation.places)
            fixed = {name: why for name, why in fixed.items() if name not in variation.names}
    while True:
        others = _together(capture, inputs, [variation for variation, _ in found])
        # One capture in which a size varies alone tells it from the others; cutting takes long.
        alone = 1 if len(others) == len(_ALL_VARY) else _TIMES
        others += [each for _, captures in found for each in captures[:alone]]
        result, reason = _cut(base, others)
        if result is not None:
            result.varying = [variation for variation, _ in found]
            result.fixed = [f"{name}: {why}" for name, why in fixed.items()]
            result.pinned = pinned
            return result
        # the batch comes first and goes last; a single capture is always a graph
        variation, _ = found.pop()
        fixed[variation.name] = reason
        pinned.append(variation)


def _whole(captured: Capture) -> Variant:
    """A captured graph with its tensors, uncut."""
    tensors = {**captured.parameters, **captured.buffers, **captured.constants}
    return Variant(captured.graph, tensors)


def _varied(
    capture: Callable[[CallInputs], Capture],
    base: Capture,
    inputs: CallInputs,
    variation: Variation,
) -> tuple[Variation, Captures, str]:
    """The variation with its captured sizes, and captures with these, or why there are none."""
    found: Captures = []
    reason = ""
    varied = replace(variation, captured=tuple(variation.sizes_in(inputs)[:1]))
    for how in range(1, len(variation.ways) + 1):
        other = variation.apply(inputs, how)
        try:
            made = capture(other)
        except Exception as error:  # the model's own code may raise anything at other sizes
            reason = reason or _why(error)
        else:
            sizes = (*varied.captured, *variation.sizes_in(other)[:1])
            varied = replace(varied, captured=sizes)
            if operators(made) != operators(base):
                # sizes with the same operators may exist, but no graph tells which they are
                return varied, [], "the model runs other operators at other sizes"
            found.append(made)
            problem = generalise([_whole(each) for each in (base, *found)])[1]
            if problem is not None:  # as captured: cutting takes longer, and rarely changes it
                return varied, [], _text(problem)
        if len(found) == _TIMES:
            return varied, found, ""
        if not found and how >= _TIMES:
            break
    if len(found) > 1:
        return varied, found, ""
    return varied, [], reason or "the model does not run at other sizes"


def _text(problem: SizeProblem) -> str:
    return str(replace(problem, module=own_path(problem.module, None)))


def _why(error: Exception) -> str:
    """The model's own reason for not taking a size, if it is its own code that raised."""
    return (isinstance(error, AutoeideticError) and error.reason) or first_line(error)


def _together(
    capture: Callable[[CallInputs], Capture], inputs: CallInputs, varied: Sequence[Variation]
) -> Captures:
    """Captures in which all sizes are other ones."""
    if len(varied) < 2:
        return []
    found: Captures = []
    for how in _ALL_VARY:
        other = inputs
        for variation in varied:
            other = variation.apply(other, how)
        try:
            found.append(capture(other))
        except Exception:  # sizes that the model does not take: each of them was tried alone
            continue
    return found


def operators(captured: Capture) -> list[str]:
    """The operators of a graph, in order."""
    return [
        node.op if node.op == "get_attr" else f"{node.op} {node.target}"
        for node in captured.graph.nodes
    ]


def _cut(base: Capture, others: Captures) -> tuple[Cut | None, str]:
    if any(operators(each) != operators(base) for each in others):
        return None, "together with other sizes, the model runs other operators"
    sized = _sized([base, *others])
    writers: list[Writer] = []
    for each in (base, *others):
        known = analyse(each, sized)
        # most is the same at all sizes
        writer = Writer(known, writers[0].tensors, writers[0].ways) if writers else Writer(known)
        writer.write()
        writers.append(writer)
    variants = [Variant(writer.graph, writer.attributes) for writer in writers]
    merged, problem = generalise(variants)
    if problem is not None and others:
        return None, _text(problem)
    return Cut(merged.graph, merged.attributes, writers[0].trainable, writers[0]), ""


def _sized(captures: Captures) -> set[int]:
    """The numbers of the nodes whose shape depends on the sizes of inputs."""
    found = set()
    for number, nodes in enumerate(zip(*(each.graph.nodes for each in captures), strict=True)):
        if len({node.meta.get("shape") for node in nodes}) > 1:
            found.add(number)
    return found
