"""What people look at: groups, heads, locks, the graph and its exports, on models done by hand."""

from __future__ import annotations

import io
import json
import pickle
import random

import networkx as nx
import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic.report.dependencies import Dependencies


@pytest.fixture(scope="module")
def resnet() -> Dependencies:
    with torch.device("meta"):
        return autoeidetic.analyze(timm.create_model("resnet18"))


@pytest.fixture(scope="module")
def vit() -> Dependencies:
    with torch.device("meta"):
        return autoeidetic.analyze(timm.create_model("vit_tiny_patch16_224", depth=2))


def test_residual_stream_is_one_group(resnet: Dependencies) -> None:
    stream = next(g for g in resnet.groups if g.name == "layer2")
    assert stream.size == 128
    assert stream.layers == (
        "layer2.0.conv2",
        "layer2.0.bn2",
        "layer2.0.downsample.0",
        "layer2.0.downsample.1",
        "layer2.1.conv2",
        "layer2.1.bn2",
    )
    roles = {(m.layer, m.role) for m in stream.members}
    assert ("layer2.0.bn2", "norm") in roles
    assert ("layer2.1.conv2", "output") in roles
    assert ("layer2.1.conv1", "input") in roles
    assert ("layer3.0.downsample.0", "input") in roles
    adds = [bond for bond in stream.bonds if bond.kind == "joined"]
    assert {bond.place.operator for bond in adds} == {"aten.add"}
    assert all("resnet.py:" in bond.place.line for bond in adds)


def test_every_element_is_counted_once(resnet: Dependencies) -> None:
    heads = sum(head.elements for head in resnet.heads)
    groups = sum(group.elements for group in resnet.groups)
    total = sum(p.units.numel() for p in resnet.plan.parameters.values())
    assert groups == resnet.backbone_elements == total - heads
    assert [head.layer for head in resnet.heads] == ["fc"]
    assert len(resnet.locked) == 0
    assert str(resnet.locked) == "nothing is locked"


def test_running_statistics_follow_their_channels(resnet: Dependencies) -> None:
    statistics = {name for name in resnet.capture.buffers if "running_" in name}
    assert set(resnet.plan.buffers) == statistics
    for name, classes in resnet.plan.buffers.items():
        weight = name.replace("running_mean", "weight").replace("running_var", "weight")
        assert torch.equal(classes, resnet.plan.parameters[weight].units)


def test_a_view_kept_as_an_attribute_is_still_the_parameter() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.Parameter(torch.randn(2, 8))
            self.first = self.scales.detach()[0]
            self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.stem(x) * self.first)

    deps = autoeidetic.analyze(Kept(), torch.randn(2, 4))
    assert deps.unused == ()
    owner = deps.plan.parameters["scales"].units
    assert torch.equal(owner[0], deps.plan.parameters["stem.bias"].units)


def test_attention_heads_divide(vit: Dependencies) -> None:
    pattern = next(g for g in vit.groups if g.name == "blocks.0.attn.qkv[0:384]")
    values = next(g for g in vit.groups if g.name == "blocks.0.attn.qkv[384:576]")
    assert (pattern.size, values.size) == (3, 192)
    requires = [bond for bond in values.bonds if bond.kind == "requires"]
    assert requires or vit.graph.has_edge(f"group:{values.name}", f"group:{pattern.name}")
    closed = vit.plan.closure(_only(vit, values.units[0]))
    assert closed[list(pattern.units)].sum() == 1  # its own head and no other
    assert [n.module for n in vit.plan.nested] == [
        "blocks.0.norm1",
        "blocks.0.norm2",
        "blocks.1.norm1",
        "blocks.1.norm2",
        "norm",
    ]


def _only(deps: Dependencies, number: int) -> np.ndarray:
    kept = np.zeros(deps.plan.units + 1, bool)
    kept[number] = True
    return kept


