"""``autoeidetic.slim``: a smaller program of any model, which stays as it is."""

from __future__ import annotations

import copy
from typing import Any

import lives
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoeidetic
from autoeidetic.errors import ExtractionError, InputError, NoParametersError
from autoeidetic.extract.program import Program
from extract.networks import Looking, called, far, image
from extract.untouched import untouched


def wide() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 48, 3, stride=2), nn.BatchNorm2d(48), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 5),
    )  # fmt: skip
    return lives.randomise(model)


class Encoder(nn.Module):
    """A transformer without an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.5, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.pool = nn.Linear(16, 16)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        h = self.layers(self.embed(input_ids))
        return {"last": h, "pooled": torch.tanh(self.pool(h[:, 0]))}


def slim(model: nn.Module, *args: Any, **options: Any) -> Program:
    with untouched(model):
        return autoeidetic.slim(model, *args, **options)


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(2 * image(16) + 1, torch.randint(0, 5, (16,))) for _ in range(3)]


def words(batch: int = 2, length: int = 6) -> Tensor:
    return torch.randint(0, 30, (batch, length))


# -- what stays -----------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [False, True])
def test_everything_is_the_model(train: bool) -> None:
    model = wide().train(train)
    for parameter in model[0].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    program = slim(model, 1.0, image())
    x = image(5)
    assert far(called(model.eval(), x), called(program, x)) < 1e-5
    report = program.report
    assert report.parameters_after == report.parameters_before == len(_flat(model))
    assert report.multiply_adds_after == report.multiply_adds_before
    assert report.tasks == ()
    assert [*program.state_dict()] == [
        name for name in model.state_dict() if "num_batches" not in name
    ]


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in model.parameters()])


def test_the_best_units_of_each_layer_stay() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    rows = torch.tensor([3.0, 1, 4, 1, 5, 9, 2, 6])[:, None]
    with torch.no_grad():
        model[0].weight.copy_(rows.expand(-1, 4))  # type: ignore[operator, union-attr]
        model[0].bias.zero_()  # type: ignore[operator, union-attr]
        model[2].weight.fill_(1)  # type: ignore[operator, union-attr]
    program = slim(model, 0.5, torch.randn(2, 4), by="l1")
    found = program.state_dict()
    assert found["0.weight"][:, 0].tolist() == [4, 5, 9, 6]
    assert [tuple(value.shape) for name, value in found.items() if "weight" in name] == [
        (4, 4), (3, 4), (3, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("of", ["parameters", "multiply-adds"])
@pytest.mark.parametrize("keep", [0.7, 0.3, 0.1])
def test_costs(of: str, keep: float) -> None:
    report = slim(wide(), keep, image(), of=of).report
    before, after = report.parameters_before, report.parameters_after
    if of == "multiply-adds":
        before, after = report.multiply_adds_before, report.multiply_adds_after
    assert after / before == pytest.approx(keep, rel=0.05)


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 6, 48, batch_first=True)
    model = nn.Sequential(nn.Linear(5, 24), nn.TransformerEncoder(layer, 3), nn.Linear(24, 2))
    for parameter in model.parameters():  # layers of an encoder start as copies of one
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_costs_between_two_numbers_of_heads() -> None:
    report = slim(transformer(), 0.5, torch.randn(2, 7, 5), of="multiply-adds").report
    assert report.multiply_adds_after / report.multiply_adds_before == pytest.approx(0.5, rel=0.03)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("over_network", [0, 0.5, 1.0])
def test_part_that_is_ranked(over_network: float) -> None:
    x = torch.randn(2, 7, 5)
    program = slim(transformer(), 0.5, x, of="parameters", over_network=over_network)
    shapes = [p.shape[0] for name, p in program.named_parameters() if "linear1.bias" in name]
    same = len(set(shapes)) == 1
    assert same == (over_network == 0)


@pytest.mark.parametrize("over_network", [-0.1, 1.5, True, "all", float("nan")])
def test_parts_that_are_none(over_network: Any) -> None:
    with pytest.raises(InputError, match="is not between 0 and 1"):
        slim(wide(), 0.5, image(), over_network=over_network)


@pytest.mark.parametrize("of", ["units", "parameters", "multiply-adds"])
def test_the_least(of: str) -> None:
    program = slim(wide(), 1e-6, image(), of=of)
    assert program.report.parameters_after < 60  # a unit of each layer
    assert program(image(3)).isfinite().all()


def test_everything_by_cost() -> None:
    for of in ("parameters", "multiply-adds"):
        report = slim(wide(), 1.0, image(), of=of).report
        assert report.parameters_after == report.parameters_before


def test_models_without_an_output_layer() -> None:
    model = lives.randomise(Encoder().eval())
    x = words(5, 9)
    expected = called(model, x)
    assert far(expected, called(slim(model, 1.0, words()), x)) < 1e-4
    program = slim(model.train(), 0.5, words())
    found = called(program, x)
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in expected.items()
    }
    assert program.report.parameters_after < 0.7 * program.report.parameters_before
    assert "input_ids: dimension 1" in program.report.dynamic


# -- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["l1", "l2", "random", "taylor", "hybrid"])
def test_scores(by: str) -> None:
    model, data = wide(), batches()
    before = torch.get_rng_state()
    torch.manual_seed(1)
    program = autoeidetic.slim(model, 0.5, image(), by=by, loader=data)
    torch.set_rng_state(before)
    assert program.report.parameters_after < 0.6 * program.report.parameters_before
    if by != "random":
        same = slim(model, 0.5, image(), by=by, loader=data)
        assert all(map(torch.equal, program.state_dict().values(), same.state_dict().values()))


def test_taylor_keeps_what_the_loss_needs() -> None:
    """Inputs of some channels are zero: the weights that read them are large and useless."""
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    with torch.no_grad():
        model[0].weight.zero_()  # type: ignore[operator, union-attr]
        model[0].bias.zero_()  # type: ignore[operator, union-attr]
        model[0].weight[:8, 0] = 1  # type: ignore[index, union-attr]
        model[0].weight[8:, 1] = 9  # type: ignore[index, union-attr]
    x = torch.randn(64, 4) * torch.tensor([1.0, 0, 1, 1])
    data = [(x, (x[:, 0] > 0).long())]
    for by, kept in (("l2", 9.0), ("taylor", 1.0)):
        program = slim(model, 0.5, torch.randn(2, 4), by=by, loader=data)
        assert program.state_dict()["0.weight"].max() == kept

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0] + torch.tensor([0.0, 1, 0, 0])), batch[1])

    other = slim(model, 0.5, torch.randn(2, 4), by="taylor", loader=data, loss=loss)
    assert other.state_dict()["0.weight"].max() == 9


@pytest.mark.parametrize("train", [False, True])
def test_statistics_are_estimated_again(train: bool) -> None:
    model, data = wide().train(train), batches()
    plain, fresh = slim(model, 0.5, image()), slim(model, 0.5, image(), loader=data)
    before, after = plain.state_dict(), fresh.state_dict()
    different = [name for name in before if not torch.equal(before[name], after[name])]
    assert different == [f"{n}.running_{kind}" for n in (1, 4) for kind in ("mean", "var")]
    x = torch.cat([inputs for inputs, _ in data])
    values = F.conv2d(x, after["0.weight"], after["0.bias"], padding=1)
    assert torch.allclose(values.mean((0, 2, 3)), after["1.running_mean"], atol=1e-4)


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, "half", None, float("nan"), float("inf")])
def test_bad_shares(keep: Any) -> None:
    model, x = wide(), image()
    with untouched(model), pytest.raises(InputError, match="is not a number above 0"):
        autoeidetic.slim(model, keep, x)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"of": "flops"}, "of='flops' is unknown"),
        ({"by": "magic"}, "there is no score 'magic'"),
        ({"by": "taylor"}, "needs data"),
        ({"by": "taylor", "loader": []}, "got no batch"),
        ({"loader": []}, "no batches"),
        ({"example_inputs": None}, "no example inputs"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    model, x = wide(), image()
    with untouched(model), pytest.raises(InputError, match=text):
        autoeidetic.slim(model, 0.5, **{"example_inputs": x, **options})


def test_bad_models() -> None:
    looking, x = Looking(), torch.randn(2, 6)
    with untouched(looking), pytest.raises(ExtractionError, match="looks at data"):
        autoeidetic.slim(looking, 0.5, x)
    with pytest.raises(NoParametersError):
        autoeidetic.slim(nn.ReLU(), 0.5, x)
    x = image()
    program = slim(wide(), 0.5, x)
    with untouched(program), pytest.raises(InputError, match="the model is a program"):
        autoeidetic.slim(program, 0.5, x)


# -- what comes out -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_programs_are_trained_further(mode: Any) -> None:
    model = wide()
    with mode():
        program = slim(model, 0.3, image())
    (x, targets), losses = batches()[0], []
    optimizer = torch.optim.Adam(program.parameters(), 0.01)
    with untouched(model):
        for _ in range(15):
            optimizer.zero_grad()
            loss = F.cross_entropy(program(x), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_frozen_models_are_trained_further() -> None:
    """For weights without gradient, torch runs an operator that has none."""
    bags = nn.EmbeddingBag(11, 8)
    model = nn.Sequential(bags, nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).requires_grad_(False)
    x = torch.randint(11, (3, 5))
    program = autoeidetic.slim(model, 0.5, x)
    program(x).sum().backward()
    assert all(parameter.grad is not None for parameter in program.parameters())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_types_and_copies() -> None:
    model = wide().bfloat16()
    program = slim(copy.deepcopy(model), 1.0, image().bfloat16())
    assert {value.dtype for value in program.state_dict().values()} == {torch.bfloat16}
    x = image(5).bfloat16()
    assert far(called(model.eval(), x), called(program, x)) < 0.1
