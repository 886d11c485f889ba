"""Nothing is forgotten: the life of three tasks on one tiny model per hazard, on random
architectures and on real models, bit for bit.

``AUTOEIDETIC_EXAMPLES`` sets how many random architectures are tried (300), and
``AUTOEIDETIC_SEED`` which ones (0).
"""

from __future__ import annotations

import os

import architectures
import lives
import pytest
import timm
import torch
import torchvision
from architectures import Block
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from sweeps import every_fourth
from zoo import ZOO

import autoeidetic
from autoeidetic.errors import HeadError, UnhandledOperatorWarning

EXAMPLES = int(os.environ.get("AUTOEIDETIC_EXAMPLES", "300"))
FIRST_SEED = int(os.environ.get("AUTOEIDETIC_SEED", "0"))
SHARDS = 6

#: Models that cannot be converted, with the error that says so.
REFUSED = {
    "tied_embedding_output": (HeadError, "shares its weight with 'embedding'"),
}

#: Models that autograd cannot differentiate, before conversion as after it: they write in place
#: to what the backward pass needs. They get random gradients.
NOT_DIFFERENTIABLE = {
    "mutated_view",
    "norm_changes_input",
    "norm_result_dropped",
    "partial_conv",
    "set_slice",
}

#: Models with an operator that can only be handled by mixing everything it reads.
UNHANDLED = {"orthogonal_weight": "aten.linalg_householder_product"}

#: Models that cannot be divided at all: task 0 owns everything, later ones only have a head.
LOCKED = {
    "cosine_head": "the output layer divides its features by their common length",
    "distance_to_prototypes": "the output layer sums over all features without a weight",
}

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


@pytest.mark.parametrize("name", every_fourth(sorted(set(ZOO) - set(REFUSED))))
def test_zoo(name: str) -> None:
    model, inputs = ZOO[name]()
    options = {"gradients": lives.any_gradients} if name in NOT_DIFFERENTIABLE else {}
    if name in UNHANDLED:
        with pytest.warns(UnhandledOperatorWarning, match=UNHANDLED[name]):
            life = lives.live(model, inputs, **options)
    else:
        life = lives.live(model, inputs, **options)
    assert life.learned
    shares = life.net.capacity().tasks
    assert (shares[0] == 1) == (name in LOCKED), shares


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name: str) -> None:
    model, inputs = ZOO[name]()
    kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        autoeidetic.convert(model, inputs)


@pytest.mark.parametrize("name", sorted(NOT_DIFFERENTIABLE))
def test_not_differentiable_before_conversion_either(name: str) -> None:
    model, inputs = ZOO[name]()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lives.loss_of(lives.call(model, inputs)).backward()


def differentiable(model: torch.nn.Module, inputs: torch.Tensor) -> bool:
    """Some random networks write in place to what the backward pass needs."""
    try:
        lives.loss_of(model(inputs)).backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return False
    return True


