"""What several of the tests here need."""

import pytest

from mpicoll.algorithms import registry as registered
from tests.support.metering import Clock


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="compares with PyTorch where it is installed")


@pytest.fixture
def registry(monkeypatch):
    """A registry whose changes are forgotten."""
    copied = {name: dict(words) for name, words in registered._REGISTRY.items()}
    monkeypatch.setattr(registered, "_REGISTRY", copied)


@pytest.fixture
def clock(monkeypatch):
    """The time, for the meter, stands still until it is told otherwise."""
    made = Clock()
    for module in ("meter", "clock"):
        monkeypatch.setattr(f"mpicoll.train.monitor.{module}.perf_counter", made)
    return made
