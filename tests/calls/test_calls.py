"""Calls that no example has shown: other shapes, flags, outputs and paths.

Each is analysed when it is made for the first time. It is answered with the bits that it has for
ever, or refused.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lives
import pytest
import torch
from lives import answers, call, same
from torch import Tensor, nn

import autoeidetic
from autoeidetic.calls import calls
from autoeidetic.errors import EnforcementError
from autoeidetic.net import EideticNet
from autoeidetic.tasks import network, new_calls


def body(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU())


# -- one tiny model per case ---------------------------------------------------------------------


class Branch(nn.Module):
    """A layer that is reached only when the data says so."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = body(), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        y = self.a(x)
        if m.any():
            y = torch.where(m, self.b(y), y)
        return self.head(y)


class Rolled(nn.Module):
    """A branch without parameters: channels change places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = body(), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        y = self.a(x)
        if m.any():
            y = y.roll(1, -1)
        return self.head(self.b(y).relu())


class Experts(nn.Module):
    """A top-1 mixture of experts: an expert without a token is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = body(), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        chosen = x[:, 0].long() % 3
        out = torch.zeros_like(y)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                out = torch.where(mine[:, None], expert(y), out)
        return self.head(out.relu())


class LongInputs(nn.Module):
    """A layer for long inputs only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = body(), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if x.shape[1] > 6:
            y = y + self.b(y).relu()
        return self.head(y.mean(1))


class MaskToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = body(), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.randn(8))
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor, masked: Tensor | None = None) -> Tensor:
        y = self.a(x)
        if masked is not None:
            y = torch.where(masked[..., None], self.token, y)
        return self.head(self.mix(y).relu().mean(1))


class HiddenStates(nn.Module):
    """More outputs on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = body(), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, hidden: bool = False) -> Any:
        y = self.a(x)
        z = self.b(y).relu()
        logits = self.head(z)
        return {"logits": logits, "hidden": (y, z)} if hidden else {"logits": logits}


class TwoStreams(nn.Module):
    """Two streams of tokens side by side, then one norm over their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        both = torch.cat([self.a(x), self.b(y)], 1)
        return self.head(self.mix(self.norm(both)).relu().mean(1))


class Misplaced(nn.Module):
    """Tokens by channels looked at as channels by space, without a transposition."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 1)
        self.b, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu()
        n, c, h, w = y.shape
        tokens = y.flatten(2).transpose(1, 2).contiguous()
        return self.head(self.b(tokens.view(n, c, h, w)).relu().mean((2, 3)))


class PositionTable(nn.Module):
    """A table of positions, of which short inputs use a part."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.table = nn.Parameter(torch.randn(1, 20, 8))
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.a(x) + self.table[:, : x.shape[1]])
        return self.head(self.mix(y).relu().mean(1))


class MeanOverTokens(nn.Module):
    """A softmax over channels: run level by level, on masks."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.soft = nn.Linear(6, 8), nn.Softmax(-1)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.soft(self.a(x))).relu().mean(1))


