"""Task pass: the answers of some tasks as a module that can be captured.

Capturing the network itself, with all guards in place, gives a graph of exactly what it computes:
masks, norms per level, level-by-level runs, heads. Cutting that graph needs no knowledge of
how the network protects its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.capture import capture
from ..capture.graph import ABSENT, Capture
from ..common.inputs import CallInputs
from ..common.undisturbed import undisturbed
from ..routing.prediction import routed
from ..tasks.answer import plain_pass
from ..tasks.network import Network
from .common_nodes import merge_equal_nodes
from .compare import quiet
from .memory import without_storages

#: Arguments of operators that say where a tensor is.
_PLACES = frozenset({"device", "pin_memory"})


#: Operators that leave memory as it is.
_UNINITIALISED = frozenset("empty empty_like empty_strided new_empty new_empty_strided".split())


class TaskPass(nn.Module):
    """Answers for some tasks in one call, norms by stock operators.

    The answer is a list with the outputs of each task; with ``routes`` it is the router's choice
    and the label, in a dict; with ``headless`` the list has the model's own output.
    """

    def __init__(
        self,
        network: Network,
        tasks: Sequence[int],
        *,
        routes: bool = False,
        headless: bool = False,
    ) -> None:
        super().__init__()
        self.network = network
        self.tasks = tuple(tasks)
        self.routes = routes
        self.headless = headless
        self._met = False  # guards for calls of this kind are in place
        # what a captured call has returned: attributes of a module are put back after it
        self._last = SimpleNamespace(output=None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._last.output = self._answer_to(args, kwargs, stock_norms=True)
        return self._last.output

    def _answer_to(self, args: Any, kwargs: Any, *, stock_norms: bool) -> Any:
        runtimes = [each.runtime for each in self.network.networks]
        try:
            for runtime in runtimes:
                runtime.stock_norms, runtime.prepared = stock_norms, True
            if self.headless:
                return [plain_pass(self.network, self.tasks, args, kwargs)]
            if not self.routes:
                return self.network.bare_answers(self.tasks, args, kwargs)
            found = routed(self.network, args, kwargs)
            return {"task": found.task, "label": found.label, "scores": found.scores}
        finally:
            for runtime in runtimes:
                runtime.stock_norms = runtime.prepared = False

    def answer(
        self,
        inputs: CallInputs,
        *,
        seed: int = 0,
        stock_norms: bool = False,
        analysed: bool = True,
    ) -> Any:
        """The network's own answer, with norms as it computes them or as programs do.

        Without an analysis of the call, which takes long, guards are those of the call before.
        """
        network = self.network
        with quiet(network, seed):
            if analysed:
                network.before_pass(inputs.args, inputs.kwargs, passing=True)
            return self._answer_to(inputs.args, inputs.kwargs, stock_norms=stock_norms)

    def capture(self, inputs: CallInputs) -> Capture:
        """The graph of one call, in eval mode; the network stays as it is.

        Raises:
            AutoeideticError: the network does not answer this call, or cannot be captured.
        """
        network = self.network
        with undisturbed(network, evaluate=True, gradients=False, quiet=True):
            if self._met:
                # Other sizes mostly need the same guards, and an analysis of each would take
                # longer than everything else. The program is compared with a network that has
                # analysed its call.
                with suppress(Exception):
                    return self._captured(inputs)
            network.before_pass(inputs.args, inputs.kwargs, passing=True)
            self._met = True
            return self._captured(inputs)

    def _captured(self, inputs: CallInputs) -> Capture:
        with _Initialised():
            found = capture(self, inputs)
            if any(tensor.is_meta for tensor in found.constants.values()):
                found = capture(self, inputs, real=True)
        without_storages(found)
        found = self._with_plain_outputs(found)
        networks = self.network.networks
        if len(networks) > 1:
            _without_copies(found)
        joint = len(networks) == 1 and networks[0].call_plan.joint
        if (len(self.tasks) > 1 or self.routes) and not joint:
            merge_equal_nodes(found)
        for node in found.graph.nodes:  # a program runs on any device
            node.kwargs = {k: v for k, v in node.kwargs.items() if k not in _PLACES}
        return found

    def _with_plain_outputs(self, found: Capture) -> Capture:
        """The capture with numbers and words that the model returns beside tensors."""
        (nodes, spec), returned = pytree.tree_flatten(found.outputs), (self._last.output,)
        self._last.output = None
        pairs = zip(nodes, pytree.tree_leaves(returned), strict=True)
        leaves = [leaf if node is ABSENT else node for node, leaf in pairs]
        return replace(found, outputs=pytree.tree_unflatten(leaves, spec))


def _without_copies(found: Capture) -> None:
    """Let all columns read the inputs themselves: nothing is written to in this graph."""
    for node in found.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        if node.args[0].op == "placeholder" and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
            found.graph.erase_node(node)


class _Initialised(TorchDispatchMode):
    """Gives memory that nobody has written zeros: it is a constant of the graph."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name in _UNINITIALISED and not result.is_meta:
            result.zero_()
        return result
