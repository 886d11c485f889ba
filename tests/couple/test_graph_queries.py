"""Heads and the order of pruning, read off the graph, against counts that share no code with it."""

from __future__ import annotations

import pickle

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

import autoeidetic
from autoeidetic.couple import layer_graph
from autoeidetic.plan.analysis import run_analysis
from autoeidetic.report.dependencies import Dependencies


@pytest.fixture(scope="module")
def block() -> Dependencies:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm, self.branch = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
            self.gate, self.head = nn.Linear(4, 1), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            stream = self.norm(self.stem(x))
            stream = stream + self.branch(stream).relu()
            return self.head(stream * self.gate(x).sigmoid())

    return autoeidetic.analyze(Block(), torch.randn(5, 4))


def test_heads_streams_and_norms(block: Dependencies) -> None:
    graph = block.analysis.graph
    (head,) = layer_graph.heads(graph)
    assert (head.layer, head.size, head.elements) == ("head", 3, 27)
    assert set(head.parameters) == {"head.weight", "head.bias"}
    marked = {name for name, entry in block.plan.parameters.items() if entry.head}
    assert set(head.parameters) == marked
    (stream,) = layer_graph.streams(graph)
    assert layer_graph.members(graph, stream, "writes") == ["stem", "branch"]
    assert layer_graph.norms(graph, stream) == ["norm"]


def test_the_order_of_pruning_is_that_of_requirers(
    block: Dependencies,
) -> None:
    """What is required by the most units comes first: the gate, which every channel needs."""
    plan = block.plan
    count = np.zeros(plan.units + 1, int)
    for _, needed in plan.requires:
        count[needed] += 1
    most = {group.name: max(count[unit] for unit in group.units) for group in plan.groups}
    assert len(set(most.values())) > 1
    expected = sorted(most, key=lambda name: -most[name])  # stable: else the order of parameters
    assert layer_graph.required_first(plan.graph) == expected
    assert expected[0] == "gate"


def test_the_graph_of_a_plan_never_changes_and_that_of_users_may(
    block: Dependencies,
) -> None:
    with pytest.raises(nx.NetworkXError, match=r"[Ff]rozen"):
        block.plan.graph.add_node("mine")
    block.graph.add_node("mine")
    assert "mine" not in block.plan.graph
    assert "mine" not in block.analysis.graph
    again = pickle.loads(pickle.dumps(block.plan.graph))
    assert nx.utils.graphs_equal(again, block.plan.graph)


def test_every_layer_after_what_it_reads() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    graph = run_analysis(model, torch.randn(2, 4)).graph
    order = [node for part in layer_graph.order(graph) for node in part]
    assert order == ["0", "group:0", "2", "group:2", "4"]