class RoutedAfterNorm(nn.Module):
    """Where tokens go depends on a norm, which computes otherwise once there are several tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.gate = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.stem(x))
        best = self.gate(y).argmax(-1)
        out = y
        for number, expert in enumerate(self.experts):
            rows = (best == number).nonzero()[:, 0]
            if len(rows) > 0:
                out = out.index_add(0, rows, expert(y[rows]))
        return self.head(out)


def r(*size: int) -> Tensor:
    return torch.randn(size)


def no(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.bool)


def chosen(*numbers: int) -> Tensor:
    """Inputs that go to these experts."""
    x = torch.rand(len(numbers), 6) * 0.9
    x[:, 0] += torch.tensor(numbers)
    return x


# -- a life of two tasks ---------------------------------------------------------------------------


def shown(model: nn.Module, examples: Any, **options: Any) -> EideticNet:
    """A network with a finished task and another in training."""
    net = autoeidetic.convert(lives.randomise(model), examples, **options)
    net.prepare_for_task(0, num_classes=4)
    net.prune(0.5)
    net.finish_task()
    return net


def train_on(net: EideticNet, inputs: Any) -> None:
    net.prepare_for_task(len(net.tasks), num_classes=3)
    lives.train(net, inputs, [lives.adamw(net), lives.sgd(net)], 3)
    net.eval()


def keeps(net: EideticNet, train: Any, *calls: Any) -> None:
    """All calls are answered with the same bits after another task was trained and finished."""
    net.eval()
    before = [answers(net, inputs, 0) for inputs in calls]
    for _ in range(2):
        train_on(net, train)
        assert all(same(b, answers(net, i, 0)) for b, i in zip(before, calls, strict=True))
        net.prune(0.3)
        net.finish_task()
        assert all(same(b, answers(net, i, 0)) for b, i in zip(before, calls, strict=True))


#: A model, its example, a call that is refused, and what the refusal names.
REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, Any, str]] = {
    "branch": (Branch, (r(2, 6), no(2, 1)), (r(2, 6), ~no(2, 1)), "'b.weight'"),
    "rolled": (Rolled, (r(2, 6), no(2, 1)), (r(2, 6), ~no(2, 1)), "reads other channels"),
    "experts": (Experts, chosen(0, 1), chosen(0, 2), "'experts.2.weight'"),
    "long_inputs": (LongInputs, r(2, 5, 6), r(2, 7, 6), "'b.weight'"),
    "mask_token": (MaskToken, r(2, 5, 6), (r(2, 5, 6), ~no(2, 5)), "'token'"),
    "misplaced": (Misplaced, r(2, 3, 4, 4), r(2, 3, 5, 5), "path that no example"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_path_that_no_example_has_shown_is_refused(name: str) -> None:
    make, example, other, text = REFUSED[name]
    net = shown(make(), example).eval()
    said = answers(net, example, 0)
    for _ in range(2):
        with pytest.raises(EnforcementError, match=text) as caught:
            call(net, other, task=0)
        assert "convert(model, [example, another])" in caught.value.remedy
    assert same(said, answers(net, example, 0))
    train_on(net, example)
    assert same(said, answers(net, example, 0))


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"misplaced"}))
def test_several_examples_show_all_paths(name: str) -> None:
    make, example, other, _ = REFUSED[name]
    net = shown(make(), [example, other])
    keeps(net, other, example, other)
    assert not net.call_plan.plan.unreached.any()


#: A model, its example, and other calls that are to be answered.
ANSWERED: dict[str, tuple[Callable[[], nn.Module], Any, list[Any]]] = {
    "hidden_states": (HiddenStates, r(2, 6), [{"x": r(2, 6), "hidden": True}, r(3, 6)]),
    "two_streams": (
        TwoStreams,
        (r(2, 3, 6), r(2, 5, 6)),
        [(r(2, 5, 6), r(2, 3, 6)), (r(3, 4, 6), r(3, 9, 6))],
    ),
    "positions": (PositionTable, r(2, 5, 6), [r(3, 9, 6), r(2, 20, 6), r(1, 1, 6)]),
    "softmax": (MeanOverTokens, r(2, 5, 6), [r(3, 9, 6), r(1, 2, 6)]),
    "experts": (Experts, chosen(0, 1, 2), [chosen(0, 2), chosen(1, 1, 1), chosen(2)]),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_other_calls_are_answered_with_their_bits(name: str) -> None:
    make, example, others = ANSWERED[name]
    keeps(shown(make(), example), example, example, *others)


@pytest.mark.parametrize("name", ANSWERED)
def test_other_calls_are_trained_on(name: str) -> None:
    make, example, others = ANSWERED[name]
    keeps(shown(make(), example), others[0], example, *others)


# -- lives of networks with several calls ----------------------------------------------------------


@pytest.mark.parametrize("name", ["branch", "experts", "long_inputs", "mask_token"])
def test_saved_and_loaded_with_all_examples(name: str, tmp_path: Path) -> None:
    make, example, other, _ = REFUSED[name]
    net = shown(make(), [example, other]).eval()
    net.save(tmp_path / "net")
    again = autoeidetic.load(tmp_path / "net", make())
    assert len(again.examples) == 2
    assert same(answers(net, example, 0), answers(again, example, 0))
    assert same(answers(net, other, 0), answers(again, other, 0))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_know_the_same_calls(
    copied: Callable[[Any], EideticNet], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, example, others = ANSWERED["two_streams"]
    net = shown(make(), example).eval()
    said = [answers(net, inputs, 0) for inputs in others]
    again = copied(net)
    monkeypatch.setattr(calls, "run_analysis", None)  # nothing is analysed any more
    assert all(same(s, answers(again, i, 0)) for s, i in zip(said, others, strict=True))


def test_switched_off() -> None:
    make, example, other, _ = REFUSED["long_inputs"]
    net = shown(make(), example).eval()
    net.check_calls = False
    assert call(net, other, task=0).shape == (2, 4)


def test_an_unknown_kind_of_argument_is_refused() -> None:
    net = shown(HiddenStates(), r(2, 6)).eval()
    with pytest.raises(EnforcementError, match=r"called with a builtins\.object"):
        net(r(2, 6), hidden=object(), task=0)
    net.train()
    assert net(r(2, 6), hidden=object())["logits"].shape == (2, 4)


class Opaque:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class Cached(nn.Module):
    """Returns an object that no one can look into, if asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = body(), nn.Linear(8, 3)

    def forward(self, x: Tensor, cache: bool = False) -> Any:
        y = self.a(x)
        return (self.head(y), Opaque(y)) if cache else (self.head(y),)


