"""One context manager leaves no trace: each option keeps what it names, also after an error."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from autoeidetic.common.undisturbed import seed_generators, undisturbed


def numbers() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), np.random.rand()


class Odd(nn.Module):
    """Caches in its forward pass, and has a mode that train() does not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout()
        self.cache: dict[str, int] = {"kept": 1}
        self.register_buffer("count", torch.zeros(1))

    def train(self, mode: bool = True) -> Odd:
        self.trained = mode
        return super().train(mode)

    def forward(self) -> None:
        self.cache["new"] = 2
        self.attribute = 3
        self.count += 1  # type: ignore[operator]


@pytest.mark.parametrize("attributes", [False, True])
def test_modes_of_every_module_come_back(attributes: bool) -> None:
    model = Odd()
    model.inner.eval()

    def failing() -> None:
        with undisturbed(model, evaluate=True, attributes=attributes):
            assert [module.training for module in model.modules()] == [False, False]
            model.train()
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        failing()
    assert [module.training for module in model.modules()] == [True, False]


def test_attributes_come_back_and_train_is_not_called() -> None:
    model = Odd()
    cache = model.cache
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with undisturbed(model, evaluate=True, attributes=True, values=model.buffers()):
        assert not torch.backends.mha.get_fastpath_enabled()
        with torch.no_grad():
            model()
        assert not hasattr(model, "trained")
    assert model.cache is cache
    assert cache == {"kept": 1}
    assert not hasattr(model, "attribute")
    assert model.count.item() == 0
    assert torch.backends.mha.get_fastpath_enabled() == fast_path


@pytest.mark.parametrize(("generators", "kept"), [("cpu", 1), ("torch", 1), ("all", 3)])
def test_generators_go_on_as_if_nothing_had_been_drawn(generators: str, kept: int) -> None:
    seed_generators(5)
    expected = numbers()
    seed_generators(5)
    drawn = []
    for _ in range(2):
        with undisturbed(generators=generators, seed=9):  # type: ignore[arg-type]
            drawn.append(numbers()[:kept])
    assert drawn[0] == drawn[1] != expected[:kept]
    assert numbers()[:kept] == expected[:kept]


def test_more_generators() -> None:
    own = torch.Generator().manual_seed(1)
    expected = torch.rand((), generator=own.clone_state())
    with undisturbed(also=[own]):
        torch.rand((), generator=own)
    assert torch.equal(torch.rand((), generator=own), expected)


def test_the_state_of_torch() -> None:
    with torch.inference_mode(), undisturbed(trainable=True):
        assert not torch.is_inference_mode_enabled()
    with torch.autocast("cpu"), undisturbed(autocast=["cpu"], gradients=False):
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_warnings_are_ignored_on_request() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with undisturbed(quiet=True):
            warnings.warn("unheard", stacklevel=1)
        warnings.warn("heard", stacklevel=1)
    assert [str(each.message) for each in seen] == ["heard"]
