"""Heads: one per task, of any size, in whatever form the model makes its output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lives
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from zoo import ZOO

import autoeidetic
from autoeidetic.errors import (
    AutoeideticError,
    CapacityError,
    HeadError,
    InputError,
    TaskError,
    UnhandledOperatorWarning,
)

X = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def trunk(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = trunk()


class Pooled(Base):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class ConvThenPool(Base):
    """SqueezeNet: a convolution makes the classes, pooling comes after."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(F.relu(self.classifier(self.body(x))), 1).flatten(1)


class ConvThenFlatten(Base):
    """timm's MobileNetV3: a 1x1 convolution on pooled features, then flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Conv2d(8, 3, 1, bias=False)
        self.flatten = nn.Flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.flatten(self.classifier(F.adaptive_avg_pool2d(self.body(x), 1)))


class DensePrediction(Base):
    """Segmentation: classes per pixel, enlarged afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.classifier(self.body(x)), scale_factor=2, mode="bilinear")


class Tokens(Base):
    """Classes per token, in the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(2).transpose(1, 2))


class Features(Base):
    """No output layer: a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return x + F.relu(self.branch(x))


class NormedFeatures(Base):
    """No output layer: it ends in a batch norm, as timm's models do with num_classes=0."""

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class RootParameter(Base):
    """CLIP: a parameter of the model itself makes the output."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Parameter(torch.randn(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean((2, 3)) @ self.proj


class Dict(Base):
    """A dictionary of logits, features and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        features = self.body(x).mean((2, 3))
        return {"logits": self.head(features), "features": features, "pair": (features * 2, None)}


class Tuple(Base):
    """Two output layers of the same size, one on an earlier stage."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Conv2d(8, 8, 1)
        self.aux, self.head = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.head(self.late(x).mean((2, 3))), self.aux(x.mean((2, 3)))


class Different(Base):
    """Two output layers of different sizes: detection."""

    def __init__(self) -> None:
        super().__init__()
        self.box, self.label = nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x).mean((2, 3))
        return self.box(x), self.label(x)


class ByKeyword(Base):
    """The output layer is called with a keyword argument."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=self.body(x).mean((2, 3)))


class Softmax(Base):
    """Probabilities: what follows the output layer mixes its classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3))).softmax(1)


class NormalisedLogits(Base):
    """Logits divided by their length, in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.norm = nn.LayerNorm(3, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.head(self.body(x).mean((2, 3))))


class CalledTwice(Base):
    """One output layer for two views of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.head(x.mean((2, 3))), self.head(x.amax((2, 3)))


class TwoLayers(Base):
    """A sequential classifier: only its last layer is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(
            nn.Linear(8, 8), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(8, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x).mean((2, 3)))