def test_an_output_that_nobody_can_look_into_is_refused() -> None:
    net = shown(Cached(), r(2, 6)).eval()
    with pytest.raises(EnforcementError, match=r"returned a calls\.test_calls\.Opaque"):
        net(r(2, 6), cache=True, task=0)


def test_dtypes_and_autocast() -> None:
    make, example, others = ANSWERED["two_streams"]
    net = shown(make(), example).eval()
    said = answers(net, others[0], 0)
    net.double()
    assert call(net, tuple(x.double() for x in others[0]), task=0).dtype == torch.float64
    net.float()
    assert same(said, answers(net, others[0], 0))
    with torch.autocast("cpu", torch.bfloat16):
        assert call(net, others[1], task=0).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:Python code looks at a value")
def test_decisions_of_the_network_and_not_of_the_model() -> None:
    x = r(40, 6)
    net = shown(RoutedAfterNorm(), x).eval()
    keeps(net, x, x, r(40, 6), r(9, 6))


def test_hooks_see_no_analysis() -> None:
    net = shown(PositionTable(), r(2, 5, 6)).eval()
    seen: list[torch.device] = []
    module: Any = net.backbone.mix

    def note(_: Any, __: Any, output: Tensor) -> None:
        seen.append(output.device)

    module.register_forward_hook(note)
    call(net, r(3, 7, 6), task=0)
    assert seen == [torch.device("cpu")]


# -- sizes ----------------------------------------------------------------------------------------


class Counted:
    """How many analyses there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, run_analysis = 0, calls.run_analysis

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return run_analysis(*args, **kwargs)

        monkeypatch.setattr(calls, "run_analysis", counted)


def test_many_lengths_are_few_analyses(monkeypatch: pytest.MonkeyPatch) -> None:
    net = shown(PositionTable(), r(2, 5, 6)).eval()
    seen = Counted(monkeypatch)
    for length in range(2, 21):
        for batch in (2, 3, 4):
            call(net, r(batch, length, 6), task=0)
    assert seen.count <= 5
    keeps(net, r(2, 5, 6), r(2, 17, 6), r(4, 2, 6))


class Periodic(nn.Module):
    """Channels move by as much as there are tokens: alike for lengths that differ by eight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = body(), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).roll(x.shape[1], -1)
        return self.head(self.b(y).relu().mean(1))


@pytest.mark.parametrize(
    ("make", "good", "bad"),
    [(LongInputs, [2, 3, 4, 5, 6], [7, 8, 9]), (Periodic, [8, 16, 24, 32, 40], [9, 17, 30, 41])],
)
def test_a_rule_for_sizes_ends_where_the_path_does(
    make: Callable[[], nn.Module], good: list[int], bad: list[int]
) -> None:
    net = shown(make(), r(2, good[0], 6)).eval()
    for length in good:
        for batch in (2, 3, 4):
            call(net, r(batch, length, 6), task=0)
    for length in bad:
        with pytest.raises(EnforcementError):
            call(net, r(3, length, 6), task=0)


# -- transformers ------------------------------------------------------------------------------

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "pad_token_id": 0,
}


def words(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(1, 99, (batch, length))}


