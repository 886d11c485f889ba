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
from hypothesis import HealthCheck, given, note, seed, settings
from zoo import ZOO

import autoeidetic
from autoeidetic.errors import HeadError, UnhandledOperatorWarning

EXAMPLES = int(os.environ.get("AUTOEIDETIC_EXAMPLES", "300"))
FIRST_SEED = int(os.environ.get("AUTOEIDETIC_SEED", "0"))
SHARDS = 6

#: Models that cannot be converted, with the error that says so.
REFUSED = {
    "tied_embedding_output": (HeadError, "no layer makes the model's output"),
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
    "squared_weight": "every row of the computed weight needs every element of the parameter",
}

FOLDING = "finish_task changes requires_grad, and with it the kernel that torch.matmul picks"
PARAMETRISED = "fresh values for a parametrised module need copy.copy, which it refuses"
WAITING = {
    "channels_as_tokens": FOLDING,
    "log_softmax_head": 'task="all" normalises over the classes of all tasks together',
    "mixer_block": FOLDING,
    "orthogonal_weight": PARAMETRISED,
    "pixel_shuffle": "a nested pooling whose outputs no level owns is not evaluated by level",
    "spatial_gating_unit": FOLDING,
    "spectral_norm": PARAMETRISED,
    "token_mixing": FOLDING,
}

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


def expected(name: str) -> object:
    marks = [pytest.mark.xfail(strict=True, reason=WAITING[name])] if name in WAITING else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [expected(n) for n in sorted(ZOO) if n not in REFUSED])
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