class GroupedHead(Base):
    """An output layer of which every class reads half of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(8, 4, 1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).mean((2, 3))


class WeightNormHead(Base):
    """An output layer with a parametrised weight."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class ComputedHead(Base):
    """An output layer whose weight is computed from its parameters, as a linear layer or a conv."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], conv: bool = False) -> None:
        super().__init__()
        self.head = wrap(nn.Conv2d(8, 3, 1) if conv else nn.Linear(8, 3))
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.head(x).mean((2, 3)) if self.conv else self.head(x.mean((2, 3)))


#: Shapes of what a task with n classes says, as (leaf number, dimension of the classes).
RESIZABLE: dict[type[nn.Module], list[tuple[int, int]]] = {
    Pooled: [(0, 1)],
    ConvThenPool: [(0, 1)],
    ConvThenFlatten: [(0, 1)],
    DensePrediction: [(0, 1)],
    Tokens: [(0, 2)],
    Features: [(0, 1)],
    NormedFeatures: [(0, 1)],
    RootParameter: [(0, 1)],
    Dict: [(0, 1)],
    Tuple: [(0, 1), (1, 1)],
    Softmax: [(0, 1)],
    CalledTwice: [(0, 1), (1, 1)],
    TwoLayers: [(0, 1)],
    ByKeyword: [(0, 1)],
}
MODELS = list(RESIZABLE)


@pytest.mark.parametrize("model", MODELS)
def test_any_number_of_classes(model: type[nn.Module]) -> None:
    """Three tasks with 4, 3 and 5 classes; the structure of the output stays."""
    plain = model()
    structure = torch.utils._pytree.tree_structure(plain.eval()(X))
    life = lives.live(plain, X, classes=(4, 3, 5))
    for task, number in enumerate((4, 3, 5)):
        output = lives.answer(life.net, X, task)
        assert torch.utils._pytree.tree_structure(output) == structure
        leaves = torch.utils._pytree.tree_leaves(output)
        for leaf, dim in RESIZABLE[model]:
            assert leaves[leaf].shape[dim] == number
            assert leaves[leaf].shape[0] == len(X)


@pytest.mark.parametrize("model", MODELS)
def test_all_tasks_at_once(model: type[nn.Module]) -> None:
    """Bit for bit what each task says alone, in training as well."""
    net = lives.live(model(), X).net.eval()
    with torch.no_grad():
        together = net(X, task="all")
        assert isinstance(together, list)
        assert len(together) == 3
        for task, output in enumerate(together):
            assert lives.same(lives.tensors(output), lives.tensors(net(X, task=task)))
        assert lives.same(lives.tensors(net(X)), lives.tensors(together[2]))


def test_one_pass_of_the_body_serves_all_tasks() -> None:
    net = lives.live(Pooled(), X).net.eval()
    runs: list[int] = []
    net.backbone.body.register_forward_hook(lambda *_: runs.append(1))
    with torch.no_grad():
        net(X, task="all")
    assert len(runs) == 1


def test_softmax_is_over_the_classes_of_one_task() -> None:
    net = lives.live(Softmax(), X).net.eval()
    with torch.no_grad():
        for output in net(X, task="all"):
            torch.testing.assert_close(output.sum(1), torch.ones(len(X)))


@pytest.mark.parametrize("model", [Different, WeightNormHead, NormalisedLogits])
def test_own_number_of_classes(model: type[nn.Module]) -> None:
    """Output layers that are kept at their own sizes."""
    lives.live(model(), X, classes=(None, None, None))


COMPUTED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm of old": nn.utils.spectral_norm,
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.filterwarnings("ignore::autoeidetic.errors.UnhandledOperatorWarning")
@pytest.mark.parametrize(
    ("name", "conv"),
    [(name, conv) for name in COMPUTED for conv in (False, True) if name != "orthogonal"]
    + [("orthogonal", False)],
)
def test_computed_weights(name: str, conv: bool, tmp_path: Path) -> None:
    """Each task has a normalised layer of its own; nothing before it is locked."""
    orthogonal = name == "orthogonal"
    model = ComputedHead(COMPUTED[name], conv)
    deps = autoeidetic.analyze(model, X)
    assert [head.layer for head in deps.heads] == ["head"]
    assert not deps.locked.share
    life = lives.live(model, X, classes=(3, 3, 3) if orthogonal else (4, 3, 5))
    life.net.save(tmp_path / "net")
    again = autoeidetic.load(tmp_path / "net", ComputedHead(COMPUTED[name], conv))
    for task, said in life.said.items():
        assert lives.same(lives.answers(again, X, task), said)


@pytest.mark.parametrize("name", ["spectral_norm", "spectral_norm of old"])
def test_new_spectral_norms_have_norm_one(name: str) -> None:
    """The layer of a new task at once, and those of others while it is trained."""
    life = lives.Life(ComputedHead(COMPUTED[name]), X)

    def norms() -> list[float]:
        lives.answer(life.net, X, "all")  # the old form computes its weight in a pass
        weights = [life.net.heads[str(n)]["head"].weight for n in range(len(life.net.tasks))]
        return [float(torch.linalg.matrix_norm(w.detach(), 2)) for w in weights]

    life.prepare()
    assert norms() == pytest.approx([1.0], abs=0.05)
    life.prune()
    life.finish()
    buffers = lives.state(life.net.heads["0"])
    life.prepare()
    assert norms() == pytest.approx([1.0, 1.0], abs=0.05)
    before = [head.detach().clone() for head in life.net.heads["1"].buffers()]
    life.net.train()
    for _ in range(3):
        life.net(X, task=1)
    life.check("passes of the other task in training")
    assert not lives.changed(life.net.heads["0"], buffers)
    life.net.train()(X, task=0)
    life.check("a pass of the task itself in training")
    assert not lives.changed(life.net.heads["0"], buffers)
    life.train(lives.adamw(life.net))
    assert not all(map(torch.equal, life.net.heads["1"].buffers(), before)), "it is not iterated"
    life.net.train_router(by="entropy")
    assert life.net.predict(X).label.shape == (len(X),)


@pytest.mark.parametrize("name", ["spectral_norm", "spectral_norm of old", "weight_norm"])
def test_kept_computed_weight(name: str) -> None:
    life = lives.Life(ComputedHead(COMPUTED[name]), X, classes=(None, 3, 5), keep_head=True)
    life.run()


def test_orthogonal_head_of_another_size() -> None:
    with pytest.warns(UnhandledOperatorWarning):
        net = autoeidetic.convert(ComputedHead(parametrizations.orthogonal), X)
    with lives.unchanged(net), pytest.raises(HeadError, match="another number of classes") as found:
        net.prepare_for_task(0, num_classes=5)
    assert "num_classes=3" in found.value.remedy
    assert found.value.module == "head"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_layer_that_cannot_be_copied() -> None:
    model = ComputedHead(nn.utils.weight_norm)
    with pytest.raises(HeadError, match="the output layer cannot be copied") as caught:
        autoeidetic.convert(model, X, inplace=True)
    assert "parametrizations.weight_norm" in caught.value.remedy
    assert caught.value.module == "head"


class Scaled(nn.Linear):
    """A layer with a constant that is not a number of classes."""

    def __init__(self) -> None:
        super().__init__(8, 3)
        self.register_buffer("scale", torch.tensor([30.0]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def test_buffers_of_a_head_have_the_models_values() -> None:
    life = lives.live(ComputedHead(lambda _: Scaled()), X)
    for task in range(3):
        assert life.net.heads[str(task)]["head"].scale.tolist() == [30.0]


@pytest.mark.parametrize("number", [10**12, 10**17, 10**30])
@pytest.mark.parametrize("model", [Pooled, Features, RootParameter])
def test_more_classes_than_memory(model: type[nn.Module], number: int) -> None:
    net = autoeidetic.convert(model(), X)
    with lives.unchanged(net), pytest.raises(HeadError, match=f"num_classes={number}") as caught:
        net.prepare_for_task(0, num_classes=number)
    assert "memory" in caught.value.remedy


def test_sizes_by_layer() -> None:
    net = autoeidetic.convert(Different(), X)
    net.prepare_for_task(0, num_classes={"box": 4, "label": 7})
    assert [tuple(t.shape) for t in net(X)] == [(3, 4), (3, 7)]
    net.prune(0.5)
    net.prepare_for_task(1, num_classes={"label": 2})
    assert [tuple(t.shape) for t in net(X)] == [(3, 4), (3, 2)]
    assert [tuple(t.shape) for t in net(X, task=0)] == [(3, 4), (3, 7)]


# -- models without an output layer of their own ---------------------------------------------------


class Tied(nn.Module):
    """A small language model: a vocabulary of 11 words, which the output layer shares."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.body, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.lm_head = nn.Linear(8, 11, bias=False)
        if tied:
            self.lm_head.weight = self.words.weight

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        early = self.words(x)
        late = self.norm(F.relu(self.body(early)))
        return {"logits": self.lm_head(late), "hidden": late, "words": early}