def random_life(spec: architectures.Spec) -> lives.Life:
    torch.manual_seed(spec.seed)
    options = (
        {} if differentiable(*architectures.build(spec)) else {"gradients": lives.any_gradients}
    )
    return lives.live(*architectures.build(spec), **options)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_architectures(shard: int) -> None:
    informative = 0

    @seed(1000 * FIRST_SEED + shard)
    @settings(
        max_examples=-(-EXAMPLES // SHARDS),
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(architectures.architectures())
    def run(spec: architectures.Spec) -> None:
        nonlocal informative
        try:
            life = random_life(spec)
        except HeadError:  # a head whose weight serves all channels alike cannot be resized
            return
        note(str(life.net.capacity()))
        informative += 0 < life.net.capacity().tasks[0] < 1

    run()
    assert informative > 0.8 * EXAMPLES / SHARDS


def image(*blocks: Block, head: str = "pooled") -> architectures.Spec:
    return architectures.Spec("image", 12, blocks, head)


@pytest.mark.parametrize(
    "spec",
    [
        image(Block("twice", 3, 0, (Block("standardised_conv", 2, 2),)), head="conv"),
        image(Block("pixel_shuffle", 0, 2)),
        image(Block("branches", 0, 0, (Block("attention", 0, 0), Block("act", 0, 0)))),
        architectures.Spec("image", 4, (Block("act", 0, 0), Block("token_mixing", 0, 0),
              Block("gated", 0, 0, (Block("depthwise_conv", 3, 0), Block("act", 0, 0),
                                    Block("split", 0, 2, (Block("token_mixing", 0, 0),)))),
              Block("pixel_shuffle", 0, 0)), "pooled"),
        architectures.Spec("image", 8, (
            Block("residual", 0, 3, [
                Block("gated", 3, 0, [Block("token_mixing", 0, 1)]), Block("pixel_shuffle", 3, 0),
            ]),
            Block("gated", 2, 1, [
                Block("depthwise_conv", 3, 0), Block("depthwise_conv", 1, 2),
                Block("split", 2, 2, [Block("token_mixing", 0, 1)]),
            ]),
            Block("twice", 1, 0, [
                Block("gated", 1, 2, [Block("act", 0, 3)]),
                Block("split", 2, 3, [Block("depthwise_conv", 0, 2)]), Block("in_place", 2, 2),
            ]),
            Block("scale", 3, 2)), "flattened", 3),
        architectures.Spec("sequence", 4, (
            Block("grouped_conv", 1, 3),
            Block("residual", 0, 1, [Block("multi_head", 1, 1), Block("recurrence", 0, 2)]),
            Block("split", 2, 3, [Block("token_mixing", 1, 2), Block("multi_head", 1, 3),
                                  Block("sequence_norm", 3, 3)])), "conv", 1),
        architectures.Spec("sequence", 8, (
            Block("gated", 1, 1, [Block("token_mixing", 0, 1), Block("pool", 3, 0),
                                  Block("multi_head", 1, 2)]),
            Block("in_place", 1, 0), Block("residual", 3, 2, [Block("sequence_norm", 0, 2)]),
            Block("gated", 3, 2, [Block("linear", 3, 1), Block("sequence_norm", 1, 0),
                                  Block("conv", 0, 1)]),
            Block("split", 1, 0, [Block("sequence_norm", 2, 2)])), "pooled", 2),
        architectures.Spec("sequence", 4, (
            Block("gated", 0, 3, [Block("image_norm", 0, 1), Block("standardised_conv", 0, 1)]),
            Block("gated", 0, 3, [
                Block("pixel_shuffle", 2, 1), Block("act", 3, 0),
                Block("residual", 1, 0, [Block("glu", 0, 0), Block("glu", 2, 2),
                                         Block("image_gate", 3, 2)]),
            ]),
            Block("split", 1, 1, [Block("attention", 2, 2), Block("image_norm", 1, 2)]),
            Block("gated", 2, 0, [Block("attention", 3, 0)])), "pooled", 0),
    ],
    ids=["standardised_twice", "head_in_nested_module", "input_changed_in_place", "layout",
         "nested_in_nested", "written_through_a_view", "norms_in_norms", "nothing_owned"],
)  # fmt: skip
def test_found(spec: architectures.Spec) -> None:
    """The smallest random architectures that failed."""
    random_life(spec)


#: Real models at the smallest size they take.
TIMM = {
    "test_resnet": 64,
    "test_vit": 160,
    "test_convnext": 64,
    "test_efficientnet": 64,
    "test_nfnet": 64,
    "test_byobnet": 64,
    "test_mambaout": 64,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TIMM))
def test_timm(name: str) -> None:
    life = lives.live(timm.create_model(name), torch.randn(2, 3, TIMM[name], TIMM[name]))
    assert life.net.capacity().tasks[0] < 0.75


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("resnet18", 32), ("mobilenet_v3_small", 64)])
def test_torchvision(name: str, side: int) -> None:
    model = torchvision.models.get_model(name)
    life = lives.live(model, torch.randn(2, 3, side, side))
    assert life.net.capacity().tasks[0] < 0.75
