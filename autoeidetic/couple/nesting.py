"""Nesting: which modules must be evaluated level by level, so that units can be divided.

A mixture of channels that is made and used up inside one module call binds nothing if that module
is run once per level, on the channels of that level and earlier ones.

    level 1    module(channels of level 1)                 -> outputs of level 1
    level 2    module(channels of levels 1 and 2)          -> outputs of level 2

If no module encloses the mixture, or a value enters or leaves the module outside its call, the
mixed channels stay together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..capture.graph import ABSENT, ModuleCall, operator_name
from ..propagate.propagate import MixingSite, Propagation
from ..propagate.tags import narrow
from ..propagate.values import Value, varies
from .tables import Nested, NestedCall, Norm

UnitsOf = Callable[[fx.Node], Tensor | None]
#: Norms with statistics per level, and the dimension of their channels.
_NORMS = {"aten.layer_norm": -1, "aten.rms_norm": -1, "aten.group_norm": 1}


def accepted_sites(propagation: Propagation) -> dict[int, str]:
    """The mixing sites inside modules that can be evaluated level by level, with the module's path.

    The module is the innermost one around the site whose values all pass through its call.
    """
    # scope (model, block, attention, norm): inside out, because the smallest module repeats the
    # least work per level; the model itself (entry 0) is never run level by level
    calls = propagation.capture.calls
    inside: dict[int, list[fx.Node]] = defaultdict(list)
    wanted = {ident for site in propagation.sites for ident in site.scope[1:]}
    for node in propagation.nodes:
        for ident in node.meta.get("scope", ()):
            if ident in wanted:
                inside[ident].append(node)
    closed: dict[int, bool] = {}
    accepted: dict[int, str] = {}
    for index, site in enumerate(propagation.sites):
        for ident in reversed(site.scope[1:]):
            if ident not in closed:
                closed[ident] = _is_closed(calls[ident], inside[ident], propagation)
            if closed[ident]:
                accepted[index] = calls[ident].path
                break
    return accepted


def _is_closed(call: ModuleCall, nodes: list[fx.Node], propagation: Propagation) -> bool:
    """Does everything that enters and leaves the module pass through its call?"""
    if call.writes_outside or call.hooks_compute:
        return False
    #     entering --> [ own nodes ] --> leaving       everything else that crosses the border must
    #                                                  be a constant, or a parameter of the module
    own = set(nodes)
    entering = set(_leaves((call.args, call.kwargs)))
    leaving = set(_leaves(call.outputs))
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in own and source not in entering:
                if not _may_pass(source, call.path, propagation):
                    return False
        if node not in leaving and any(user not in own for user in node.users):
            if not isinstance(propagation.values.get(node), Value):
                continue  # a container: its parts are separate nodes
            if not _may_pass(node, call.path, propagation):
                return False
    return True


def _may_pass(node: fx.Node, path: str, propagation: Propagation) -> bool:
    """May this value cross a module's border? Only constants and the module's parameters may."""
    if node.op == "get_attr":
        capture, name = propagation.capture, str(node.target)
        names = [name, *(alias for alias, first in capture.aliases.items() if first == name)]
        return name not in capture.parameters or any(n.startswith(f"{path}.") for n in names)
    value = propagation.values.get(node)
    return isinstance(value, Value) and value.is_constant


def _leaves(structure: Any) -> list[fx.Node]:
    return [leaf for leaf in pytree.tree_leaves(structure) if isinstance(leaf, fx.Node)]


def nested_modules(
    propagation: Propagation, accepted: dict[int, str], units: UnitsOf
) -> tuple[Nested, ...]:
    """The modules of the accepted sites, with the units of the inputs and outputs of each call."""
    sites: dict[str, list[MixingSite]] = defaultdict(list)
    for index, path in accepted.items():
        sites[path].append(propagation.sites[index])
    result = []
    for path, places in sites.items():
        nodes = [propagation.nodes[site.node] for site in places]
        found = propagation.capture.calls.items()
        calls = {ident: call for ident, call in found if call.path == path}
        result.append(
            Nested(
                module=path,
                operators=tuple(dict.fromkeys(operator_name(n) for n in nodes)),
                lines=tuple(dict.fromkeys(n.meta["line"] for n in nodes if n.meta["line"])),
                calls=tuple(
                    NestedCall(
                        structure(c.args, units),
                        structure(c.kwargs, units),
                        structure(c.outputs, units),
                    )
                    for c in calls.values()
                ),
                examples=tuple(propagation.capture.example_of(c.scope) for c in calls.values()),
                norms=_norms(propagation, calls, nodes, units, set(sites) - {path}),
                enclosed=any(
                    propagation.capture.calls[ident].path in set(sites) - {path}
                    for node in nodes
                    for ident in node.meta["scope"]
                ),
            )
        )
    return tuple(result)


def _norms(
    propagation: Propagation,
    calls: dict[int, ModuleCall],
    mixing: list[fx.Node],
    units: UnitsOf,
    others: set[str],
) -> tuple[tuple[Norm, ...], ...] | None:
    """The norms in each call, in order; None when something else mixes, or not over channels.

    Norms inside a nested module of ``others`` belong to that module.
    """
    if any(operator_name(node) not in _NORMS for node in mixing):
        return None
    found: dict[int, list[Norm]] = {ident: [] for ident in calls}
    for node in propagation.nodes:
        inside = [ident for ident in node.meta.get("scope", ()) if ident in found]
        if not inside or operator_name(node) not in _NORMS:
            continue
        deeper = node.meta["scope"][node.meta["scope"].index(inside[-1]) + 1 :]
        if any(propagation.capture.calls[ident].path in others for ident in deeper):
            continue
        before, after = units(node.args[0]), units(node)  # type: ignore[arg-type]
        if before is None or after is None:
            return None
        # statistics per level need one vector of channels: (batch, tokens, CHANNELS) for a layer
        # norm, (batch, CHANNELS, h, w) for a group norm
        dim = _NORMS[operator_name(node)] % before.dim()
        over: Any = node.args[1]  # the number of groups, or the shape that is normalised
        if isinstance(over, (list, tuple)) and len(over) != 1:
            return None
        if any(d != dim for d in (*varies(before), *varies(after))):
            return None
        rest = [d for d in range(before.dim()) if d != dim]
        groups = over if isinstance(over, int) else 1
        name = operator_name(node).removeprefix("aten.")
        channels = [narrow(value, rest).reshape(-1).clone() for value in (before, after)]
        norm = Norm(name, groups, *channels)
        found[inside[-1]].append(norm)
    return tuple(tuple(norms) for norms in found.values())


def structure(nodes: Any, units: UnitsOf) -> Any:
    """The same structure with units in the place of nodes; other leaves stay."""
    of = lambda leaf: units(leaf) if isinstance(leaf, fx.Node) else leaf  # noqa: E731
    return pytree.tree_map(of, nodes)


def output_leaves(outputs: Any) -> list[Tensor | None]:
    """The units in each leaf of an output; None for one that is no tensor."""
    return [None if leaf is ABSENT else leaf for leaf in pytree.tree_leaves(outputs)]