class Loop(Base):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).mean((2, 3))
        return self.again(self.again(self.again(x).relu()).relu())


WORDS = torch.arange(12).view(3, 4) % 11


def test_an_output_layer_that_shares_its_weight() -> None:
    """Logits are not answered from other features; the remedy is what it takes."""
    with pytest.raises(HeadError, match="shares its weight with 'words'") as caught:
        autoeidetic.convert(Tied(), WORDS)
    assert caught.value.module == "lm_head"
    assert "test_heads.py" in caught.value.line
    model = Tied()
    statement = caught.value.remedy.partition(", ")[2].rpartition(", or")[0]
    exec(statement, {"model": model, "nn": nn})
    life = lives.live(model, WORDS)
    assert lives.answer(life.net, WORDS, 0)["logits"].shape == (3, 4, 4)


def test_an_output_layer_that_is_used_several_times() -> None:
    with pytest.raises(HeadError, match="is used 3 times in one pass") as caught:
        autoeidetic.convert(Loop(), X)
    assert caught.value.module == "again"


@pytest.mark.slow
def test_t5() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=4
    )
    ids = torch.arange(14).view(2, 7)
    inputs = {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}
    with pytest.raises(HeadError, match=r"shares its weight with '\w+.embed_tokens'") as caught:
        autoeidetic.convert(transformers.T5ForConditionalGeneration(config), inputs)
    assert caught.value.module == "lm_head"
    net = autoeidetic.convert(transformers.T5Model(config), inputs)
    net.prepare_for_task(0, num_classes=3)
    names = list(net.backbone(**inputs))
    assert names[net.call_plan.heads[0].reads] == "last_hidden_state"
    other = {**inputs, "decoder_input_ids": ids + 1}
    with torch.no_grad():
        assert not torch.equal(net.eval()(**inputs), net(**other)), "it reads the encoder only"


