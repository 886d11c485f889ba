"""Settings that every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from autoeidetic.propagate.rules import registry


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write tests/golden/ anew from what the code does now; look at the difference",
    )


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Several workers share the machine; and what fixtures make has the bits of what tests make."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """A fixed seed; the number of threads does not stay changed."""
    torch.manual_seed(0)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def forget() -> Iterator[None]:
    """Rules registered in a test are gone after it."""
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)
