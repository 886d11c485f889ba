"""Settings that every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from autoeidetic.rules import registry


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write tests/golden/ anew from what the code does now; look at the difference",
    )


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """One thread, for several workers share the machine; a fixed seed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def forget() -> Iterator[None]:
    """Rules registered in a test are gone after it."""
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)