def test_a_shared_weight_with_a_bias_of_its_own() -> None:
    """A tied masked language model: the bias alone is no output layer."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    inputs = {"input_ids": torch.arange(14).view(2, 7)}
    words = "shares its weight with 'bert.embeddings.word_embeddings'"
    with pytest.raises(HeadError, match=words) as caught:
        autoeidetic.convert(transformers.BertForMaskedLM(config), inputs)
    assert caught.value.module == "cls.predictions.decoder"
    assert "model.cls.predictions.decoder.weight = nn.Parameter(" in caught.value.remedy


class Returned(Base):
    """Features of several depths, each with a norm of its own or with none."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.second, self.side = trunk(), trunk()
        self.second[0] = nn.Conv2d(8, 8, 3, padding=1)
        self.names = names

    def forward(self, x: Tensor) -> list[Tensor]:
        early = self.body(x)
        late = self.second(early)
        made = {"early": early, "late": late, "side": self.side(x), "pooled": late.mean((2, 3))}
        return [made[name] for name in self.names]


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (("early", "late"), 1),
        (("late", "early"), 0),
        (("late", "late"), 0),
        (("early", "late", "pooled"), 2),
        (("pooled", "late", "early"), 0),
    ],
)
def test_the_deepest_output_is_read(names: tuple[str, ...], read: int) -> None:
    net = autoeidetic.convert(Returned(*names), X)
    assert net.call_plan.heads[0].reads == read
    lives.live(Returned(*names), X)


@pytest.mark.parametrize("model", [Returned("late", "side"), nn.LSTM(6, 8, batch_first=True)])
def test_no_deepest_output(model: nn.Module) -> None:
    inputs = X[:, 0] if isinstance(model, nn.LSTM) else X
    with pytest.raises(HeadError, match="which one a head should read") as caught:
        autoeidetic.convert(model, inputs)
    assert "returns this one alone" in caught.value.remedy


KEPT = [Pooled, ConvThenPool, ConvThenFlatten, Tokens, RootParameter, Dict, Tuple, Different]