class Mixer(nn.Module):
    """Token mixing and a learned scalar: both serve every channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 16)
        self.tokens = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2) * self.scale
        return self.head(x.mean(1))


def test_locked_says_what_where_and_why() -> None:
    deps = autoeidetic.analyze(Mixer(), torch.randn(2, 6, 4))
    locks = {lock.group: lock for lock in deps.locked}
    assert set(locks) == {"tokens", "scale"}
    assert "one weight serves all channels alike" in locks["tokens"].reason
    assert locks["tokens"].place.operator == "aten.linear"
    assert locks["tokens"].place.module == "tokens"
    assert "test_dependencies.py:" in locks["tokens"].place.line
    assert locks["tokens"].elements == 42
    assert deps.locked.share == pytest.approx(43 / (80 + 43))


def test_mixing_in_the_root_is_locked_and_in_a_module_is_not() -> None:
    class Softmax(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    class Rooted(nn.Module):
        def __init__(self, inside: bool) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
            self.softmax = Softmax() if inside else lambda x: x.softmax(-1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.softmax(self.stem(x)))

    locked = autoeidetic.analyze(Rooted(inside=False), torch.randn(2, 4)).locked
    assert locked.share == 1.0
    assert "aten._softmax" in locked[0].reason
    assert "evaluated level by level" in locked[0].reason
    nested = autoeidetic.analyze(Rooted(inside=True), torch.randn(2, 4))
    assert nested.locked.share == 0.0
    assert [n.module for n in nested.plan.nested] == ["softmax"]


def test_a_module_that_borrows_a_parameter_is_not_nested() -> None:
    class Borrowing(nn.Module):
        def __init__(self, lender: list[nn.Module]) -> None:
            super().__init__()
            self.lender = lender  # in a list, so that it is not a submodule

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.lender[0].gain).softmax(-1)

    class Lending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.randn(8))
            self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
            self.softmax = Borrowing([self])

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.softmax(self.stem(x)))

    deps = autoeidetic.analyze(Lending(), torch.randn(2, 4))
    assert deps.plan.nested == ()
    assert deps.locked.share == 1.0


def test_graph_is_typed_picklable_and_graphml(vit: Dependencies) -> None:
    graph = vit.graph
    assert {data["kind"] for _, data in graph.nodes(data=True)} == {"layer", "head", "group"}
    kinds = {data["kind"] for _, _, data in graph.edges(data=True)}
    assert {"writes", "reads", "normalises", "requires"} <= kinds
    again = pickle.loads(pickle.dumps(graph))
    assert nx.utils.graphs_equal(graph, again)
    stream = io.BytesIO()
    nx.write_graphml(graph, stream)
    assert nx.read_graphml(io.BytesIO(stream.getvalue())).number_of_edges() == len(graph.edges)
    assert nx.has_path(graph, "patch_embed.proj", "head")


def test_json_and_table(resnet: Dependencies) -> None:
    data = json.loads(resnet.to_json())
    assert data["captured_by"] == "meta"
    assert {"groups", "heads", "locked", "operators", "unhandled", "nested"} <= set(data)
    text = str(resnet)
    assert "layer4.1.conv1" in text
    assert "head: fc (1000 outputs, 513,000 elements)" in text
    assert "<pre>" in resnet._repr_html_()
    assert repr(resnet) == "Dependencies(12 groups, 3880 units, 0.0% locked)"


def test_hostile_names_stay_data() -> None:
    net = nn.Sequential()
    net.add_module('<b>"x"</b>', nn.Linear(4, 8))
    net.add_module("head", nn.Linear(8, 2))
    deps = autoeidetic.analyze(net, torch.randn(2, 4))
    assert '\\"x\\"' in deps.to_dot()
    assert "<b>" not in deps.to_mermaid()
    assert "<b>" not in deps._repr_html_()


def test_a_network_without_a_head() -> None:
    with torch.device("meta"):
        deps = autoeidetic.analyze(timm.create_model("resnet18", num_classes=0))
    assert deps.heads == ()
    assert "head: none" in str(deps)


def test_random_number_generators_are_left_as_they_were() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x * torch.rand(4) * random.random() * float(np.random.rand()))

    noisy = Noisy()
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    autoeidetic.analyze(noisy, torch.ones(2, 4))
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_unused_parameters_are_told_apart() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.a(x))

    deps = autoeidetic.analyze(Unused(), torch.randn(2, 4))
    assert deps.unused == ("b.bias", "b.weight")
    assert [g.name for g in deps.groups] == ["a"]
    assert deps.locked.share == 0
