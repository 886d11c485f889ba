"""The layer graph: what it holds, and what is asked of it, on models done by hand."""

from __future__ import annotations

import os
import subprocess
import sys

import networkx as nx
import pytest
import timm
import torch
from torch import Tensor, nn
from zoo import ZOO

import autoeidetic
from autoeidetic.couple import layer_graph
from autoeidetic.report.dependencies import Dependencies


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.inner, self.outer = nn.Linear(8, 6), nn.Linear(6, 8)
        self.gate = nn.Linear(4, 1)
        self.head = nn.Linear(8, 3)
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.stem(x))
        y = y + self.outer(self.inner(y).relu())
        return self.head(y * self.gate(x))


@pytest.fixture(scope="module")
def residual() -> Dependencies:
    return autoeidetic.analyze(Residual().eval(), torch.randn(2, 4))


def test_producers_consumers_and_coupled_layers(residual: Dependencies) -> None:
    assert residual.producers("inner") == ("stem", "norm", "outer")
    assert residual.producers("stem") == ()
    assert residual.consumers("inner") == ("outer",)
    assert residual.consumers("norm") == ("inner", "head")
    assert residual.consumers("head") == ()
    assert residual.coupled_with("stem") == ("norm", "outer")
    assert residual.coupled_with("inner") == ()
    assert residual.producers("idle") == residual.coupled_with("idle") == ()


def test_an_lstm_reads_itself() -> None:
    model, inputs = ZOO["lstm"]()
    deps = autoeidetic.analyze(model, inputs)
    (layer,) = [path for path, module in model.named_modules() if isinstance(module, nn.LSTM)]
    assert layer in deps.producers(layer)
    assert layer in deps.consumers(layer)


def test_an_unknown_layer_is_an_error_with_close_names(residual: Dependencies) -> None:
    with pytest.raises(autoeidetic.InputError, match=r"(?s)no layer 'steam'.*did you mean 'stem'"):
        residual.producers("steam")
    with pytest.raises(autoeidetic.InputError, match=r"(?s)no layer '\?'.*deps\.graph"):
        residual.why("stem", "?")
    with pytest.raises(autoeidetic.InputError, match="no layer 'group:stem'"):
        residual.consumers("group:stem")


def test_a_layer_with_the_parameters_of_another_is_that_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight, self.second.bias = self.first.weight, self.first.bias
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.first(x).relu()))

    deps = autoeidetic.analyze(Tied(), torch.randn(2, 4))
    assert deps.consumers("second") == deps.consumers("first") == ("first", "head")


# -- why ---------------------------------------------------------------------------------------


def test_why_names_the_operator_that_joins_two_layers(residual: Dependencies) -> None:
    chain = residual.why("stem", "outer")
    assert [(link.subject, link.kind) for link in chain] == [
        ("stem", "writes"),
        ("aten.add", "joins channels of"),
        ("outer", "writes"),
    ]
    assert chain
    assert len({link.object for link in chain}) == 1
    assert "test_layer_graph.py:" in chain[1].line
    text = str(chain)
    assert "aten.add joins channels of" in text
    assert text.count("test_layer_graph.py:") == 3


def test_why_of_a_norm_needs_no_joint(residual: Dependencies) -> None:
    assert [link.kind for link in residual.why("stem", "norm")] == ["writes", "normalises"]


def test_why_of_a_reader(residual: Dependencies) -> None:
    chain = residual.why("inner", "outer")
    assert [(link.subject, link.kind) for link in chain] == [
        ("inner", "writes"),
        ("outer", "reads"),
    ]
    both = residual.why("inner", "head")
    assert [(link.subject, link.kind) for link in both] == [("inner", "reads"), ("head", "reads")]


def test_why_of_a_requirement(residual: Dependencies) -> None:
    chain = residual.why("stem", "gate")
    assert [link.kind for link in chain] == ["writes", "requires", "writes"]
    assert chain[1].operator == "aten.mul"


def test_why_says_so_when_nothing_ties_two_layers(residual: Dependencies) -> None:
    chain = residual.why("inner", "idle")
    assert not chain
    assert str(chain).startswith("nothing ties 'inner' and 'idle' together")
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)]
    deps = autoeidetic.analyze(nn.Sequential(*layers), torch.randn(2, 4))
    assert deps.why("0", "2")
    assert not deps.why("0", "4")  # the weights of a layer lie between them
    assert str(residual.why("stem", "stem")) == "'stem' is one layer"