@pytest.mark.parametrize("model", [*KEPT, Softmax, TwoLayers])
def test_kept_head(model: type[nn.Module]) -> None:
    """Task 0 has the model's own output layer, trains it, and it is frozen with the task."""
    plain = model().eval()
    sizes = (None, None, None) if model is Different else (None, 3, 5)
    life = lives.Life(plain, X, classes=sizes, keep_head=True, recycle="keep")
    with torch.no_grad():
        expected = lives.tensors(plain(X))
    life.net.prepare_for_task(0)
    assert lives.same(lives.answers(life.net, X, 0), expected)
    own = life.net.call_plan.heads[0].parameters[0]
    before = life.net.backbone.get_parameter(own).detach().clone()
    life.train(lives.adamw(life.net))
    assert not torch.equal(life.net.backbone.get_parameter(own), before), "it does not learn"
    life.prune()
    life.finish()
    life.second_task()
    life.prune()
    life.finish()
    life.prepare()
    life.train(life.carried)
    life.verify()


def test_heads_of_finished_tasks_are_frozen() -> None:
    life = lives.Life(Pooled(), X).first_task()
    head = life.net.heads["0"]["head"]
    before = head.weight.detach().clone()
    life.prepare()
    optimizer = torch.optim.SGD(life.net.parameters(), lr=0.5, weight_decay=0.5)
    life.train(optimizer)
    assert torch.equal(head.weight, before)
    assert head.weight.grad is None


def test_head_reads_only_what_its_task_may_see() -> None:
    life = lives.live(Pooled(), X)
    net = life.net
    for task in (0, 1):
        net.zero_grad()
        features = life.net.heads[str(task)]["head"].weight
        visible = torch.from_numpy(net.owners.levels)[net.call_plan.heads[0].inputs[0]] <= task
        assert not visible.all()
        with torch.no_grad():
            value = net.eval()(X, task=task)
            net.runtime.features = {}
            net(X, task=task)
            seen = net.runtime.features.pop("head")
            net.runtime.features = None
        expected = F.linear(
            torch.where(visible, seen, torch.zeros_like(seen)),
            features,
            life.net.heads[str(task)]["head"].bias,
        )
        assert torch.equal(value, expected)


# -- models of the zoo ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two_heads", "dict_output", "conv_head_pooled", "flatten_head"])
def test_zoo_keeps_its_structure(name: str) -> None:
    model, inputs = ZOO[name]()
    structure = torch.utils._pytree.tree_structure(lives.call(model, inputs))
    net = autoeidetic.convert(model, inputs)
    net.prepare_for_task(0)
    output = lives.answer(net, inputs, 0)
    assert torch.utils._pytree.tree_structure(output) == structure


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1, 2.5, "3", True, [3]])
def test_impossible_numbers(number: Any) -> None:
    net = autoeidetic.convert(Pooled(), X)
    with lives.unchanged(net), pytest.raises(HeadError, match="num_classes=") as caught:
        net.prepare_for_task(0, num_classes=number)
    assert caught.value.module == "head"
    assert "positive whole number" in caught.value.remedy


@pytest.mark.parametrize("transition", ["first", "open", "finished"])
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (((7,), {"num_classes": 3}), TaskError, r"task 7 cannot be prepared"),
        (((-1,), {"num_classes": 3}), TaskError, r"task -1 cannot be prepared"),
        (((None,), {"num_classes": 0}), HeadError, "num_classes=0"),
        (((None,), {"num_classes": 3, "on_full": "no"}), InputError, "on_full='no' is unknown"),
        (((None,), {"num_classes": {"no_such_layer": 3}}), HeadError, "no_such_layer"),
    ],
)
def test_wrong_arguments_change_nothing(
    transition: str, arguments: Any, error: type[AutoeideticError], text: str
) -> None:
    """Not even the open task is finished."""
    life = lives.Life(Pooled(), X)
    if transition != "first":
        life.first_task()
    if transition == "open":
        life.second_task()
        life.prune()
    (task,), options = arguments
    number = len(life.net.tasks) if task is None else task
    with lives.unchanged(life.net), pytest.raises(error, match=text) as caught:
        life.net.prepare_for_task(number, **options)
    assert caught.value.remedy


