"""Real models: a fast slice of timm's families, torchvision, transformers, recurrent layers.

``benchmarks/zoo.py`` goes over all families.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import autoeidetic
from autoeidetic.commands.benchmark import families
from autoeidetic.commands.benchmark.models import family as family_of

#: Small models, and together most of the hazards: attention of many kinds, mixers, gates,
#: concatenation, grouped and standardised convolutions, windows, recurrences.
FAMILIES = """
byobnet convmixer convnext cspnet deit densenet dla edgenext efficientnet efficientvit_mit
ghostnet hardcorenas levit mambaout mlp_mixer mobilenetv3 mobilevit nfnet pit pvt_v2 regnet
resnest resnet rexnet sknet starnet swin_transformer vision_transformer vovnet xcit
""".split()

#: Where the general bounds do not hold, and why.
BOUNDS: dict[str, dict[str, float]] = {
    "mlp_mixer": {"locked": 0.25},  # gMLP: weights over tokens serve all channels alike
}


@pytest.fixture(autouse=True, scope="module")
def everything_imported_so_far_is_left_alone() -> Iterator[None]:
    """A collection visits a million objects of imported modules otherwise, which takes 0.6 s."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def freed() -> Iterator[None]:
    """The models of one test are gone before the next one builds its own."""
    yield
    gc.collect()


def distinct(owner: Tensor) -> Tensor:
    """Owners without the repetitions that take no memory."""
    for dim, step in enumerate(owner.stride()):
        if step == 0:
            owner = owner.narrow(dim, 0, 1)
    return owner


def accounted(model: nn.Module, deps: Any) -> None:
    """No operator without a rule; every element of every parameter in exactly one class."""
    assert not deps.unhandled
    plan = deps.plan
    parameters = dict(model.named_parameters())
    assert set(plan.parameters) == set(parameters)
    for name, parameter in parameters.items():
        owner = plan.parameters[name].units
        assert owner.shape == parameter.shape, name
        once = distinct(owner)
        assert int(once.min()) >= 1, name
        assert int(once.max()) <= plan.units, name
    assert int(plan.elements.sum()) == sum(p.numel() for p in parameters.values())
    assert len(plan.elements) == plan.units + 1
    in_groups = sum(group.elements for group in deps.groups)
    assert in_groups == deps.backbone_elements
    sizes = [len(group.units) for group in deps.groups]
    assert sizes == [group.size for group in deps.groups]
    assert nx.is_directed(deps.graph)


def divided(deps: Any, largest: float = 0.02, locked: float = 0.10) -> None:
    assert deps.heads
    assert deps.largest_unit_share <= largest
    assert deps.locked.share <= locked


def test_every_family_has_a_model() -> None:
    """Whichever timm is installed."""
    found = families.smallest()
    assert list(found) == timm.list_modules()
    assert set(FAMILIES) <= set(found)
    assert {name: family_of(name) for name in found.values()} == {v: k for k, v in found.items()}


@pytest.mark.slow
def test_what_the_table_does_not_know_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that is newer than the table, and a model that this timm does not have."""
    known = families.smallest()
    table = {**known, "starnet": "starnet_of_another_timm"}
    del table["selecsls"]
    monkeypatch.setattr(families, "KNOWN", table)
    counted = {family: families.counted(family) for family in ("selecsls", "starnet")}
    assert families.smallest.__wrapped__() == {**known, **counted}


def test_a_family_that_cannot_be_counted_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> nn.Module:
        raise RuntimeError("no")

    monkeypatch.setattr(timm, "create_model", broken)
    assert families.counted("starnet") == timm.list_models(module="starnet")[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    model = timm.create_model(families.smallest()[family])
    deps = autoeidetic.analyze(model, on_unhandled="raise")
    accounted(model, deps)
    divided(deps, **BOUNDS.get(family, {}))


TORCHVISION = """
alexnet densenet121 efficientnet_b0 googlenet inception_v3 maxvit_t mnasnet0_5
mobilenet_v2 mobilenet_v3_small regnet_x_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5
squeezenet1_0 swin_t swin_v2_t vgg11 vit_b_16 convnext_tiny r3d_18
""".split()


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_classification(name: str) -> None:
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    device = "cpu" if name.startswith("regnet") else "meta"  # computes widths with tensors
    with torch.device(device):
        model = torchvision.models.get_model(name, **options)
    accounted(model, autoeidetic.analyze(model))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"]
)
def test_torchvision_segmentation(name: str) -> None:
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights_backbone=None)
    deps = autoeidetic.analyze(model)
    accounted(model, deps)
    divided(deps)


class Classifier(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, layer.input_size)
        self.recurrence = layer
        self.head = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 5)

    def forward(self, words: Tensor) -> Tensor:
        out, _ = self.recurrence(self.embedding(words))
        return self.head(out[:, -1])


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_recurrent_classifiers(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    model = Classifier(kind(32, 64, batch_first=True, **options))
    deps = autoeidetic.analyze(model, torch.zeros(2, 7, dtype=torch.long))
    accounted(model, deps)
    divided(deps)
    owner = deps.plan.parameters["recurrence.weight_ih_l0"].units[:, 0]
    gates = owner.view(-1, 64)
    assert (gates == gates[0]).all(), "a hidden unit is its gate rows together"
    assert len(owner.unique()) == 64


def bert(transformers: Any) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    return transformers.BertForSequenceClassification(config)


def distilbert(transformers: Any) -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=100, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=32
    )
    return transformers.DistilBertForSequenceClassification(config)


def vit(transformers: Any) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
    )
    return transformers.ViTForImageClassification(config)


@pytest.mark.slow
@pytest.mark.parametrize("build", [bert, distilbert, vit])
def test_transformers(build: Callable[[Any], nn.Module]) -> None:
    transformers = pytest.importorskip("transformers")
    model = build(transformers)
    deps = autoeidetic.analyze(model)
    accounted(model, deps)
    divided(deps, largest=0.1, locked=0.10)
    sizes = [group.size for group in deps.groups]
    assert sizes.count(4) == 2, "the 4 heads of each of 2 attention layers"
