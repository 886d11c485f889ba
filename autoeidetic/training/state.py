"""State: the network's and the random generators' part of a training state, taken and restored.

The dictionaries are written to files, so their keys stay as they are.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common import distributed
from ..errors import CheckpointError
from ..tasks.network import Network

_OTHER = "start the run with another checkpoint directory, or continue with its own network"


# -- the network ---------------------------------------------------------------------------------


def of_network(net: Network) -> dict[str, Any]:
    """Everything that the open task may change.

    Owners of finished tasks cannot change; they are included only to recognise the network.
    """
    return {
        "task": net.tasks[-1].index,
        "seed": net.tasks[-1].seed,
        "classes": dict(net.tasks[-1].classes),
        "pruned": torch.from_numpy(net.owners.pruned.copy()),
        "owners": torch.from_numpy(net.owners.task.copy()),
        "values": {name: tensor.detach() for name, tensor in _values(net).items()},
    }


def _values(net: Network) -> dict[str, Tensor]:
    """Values of the backbone and of the open task's head; finished heads cannot change."""
    own = f"heads.{net.open_task}."
    return {
        name: home[leaf]
        for name, (home, leaf) in net.slots.items()
        if name.startswith(("backbone.", own)) and not home.is_cache(leaf)
    }


def check_network(net: Network, state: Mapping[str, Any]) -> None:
    """Check that a state is of this network, in this task, after the same earlier tasks.

    Raises:
        CheckpointError: it is not.
    """
    task = net.tasks[-1]
    if state["task"] != task.index or state["classes"] != task.classes:
        raise CheckpointError(
            f"the stored state is of task {state['task']} with {state['classes']} classes; the "
            f"open task is {task.index} with {task.classes}",
            remedy=_OTHER,
        )
    # Same tensors and same owners: then unit numbers in the state mean the same as here.
    here = {name: (t.shape, t.dtype) for name, t in _values(net).items()}
    there = {name: (t.shape, t.dtype) for name, t in state["values"].items()}
    if here != there or not np.array_equal(state["owners"].numpy(), net.owners.task):
        raise CheckpointError("the stored state is of another network", remedy=_OTHER)
    # Copying the state over the network would overwrite frozen values, so those must be the same.
    for pin in net.pins.frozen():
        value = state["values"].get(pin.name)
        if value is not None and not pin.holds(value, net.pins.values(pin.name)):
            raise CheckpointError(
                f"the stored state is of a network with other finished tasks: {pin.name} differs",
                remedy=_OTHER,
            )


@torch.no_grad()
def to_network(net: Network, state: Mapping[str, Any]) -> None:
    """Restore what :func:`of_network` returned."""
    for name, tensor in _values(net).items():
        # In place: the optimizer and the pins hold these tensors.
        tensor.detach().copy_(state["values"][name])
    net.owners = replace(net.owners, pruned=state["pruned"].numpy().copy())
    net.update_task(-1, seed=state["seed"])
    net.settle(freeze=False)


# -- random numbers ------------------------------------------------------------------------------


def of_random(loader: Any) -> list[Any]:
    """The states of all generators that training may draw from, one entry per process."""
    return distributed.share(_own_random(loader))


def _own_random(loader: Any) -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "loader": [generator.get_state() for generator in generators_of(loader)],
    }


def to_random(states: list[Any], loader: Any) -> None:
    """Restore generators; with another number of processes they go on as they are."""
    # A generator per process: with another number of processes there is no way to share them.
    if len(states) == distributed.count():
        _set_random(states[distributed.rank()], loader)


def _set_random(state: Mapping[str, Any], loader: Any) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = state["numpy"]  # from a file, the keys come back as a tensor
    np.random.set_state((kind, np.asarray(keys), *rest))
    for generator, own in zip(generators_of(loader), state["loader"], strict=False):
        generator.set_state(own)


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators of a loader and of its samplers."""
    found = {}
    for holder in (
        loader,
        getattr(loader, "sampler", None),
        getattr(loader, "batch_sampler", None),
    ):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator):
            found[id(generator)] = generator
    return list(found.values())