def test_one_number_for_layers_of_different_sizes() -> None:
    net = autoeidetic.convert(Different(), X)
    with lives.unchanged(net), pytest.raises(HeadError, match="different sizes") as caught:
        net.prepare_for_task(0, num_classes=3)
    assert '"label": 3' in caught.value.remedy


def test_kept_head_of_another_size() -> None:
    net = autoeidetic.convert(Pooled(), X, keep_head=True)
    with lives.unchanged(net), pytest.raises(InputError, match="keep_head=True"):
        net.prepare_for_task(0, num_classes=5)


def test_kept_head_of_a_model_without_one() -> None:
    """There is nothing to keep, and that is said."""
    with pytest.raises(AutoeideticError, match="keep_head"):
        autoeidetic.convert(Features(), X, keep_head=True).prepare_for_task(0)


def test_features_need_a_number_of_classes() -> None:
    net = autoeidetic.convert(Features(), X)
    with lives.unchanged(net), pytest.raises(HeadError, match="num_classes"):
        net.prepare_for_task(0)


def test_not_resizable_head_changes_nothing() -> None:
    life = lives.Life(GroupedHead(), X, classes=(None, 5))
    life.first_task()
    with lives.unchanged(life.net), pytest.raises(HeadError, match="another number of classes"):
        life.net.prepare_for_task(1, num_classes=5)


@pytest.mark.parametrize("task", [3, -1, "some", 1.0, True])
def test_no_such_task(task: Any) -> None:
    life = lives.Life(Pooled(), X).first_task()
    with lives.unchanged(life.net), pytest.raises(TaskError, match="there are tasks 0 to 0"):
        life.net(X, task=task)


def test_before_the_first_task() -> None:
    net = autoeidetic.convert(Pooled(), X)
    with pytest.raises(TaskError, match="no task yet"):
        net(X)
    with pytest.raises(TaskError, match="but no task is open"):
        net.prune(0.5)
    with pytest.raises(TaskError, match="but no task is open"):
        net.finish_task()
    with pytest.raises(TaskError):
        net.verify(X)


def test_full_groups_are_found_before_training() -> None:
    life = lives.Life(Pooled(), X, fraction=0.0).first_task()
    with lives.unchanged(life.net), pytest.raises(CapacityError, match="is full") as caught:
        life.net.prepare_for_task(1, num_classes=3)
    assert "on_full" in caught.value.remedy
    assert caught.value.module


def test_full_groups_are_found_while_the_task_is_still_open() -> None:
    """So it can still be pruned."""
    life = lives.Life(Pooled(), X)
    life.prepare()
    with lives.unchanged(life.net), pytest.raises(CapacityError):
        life.net.prepare_for_task(1, num_classes=3)
    life.net.prune(0.5)
    life.net.prepare_for_task(1, num_classes=3)
    assert life.net.tasks[0].finished


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_impossible_fractions(fraction: float) -> None:
    life = lives.Life(Pooled(), X)
    life.prepare()
    with lives.unchanged(life.net), pytest.raises(InputError, match="between 0 and 1"):
        life.net.prune(fraction)


def test_unknown_options() -> None:
    with pytest.raises(InputError, match="recycle='no' is unknown"):
        autoeidetic.convert(Pooled(), X, recycle="no")
    life = lives.Life(Pooled(), X)
    life.prepare()
    with lives.unchanged(life.net), pytest.raises(InputError, match="there is no score 'no'"):
        life.net.prune(0.5, by="no")
    with lives.unchanged(life.net), pytest.raises(InputError, match="needs data"):
        life.net.prune(0.5, by="taylor")