def sound(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_values": r(batch, length)}


#: Options of a small configuration, an example, and calls of other lengths.
TRANSFORMERS: dict[str, tuple[dict[str, Any], Any, list[Any]]] = {
    "DebertaV2": (
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        words(2, 8),
        [words(3, 13), words(2, 5)],
    ),
    "BigBird": ({"attention_type": "original_full"}, words(2, 8), [words(3, 13), words(2, 5)]),
    "LayoutLMv3": (
        {"coordinate_size": 5, "shape_size": 6, "input_size": 32, "visual_embed": False},
        words(2, 8),
        [words(3, 13)],
    ),
    "WavLM": (
        {
            "conv_dim": (16, 16),
            "conv_stride": (4, 4),
            "conv_kernel": (8, 8),
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 16,
            "num_buckets": 16,
            "max_bucket_distance": 32,
        },
        sound(2, 400),
        [sound(3, 640), sound(2, 320)],
    ),
    "Bert": (
        {},
        words(2, 8),
        [
            {**words(3, 13), "output_hidden_states": True},
            {**words(2, 5), "output_attentions": True},
            {**words(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.long)},
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str) -> None:
    """Other lengths and batches, and outputs on demand."""
    transformers = pytest.importorskip("transformers")
    options, example, others = TRANSFORMERS[name]
    config = getattr(transformers, f"{name}Config")(**SMALL, **options)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    net = shown(model.eval(), example)
    keeps(net, others[0], example, *others)


# -- compiled -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compiled() -> None:
    torch.compiler.reset()
    make, example, others = ANSWERED["two_streams"]
    net = shown(make(), example).eval()
    compiled = torch.compile(net, backend="eager")
    for inputs in (example, *others):
        assert same(lives.tensors(call(compiled, inputs, task=0)), answers(net, inputs, 0))


@pytest.mark.slow
def test_compiled_gradients_of_inputs() -> None:
    torch.compiler.reset()
    net = shown(PositionTable(), r(2, 5, 6)).eval()
    x, y = (torch.ones(2, 5, 6, requires_grad=True) for _ in range(2))
    torch.compile(net, backend="aot_eager")(x, task=0).sum().backward()
    net(y, task=0).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert y.grad.abs().sum() > 0
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("name", ["branch", "long_inputs"])
def test_compiled_networks_refuse_as_well(name: str) -> None:
    torch.compiler.reset()
    make, example, other, text = REFUSED[name]
    net = shown(make(), example).eval()
    compiled = torch.compile(net, backend="eager")
    call(compiled, example, task=0)
    for _ in range(2):
        with pytest.raises(EnforcementError, match=text):
            call(compiled, other, task=0)


def test_compiled_paths_of_data_in_other_shapes() -> None:
    """A path is watched also in a shape that the compiled network meets first."""
    torch.compiler.reset()
    net = shown(Branch(), (r(2, 6), no(2, 1))).eval()
    compiled = torch.compile(net, backend="eager")
    call(compiled, (r(3, 6), no(3, 1)), task=0)
    for _ in range(2):
        with pytest.raises(EnforcementError, match=r"'b\.weight'"):
            call(compiled, (r(3, 6), ~no(3, 1)), task=0)


# -- cost -----------------------------------------------------------------------------------------


def test_a_known_call_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a dictionary is asked; benchmarks/speed.py eval has the time."""
    net = shown(PositionTable(), r(2, 5, 6)).eval()
    call(net, r(3, 7, 6), task=0)
    monkeypatch.setattr(new_calls, "_first_met", None)
    monkeypatch.setattr(network, "protection", None)
    call(net, r(3, 7, 6), task=0)


# -- rules for sizes -----------------------------------------------------------------------------


def small_images() -> tuple[EideticNet, Callable[[int, int], Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip
    net = autoeidetic.convert(model, torch.randn(2, 3, 8, 8))
    net.prepare_for_task(0, num_classes=2)
    net.finish_task()
    return net.eval(), lambda batch, size: torch.randn(batch, 3, size, size)


def test_rules_speak_of_sizes_that_have_varied() -> None:
    """Symbols for all sizes would take the exporter long in a model that computes with them."""
    net, images = small_images()
    for batch in (3, 4, 5):
        net(images(batch, 8), task=0)
    ((sizes, _),) = next(iter(net.calls.general.values()))
    assert [isinstance(size, str) for size in sizes.shapes[0]] == [True, False, False, False]
    known = len(net.calls.digests)
    net(images(17, 8), task=0)
    assert sum(net.calls.single.values()) == 3, "a rule covers it"
    for size in (9, 10, 11):
        net(images(2, size), task=0)
    assert len(next(iter(net.calls.general.values()))) == 2
    net(images(6, 30), task=0)
    assert sum(net.calls.single.values()) == 6
    assert len(net.calls.digests) == known


def test_a_long_search_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    net, images = small_images()
    searched: list[Any] = []
    monkeypatch.setattr(new_calls, "_LONG", -1.0)
    monkeypatch.setattr(new_calls, "generalised", lambda *found: searched.append(found))
    for batch in range(3, 13):
        net(images(batch, 8), task=0)
    assert len(searched) == 1
