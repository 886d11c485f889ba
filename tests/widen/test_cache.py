"""What columns read of finished ones, kept from epoch to epoch."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoeidetic
from autoeidetic.errors import InputError, LearningWarning

from .test_widen import IMAGES, Conv, Life, mlp

DATA = torch.randn(24, 5, generator=torch.Generator().manual_seed(3))


def opened(model: nn.Module | None = None, x: Tensor = DATA[:4]) -> Life:
    """A widened network with an open task."""
    life = Life(model or mlp(), x).learn().widen()
    life.net.prepare_for_task(1, num_classes=3)
    life.net.train()
    return life


def epochs(net: Any, data: Tensor, count: int = 3, size: int = 5) -> list[Tensor]:
    """Losses of shuffled epochs, with one optimizer."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    losses = []
    for _ in range(count):
        for rows in torch.randperm(len(data), generator=generator).split(size):
            loss = net(data[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return losses


def forwards(net: Any) -> list[int]:
    """The batches that the first column runs for, from now on."""
    seen: list[int] = []
    net.columns[0].backbone.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    return seen


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize(("model", "data"), [(mlp, DATA), (Conv, IMAGES.repeat(3, 1, 1, 1))])
def test_the_same_training(model: Any, data: Tensor, disk: bool, tmp_path: Path) -> None:
    life = opened(model(), data[:4])
    plain = copy.deepcopy(life.net)
    with life.net.cache_columns(folder=tmp_path if disk else None) as cache:
        found = epochs(life.net, data)
    expected = epochs(plain, data)
    assert torch.allclose(torch.stack(found), torch.stack(expected), rtol=1e-3, atol=1e-5)
    assert cache.hits >= 2 * len(data)
    assert not list(tmp_path.iterdir())
    life.check()


def test_finished_columns_run_once() -> None:
    life = opened()
    seen = forwards(life.net)
    with life.net.cache_columns() as cache:
        epochs(life.net, DATA, 4)
    assert sum(seen) == len(DATA) + 1, "every row once, and one more alone"
    assert (cache.hits, cache.misses) == (3 * len(DATA), len(DATA))
    assert "75% of 96 rows" in str(cache)
    epochs(life.net, DATA, 1)
    assert sum(seen) == 2 * len(DATA) + 1, "after it they run again"


def test_bounded() -> None:
    life = opened()
    with life.net.cache_columns() as whole:
        epochs(life.net, DATA, 2)
    with life.net.cache_columns(size=whole.bytes / 2) as cache:
        epochs(life.net, DATA, 3)
    assert cache.bytes <= whole.bytes / 2
    assert 0 < cache.hits < 2 * len(DATA)


def test_data_that_never_come_again() -> None:
    life = opened()
    with life.net.cache_columns(size=500) as cache:
        with pytest.warns(LearningWarning, match="has come twice"):
            epochs(life.net, torch.randn(400, 5), 1)
        epochs(life.net, torch.randn(400, 5), 1)  # once is enough
    assert cache.hits == 0


def test_answers_are_computed() -> None:
    """In eval mode, without gradients and for gradients of inputs nothing comes from the cache."""
    life = opened()
    with life.net.cache_columns() as cache:
        life.net(DATA)
        known = cache.hits + cache.misses
        life.net.eval()(DATA)
        life.net.train()
        with torch.no_grad():
            life.net(DATA)
        x = DATA.clone().requires_grad_()
        life.net(x).sum().backward()
        assert x.grad is not None
        assert cache.hits + cache.misses == known
    life.check()


class MixesBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.body(x - x.mean(0)).relu())


def test_rows_that_depend_on_others() -> None:
    life = opened(MixesBatch())
    with life.net.cache_columns(), pytest.raises(InputError, match="other inputs of the batch"):
        life.net(DATA)
    life.net(DATA)


def test_other_shapes_and_types() -> None:
    life = opened(Conv(), IMAGES)
    with life.net.cache_columns() as cache:
        for size in (6, 8, 6, 8):
            life.net(torch.ones(4, 3, size, size))
        with torch.autocast("cpu", torch.bfloat16):
            life.net(torch.ones(4, 3, 6, 6))
            life.net(torch.ones(4, 3, 6, 6))
    assert (cache.hits, cache.misses) == (12, 12)


def test_copies() -> None:
    life = opened()
    with life.net.cache_columns():
        life.net(DATA)
        for net in (copy.deepcopy(life.net), pickle.loads(pickle.dumps(life.net))):
            assert net.newest.cache is None
            epochs(net, DATA, 1)


def test_train_task() -> None:
    life = opened()
    loader = [
        (DATA[rows], torch.zeros(len(rows), dtype=torch.long)) for rows in torch.arange(24).split(6)
    ]
    with life.net.cache_columns() as cache:
        life.net.train_task(loader, max_epochs=3, prune=False, progress=False)
    assert cache.hits >= 48
    life.net.finish_task()
    life.check()


@pytest.mark.parametrize("size", [0, -1, "1 GB", True])
def test_bad_sizes(size: Any) -> None:
    with pytest.raises(InputError, match="no number of bytes"), opened().net.cache_columns(size):
        pass


def test_bad_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot hold"):
        opened().net.cache_columns(folder=tmp_path / "file").__enter__()


def test_without_columns() -> None:
    net = autoeidetic.convert(mlp(), DATA[:4])
    with pytest.raises(InputError, match="widen"):
        net.cache_columns()
