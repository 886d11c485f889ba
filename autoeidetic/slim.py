"""``slim``: any model in, a smaller program out, without tasks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from torch import nn

from .common.batches import default_loss
from .common.undisturbed import undisturbed
from .convert import convert
from .couple.nesting import output_leaves
from .errors import InputError
from .extract.extract import costs_before, extract_slim, measure
from .extract.program import Program
from .net import EideticNet
from .plan.call_plan import ATTACHED
from .propagate.propagate import channel_numbers
from .tasks.pruning.choose import choose, dependents
from .tasks.pruning.scores import Loss, ScoreData, named, unit_scores

Array = np.ndarray
#: What the fraction that is kept may be one of.
KINDS = ("units", "multiply-adds", "parameters")
#: The search for a share of units stops when the cost is this close to what was asked for.
_CLOSE = 0.01
_STEPS = 10


def slim(
    model: nn.Module,
    keep: float = 0.5,
    example_inputs: Any = None,
    *,
    of: str = "units",
    by: str = "l2",
    loader: Iterable[Any] | None = None,
    loss: Loss | None = None,
    over_network: float | None = None,
) -> Program:
    """Prune any model and return what is left as a small, dense, ordinary module.

    The least important units of every group leave, with all their parameters. Nothing is trained:
    the program is an ``nn.Module`` to be trained further like any other. The model stays as it is.

    Args:
        model: any ``nn.Module``, as for :func:`autoeidetic.convert`.
        keep: the part to keep, between 0 and 1.
        example_inputs: as for :func:`autoeidetic.convert`.
        of: what ``keep`` is a part of: "units" of each group, "multiply-adds" or "parameters" of
            the model. The last two search for the share of units that gives this cost.
        by: the score of a unit: "l1", "l2", "random", "taylor", "hybrid", or a custom one.
        loader: batches of data, for scores that need it. The running statistics of batch norms
            are re-estimated on it.
        loss: as for :meth:`autoeidetic.EideticNet.prune`.
        over_network: which part of the units that leave is ranked over the whole network, between
            0 (every group gives up the same share) and 1; by default as the score has it: 0 for
            "l1", "l2" and "random", 1 for "taylor", 0.75 for "hybrid".

    Example:
        >>> import torch, autoeidetic
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> program = autoeidetic.slim(model, 0.5, torch.randn(2, 4))
        >>> [tuple(p.shape) for p in program.parameters()]
        [(4, 4), (4,), (3, 4), (3,)]

    Raises:
        InputError: an option is unknown; and whatever :func:`autoeidetic.convert` raises.
        ExtractionError: the model's path depends on data.
    """
    if isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0 < keep <= 1:
        raise InputError(f"keep={keep!r} is not a number above 0, up to 1", remedy="pass 0.5, say")
    if of not in KINDS:
        raise InputError(f"of={of!r} is unknown", remedy=f"use one of {', '.join(KINDS)}")
    if isinstance(model, Program):
        raise InputError(
            "the model is a program, whose layers are operators and no modules",
            remedy="slim the model that it was made of, with a smaller keep",
        )
    ranked = _ranked(over_network, by)
    net = _opened(model, example_inputs)
    data = None if loader is None else ScoreData(loader, loss or default_loss)
    scores, spared = unit_scores(net, by, data), _outputs(net)

    def chosen(fraction: float) -> Array:
        """The units that leave, if it is a fraction of all of them."""
        return choose(
            net.call_plan, net.owners, scores, fraction, over_network=ranked, spared=spared
        )

    if of == "units" or keep == 1:
        pruned = _without(net, chosen(1 - keep))
    else:
        pruned = _search(net, chosen, scores, keep, of)
    if loader is not None:
        pruned.train()  # norms that a model keeps in eval mode while it trains are left alone
        pruned.refresh_statistics(loader)
    return extract_slim(pruned)


def _opened(model: nn.Module, example_inputs: Any) -> EideticNet:
    """A network with one open task, which computes what the model does."""
    net = convert(model, example_inputs, recycle="keep", rehearse=False)
    with undisturbed(generators="torch"):  # the seed of the task, which nothing depends on
        if net.call_plan.heads[0].layer == ATTACHED:
            net.prepare_for_task(0, num_classes=1)  # a head that no program contains
        else:
            net.keep_head = True
            net.prepare_for_task(0)
    return net


def _outputs(net: EideticNet) -> np.ndarray:
    """The units that a model without an output layer returns: all of them stay."""
    marked = np.zeros(net.call_plan.plan.units + 1, bool)
    if net.call_plan.heads[0].layer == ATTACHED:
        for outputs in net.call_plan.plan.outputs:
            for leaf in output_leaves(outputs):
                if leaf is not None:
                    marked[channel_numbers(leaf)] = True
    return net.call_plan.plan.closure(marked)


def _ranked(over_network: float | None, by: str) -> float:
    score = named(by)
    if over_network is None:
        return score.over_network
    number = isinstance(over_network, (int, float)) and not isinstance(over_network, bool)
    if not number or not 0 <= over_network <= 1:
        raise InputError(
            f"over_network={over_network!r} is not between 0 and 1", remedy="pass 0.5, say"
        )
    return float(over_network)


def _without(net: EideticNet, units: Array) -> EideticNet:
    """A copy of the network that has given up these units."""
    pruned = copy.deepcopy(net)
    pruned.give_up(units)
    return pruned


def _search(
    net: EideticNet, chosen: Callable[[float], Array], scores: Array, keep: float, of: str
) -> EideticNet:
    """The network whose cost is nearest to a part of the whole network's.

    The cost falls with the share of units that leave, so that halving an interval finds it. Groups
    of few units, such as heads, all change at the same share: in between, units leave one by one.
    """
    place = 0 if of == "parameters" else 1
    whole = max(costs_before(net)[place], 1)
    nearest, best = math.inf, net

    def left(units: Array) -> float:
        nonlocal nearest, best
        made = _without(net, units)
        part = measure(made)[place] / whole
        if abs(part - keep) < nearest:
            nearest, best = abs(part - keep), made
        return part

    few, many = chosen(0.0), chosen(1.0)
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        units = chosen((low + high) / 2)
        if left(units) > keep:
            low, few = (low + high) / 2, units
        else:
            high, many = (low + high) / 2, units
        if nearest < _CLOSE * keep:
            return best
    more = (many & ~few).nonzero()[0]
    more = more[np.argsort(scores[more], kind="stable")]
    low, high = 0, len(more)
    while high - low > 1 and nearest >= _CLOSE * keep:
        middle = (low + high) // 2
        units = few.copy()
        units[more[:middle]] = True
        units = dependents(net.call_plan.plan.requires, units) & net.owners.in_training
        low, high = (middle, high) if left(units) > keep else (low, middle)
    return best