def test_why_of_a_long_residual_stream() -> None:
    with torch.device("meta"):
        deps = autoeidetic.analyze(timm.create_model("resnet18"))
    chain = deps.why("layer1.0.conv2", "layer1.1.conv2")
    joints = [link for link in chain if link.kind == "joins channels of"]
    assert joints
    assert {link.operator for link in joints} == {"aten.add"}
    assert all("resnet.py:" in link.line for link in joints)


@pytest.mark.filterwarnings("ignore::autoeidetic.UnhandledOperatorWarning")
@pytest.mark.parametrize("name", sorted(ZOO)[::5])
def test_every_pair_of_coupled_layers_has_a_chain(name: str) -> None:
    model, inputs = ZOO[name]()
    deps = autoeidetic.analyze(model, inputs)
    for layer, kind in deps.graph.nodes(data="kind"):
        if kind != "group":
            for other in deps.coupled_with(layer):
                assert layer in deps.coupled_with(other)
                assert not {link.kind for link in deps.why(layer, other)} & {"reads", "requires"}
            for other in deps.consumers(layer):
                assert layer in deps.producers(other)
                assert layer == other or deps.why(layer, other)


# -- the graph ---------------------------------------------------------------------------------


def test_edges_tell_the_operator_and_the_line(residual: Dependencies) -> None:
    for _, _, data in residual.graph.edges(data=True):
        assert data["operator"].startswith("aten.")
        assert "test_layer_graph.py:" in data["line"]
    (stream,) = residual.graph.successors("outer")
    assert residual.graph.edges[stream, "head"]["operator"] == "aten.linear"
    assert residual.graph.edges["norm", stream]["operator"] == "aten.batch_norm"


@pytest.mark.filterwarnings("ignore::autoeidetic.UnhandledOperatorWarning")
@pytest.mark.parametrize(
    "name", ["weight_norm_conv", "weight_norm_linear", "spectral_norm", "orthogonal_weight"]
)
def test_a_computed_weight_belongs_to_its_layer(name: str) -> None:
    model, inputs = ZOO[name]()
    graph = autoeidetic.analyze(model, inputs).graph
    assert not [node for node in graph if "parametrizations" in node]
    assert not list(nx.isolates(graph))


def test_streams_norms_and_requirements(residual: Dependencies) -> None:
    graph = residual.graph
    (stream,) = layer_graph.streams(graph)
    assert layer_graph.members(graph, stream, "writes") == ["stem", "outer"]
    assert layer_graph.norms(graph, stream) == ["norm"]
    assert layer_graph.readers(graph, stream) == ["inner", "head"]
    assert layer_graph.requires(graph, stream) == ["group:gate"]
    assert layer_graph.requires(graph, stream, directly=False) == ["group:gate"]
    assert layer_graph.requires(graph, "group:gate", directly=False) == []
    assert layer_graph.heads(graph) == residual.heads
    assert [head.layer for head in residual.heads] == ["head"]


def test_locks_are_in_the_graph(residual: Dependencies) -> None:
    assert [lock.group for lock in residual.locked] == ["gate"]
    data = residual.graph.nodes["group:gate"]
    assert data["locked"] == residual.locked[0].reason
    assert data["locked_elements"] == residual.locked[0].elements == 5


def test_order_has_everything_after_what_it_depends_on(residual: Dependencies) -> None:
    order = layer_graph.order(residual.graph)
    position = {node: number for number, nodes in enumerate(order) for node in nodes}
    assert len(position) == len(residual.graph)
    for source, target, kind in residual.graph.edges(data="kind"):
        first, then = (target, source) if kind == "requires" else (source, target)
        assert position[first] <= position[then]
    assert position["inner"] == position["outer"] == position["group:inner"]
    assert position["gate"] < position["inner"] < position["head"]


def test_importing_the_package_imports_no_networkx_and_no_scipy() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import autoeidetic; "
        "print(sorted({'networkx', 'scipy'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unit_numbers_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import torch, autoeidetic; from torch import nn\n"
        "class Idle(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(4, 2)\n"
        "        self.idle = nn.ModuleList(nn.Linear(n + 1, 1) for n in range(6))\n"
        "    def forward(self, x):\n"
        "        return self.head(x)\n"
        "print(autoeidetic.analyze(Idle(), torch.randn(2, 4)).plan.elements.tolist())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
